"""The files that participants wrote: read as rows, turned into COPY's text, removed."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.fs as fs
import pyarrow.parquet as pq

from headgate.control_protocol.errors import ConfigurationError

_ROWS_AT_ONCE = 50_000
_S3 = {
    "s3.endpoint": "endpoint_override",
    "s3.region": "region",
    "s3.access-key-id": "access_key",
    "s3.secret-access-key": "secret_key",
    "s3.session-token": "session_token",
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

    def rows(self, path: str, columns: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """Yield these columns, as these types. Raises ``OSError``, ``pa.ArrowInvalid``,
        ``KeyError`` where the file has others."""
        with self._files.open_input_file(self._place(path)) as stream:
            file = pq.ParquetFile(stream)
            if missing := set(columns) ^ set(file.schema_arrow.names):
                raise KeyError(f"{path} and the table differ in {', '.join(sorted(missing))}")
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                yield pa.RecordBatch.from_arrays(
                    [_cast(batch.column(name), kind) for name, kind in columns.items()],
                    names=list(columns),
                )

    def remove(self, paths: Sequence[str]) -> None:
        """Delete what nobody will ask for again; what cannot be removed stays."""
        for path in paths:
            with suppress(OSError):
                self._files.delete_file(self._place(path))

    def _place(self, path: str) -> str:
        return path.removeprefix("s3://") if self._far else unquote(urlparse(path).path)


def copy_text(rows: pa.RecordBatch) -> bytes:
    """Return rows as PostgreSQL reads them by COPY in the format CSV, to the last digit."""
    columns = [_hexadecimal(column) for column in rows.columns]
    text = io.BytesIO()
    csv.write_csv(pa.RecordBatch.from_arrays(columns, names=rows.schema.names), text, _TEXT)
    return text.getvalue()


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ExtensionArray):  # UUIDs
        values = values.storage
    return values if values.type == kind else values.cast(kind)


def _hexadecimal(values: pa.Array) -> pa.Array:
    if pa.types.is_fixed_size_binary(values.type):
        texts = [None if value is None else value.hex() for value in values.to_pylist()]
    elif pa.types.is_large_binary(values.type):
        texts = [None if value is None else f"\\x{value.hex()}" for value in values.to_pylist()]
    else:
        return values
    return pa.array(texts, pa.large_string())
