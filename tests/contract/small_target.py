"""A target that was written only for the contract: a table in memory, as small as one can be.

It keeps the contracts of every table, of secondary tables, of ledgers and of keys. Each step that
an author may get wrong is a method of its own, which ``broken_small`` replaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Lock

from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.commit_record_codec import (
    decode_record,
    encode_record,
    filled_properties_to_remove,
    filled_properties_to_set,
    filled_table_uuids,
    topic_ids_if_readable,
)
from headgate.control_protocol.errors import KeyInTwoPartitions, TableChanged, TableMissing
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    Lineage,
    Refused,
    TableView,
    Unknown,
)
from headgate.control_protocol.table_format import files_with_transaction_ranks
from headgate.control_protocol.testing.contract.world import KeyChange

KeyedRows = Mapping[int, KeyChange]


@dataclass(frozen=True)
class Version:
    """A state of the table. ``said``: of each sink the version of its newest commit, and its
    record; ``rows``: of a table with a key."""

    files: tuple[WrittenFile, ...] = ()
    said: Mapping[str, tuple[int, Mapping[str, str]]] = field(default_factory=dict)
    filled: Mapping[str, str] = field(default_factory=dict)
    rows: KeyedRows = field(default_factory=dict)


class Server:
    """The table, which all processes share. ``contents`` are those of files, by their paths."""

    def __init__(self) -> None:
        self.made = count(1)
        self.contents: dict[str, tuple[KeyChange, ...]] = {}
        self.lies: list[bool] = []
        self.lock = Lock()
        self.create()

    def create(self) -> None:
        self.uuid, self.versions, self.exists = f"uuid-{next(self.made)}", [Version()], True

    def state(self) -> tuple[str, int, Version]:
        """Return the table's UUID, and its newest version."""
        if not self.exists:
            raise TableMissing("there is no such table")
        return self.uuid, len(self.versions) - 1, self.versions[-1]

    def put(self, uuid: str, number: int, version: Version) -> bool:
        """Compare and set: add this version, unless there is one of this number."""
        with self.lock:
            if (uuid, number) != (self.uuid, len(self.versions)):
                return False
            self.versions.append(version)
            return True


