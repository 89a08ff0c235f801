"""Tells lineage: OpenLineage events of an epoch, by what the table says (rule REPORT-2).

There is no queue: what an event tells is read from the table when it is sent. So one that could not
be sent is dropped and counted, and the next one tells of its commits, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from urllib.parse import urlsplit

from headgate.config.column_rules import rules_of_decoded_columns
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import HeadgateError, SinkStopped
from headgate.control_protocol.identifiers import Sender
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.control_protocol.table_history import Newest, SinkCommit
from headgate.kafka.record_sender import GroupNote
from headgate.runtime.background_thread import Pauses, WokenThread
from headgate.runtime.reports.openlineage import (
    CommittedCounts,
    Kind,
    LineageReport,
    LineageRun,
    OutputColumn,
    OutputTable,
    Sink,
    build_event,
)
from headgate.runtime.reports.receivers import describe_trouble, open_receiver
from headgate.runtime.sink_tables import open_tables_creating_nothing
from headgate.runtime.telemetry import metric_catalog as names
from headgate.runtime.telemetry.instrumented_ports import Count
from headgate.runtime.wall_clock import wall_ms

_log = redacted_logger("headgate.coordinator")

_OUTPUTS_MAX = 100
_SNAPSHOTS = 5
_BEFORE_MS = 600_000
"""Clocks of a catalog and of this process differ by less."""


@dataclass(frozen=True, slots=True)
class TableRead:
    """The table as it was read back: this life's ``own`` commits, and what came ``before``."""

    uuid: str
    own: tuple[SinkCommit, ...]
    before: SinkCommit | None
    outputs: tuple[OutputTable, ...]


def read_commits_of_coordinator_life(
    settings: SinkSettings, life: Sender, since_ms: int
) -> TableRead:
    """Read what this life's coordinator has committed. Raises what reading a table raises."""
    with open_tables_creating_nothing(settings) as tables:
        reader = tables.reader
        view, history = reader.view(), reader.history(Newest(_SNAPSHOTS, since_ms))
        names_of_columns = () if settings.tables else tuple(reader.columns())
    own = tuple(commit for commit in history.commits if commit.record.coordinator == life)
    others = [c for c in history.commits if c.record.coordinator != life and not c.record.command]
    older = [c for c in others if not own or c.record.transaction < own[0].record.transaction]
    return TableRead(
        view.uuid,
        own,
        older[-1] if older else None,
        tuple(_output_tables(settings, view, names_of_columns)),
    )


def _output_tables(
    settings: SinkSettings, view: TableView, columns: Sequence[str]
) -> list[OutputTable]:
    """Return the tables, the primary one first."""
    own = OutputTable(view.table, view.location, _output_columns_of(settings, columns))
    filled = [OutputTable(name) for name in sorted(view.filled)[:_OUTPUTS_MAX]]
    aside = settings.quarantine.table if settings.quarantine.keeps_rejected_records else ""
    others = [each for each in filled if each.name not in (aside, view.table)]
    return [own, *others, *([OutputTable(aside)] if aside else [])]


def _output_columns_of(settings: SinkSettings, columns: Sequence[str]) -> tuple[OutputColumn, ...]:
    """Return the columns with the fields that they are read from; behind a transform nobody knows
    these."""
    rules = rules_of_decoded_columns(settings)
    of_record = set(settings.table.record_columns.columns_by_part().values())
    result = []
    for name in columns:
        rule = rules.get(name)
        hidden = name in settings.shape.hidden_columns
        if settings.transform or name in of_record or (rule and rule.value is not None):
            result.append(OutputColumn(name, hidden=hidden))
            continue
        source = ".".join(rule.path) if rule and rule.path else name
        changed = rule is not None and (rule.as_text or bool(rule.unit))
        result.append(OutputColumn(name, source, hidden, changed))
    return tuple(result)


def openlineage_sink_of(settings: SinkSettings) -> Sink:
    """Return what its events say of the sink."""
    first = settings.kafka.get("bootstrap.servers", "").split(",")[0].strip()
    broker = urlsplit(first if "://" in first else f"//{first}").netloc
    lineage = settings.lineage
    return Sink(
        settings.name,
        lineage.namespace,
        lineage.cluster or broker,
        settings.catalog.name,
        version("headgate"),
    )


