"""Reads the files that participants wrote as rows, turns them into COPY's text, removes them."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.fs as fs
import pyarrow.parquet as pq

from headgate.control_protocol.errors import ConfigurationError
from headgate_postgres.columns import is_headers

_ROWS_AT_ONCE = 50_000
_S3 = {
    "s3.endpoint": "endpoint_override",
    "s3.region": "region",
    "s3.access-key-id": "access_key",
    "s3.secret-access-key": "secret_key",
    "s3.session-token": "session_token",
}
_FAMILIES: Mapping[str, Callable[[pa.DataType], bool]] = {
    "whole numbers": pa.types.is_integer,
    "fractions": pa.types.is_floating,
    "decimals": pa.types.is_decimal,
    "texts": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    "bytes": lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
    "headers": is_headers,
}
_TEXT = csv.WriteOptions(include_header=False, quoting_style="needed")


def address(location: str) -> str:
    """Return ``table.location`` as files below it are named. Raises ``ConfigurationError``."""
    if location.startswith("/"):
        return f"file://{location.rstrip('/')}"
    if location.partition("://")[0] in ("file", "s3"):
        return location.rstrip("/")
    raise ConfigurationError(
        f"table.location cannot be {location!r} for a PostgreSQL table",
        "write where files may lie until they are committed: an absolute path that all "
        "participants share, file:///... or s3://...",
    )


class StagedFiles:
    """Where files lie until a commit has taken their rows."""

    def __init__(self, location: str, storage: Mapping[str, str]) -> None:
        self._files: fs.FileSystem = fs.LocalFileSystem()
        self._far = location.startswith("s3://")
        if self._far:
            named = {_S3[key]: value for key, value in storage.items() if key in _S3}
            self._files = fs.S3FileSystem(**named)

    def rows(
        self, path: str, columns: Mapping[str, pa.DataType], optional: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield these columns in these types; optional ones that the file lacks are null.

        Raises ``OSError``, ``pa.ArrowInvalid``, ``KeyError`` if the file has other columns.
        """
        with self._files.open_input_file(self._place(path)) as stream:
            file = pq.ParquetFile(stream)
            names = _names(path, file.schema_arrow, columns, optional)
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                arrays = (
                    _cast(batch.column(name), kind) if name in names else pa.nulls(len(batch), kind)
                    for name, kind in columns.items()
                )
                yield pa.RecordBatch.from_arrays(list(arrays), names=list(columns))

    def refuse(
        self, path: str, columns: Mapping[str, pa.DataType], optional: Collection[str] = ()
    ) -> None:
        """Check that ``rows`` could read these columns from the file. Raises as it does."""
        with self._files.open_input_file(self._place(path)) as stream:
            schema = pq.read_schema(stream)
        for name in _names(path, schema, columns, optional):
            written = schema.field(name).type
            if _family(written) != _family(columns[name]):
                raise pa.ArrowInvalid(f"{path} has {name} as {written}")

    def remove(self, paths: Sequence[str]) -> None:
        """Delete what nobody will ask for again; what cannot be removed stays."""
        for path in paths:
            with suppress(OSError):
                self._files.delete_file(self._place(path))

    def _place(self, path: str) -> str:
        return path.removeprefix("s3://") if self._far else unquote(urlparse(path).path)


def copy_text(rows: pa.RecordBatch) -> bytes:
    """Return rows as PostgreSQL reads them by COPY in the format CSV, to the last digit."""
    columns = [_text(column) for column in rows.columns]
    text = io.BytesIO()
    csv.write_csv(pa.RecordBatch.from_arrays(columns, names=rows.schema.names), text, _TEXT)
    return text.getvalue()


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ExtensionArray):  # UUIDs
        values = values.storage
    return values if values.type == kind else values.cast(kind)


def _names(
    path: str, written: pa.Schema, columns: Mapping[str, pa.DataType], optional: Collection[str]
) -> set[str]:
    """Return which of the columns the file has. Raises ``KeyError``."""
    found = set(written.names)
    if differ := (found - set(columns)) | (set(columns) - found - set(optional)):
        raise KeyError(f"{path} and the table differ in {', '.join(sorted(differ))}")
    return found


def _family(kind: pa.DataType) -> str:
    """Return the family of the type, whatever its width: a cast checks each value's width."""
    if isinstance(kind, pa.BaseExtensionType):  # UUIDs
        kind = kind.storage_type
    return next((name for name, holds in _FAMILIES.items() if holds(kind)), str(kind))


def _text(values: pa.Array) -> pa.Array:
    """Write bytes as hexadecimal digits, headers as JSON; Arrow writes all else."""
    if pa.types.is_fixed_size_binary(values.type):
        texts = [None if value is None else value.hex() for value in values.to_pylist()]
    elif pa.types.is_large_binary(values.type):
        texts = [None if value is None else f"\\x{value.hex()}" for value in values.to_pylist()]
    elif is_headers(values.type):
        texts = [None if value is None else _json(value) for value in values.to_pylist()]
    else:
        return values
    return pa.array(texts, pa.large_string())


def _json(headers: Sequence[Mapping[str, Any] | None]) -> str:
    told = [each and {"key": each["key"], "value": _base64(each["value"])} for each in headers]
    return json.dumps(told, ensure_ascii=False)


def _base64(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()