class SmallTable:
    """``SecondaryTable``, with a key or without."""

    def __init__(self, server: Server, sink: SinkName, *, keyed: bool = False) -> None:
        self.server, self.sink, self.keyed = server, sink, keyed

    def read(self) -> TableView:
        return self.view(*self.server.state())

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        try:
            uuid, head, newest = self.server.state()
        except TableMissing as error:
            return Unknown(f"nothing was sent: {error}")
        if not self.as_it_was(self.view(uuid, head, newest), attempt.base):
            return Refused("others have committed since")
        self.require_there(attempt.files)
        return self.send(uuid, head + 1, self.next(newest, head + 1, attempt))

    def require_files_fit_and_exist(self, files: Sequence[WrittenFile]) -> None:
        for file in files:
            if file.detail:
                raise TableChanged(f"{file.path} is no file of this table's writers")
        self.require_there(files)

    def close(self) -> None:
        """Nothing is held."""

    # ---------------------------------------------------------------------------------- its steps

    def view(self, uuid: str, head: int, version: Version) -> TableView:
        tag, said = version.said.get(self.sink, (None, {}))
        record = decode_record(self.sink, said)
        return TableView(
            table="lake.small",
            uuid=uuid,
            location="memory://small",
            schema_id=0,
            spec_id=0,
            head=head or None,
            tag=tag,
            record=record,
            lineage=Lineage.CONTAINS_TAG if record else Lineage.FRESH,
            branch_record=record,
            others={
                SinkName(sink): topic_ids_if_readable(SinkName(sink), their_record)
                for sink, (_, their_record) in version.said.items()
                if sink != self.sink
            },
            filled=filled_table_uuids(self.sink, version.filled),
        )

    def require_there(self, files: Sequence[WrittenFile]) -> None:
        for file in files:
            if file.path not in self.server.contents:
                raise TableChanged(f"{file.path} is not there")

    def as_it_was(self, now: TableView, base: TableView) -> bool:
        return (now.uuid, now.head, now.tag) == (base.uuid, base.head, base.tag)

    def send(self, uuid: str, number: int, version: Version) -> CommitOutcome:
        """Set the version, or lose the answer as the world says."""
        lie = self.server.lies.pop() if self.server.lies else None
        if lie is not False and not self.server.put(uuid, number, version):
            return Refused("others were first")
        if lie is not None:
            return Unknown("the answer was lost")
        return Landed(number, self.view(uuid, number, version))

    def next(self, before: Version, number: int, attempt: CommitAttempt) -> Version:
        rows, counts = self.resolve(before.rows, attempt) if self.keyed else ({}, None)
        record = replace(attempt.record, keys=counts)
        return Version(
            (*before.files, *attempt.files),
            {**before.said, self.sink: (number, encode_record(record))},
            self.filled_after(before.filled, attempt),
            rows,
        )

    def filled_after(self, before: Mapping[str, str], attempt: CommitAttempt) -> Mapping[str, str]:
        """Return what a ledger remembers once the attempt has landed (rule LEDGER-2)."""
        added = filled_properties_to_set(attempt.record, before)
        gone = filled_properties_to_remove(self.sink, attempt.forgets, added, before)
        return {name: uuid for name, uuid in {**before, **added}.items() if name not in gone}

    def resolve(self, before: KeyedRows, attempt: CommitAttempt) -> tuple[KeyedRows, KeyCounts]:
        """Return a keyed table's rows after the attempt, and what its records came to (KEY-3,
        KEY-10)."""
        last: dict[int, KeyChange] = {}
        changes = self.in_order(attempt)
        for change in changes:
            self.refuse_two_partitions(change, last.get(change.key) or before.get(change.key))
            last[change.key] = change
        after = {**before, **last}
        became = [self.became(change, before) for change in last.values()]
        counts = {name: became.count(name) for name in set(became)}
        rows = {key: change for key, change in after.items() if change.value is not None}
        return rows, KeyCounts(superseded=len(changes) - len(last), **counts)

    def in_order(self, attempt: CommitAttempt) -> list[KeyChange]:
        """Return the changes, oldest first: by transactions, and by offsets within one."""
        changes = [
            (number, change.offset, change)
            for file, number in files_with_transaction_ranks(attempt)
            for change in self.server.contents[file.path]
        ]
        return [change for *_, change in sorted(changes, key=lambda each: each[:2])]

    def refuse_two_partitions(self, change: KeyChange, before: KeyChange | None) -> None:
        """Rule KEY-8."""
        if before and before.partition != change.partition:
            raise KeyInTwoPartitions(f"{change} has the key of {before}")

    def became(self, change: KeyChange, before: KeyedRows) -> str:
        if change.value is None:
            return "deleted" if change.key in before else "absent"
        return "updated" if change.key in before else "inserted"


class SmallWorld:
    """The contract's world over it; a file's content is the change of one key, its number."""

    keyed = False

    def __init__(self) -> None:
        self.server = Server()

    def open(self, sink: str = "sink") -> SmallTable:
        return SmallTable(self.server, SinkName(sink), keyed=self.keyed)

    def write_file(self, number: int) -> WrittenFile:
        return self._write(FileKind.ROWS, KeyChange(number, "row", number))

    def write_unfit_file(self) -> WrittenFile:
        return replace(self.write_file(0), detail=b"what no writer says")

    def visible_file_numbers(self) -> list[int]:
        _, _, newest = self.server.state()
        return sorted(c.key for file in newest.files for c in self.server.contents[file.path])

    def write_changes(self, *records: KeyChange) -> tuple[WrittenFile, ...]:
        rows = [record for record in records if record.value is not None]
        gone = [record for record in records if record.value is None]
        kinds = ((FileKind.ROWS, rows), (FileKind.KEYS, gone))
        return tuple(self._write(kind, *changes) for kind, changes in kinds if changes)

    def read_rows(self) -> dict[int, str]:
        _, _, newest = self.server.state()
        return {key: change.value or "" for key, change in newest.rows.items()}

    def recreate(self) -> None:
        self.server.create()

    def drop(self) -> None:
        self.server.exists = False

    def lose_next_answer(self, *, landed: bool) -> None:
        self.server.lies.append(landed)

    def _write(self, kind: FileKind, *changes: KeyChange) -> WrittenFile:
        path = f"memory://small/{len(self.server.contents)}"
        self.server.contents[path] = changes
        return WrittenFile(path, len(changes), 100 * len(changes), kind)


class SmallKeyedWorld(SmallWorld):
    """Its table has a key."""

    keyed = True