class Lineage:
    """Tells of one coordinator's life; ``close`` ends it, and its run.

    ``failure`` returns the error that ends the life, if one does.
    """

    def __init__(
        self,
        settings: SinkSettings,
        life: Sender,
        count: Count,
        failure: Callable[[], BaseException | None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._life = life
        self._count = count
        self._failure = failure
        self._sink = openlineage_sink_of(settings)
        self._since_ms = wall_ms() - _BEFORE_MS
        self._told = 0
        self._is_started = False
        self._failing = ""
        group = f"{settings.source.group_id}-lineage"
        self._note = GroupNote(settings.kafka, group, settings.control.topic)
        pauses = Pauses(between_s=settings.lineage.every_ms / 1000)
        self._thread = WokenThread(
            "headgate-lineage",
            self._try_send_lineage_of_new_commits,
            pauses,
            self._try_send_run_end,
        )

    def on_landed(self, view: TableView) -> None:  # noqa: ARG002 - it is read back when it is told
        """Take a commit; costs nothing but a flag."""
        self._thread.wake()

    def close(self) -> None:
        """End the thread, and with it the run."""
        self._thread.close()

    def _try_send_lineage_of_new_commits(self) -> bool:
        """Tell of new commits, and return whether all is told."""
        try:
            read = read_commits_of_coordinator_life(self._settings, self._life, self._since_ms)
        except Exception as error:  # noqa: BLE001 - nothing here may end a sink that commits well
            self._log_failure_if_new(error)
            return False
        if not read.own:
            return True
        if not self._is_started:
            self._try_send_abort_of_former_run(read)
            first = read.own[0]
            told = self._report_of_commit(read, first, CommittedCounts())
            self._is_started = self._try_send_event(
                Kind.START, self._lineage_run_of_commit(read, first), told
            )
            if not self._is_started:
                return False
        return self._try_send_event_of_new_commits(Kind.RUNNING, read)

    def _try_send_event_of_new_commits(self, kind: Kind, read: TableRead, code: str = "") -> bool:
        """Send an event of the commits that no event has told of."""
        new = [each for each in read.own if int(each.record.transaction.number) > self._told]
        if kind is Kind.RUNNING and not new:
            return True
        newest = read.own[-1]
        brought = CommittedCounts(
            rows=sum(each.record.records for each in new),
            files=sum(each.added_files for each in new),
            commits=len(new),
        )
        told = self._report_of_commit(read, newest, brought, code)
        if kind is not Kind.RUNNING:
            told = replace(told, time_ms=wall_ms())
        if not self._try_send_event(kind, self._lineage_run_of_commit(read, newest), told):
            return False
        self._told = int(newest.record.transaction.number)
        self._since_ms = newest.committed_ms
        return True

    def _try_send_abort_of_former_run(self, read: TableRead) -> None:
        """End the run of the epoch before, unless its coordinator has done so."""
        before = read.before
        if before is None:
            return
        run = self._lineage_run_of_commit(read, before)
        try:
            ended = json.loads(self._note.read() or "[]")
        except (HeadgateError, ValueError) as error:
            self._log_failure_if_new(error)
            self._count(names.LINEAGE_DROPPED, 1, {})
            return
        if ended == [read.uuid, run.epoch]:
            return
        self._try_send_event(
            Kind.ABORT, run, self._report_of_commit(read, before, CommittedCounts())
        )

    def _try_send_run_end(self) -> None:
        """Tell how the run ended, as far as a bounded wait allows."""
        if not self._is_started:
            return
        error = self._failure()
        # What is no ``Exception`` ends the process because somebody asked for it.
        orderly = not isinstance(error, Exception) or isinstance(error, SinkStopped)
        named = error.code if isinstance(error, HeadgateError) else HeadgateError.code
        code = "" if orderly else named
        try:
            read = read_commits_of_coordinator_life(self._settings, self._life, self._since_ms)
            if not read.own:
                return
            if self._try_send_event_of_new_commits(
                Kind.COMPLETE if orderly else Kind.FAIL, read, code
            ):
                run = self._lineage_run_of_commit(read, read.own[-1])
                self._note.store(json.dumps([read.uuid, run.epoch]))
        except Exception as trouble:  # noqa: BLE001 - a report never stops the sink
            self._log_failure_if_new(trouble)

    def _lineage_run_of_commit(self, read: TableRead, commit: SinkCommit) -> LineageRun:
        return LineageRun(int(commit.record.transaction.epoch), read.uuid)

    def _report_of_commit(
        self, read: TableRead, commit: SinkCommit, brought: CommittedCounts, code: str = ""
    ) -> LineageReport:
        offsets: dict[str, dict[int, int]] = {}
        for at, offset in commit.record.offsets.items():
            offsets.setdefault(at.topic, {})[at.partition] = offset
        primary, *others = read.outputs
        return LineageReport(
            time_ms=commit.committed_ms,
            topics=tuple(sorted(commit.record.topic_ids)),
            outputs=(replace(primary, snapshot_id=commit.snapshot_id), *others),
            brought=brought,
            transaction=str(commit.record.transaction),
            offsets=offsets,
            code=code,
        )

    def _try_send_event(self, kind: Kind, run: LineageRun, told: LineageReport) -> bool:
        event = build_event(kind, self._sink, run, told)
        settings = self._settings
        try:
            receiver = open_receiver("lineage", settings.lineage, settings.kafka, lambda: False)
            try:
                receiver.send(f"{run.run_id(self._sink)}", event)
            finally:
                receiver.close()
        except Exception as error:  # noqa: BLE001 - nothing here may end a sink that commits well
            self._count(names.LINEAGE_DROPPED, 1, {})
            self._log_failure_if_new(error)
            return False
        self._failing = ""
        self._count(names.LINEAGE_EVENTS, 1, {"event": kind.value.lower()})
        return True

    def _log_failure_if_new(self, error: Exception) -> None:
        text = describe_trouble(error)
        if text != self._failing:
            _log.warning("lineage is not told, and its commits with the next event: %s", text)
        self._failing = text
