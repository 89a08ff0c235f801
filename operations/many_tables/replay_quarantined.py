"""Gives tables back what the quarantine took in while they were suspended (rule SUSPEND-6).

The records are taken from the quarantine byte by byte, written as rows of the table, and added by
one catalog call on that table, which requires its tag and head as they were read. The record that
it leaves says how far the table has been given everything back; deliveries carry that on. So a
command that was interrupted, or a second one, finds what has been done; and the sink may keep
running.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from pyroaring import BitMap64

from headgate.config.multi_table_settings import RouteSettings
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import REPLAY, CommitRecord, Replayed
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import (
    DeletedMeanwhile,
    ReplayRefused,
    ReplayUnfit,
    RetryLater,
    WriteFailed,
)
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import (
    Batch,
    BatchFailed,
    BatchNeeds,
    BatchWritten,
    CommitAttempt,
    Landed,
    Lineage,
    Refused,
    TableView,
)
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.data_plane.quarantine.read_diverted_records import (
    MEANT_FOR,
    DivertedRecords,
)
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.data_plane.write.write_batch import write_chunk_around_poison
from headgate.kafka.push_source import Record
from headgate.operations.access.open_secondary_tables import (
    FilledTables,
    build_table_start,
    call_for_tables,
    commit_record_of_checked_view,
    create_and_change_tables,
    require_many_tables,
    require_unkeyed,
)
from headgate.operations.control.operator_claim import current_actor, try_announce_command
from headgate.runtime.sink_tables import SinkTables, open_tables_creating_nothing, require_catalog

PORTION = 10_000
"""How many records share one commit; of all others, only the offsets are in memory."""

_Offsets = Mapping[TopicPartition, BitMap64]

_TRIES = 5
_NAMED_MAX = 5
_FOLDER = "headgate"


@dataclass(frozen=True, slots=True)
class ReplayedTable:
    """What one table was given back.

    ``bad``: records that cannot be its rows, and stay in place; ``filtered``: those that the
    settings leave out; ``failed``: why it was given no more.
    """

    table: str
    records: int = 0
    bad: int = 0
    filtered: int = 0
    failed: str = ""

    def __str__(self) -> str:
        if self.failed:
            return f"{self.table}: {self.failed}"
        bad = f"; {self.bad} are bad records, and stay in the quarantine" if self.bad else ""
        left_out = f"; {self.filtered} are left out by shape.where" if self.filtered else ""
        return f"{self.table}: {count_of(self.records, 'record')} replayed{bad}{left_out}"


def require_replayable(settings: SinkSettings, names: Collection[str] = ()) -> None:
    """Raise ``ReplayUnfit`` if records cannot be replayed into these tables.

    That is so if the sink file does not say how a record becomes its row, and for tables with a
    key: what they have taken since may be newer. Raises ``ConfigurationError`` for a sink of one
    table.
    """
    require_catalog(settings)
    require_many_tables(settings.tables)
    if not settings.quarantine.keeps_rejected_records:
        raise ReplayUnfit(
            f"sink {settings.name} keeps no records in a quarantine", "there is nothing to replay"
        )
    if settings.transform:
        raise ReplayUnfit(
            f"sink {settings.name} has a transform, which says where records go: single ones "
            "cannot be replayed",
            "send the rows of the quarantine to the topic again",
        )
    kept = "; the quarantine keeps the records"
    require_unkeyed(settings.tables, names, "the quarantine holds", kept)


def replay_tables(settings: SinkSettings, names: Collection[str]) -> tuple[ReplayedTable, ...]:
    """Replay what the quarantine holds for these tables; without names, for all that are open.

    Without names a table that fails stops no other: its result says why. Raises ``ReplayUnfit``,
    ``ReplayRefused``, ``RetryLater`` if somebody else is faster, and what opening and writing
    tables raises. What was replayed by then is in the tables once.
    """
    require_replayable(settings, names)
    with open_tables_creating_nothing(settings) as tables:
        session = _ReplaySession(tables)
        given = call_for_tables(
            names,
            session.replayable_tables,
            session.replay_table,
            lambda name, why: ReplayedTable(name, failed=why),
        )
    done = " ".join(each.table for each in given if not each.failed)
    try_announce_command(settings, f"{REPLAY} {done}".rstrip())
    return given


class _ReplaySession:
    """The ledger and the quarantine as they were read, for one table after the other."""

    def __init__(self, tables: SinkTables) -> None:
        self._settings = tables.settings
        self._sink_tables = tables
        self._tables = FilledTables(tables)
        self._quarantine = self._open_quarantine(self._settings.quarantine.table)

    def replayable_tables(self) -> Iterator[str]:
        """Yield the tables with records in the quarantine that are neither suspended nor keyed."""
        suspended, routing = self._tables.suspension_reasons(), self._settings.tables.routing
        return (
            n
            for n in self._quarantine.destination_tables()
            if n not in suspended and not routing.key_of(n)
        )

    def replay_table(self, name: str) -> ReplayedTable:
        """Commit portion by portion; the table's own record says where the next one begins."""
        held: _Offsets = self._quarantine.offsets_for_table(name)
        given = ReplayedTable(name)
        while True:
            _, view = self._tables.require_table_as_sink_left_it(name)
            before = commit_record_of_checked_view(view).replayed
            left = self._quarantine.offsets_not_given_back(held, before)
            if not left:
                return given
            portion = _first_offsets(left, PORTION)
            until = _replayed_up_to(self._quarantine.record, before, portion, left)
            written = self._write_portion(name, portion)
            files = tuple(file for some in written.secondary_files.values() for file in some)
            records = sum(result.records for result in written.partitions.values())
            filtered = sum(result.filtered for result in written.partitions.values())
            self._commit_portion(view, files, records, until)
            given = replace(
                given,
                records=given.records + records,
                bad=given.bad + sum(map(len, portion.values())) - records - filtered,
                filtered=given.filtered + filtered,
            )
            held = self._refresh_offsets_requiring_portion(name, portion, held)

    def _refresh_offsets_requiring_portion(
        self, name: str, portion: _Offsets, held: _Offsets
    ) -> _Offsets:
        """Return what the quarantine holds by now.

        No call covers two tables: so what was deleted from it after the portion was read is noticed
        here. Raises ``DeletedMeanwhile``.
        """
        before, self._quarantine = (
            self._quarantine,
            self._open_quarantine(self._settings.quarantine.table),
        )
        if self._quarantine.head == before.head:
            return held
        there = self._quarantine.offsets_for_table(name)
        gone = {at: offsets - there.get(at, BitMap64()) for at, offsets in portion.items()}
        if count := sum(map(len, gone.values())):
            first = _first_offsets(gone, _NAMED_MAX).items()
            named = ", ".join(f"{at} offset {offset}" for at, some in first for offset in some)
            raise DeletedMeanwhile(
                f"{count_of(count, 'record was', 'records were')} deleted from the quarantine "
                f"during the replay, left as rows of {name} now: {named}",
                f"delete them there too: headgate delete SINK --table {name} --where ...",
            )
        return there

    def _open_quarantine(self, name: str) -> DivertedRecords:
        """Raises ``ReplayRefused``, ``ReplayUnfit``."""
        sink, branch = self._settings.name, self._settings.table.branch
        reader, view = self._tables.read_table(name)
        if view.lineage is not Lineage.CONTAINS_TAG or view.record is None:
            raise ReplayRefused(
                f"the quarantine {name} is not as sink {sink} left it: {view.lineage.value}",
                "start the sink: its error names what was done to the quarantine",
            )
        if view.record.primary != self._tables.ledger.uuid:
            raise ReplayRefused(
                f"the quarantine {name} was filled by another table than "
                f"{self._tables.ledger.table}",
                "start the sink: its error says what to do",
            )
        diverted = DivertedRecords(reader.table, sink, branch, view.record)
        if not diverted.has_table_column:
            raise ReplayUnfit(
                f"the quarantine {name} has no column {MEANT_FOR}: which table its records were "
                "meant for is not known",
                f"add the column {MEANT_FOR} (string); it is filled from then on",
            )
        return diverted

    def _write_portion(self, name: str, portion: _Offsets) -> BatchWritten:
        """Write the portion's records to files of the table.

        Raises ``WriteFailed``, ``StopSink``.
        """
        tables = self._sink_tables.with_settings(_settings_for_replay_into(self._settings, name))
        settings = tables.settings
        ranges = {at: OffsetRange(some.min(), some.max() + 1) for at, some in portion.items()}
        records: dict[TopicPartition, dict[int, Record]] = {at: {} for at in ranges}
        for record in self._quarantine.read_records(name, ranges):
            at = TopicPartition(record.topic, record.partition)
            if record.offset in portion[at]:
                records[at][record.offset] = record
        chunk = chunk_of([[some[n] for n in sorted(some)] for some in records.values()])
        folder = f"{_FOLDER}/{settings.name}/replayed-{uuid.uuid4().hex[:12]}"
        batch = Batch(
            number=1,
            transaction=self._quarantine.record.transaction,
            table=build_table_start(self._tables.ledger, folder),
            ranges=ranges,
            target_file_bytes=settings.coordinator.target_file_bytes,
            topic_ids=self._quarantine.record.topic_ids,
            folder=folder,
        )
        for _ in range(_TRIES):
            outcome = tables.build_planning().write_planned(
                batch,
                lambda plan: write_chunk_around_poison(plan, batch, chunk),  # noqa: B023
            )
            if not isinstance(outcome, BatchNeeds):
                break
            batch = create_and_change_tables(tables, batch, outcome)
        if isinstance(outcome, BatchFailed):
            raise outcome.fatal or WriteFailed(outcome.reason)
        if isinstance(outcome, BatchNeeds):
            raise WriteFailed(f"{name} did not take up the columns that records need")
        return outcome

    def _commit_portion(
        self,
        view: TableView,
        files: tuple[WrittenFile, ...],
        record_count: int,
        replayed_until: Replayed,
    ) -> None:
        """Commit in one call; retry if the sink has delivered to the table meanwhile.

        Nobody else replays.
        """
        table = self._tables.open_table(view.table)
        reason, before = "", commit_record_of_checked_view(view).replayed
        for _ in range(_TRIES):
            record = _with_replayed(
                commit_record_of_checked_view(view), record_count, replayed_until
            )
            outcome = table.commit(CommitAttempt(view, record, files))
            if isinstance(outcome, Landed):
                return
            reason = outcome.reason
            _, view = self._tables.require_table_as_sink_left_it(view.table)
            now = commit_record_of_checked_view(view)
            if now.replayed == replayed_until and not isinstance(outcome, Refused):
                return
            if now.replayed != before or not isinstance(outcome, Refused):
                break
        raise RetryLater(
            f"{view.table} did not get its records back: {reason}",
            "run the command again: replayed records are not written twice",
        )


