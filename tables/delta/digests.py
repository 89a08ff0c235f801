"""Reduces the versions of a Delta log to what matters, so that a full scan keeps no texts.

A version names every file that it adds, with statistics of every column. Audits only need who
committed, how many rows it added and removed, and which of its files are live.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from headgate.control_protocol.filled_tables import is_filled_property
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.record import CommitRecord
from headgate.control_protocol.record_codec import sink_of, topics_of
from headgate.control_protocol.table_history import ForeignSnapshot, SinkCommit
from headgate.tables.delta.log import LogEntry

_NOTHING_CHANGES = "replace"


@dataclass(slots=True)
class Digest:
    """One version. ``properties``: the properties that form commit records.

    ``replaces``: it does not change any row of the table. ``removed_rows`` grows while older
    versions are looked at.
    """

    version: int
    committed_ms: int
    properties: Mapping[str, str]
    operation: str
    replaces: bool
    added_files: int
    added_rows: int
    row_deletes: int
    removed_rows: int = 0

    def commit(self, record: CommitRecord) -> SinkCommit:
        """Return the version as the sink's own."""
        return SinkCommit(
            snapshot_id=self.version,
            committed_ms=self.committed_ms,
            record=record,
            added_records=self.added_rows,
            added_files=self.added_files,
        )

    def foreign(self, own: SinkName) -> ForeignSnapshot:
        """Return the version as somebody else's."""
        sink = sink_of(self.properties)
        sink = None if sink == own else sink
        return ForeignSnapshot(
            snapshot_id=self.version,
            operation=_NOTHING_CHANGES if self.replaces else self.operation,
            added_records=0 if self.replaces else self.added_rows,
            deleted_records=0 if self.replaces else self.removed_rows,
            row_deletes=0 if self.replaces else self.row_deletes,
            sink=sink,
            topic_ids=topics_of(sink, self.properties) if sink else {},
        )


class Walk:
    """Takes versions one by one, newest first; ``digests`` has them in that order.

    ``live``: the files, with the version that added them in ``brought``.
    """

    def __init__(self, live: Iterable[str] = ()) -> None:
        self.digests: list[Digest] = []
        self.brought: dict[str, int] = {}
        self._sought = set(live)
        self._removed_by: dict[str, list[Digest]] = {}

    @property
    def complete(self) -> bool:
        """Return whether the oldest version taken is the table's first."""
        return bool(self.digests) and not self.digests[-1].version

    def take(self, entry: LogEntry) -> None:
        added, removed = entry.added, entry.removed
        changes = any(action.get("dataChange", True) for action in (*added, *removed))
        digest = Digest(
            version=entry.version,
            committed_ms=entry.committed_ms,
            properties={k: v for k, v in entry.properties.items() if _is_of_record(k)},
            operation=entry.operation,
            replaces=entry.restores or not changes,
            added_files=len(added),
            added_rows=sum(map(rows_of, added)),
            row_deletes=sum(map(_row_deletes, added)),
        )
        for add in added:
            self._added(add, entry.version)
        for remove in removed:
            self._removed(remove, digest)
        self.digests.append(digest)

    def _added(self, add: Mapping[str, Any], version: int) -> None:
        for digest in self._removed_by.pop(add["path"], ()):
            digest.removed_rows += rows_of(add)
        path = unquote(add["path"])
        if path in self._sought:
            self._sought.discard(path)
            self.brought[path] = version

    def _removed(self, remove: Mapping[str, Any], digest: Digest) -> None:
        """Count removed rows: a remove need not have the count, but an older version's add did."""
        if rows := rows_of(remove):
            digest.removed_rows += rows
        elif not digest.replaces:
            self._removed_by.setdefault(remove["path"], []).append(digest)


def rows_of(action: Mapping[str, Any]) -> int:
    """Return the count in its statistics."""
    return int(json.loads(action.get("stats") or "{}").get("numRecords", 0))


def _is_of_record(name: str) -> bool:
    """Keep only record properties: a ledger's versions also repeat which tables it has filled."""
    return name.startswith("headgate.") and not is_filled_property(name)


def _row_deletes(added: Mapping[str, Any]) -> int:
    return int((added.get("deletionVector") or {}).get("cardinality", 0))
