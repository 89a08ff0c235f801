"""The table of a query's sink, as the driver reads it and commits to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Self

from headgate.config.catalog_checks import require_usable_iceberg_catalog
from headgate.config.keyed_table_checks import find_added_keyed_partitions
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import (
    CommitRecord,
    offset_metadata_of_table,
    require_rollback_finished,
)
from headgate.control_protocol.errors import (
    BatchTooOld,
    ConfigurationError,
    KeyedPartitionsAdded,
    QuerySuperseded,
    SinkNameTaken,
    TopicRecreated,
    Unreachable,
)
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Sender,
    TopicId,
    TopicPartition,
    TransactionId,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import (
    Batch,
    CommitAttempt,
    Landed,
    PrimaryTable,
    SourceTopics,
    TableView,
)
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.control_protocol.spark_batch_decision import (
    QUERY_TOPIC,
    Done,
    ProposedBatch,
    QueryRun,
    Take,
    decide_batch,
    first_claim_of_query,
    next_transaction,
    record_of_batch,
    require_not_superseded,
    without_query_offset,
)
from headgate.control_protocol.table_format import SupportsCatalog, Use
from headgate.coordinator.recovery import (
    record_to_resume_from,
    require_not_stopped,
    require_sources_unshared,
    require_table_not_recreated,
)
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.files.format_choice import require_parquet_for_keyed_table
from headgate.data_plane.spark.query_records import RecordsWriter
from headgate.data_plane.spark.query_rows import RowsWriter, RowsWritten
from headgate.kafka.group_offsets import OffsetCopies
from headgate.participant.settings import Distribution, UnknownFields
from headgate.runtime.sink_tables import SinkTables
from headgate.runtime.write_planning import build_source_plan

LOOK_AGAIN_S = 3.0
_ATTEMPTS_MAX = 50
_PAUSE_S = 0.2
_DISTRIBUTES = (Distribution.HASH, Distribution.RANGE)

_log = redacted_logger(__name__)


@dataclass(frozen=True, slots=True)
class TableNow:
    """The table as it was read, with the record to go on from."""

    view: TableView
    record: CommitRecord | None

    def next_transaction(self, sender: Sender) -> TransactionId:
        known = (self.view.record, self.view.branch_record)
        newest = max((each.transaction for each in known if each), default=None)
        return next_transaction(self.record, newest, sender)


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch to be written: what it is, how, and on which table."""

    proposed: ProposedBatch
    now: TableNow
    take: Take
    plan: WriterPlan
    batch: Batch
    begun_s: float
    is_numbered: bool
    """Whether its number places it (QUERY-9), and orders its rows (QUERY-23)."""

    def rows_writer(self, coordinate_columns: Mapping[str, str]) -> RowsWriter:
        """Return what writes its rows, whose records the columns of ``coordinate_columns`` name."""
        ranges = self._ranges_from(self.proposed.begin)
        number = self.proposed.number if self.is_numbered else None
        return RowsWriter(self.plan, self.batch, self.take.trim, coordinate_columns, ranges, number)

    def records_writer(self) -> RecordsWriter:
        """Return what decodes and writes its records (QUERY-26)."""
        begin, trim = self.proposed.begin, self.take.trim
        ranges = self._ranges_from({at: max(n, trim.get(at, n)) for at, n in begin.items()})
        return RecordsWriter(self.plan, replace(self.batch, ranges=ranges), begin)

    def _ranges_from(
        self, begins: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetRange]:
        end = self.proposed.end
        return {at: OffsetRange(n, max(n, end[at])) for at, n in begins.items() if at in end}


def require_settings_fit_query(settings: SinkSettings, *, records: bool = False) -> None:
    """Raise ``ConfigurationError`` for what a query decides itself, or cannot do.

    ``records``: it hands records over, and the sink file says what a row is.
    """
    if QUERY_TOPIC in settings.source.topics:
        raise ConfigurationError(
            f"sink {settings.name}: a topic cannot be called {QUERY_TOPIC} where a Spark query "
            "writes, for the query is stored by that name",
            "read a topic of another name",
        )
    unfit = {
        "tables": bool(settings.tables),
        "transform": bool(settings.transform),
        "quarantine": settings.quarantine.keeps_rejected_records,
        "changes.history" if settings.changes.history else "changes.on_delete": (
            settings.changes.marks_deleted_rows
        ),
        "maintenance.rows_late": bool(settings.maintenance.column_for_skipping_late_rows),
        "spark.distribution": settings.spark.distribution
        in (Distribution.HASH, Distribution.RANGE),
    }
    if records:
        unfit['table.schema.unknown_fields = "evolve"'] = (
            settings.table.schema.policy.unknown_fields is UnknownFields.EVOLVE
        )
    else:  # what is to be hidden would be written as the query gives it
        unfit["shape (without records=True)"] = bool(settings.shape)
    if found := [name for name, used in unfit.items() if used]:
        raise ConfigurationError(
            f"sink {settings.name}: {', '.join(found)} cannot be used with a Spark query as writer",
            "the query decides what a row is: take it out of the sink file, or use headgate run",
        )