def _replayed_up_to(
    quarantine: CommitRecord,
    before: Replayed | None,
    portion: _Offsets,
    left: _Offsets,
) -> Replayed:
    """Return how far the table has everything once it has this portion of what is ``left``.

    The quarantine is complete up to its own offsets, except for what is left then; and a replay by
    somebody else may have seen more of it.
    """
    known = before or Replayed(Offsets(), {})
    done = {at: offsets.max() + 1 for at, offsets in portion.items()}
    unfinished = {at for at, offsets in left.items() if offsets != portion.get(at)}
    offsets = {}
    for at, end in quarantine.offsets.items():
        topic_id = quarantine.topic_ids.get(at.topic)
        passed = known.next_offset_of(at, topic_id) if topic_id is not None else 0
        offsets[at] = max(passed, done.get(at, 0) if at in unfinished else end)
    return Replayed(Offsets(offsets), quarantine.topic_ids, known.expired)


def _with_replayed(
    record: CommitRecord, record_count: int, replayed_until: Replayed
) -> CommitRecord:
    """Return the record of the last delivery, with what was given back added."""
    return record.with_missed_rows_replayed(
        record_count, replayed_until, command=REPLAY, actor=current_actor()
    )


def _settings_for_replay_into(settings: SinkSettings, name: str) -> SinkSettings:
    """Send all records to the table that they were meant for, whatever today's routes say.

    What cannot be its row stays in the quarantine.
    """
    tables = replace(
        settings.tables,
        route=(RouteSettings(to=name, merge=True),),
        unmatched=Disposal.FAIL,
        atomic=False,
    )
    quarantine = replace(
        settings.quarantine,
        policy=Disposal.SKIP,
        tombstones=Disposal.SKIP,
        per_thousand_max=1_000,
        records_max=0,
        dead_letter_topic="",
    )
    return replace(settings, tables=tables, quarantine=quarantine)


def _first_offsets(offsets: _Offsets, count: int) -> _Offsets:
    """Return so many of them, in the order of partitions."""
    first: dict[TopicPartition, BitMap64] = {}
    for at, there in offsets.items():
        if some := there[:count]:
            first[at], count = some, count - len(some)
    return first
