"""Finds the table of a route's name: one that is known, wanted, or still to be made (ROUTE-2,
ROUTE-3, LEDGER-1).

Of tables still to be made, the columns that records need are collected (rules CREATE-1, CREATE-2,
SCHEMA-2). Nothing is written of a batch with such records: its table is proposed, and the batch is
repeated once the table exists. Records that go to no table are logged, without a repetition for
every batch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Protocol, cast

import pyarrow as pa

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.events import Destination
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.ports import Batch, TableNeed
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.data_plane.batch.failure_classification import TablesNotPlanned
from headgate.data_plane.batch.routed_table import CreationSource, RoutedTable
from headgate.data_plane.batch.writer_task_plan import NONE_IS_DECLARED, WriterPlan
from headgate.data_plane.formats.format_registry import ValueOptions, create_record_format
from headgate.data_plane.formats.record_format import NOTHING, RecordFormat, UndecodableRecords
from headgate.data_plane.formats.unknown_fields import EvolvingFormat, UnknownFieldFinder
from headgate.data_plane.routing.routes import Target, fold_case
from headgate.data_plane.write.columns_to_add import Evolution, MissingColumns
from headgate.kafka.record_fetch import Chunk
from headgate.participant.settings import SchemaPolicy, UnknownFields

# -------------------------------------------------------------------------- records without a table


REPEAT_AFTER_S = 60.0
LOGGED_REASONS_MAX = 5
"""The number of reasons logged in a minute: an arbitrary field has a reason per value."""

_log = redacted_logger(__name__)
_logged: dict[str, float] = {}
_logged_lock = Lock()  # one for all sinks of a process, each with a writer's thread


def log_unmatched_if_not_recent(
    reasons: Counter[str], monotonic_s: Callable[[], float] = time.monotonic
) -> None:
    """Log the reasons of a batch that the last minute has not seen, the commonest first."""
    now_s = monotonic_s()
    with _logged_lock:
        for old in [reason for reason, at_s in _logged.items() if now_s - at_s >= REPEAT_AFTER_S]:
            del _logged[old]
        new = [one for one in reasons.most_common(LOGGED_REASONS_MAX) if one[0] not in _logged]
        new = new[: max(0, LOGGED_REASONS_MAX - len(_logged))]
        _logged.update((reason, now_s) for reason, _ in new)
    for reason, count in new:
        event = event_extra(LogEvent.RECORDS_UNMATCHED, records=count)
        _log.warning("%d records of a batch go to no table: %s", count, reason, extra=event)


# ------------------------------------------------------------------------------------- known tables


NEW_MAX = 100
"""The number of tables proposed for one batch; the repeated batch proposes others."""

REASONS_MAX = 100
"""Of one batch, reasons that name a table; records with further names have one reason together."""

NO_ROUTE = "no route sends it to a table"


def folded_own_table_names(batch: Batch) -> frozenset[str]:
    """Return the folded names of the tables that START names, which take no routed rows
    (ROUTE-5)."""
    quarantine = (batch.quarantine,) if batch.quarantine else ()
    return frozenset(
        fold_case(start.table) for start in (batch.table, *quarantine, *batch.secondaries)
    )


class BatchTables:
    """Holds the tables of one batch's plan. ``requested``: those that must be planned first."""

    def __init__(self, plan: WriterPlan, batch: Batch) -> None:
        if not batch.folder:
            raise ConfigurationError(
                "the coordinator names no folder for tables that are routed to",
                "start every participant with the same sink file",
            )
        assert plan.source.routing is not None, "chosen for it"
        self._plan = plan
        self._suspended = batch.suspended
        self._own = folded_own_table_names(batch)
        topics = sorted({*batch.topic_ids, *(at.topic for at in batch.ranges)})
        named = plan.source.routing.tables_of_topics_winning_collisions(topics)
        self._by_topic = {target.table: target.raw for target in named.values()}
        self._routing = plan.source.routing
        self._made = sum(
            known.creation is not None and name not in self._by_topic
            for name, known in plan.tables.items()
        )
        self._named: set[str] = set()
        self._new = 0
        self.requested: set[str] = set()
        self.postponed: str = ""
        """A name that may become a table once those that were met before it are made."""

    def why_reserved(self, target: Target) -> str:
        """Return why no record may name this table: whoever writes to the source could else fill
        the ledger or the quarantine, and no status with such files is ever admitted."""
        if fold_case(target.table) not in self._own:
            return ""
        return f"names {target.table}, which is one of the sink's own tables"

    def why_diverted(self, target: Target) -> str:
        """Return why the records of a table are diverted (SUSPEND-1), if there is a quarantine."""
        if self._plan.quarantine is None:
            return ""
        routed = self._plan.tables.get(target.table)
        return self._suspended.get(target.table) or (routed.trouble if routed else "")

    def grouping_key(self, target: Target) -> Hashable:
        """Return the same for names whose records have the same fate, whatever they are.

        A field may have a name in each record: what is done for each of them has to be little.
        """
        if self.why_reserved(target) or self.why_diverted(target):
            return target
        result = self.resolve_or_request_table(target)
        if result is None:
            return None
        return (result, self._routing.key_of(target.table)) if isinstance(result, str) else target

    def resolve_or_request_table(self, target: Target | None) -> RoutedTable | str | None:
        """Return the table, or why its records are unmatched; ``None`` once tables are wanted:
        nothing of such an attempt counts."""
        if target is None:
            return NO_ROUTE
        routed = self._plan.tables.get(target.table)
        if routed is None and self._may_exist_or_be_created(target.table):
            self._request_or_postpone_table(target.table)
            return None
        if self.requested:
            return None
        if routed is None:
            which = f"there is no table {target.table}"
            which = self._reason_unless_too_many(
                which, "there is no table of the name that its route makes"
            )
            return f"{which}, {self._plan.no_creation_reason or NONE_IS_DECLARED}"
        return routed.problem or self._why_colliding(routed, target) or routed

    def _request_or_postpone_table(self, name: str) -> None:
        """Ask for a table that exists, or for one of a few that may be made: of a batch no more
        are proposed (CREATE-1), and it is done again for the others."""
        if name in self.requested:
            return
        if not self._is_listed(name):
            if self._made + self._new >= NEW_MAX:
                self.postponed = name
                return
            self._new += 1
        self.requested.add(name)

    def _reason_unless_too_many(self, reason: str, otherwise: str) -> str:
        """Return the reason, unless there are too many of them."""
        if reason not in self._named and len(self._named) >= REASONS_MAX:
            return otherwise
        self._named.add(reason)
        return reason

    def require_every_table_planned(self) -> None:
        """Raise ``TablesNotPlanned`` if tables are wanted."""
        if self.requested:
            raise TablesNotPlanned(frozenset(self.requested))

    def _is_listed(self, name: str) -> bool:
        namespace, _, table = name.rpartition(".")
        return table in self._plan.listed_tables.get(namespace, ())

    def is_named_by_topic(self, name: str) -> bool:
        """Return whether a topic of the batch names the table."""
        return name in self._by_topic

    def _may_exist_or_be_created(self, name: str) -> bool:
        """Return whether there is such a table, or may be made, or nobody has looked yet.

        Of names that no setting lets be made a batch may have any number: none is asked for.
        """
        namespace, _, table = name.rpartition(".")
        listed = self._plan.listed_tables.get(namespace)
        if listed is None or table in listed:
            return True
        return not self._plan.no_creation_reason and self._routing.may_create(name)

    def _why_colliding(self, routed: RoutedTable, target: Target) -> str:
        owner = target.raw if routed.creation else target.table  # the first one gives it its name
        used = routed.raw_name or self._by_topic.get(target.table, owner)
        if target.merge or target.raw == used:
            return ""
        which = self._reason_unless_too_many(
            f"{target.raw} would go", "what its route makes of it would go"
        )
        return f"{which} to {target.table}, which takes {used}: merge = true in the route lets it"