class QueryTable:
    """Reads, plans and commits for one run of a query. ``stateful`` as for ``Batches``.

    ``may_wait`` raises where a query that is paused need not wait any more.
    """

    def __init__(
        self,
        settings: SinkSettings,
        sources: SourceTopics,
        sender: Sender,
        *,
        stateful: bool = False,
        wait: Callable[[float], object] = time.sleep,
        may_wait: Callable[[], object] = lambda: None,
    ) -> None:
        require_usable_iceberg_catalog(settings)
        self.settings = settings
        self._sources = sources
        self._stateful = stateful
        self._wait, self._may_wait = wait, may_wait
        self._topic_ids: dict[str, TopicId] = {}
        self._uuid: str | None = None
        self._run = QueryRun(settings.name, settings.source.group_id, sender)
        with ExitStack() as opening:
            tables = SinkTables(settings, opening)
            if not isinstance(tables.primary_format, SupportsCatalog):
                raise ConfigurationError(
                    f"sink {settings.name}: a Spark query fills Iceberg tables only",
                    "use headgate run for this table",
                )
            self._planning = tables.prepare_tables().build_planning()
            self._table: PrimaryTable = tables.open_primary(Use.PRIMARY)
            opening.callback(self._table.close)
            self._copies = OffsetCopies(settings.kafka, settings.source.group_id)
            opening.callback(self._copies.close)
            self._opening = opening.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._opening.close()

    # ------------------------------------------------------------------------------- what is there

    def read_and_require_resumable(self) -> TableNow:
        """QUERY-1: read the table. Raises a ``StopSink`` where a coordinator would, too."""
        view, settings = self._table.read(), self.settings
        require_table_not_recreated(view, self._uuid, None, settings.coordinator)
        record = record_to_resume_from(view, settings.coordinator)
        require_not_stopped(record, settings.name)  # QUERY-14
        require_rollback_finished(record, settings.name)
        if record and record.group_id != settings.source.group_id:
            raise SinkNameTaken(
                f"sink {settings.name!r} belongs to consumer group {record.group_id!r} in this "
                f"table, not to {settings.source.group_id!r}",
                "give the sink another name, or use the same source.group_id",
            )
        require_not_superseded(record, self._run)
        self._uuid = view.uuid
        return TableNow(view, record)

    def wait_for_resume_and_decide_batch(
        self, proposed: ProposedBatch
    ) -> tuple[TableNow, Done | Take]:
        """Say what the batch is, once the sink is not paused (QUERY-14).

        Raises ``StopSink``, and ``Unreachable`` unless it was paused.
        """
        now = self.read_and_require_resumable()
        while now.record is not None and now.record.paused:
            self._wait(LOOK_AGAIN_S)
            self._may_wait()
            try:
                now = self.read_and_require_resumable()
            except Unreachable as error:
                _log.warning("batch %s waits: %s", proposed.number, error)
        self._topic_ids = self._require_same_topic_ids(proposed, now)
        if now.record is not None:
            self._require_no_partitions_added(proposed, now.record)
        return now, decide_batch(now.record, proposed, stateful=self._stateful)

    def _require_same_topic_ids(self, proposed: ProposedBatch, now: TableNow) -> dict[str, TopicId]:
        """Return the ids of the batch's topics; offsets of a re-created one say nothing."""
        topics = {at.topic for at in proposed.end}
        if not topics:
            return {}
        described = {name: state.topic_id for name, state in self._sources.describe().items()}
        if unnamed := sorted(topics - described.keys()):
            raise ConfigurationError(
                f"sink {self.settings.name}: the query reads {', '.join(unnamed)}, which "
                "source.topics does not name",
                "name the topics of the query in the sink file",
            )
        ids = {topic: described[topic] for topic in topics}
        known = now.record.topic_ids if now.record else {}
        for topic, id_ in sorted(ids.items()):
            if known.get(topic, id_) != id_:
                raise TopicRecreated(
                    f"topic {topic} has id {id_}, but the stored offsets belong to {known[topic]}: "
                    "it was deleted and created again",
                    "headgate resume SINK --accept HG-206=earliest, once; then start the query "
                    "with an empty checkpoint folder",
                )
        require_sources_unshared(now.view, ids, self.settings.table.shared_with)
        return ids

    def _require_no_partitions_added(self, proposed: ProposedBatch, record: CommitRecord) -> None:
        """QUERY-25: keys may have moved there, and a query cannot hold partitions."""
        if not self.settings.table.key or self._stateful:
            return
        if added := find_added_keyed_partitions(self.settings, record.offsets, proposed.end):
            raise KeyedPartitionsAdded(
                f"{', '.join(map(str, added))}: added to a topic of a keyed table, to which keys "
                "may have moved",
                "stop the query, and let headgate run take over with changes.on_partitions_added = "
                '"wait" until the table has them; then start the query again',
            )

    # ----------------------------------------------------------------------------------- a batch

    def plan_batch(self, proposed: ProposedBatch, now: TableNow, take: Take) -> PlannedBatch:
        """Plan how the batch is written, below a folder of the run's own (QUERY-18)."""
        view, sender = now.view, self._run.sender
        transaction = now.next_transaction(sender)
        folder = f"headgate/{self.settings.name}/{transaction.epoch}-{sender.incarnation}"
        prefix = f"{view.data_root}/{folder}"
        batch = Batch(
            number=proposed.number,
            transaction=transaction,
            table=TableStart(view.table, view.uuid, view.schema_id, view.spec_id, prefix),
            ranges={},
            target_file_bytes=self.settings.coordinator.target_file_bytes,
            folder=folder,
        )
        source = replace(build_source_plan(self.settings, batch), kafka={}, topic_ids={})
        plan = self._planning.plans.load_plan(batch, source)
        if self.settings.table.key:
            require_parquet_for_keyed_table(view.table, plan.shape.table_properties)
        numbered = self._stateful or proposed.by_number
        return PlannedBatch(proposed, now, take, plan, batch, time.monotonic(), numbered)

    def commit(self, planned: PlannedBatch, written: RowsWritten) -> CommitRecord | None:
        """QUERY-12: commit until it is known what became of it. Return ``None`` for a batch that
        another has committed. Raises ``StopSink``, ``Unreachable``."""
        now, proposed = planned.now, planned.proposed
        for _ in range(_ATTEMPTS_MAX):
            self._require_batch_not_too_old(planned)
            attempt = self._build_attempt(now, proposed, written)
            outcome = self._table.commit(attempt)
            has_landed = isinstance(outcome, Landed)
            if not isinstance(outcome, Landed):
                _log.warning("batch %s: %s", proposed.number, outcome.reason)
                self._wait(_PAUSE_S)
            if attempt.record.is_claim or not has_landed:
                now = self._read_with_retries()
            if has_landed or attempt.record.is_same_commit(now.record):
                self._on_landed(attempt.record)
                if not attempt.record.is_claim:
                    return attempt.record
            again = decide_batch(now.record, proposed, stateful=self._stateful)
            if isinstance(again, Done):
                return None
            if again != planned.take:
                raise QuerySuperseded(
                    f"the table moved into batch {proposed.number} while it was written",
                    "start the query again: it goes on where the table is",
                )
        raise Unreachable(
            f"{now.view.table} took no commit of batch {proposed.number} in {_ATTEMPTS_MAX} "
            "attempts",
            "is the catalog well? then start the query again",
        )

    def _build_attempt(
        self, now: TableNow, proposed: ProposedBatch, written: RowsWritten
    ) -> CommitAttempt:
        """Return the batch's commit, or the query's claim while the table has no record yet."""
        transaction = now.next_transaction(self._run.sender)
        if now.record is None:
            claim = first_claim_of_query(proposed, self._run, self._topic_ids, transaction)
            return CommitAttempt(now.view, claim)
        record = record_of_batch(
            now.record,
            proposed,
            self._run,
            transaction=transaction,
            topic_ids=self._topic_ids,
            rows=written.rows,
            deletes=written.deletes,
            stateful=self._stateful,
        )
        return CommitAttempt(now.view, record, written.files)

    def _read_with_retries(self) -> TableNow:
        for _ in range(_ATTEMPTS_MAX):
            with suppress(Unreachable):
                return self.read_and_require_resumable()
            self._wait(_PAUSE_S)
        return self.read_and_require_resumable()

    def _require_batch_not_too_old(self, planned: PlannedBatch) -> None:
        age_s = time.monotonic() - planned.begun_s
        if age_s * 1000 > self.settings.coordinator.claim_age_max_ms:  # QUERY-18
            raise BatchTooOld(
                f"batch {planned.proposed.number} was written {age_s:.0f} s ago, and "
                "coordinator.claim_age_max_ms have passed: its files may count as orphans",
                "start the query again, with smaller batches (maxOffsetsPerTrigger)",
            )

    def _on_landed(self, record: CommitRecord) -> None:
        self._run = replace(self._run, epoch=record.transaction.epoch)
        assert self._uuid is not None, "it was read"
        # QUERY-16
        note = offset_metadata_of_table(self._uuid, self.settings.name)
        self._copies.copy_offsets_to_group(without_query_offset(record.offsets), note)
