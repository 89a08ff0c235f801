"""Says what the contract's tests need of a table and of everybody who touches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_tokens import SupportsCommitTokens
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    PrimaryTable,
    SinkTable,
    TableView,
)
from headgate.control_protocol.table_format import SupportsDelivery
from headgate.control_protocol.table_history import TableReader


class World(Protocol):
    """Provides an empty table, which sinks of any name open."""

    def open(self, sink: str = "sink") -> SinkTable:
        """Open another process' view of the table: it shares nothing with the views before it."""

    def write_file(self, number: int) -> WrittenFile:
        """Write a file that nobody has committed, identified by its number."""

    def visible_file_numbers(self) -> list[int]:
        """Return the numbers of the files that a reader of the table finds, sorted."""

    def recreate(self) -> None:
        """Drop the table, and make an empty one in its place."""

    def drop(self) -> None: ...

    def lose_next_answer(self, *, landed: bool) -> None:
        """Make the next commit of a table that is open now fail without an answer; ``landed`` says
        whether it took effect."""


class SecondaryWorld(World, Protocol):
    """Provides a table that may be delivered to for what another one decides."""

    def open(self, sink: str = "sink") -> SupportsDelivery: ...

    def write_unfit_file(self) -> WrittenFile:
        """Return a file that this table cannot take: of other columns, or of no writer's."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """Says what a record does to a key: its value, or (``None``) that its row goes."""

    key: int
    value: str | None
    offset: int
    partition: int = 0


class KeyedWorld(Protocol):
    """Provides an empty table whose rows are a whole number, their key, and a text."""

    def open(self, sink: str = "sink") -> SinkTable: ...

    def write_changes(self, *records: KeyChange) -> tuple[WrittenFile, ...]:
        """The files of one status that claims these records: rows, and key files (rule KEY-2)."""

    def read_rows(self) -> dict[int, str]:
        """What a reader of the table finds; each key once."""

    def lose_next_answer(self, *, landed: bool) -> None:
        """As of any ``World``."""


class KeyedSecondaryWorld(KeyedWorld, Protocol):
    """The table is delivered to for what another one decides."""

    def open(self, sink: str = "sink") -> SupportsDelivery: ...


class OthersWorld(World, Protocol):
    """Provides a world in which somebody who is not a sink writes to the table as well."""

    def append_foreign(self, number: int) -> None: ...

    def compact(self) -> None:
        """Rewrite all files; the rows stay."""


class RollbackWorld(OthersWorld, Protocol):
    def roll_back(self, snapshot_id: int) -> None:
        """Set the table back to the state that a view gave as its ``head``."""


class ExpiryWorld(RollbackWorld, Protocol):
    def expire_all(self) -> None:
        """Expire every state that neither the table nor the sink's tag needs."""

    def lose_history(self) -> None:
        """Delete what is left of the expired states, too."""


class ReaderWorld(World, Protocol):
    """The table has a column ``number``; each row of a file has the file's number there."""

    def reader(self, sink: str = "sink") -> TableReader:
        """Open the table as audit, status and check do."""


class OthersReaderWorld(OthersWorld, ReaderWorld, Protocol): ...


class TokenWorld(World, Protocol):
    """The table's files bear the mark of their commit (rule TOKEN-2)."""

    def open(self, sink: str = "sink") -> SupportsCommitTokens: ...

    def write_marked_file(self, token: str, number: int) -> WrittenFile:
        """Write a file that bears this commit token, as a participant does."""


class EvolutionWorld(World, Protocol):
    """The table gets new columns."""

    def open(self, sink: str = "sink") -> PrimaryTable: ...

    def columns(self) -> list[str]:
        """Return the names of the columns that a reader of the table finds, in their order."""


class BranchWorld(World, Protocol):
    def open(self, sink: str = "sink", branch: str = "main") -> SinkTable: ...

    def visible_file_numbers(self, branch: str = "main") -> list[int]: ...

    def append_foreign(self, number: int, branch: str = "main") -> None: ...


class TagWorld(ExpiryWorld, Protocol):
    def delete_tag(self, sink: str = "sink") -> None: ...

    def delete_claim_marker(self, sink: str = "sink") -> None:
        """Remove the sign in the table that the sink has been there."""


def record(epoch: int, number: int, offset: int = 0, *, sink: str = "sink") -> CommitRecord:
    return CommitRecord(
        sink=SinkName(sink),
        group_id="group",
        transaction=TransactionId(Epoch(epoch), TransactionNumber(number)),
        coordinator=Sender("member", f"incarnation-{epoch}"),
        offsets=Offsets({TopicPartition("trips", 0): offset, TopicPartition("trips", 7): 1}),
        topic_ids={"trips": TopicId("id-of-trips")},
        records=offset,
        valid_through_ms=1_700_000_000_000,
    )


def commit(
    table: SinkTable, base: TableView, record: CommitRecord, *files: WrittenFile
) -> CommitOutcome:
    return table.commit(CommitAttempt(base, record, files))


def require_landed(outcome: CommitOutcome) -> TableView:
    assert isinstance(outcome, Landed), outcome
    assert outcome.view.tag == outcome.view.head == outcome.snapshot_id
    return outcome.view


def claim_table(table: SinkTable, epoch: int = 1, *, sink: str = "sink") -> TableView:
    return require_landed(commit(table, table.read(), record(epoch, 0, sink=sink)))