# --------------------------------------------------------------------------------------- new tables


_EVERYTHING = SchemaPolicy(UnknownFields.EVOLVE)


_NO_COLUMNS = pa.schema([])


class _Format(RecordFormat, EvolvingFormat, Protocol):
    """Reports on what it decoded last."""


class NewTable:
    """Collects what a batch's records need of one table that is still to be created."""

    def __init__(
        self, name: str, raw: str, creation: CreationSource, partitions: Sequence[TopicPartition]
    ) -> None:
        self._at = Destination(name)
        self._raw = raw
        self._records = 0
        source = self._source = creation.source
        options = ValueOptions.from_options(source.format_options)
        used = source.record_columns.values()
        finder = UnknownFieldFinder(_NO_COLUMNS, used, (), caseless=options.caseless)
        self._needs = MissingColumns(Evolution(_EVERYTHING, Struct()), finder, partitions)
        self._format: _Format | None = None
        if not creation.declared:
            made = create_record_format(source.format_name, options.of_format)
            self._format = cast("_Format", made)
            self._format.watch_unknown_fields(finder)

    def note_needed_columns(self, chunk: Chunk) -> None:
        """Note what the chunk's records need: all of them wait for the table."""
        self._records += len(chunk.offsets)
        self._needs.note_first_record_per_partition(chunk)
        if self._format is not None:
            chunk = self._source.with_schema_ids_prepended(chunk)
            bad: Collection[int] = ()
            try:
                self._format.decode(chunk.values, NOTHING)
            except UndecodableRecords as error:
                bad = error.bad
            self._needs.note_needs_and_find_bad(
                chunk, self._format.unknown_columns_of_last_decode(chunk.values, bad)
            )

    @property
    def table_need(self) -> TableNeed:
        """Return all that was noted; without columns where no record shows any."""
        return replace(self._needs.to_table_need(self._at, self._raw), records=self._records)
