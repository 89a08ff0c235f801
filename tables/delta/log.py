"""Reads a Delta table's log: the content of each version, and their order.

delta-rs knows the state that the log adds up to. Who committed what is read here, one file per
version, and only as many of them as a question needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from deltalake import Schema
from pyiceberg.io import FileIO

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import (
    is_filled_table_property,
    sink_in_summary,
    topic_ids_if_readable,
)
from headgate.control_protocol.errors import LogUnreadable, type_and_first_line_of
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.table_history import ForeignSnapshot, SinkCommit


@dataclass(frozen=True)
class LogEntry:
    """One version. ``text`` is the whole file at ``path``, a JSON object per line.

    Its properties raise ``LogUnreadable`` if it is not JSON.
    """

    version: int
    text: str
    path: str = ""

    @cached_property
    def commit_info(self) -> Mapping[str, Any]:
        """Return the writer's commitInfo; empty if there is none."""
        return next(iter(self._actions_named("commitInfo")), {})

    @property
    def commit_properties(self) -> Mapping[str, str]:
        """Return the string properties of the commitInfo, headgate's record among them."""
        return {key: value for key, value in self.commit_info.items() if isinstance(value, str)}

    @property
    def committed_ms_or_zero(self) -> int:
        at_ms = self.commit_info.get("timestamp")
        return at_ms if isinstance(at_ms, int) else 0

    @property
    def operation(self) -> str:
        return str(self.commit_info.get("operation", "")).lower()

    @property
    def is_restore(self) -> bool:
        return self.operation == "restore"

    @property
    def restored_version(self) -> int | None:
        """Return the version that was restored; ``None`` if it names a time instead."""
        version = (self.commit_info.get("operationParameters") or {}).get("version")
        return int(str(version)) if str(version).isdecimal() else None

    @cached_property
    def add_actions(self) -> list[Mapping[str, Any]]:
        return self._actions_named("add")

    @cached_property
    def remove_actions(self) -> list[Mapping[str, Any]]:
        return self._actions_named("remove")

    @property
    def schemas_and_partitions(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return columns and partitioning that it gave the table, as delta-rs writes them."""
        actions = self._actions_named("metaData")
        return [
            (Schema.from_json(each["schemaString"]).to_json(), tuple(each["partitionColumns"]))
            for each in actions
        ]

    def _actions_named(self, name: str) -> list[Mapping[str, Any]]:
        named = f'"{name}"'
        each_line = self.text.split("\n")  # splitlines() would cut at U+2028 within a value, too
        lines = (line for line in each_line if named in line[: len(named) + 8])
        try:
            actions = [json.loads(line).get(name) for line in lines]
        except ValueError as error:
            raise log_unreadable_error(self.path, error) from error
        return [action for action in actions if action is not None]


def log_unreadable_error(path: str, why: Exception) -> LogUnreadable:
    return LogUnreadable(
        f"the log of a Delta table is damaged: {path}: {type_and_first_line_of(why)}",
        "restore its files from a backup, or drop the table; docs/table-formats/delta.md says more",
    )


class Log:
    """The log below a table's location."""

    def __init__(self, files: FileIO, location: str) -> None:
        self._files = files
        self._folder = f"{location}/_delta_log"

    def read_entry(self, version: int) -> LogEntry | None:
        """Return one version; ``None`` if it does not exist, or was cleaned up."""
        path = f"{self._folder}/{version:020}.json"
        try:
            with self._files.new_input(path).open() as stream:
                return LogEntry(version, stream.read().decode(), path)
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise log_unreadable_error(path, error) from error

    def walk_effective_versions_back(self, head: int) -> Iterator[LogEntry | None]:
        """Yield versions from the head to the first, without those that a restore undid.

        The last one is ``None`` if the way back is not known any more.
        """
        return walk_effective_versions_back_with(self.read_entry, head)


def walk_effective_versions_back_with(
    read: Callable[[int], LogEntry | None], head: int
) -> Iterator[LogEntry | None]:
    """Do the same as ``Log.walk_effective_versions_back``, with any way to read an entry."""
    version: int | None = head
    while version is not None and version >= 0:
        entry = read(version)
        yield entry
        if entry is None:
            return
        before = entry.restored_version if entry.is_restore else version - 1
        version = before if before is not None and before < version else None
    if version is None:
        yield None


# Reduces the versions of a Delta log to what matters, so that a full scan keeps no texts.
#
# A version names every file that it adds, with statistics of every column. Audits only need who
# committed, how many rows it added and removed, and which of its files are live.


_NOTHING_CHANGES = "replace"


@dataclass(slots=True)
class Digest:
    """One version. ``properties``: the properties that form commit records.

    ``replaces``: it does not change any row of the table. ``newly_marked_rows``: those of its
    deletion vectors, less those of the vectors that it removes. ``removed_rows`` grows while older
    versions are looked at.
    """

    version: int
    committed_ms: int
    properties: Mapping[str, str]
    operation: str
    replaces: bool
    added_files: int
    added_rows: int
    newly_marked_rows: int
    removed_rows: int = 0

    def to_sink_commit(self, record: CommitRecord) -> SinkCommit:
        """Return the version as the sink's own."""
        return SinkCommit(
            snapshot_id=self.version,
            committed_ms=self.committed_ms,
            record=record,
            added_records=self.added_rows,
            added_files=self.added_files,
        )

    def to_foreign_snapshot(self, own: SinkName) -> ForeignSnapshot:
        """Return the version as somebody else's."""
        sink = sink_in_summary(self.properties)
        sink = None if sink == own else sink
        fewer = max(0, self.removed_rows - self.added_rows)  # of a rewrite: marked before, left out
        return ForeignSnapshot(
            snapshot_id=self.version,
            operation=_NOTHING_CHANGES if self.replaces else self.operation,
            added_records=0 if self.replaces else self.added_rows,
            deleted_records=fewer if self.replaces else self.removed_rows,
            row_deletes=0 if self.replaces else max(self.newly_marked_rows, -fewer),
            sink=sink,
            topic_ids=topic_ids_if_readable(sink, self.properties) if sink else {},
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
    def has_reached_first_version(self) -> bool:
        """Return whether the oldest version taken is the table's first."""
        return bool(self.digests) and not self.digests[-1].version

    def add_next_older_entry(self, entry: LogEntry) -> None:
        added, removed = entry.add_actions, entry.remove_actions
        changes = any(action.get("dataChange", True) for action in (*added, *removed))
        digest = Digest(
            version=entry.version,
            committed_ms=entry.committed_ms_or_zero,
            properties={
                k: v for k, v in entry.commit_properties.items() if _is_commit_record_property(k)
            },
            operation=entry.operation,
            replaces=entry.is_restore or not changes,
            added_files=len(added),
            added_rows=sum(map(row_count_or_zero, added)),
            newly_marked_rows=sum(map(_deletion_vector_row_count, added))
            - sum(map(_deletion_vector_row_count, removed)),
        )
        for add in added:
            self._note_added_file(add, entry.version)
        if not entry.is_restore:  # what it removes came with versions that are passed over
            for remove in removed:
                self._note_removed_file(remove, digest)
        self.digests.append(digest)

    def _note_added_file(self, add: Mapping[str, Any], version: int) -> None:
        for digest in self._removed_by.pop(add["path"], ()):
            digest.removed_rows += row_count_or_zero(add)
        path = unquote(add["path"])
        if path in self._sought:
            self._sought.discard(path)
            self.brought[path] = version

    def _note_removed_file(self, remove: Mapping[str, Any], digest: Digest) -> None:
        """Count removed rows: a remove need not have the count, but an older version's add did."""
        if rows := row_count_or_zero(remove):
            digest.removed_rows += rows
        else:
            self._removed_by.setdefault(remove["path"], []).append(digest)


def row_count_or_zero(action: Mapping[str, Any]) -> int:
    """Return the count in its statistics; 0 where they have none."""
    return int(json.loads(action.get("stats") or "{}").get("numRecords", 0))


def _is_commit_record_property(name: str) -> bool:
    """Keep only record properties: a ledger's versions also repeat which tables it has filled."""
    return name.startswith("headgate.") and not is_filled_table_property(name)


def _deletion_vector_row_count(action: Mapping[str, Any]) -> int:
    return int((action.get("deletionVector") or {}).get("cardinality", 0))
