"""Tries on an empty table of the same protocol whether delta-rs commits to it.

Nobody else knows: which features it supports changes from version to version. Without the trial a
sink would find out at its first commit, and be refused there for ever.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, __version__

from headgate.control_protocol.errors import type_and_first_line_of
from headgate.tables.storage.file_store import Folder

_VERSION = re.compile(r"_delta_log/(\d{20})\.(?:json|checkpoint\..*parquet)")
_READER_NAMES, _WRITER_NAMES = 3, 7
"""Protocols of these versions name their features, even if there are none."""

_PLAIN = '{"type":"struct","fields":[{"name":"a","type":"string","nullable":true,"metadata":{}}]}'


def protocol_refusal_or_empty(table: DeltaTable) -> str:
    """Return why delta-rs commits to no table of this protocol and metadata, or nothing."""
    supported = table.protocol()
    protocol: dict[str, Any] = {
        "minReaderVersion": supported.min_reader_version,
        "minWriterVersion": supported.min_writer_version,
    }
    if supported.reader_features or supported.min_reader_version == _READER_NAMES:
        protocol["readerFeatures"] = sorted(supported.reader_features or ())
    if supported.writer_features or supported.min_writer_version == _WRITER_NAMES:
        protocol["writerFeatures"] = sorted(supported.writer_features or ())
    metadata = table.metadata()
    return _trial_commit_refusal_or_empty(
        json.dumps(protocol),
        table.schema().to_json(),
        tuple(metadata.partition_columns),
        tuple(sorted(metadata.configuration.items())),
    )


def newest_protocol_refusal_or_empty(folder: Folder) -> str:
    """Return why delta-rs commits to no table of the protocol that a log names, or nothing.

    For a log that it does not read: that may be damage, and it may be a protocol that is newer.
    Raises ``OSError``.
    """
    protocol = _newest_protocol_of(folder)
    return _trial_commit_refusal_or_empty(json.dumps(protocol), _PLAIN, (), ()) if protocol else ""


def delta_library_version() -> str:
    return f"delta-rs {__version__}"


@lru_cache(maxsize=128)
def _trial_commit_refusal_or_empty(
    protocol: str,
    schema: str,
    partition_by: tuple[str, ...],
    properties: tuple[tuple[str, str | None], ...],
) -> str:
    metadata = {
        "id": "trial",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": partition_by,
        "configuration": dict(properties),
        "createdTime": 0,
    }
    lines = (f'{{"protocol":{protocol}}}', json.dumps({"metaData": metadata}))
    try:
        with TemporaryDirectory(prefix="headgate-delta-") as folder:
            log = Path(folder) / "_delta_log"
            log.mkdir()
            (log / f"{0:020}.json").write_text("\n".join(lines))
            return _try_commit_in(folder, partition_by)
    except OSError:  # no place for the trial: the first commit shows it
        return ""


def _try_commit_in(folder: str, partition_by: Iterable[str]) -> str:
    try:
        table = DeltaTable(folder)
        table.create_write_transaction(
            [],
            "append",
            table.schema(),
            partition_by=list(partition_by),
            commit_properties=CommitProperties(
                max_commit_retries=0, app_transactions=[Transaction("trial", 1, 0)]
            ),
        )
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it says, a sink could not commit
        return type_and_first_line_of(error)
    return ""


def _newest_protocol_of(folder: Folder) -> Mapping[str, Any] | None:
    """Return the newest protocol of a log, as far as its files can be read."""
    names = {
        name: match[1]
        for name, _ in folder.files_below("_delta_log")
        if (match := _match_log_file(name))
    }
    for name in sorted(names, key=lambda name: (names[name], name.endswith("json")), reverse=True):
        for protocol in _read_protocols(folder, name):
            return protocol
    return None


def _match_log_file(name: str) -> re.Match[str] | None:
    return _VERSION.fullmatch(name)


def _read_protocols(folder: Folder, name: str) -> Iterator[Mapping[str, Any]]:
    data = folder.read(name)
    try:
        if name.endswith(".parquet"):
            protocols = pq.read_table(io.BytesIO(data), columns=["protocol"])[
                "protocol"
            ].to_pylist()
        else:
            protocols = [
                json.loads(line).get("protocol") for line in data.splitlines() if line.strip()
            ]
    except (OSError, ValueError, KeyError, AttributeError):  # damaged, or of another form
        return
    for protocol in protocols:
        if protocol:
            yield {key: value for key, value in protocol.items() if value is not None}
