"""Builds a running sink from its settings: only this module knows both roles and all adapters."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from headgate.config.catalog_checks import require_usable_iceberg_catalog
from headgate.config.catalog_settings import Backend
from headgate.config.configuration_fingerprint import configuration_digest, settings_to_agree_on
from headgate.config.keyed_table_checks import KeysByRoute
from headgate.config.multi_table_settings import CreateFrom, OnMissing
from headgate.config.sink_sections import WriterKind
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_format_registry import spark_conf_for_format_commits
from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    JvmMissing,
    SinksClash,
)
from headgate.control_protocol.identifiers import Sender, SinkName
from headgate.control_protocol.ports import Batch, BatchOutcome, BatchWriter
from headgate.control_protocol.redacting_loggers import redacted_logger, redacting
from headgate.control_protocol.redaction import Redaction
from headgate.coordinator import driver as coordinator
from headgate.coordinator.service import CoordinatorService
from headgate.coordinator.state import Identity
from headgate.data_plane.write.in_process_writer import (
    InProcessWriter,
    PutWriter,
    RenewingWriter,
    chunk_of,
)
from headgate.data_plane.write.write_batch import (
    write_chunk_around_poison,
    write_ranges_around_poison,
)
from headgate.kafka.consumer_group import KafkaGroupMember
from headgate.kafka.control_log import LogClients
from headgate.kafka.control_topic import ensure_control_topic
from headgate.kafka.push_source import (
    Buffers,
    EmbeddedMember,
    Record,
    Steering,
)
from headgate.kafka.source_topics import KafkaSourceTopics
from headgate.participant import driver as participant
from headgate.participant.settings import UnknownFields
from headgate.participant.state import State
from headgate.runtime.catalogs import spark_options
from headgate.runtime.configuration_comparison import (
    require_same_configuration,
    try_read_recent_envelopes,
)
from headgate.runtime.embedded_sink_task import SinkTask
from headgate.runtime.participant_runner import Current, OpenSink, build_misconfiguration_detector
from headgate.runtime.process_notices import (
    Complaints,
    announcing_end,
    open_control_log,
    try_announce_start,
)
from headgate.runtime.reports.reported_primary import with_reported_commits
from headgate.runtime.sink_tables import SinkTables, quarantine_as_secondary_tables
from headgate.runtime.start_checks import require_existing_source_topics
from headgate.runtime.telemetry.instrumentation import Ports, with_meters_and_lag_lookout
from headgate.runtime.telemetry.instrumented_ports import MeteredLog
from headgate.runtime.telemetry.sink_metrics import SinkMeters
from headgate.runtime.wall_clock import wall_ms
from headgate.runtime.write_planning import Planning

if TYPE_CHECKING:
    from headgate.data_plane.spark.session import OpenSession

_log = redacted_logger("headgate.runtime")

BUFFER_BYTES_MAX = 128 * 1024 * 1024
"""Limit of records put but not yet written; above it the task pauses the loop's consumer."""


MISSING_TOPIC_MAX_S = 60.0
"""A topic that brokers still do not know after this time does not exist; metadata lags for less."""

IDLE_INTERVALS = 4
"""Asking each interval where a quiet source ends is a third of what an idle sink takes of the
processor; nobody waits for the answer but a batch that is full at once."""

_SPARK = threading.Lock()
"""Held by the one sink in this process that writes with Spark."""

_AWAKE_OR_ASLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """Implements ``ports.Clock`` on this machine."""

    def monotonic_ms(self) -> int:
        """Return a time that includes the machine's sleep, if possible: files age then too
        (TOKEN-1)."""
        return time.clock_gettime_ns(_AWAKE_OR_ASLEEP) // 1_000_000

    def wall_ms(self) -> int:
        return wall_ms()


@contextmanager
def open_task(settings: SinkSettings, steering: Steering) -> Iterator[SinkTask]:
    """Open a participant inside the caller's own consumer loop; every exit path closes it.

    The task seeks and pauses the caller's consumer through ``steering``. It writes in this process.
    """
    if settings.transform and not settings.transforms_in_process:
        raise ConfigurationError(
            "the transform needs Spark, and an embedded task writes inside this process",
            "run the sink with headgate run; or write a function of Arrow batches, with "
            'spark.writer = "in-process"',
        )
    if settings.catalog.backend is Backend.JAVA:
        raise JvmMissing(
            "catalog.backend is java, and an embedded task has no JVM",
            "remove catalog.backend, or run the sink with headgate run",
        )
    with ExitStack() as stack:
        sender = new_sender()
        stack.enter_context(announcing_end(settings, sender))
        stack.enter_context(_redacting_secrets(settings.redaction))
        tables = _prepare_tables_and_control_topic(settings, stack)
        planning = tables.build_planning()
        _require_loadable_transform(planning)
        buffers = Buffers(steering, BUFFER_BYTES_MAX)
        member = EmbeddedMember(buffers)

        def write_records(
            batch: Batch, records: list[list[Record]], abandoned: Callable[[], bool]
        ) -> BatchOutcome:
            chunk = chunk_of(records)
            return planning.write_planned(
                batch,
                lambda plan: write_chunk_around_poison(plan, batch, chunk, abandoned=abandoned),
            )

        writer = PutWriter(buffers, write_records)
        stack.callback(writer.close)
        clients = LogClients(settings.kafka)
        log = open_control_log(settings, clients=clients, statuses_of=sender)
        stack.callback(log.close)
        ending = _Ending(lambda: service.failure())  # noqa: PLW0108 - made below
        context = MemberContext(sender, clients, None, ending.failure)
        service = CoordinatorService(
            settings.source.topics, lambda: _build_coordinator(settings, tables, context)
        )
        stack.callback(service.close)
        stack.push(ending.note_failure)
        clock = SystemClock()
        primary = stack.enter_context(closing(tables.open_primary()))
        watch = build_misconfiguration_detector(settings, primary, log, clock.monotonic_ms())
        world = participant.World(
            member,
            MeteredLog(log, heard=watch.on_event),
            RenewingWriter(writer, planning),
            service,
            clock,
            settings.redaction,
        )
        driver = OpenSink(build_participant_state(settings, sender), world, service, watch)
        try_announce_start(settings, sender, log)
        yield SinkTask(driver, buffers, member)
        driver.close()


@contextmanager
def open_sink(
    settings: SinkSettings, sender: Sender | None = None, meters: SinkMeters | None = None
) -> Iterator[OpenSink]:
    """Open everything in order, and close it in reverse order whatever happens."""
    sender = sender or new_sender()
    with ExitStack() as stack:
        stack.enter_context(_redacting_secrets(settings.redaction))
        # Before the tables: what they open in a JVM of their own would be the session's.
        shared = spark_conf_for_format_commits(settings) is not None
        session = stack.enter_context(_open_only_spark_session(settings)) if shared else None
        tables = _prepare_tables_and_control_topic(settings, stack)
        writer = stack.enter_context(open_batch_writer(settings, tables.build_planning(), session))
        clients = LogClients(settings.kafka)
        log = open_control_log(settings, clients=clients, statuses_of=sender)
        stack.callback(log.close)
        current = Current(settings)
        ending = _Ending(lambda: service.failure())  # noqa: PLW0108 - made below
        context = MemberContext(sender, clients, meters, ending.failure)
        service = CoordinatorService(
            settings.source.topics, lambda: _build_coordinator(current.settings, tables, context)
        )
        group = KafkaGroupMember(
            settings.kafka,
            settings.source.topics,
            settings.source.group_id,
            settings.source.group_protocol.value,
            on_revoke=lambda gone: sink.release(gone),  # noqa: PLW0108 - made below
            admin=clients.admin,
        )
        stack.callback(group.close)
        stack.callback(service.close)
        stack.push(ending.note_failure)
        clock = SystemClock()
        primary = stack.enter_context(closing(tables.open_primary()))
        watch = build_misconfiguration_detector(settings, primary, log, clock.monotonic_ms())
        world = participant.World(
            group,
            MeteredLog(meters.metered_log(log) if meters else log, heard=watch.on_event),
            meters.metered_writer(writer) if meters else writer,
            service,
            clock,
            settings.redaction,
        )
        state = replace(build_participant_state(settings, sender), idle_intervals=IDLE_INTERVALS)
        sink = OpenSink(state, world, service, watch, current=current)
        if meters:
            meters.set_state_source(lambda: sink.state)
        try_announce_start(settings, sender, log)
        yield sink


def build_participant_state(settings: SinkSettings, sender: Sender) -> State:
    """Return what the participant's state machine begins with."""
    return State(
        settings.name,
        sender,
        settings.participant,
        table=settings.table.identifier,
        configuration=settings_to_agree_on(settings),
    )


@contextmanager
def _redacting_secrets(redaction: Redaction) -> Iterator[None]:
    """Keep the sink's secrets out of everything logged or raised in the body."""
    with redacting(redaction):
        try:
            yield
        except HeadgateError as error:
            redaction.redact_in_place(error)
            raise


def _prepare_tables_and_control_topic(settings: SinkSettings, stack: ExitStack) -> SinkTables:
    """Return the sink's tables, once they and the control topic exist."""
    require_usable_iceberg_catalog(settings)
    require_existing_source_topics(settings)
    tables = SinkTables(settings, stack).prepare_tables()
    ensure_control_topic(settings.kafka, settings.control.topic)
    require_same_configuration(settings, lambda: try_read_recent_envelopes(settings))
    return tables


def new_sender() -> Sender:
    """Identify this process as a participant: a readable name and a new incarnation."""
    return Sender(f"{socket.gethostname()}-{os.getpid()}", uuid.uuid4().hex[:12])


@dataclass(frozen=True, slots=True)
class MemberContext:
    """What a participant and its coordinators share: a name, clients, and what measures them."""

    sender: Sender
    clients: LogClients
    meters: SinkMeters | None = None
    failure: Callable[[], BaseException | None] = lambda: None
    """Returns what ends the participant or its coordinator, if it does not end in order."""


class _Ending:
    """Notes what ends a participant, for those that end with it."""

    def __init__(self, of_coordinator: Callable[[], BaseException | None]) -> None:
        self._of_coordinator = of_coordinator
        self._error: BaseException | None = None

    def note_failure(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        self._error = error
        return False

    def failure(self) -> BaseException | None:
        return self._error or self._of_coordinator()


class _CoordinatorLife(NamedTuple):
    """A coordinator's driver, and what closes the ports that were opened for it."""

    driver: coordinator.CoordinatorDriver
    close: Callable[[], None]


def _build_coordinator(
    settings: SinkSettings, tables: SinkTables, context: MemberContext
) -> _CoordinatorLife:
    """Build one coordinator life. Its own incarnation marks its commits."""
    sender, meters = context.sender, context.meters
    life = replace(sender, incarnation=uuid.uuid4().hex[:12])
    with ExitStack() as opening:
        log = open_control_log(settings, clients=context.clients)
        opening.callback(log.close)
        topics = KafkaSourceTopics(
            settings.kafka,
            settings.source.topics,
            settings.source.group_id,
            missing_max_s=MISSING_TOPIC_MAX_S,
            admin=context.clients.admin,
        )
        opening.callback(topics.close)
        measures = meters.start_coordinator_meters(life) if meters else None
        on_ended = measures.maintenance.on_table_round_end if measures else None
        found = tables.open_coordinator_ports(settings, topics, opening)
        if settings.maintenance:
            from headgate.runtime.maintenance.scheduler import begin_maintenance_if_wanted

            begin_maintenance_if_wanted(found.tables, opening, on_ended)
        complain = Complaints(settings, sender)
        table = with_reported_commits(
            found.table,
            settings,
            life,
            opening,
            count=meters.count if meters else None,
            failure=context.failure,
        )
        ports = Ports(log, table, found.secondaries, complain)
        if measures:
            ports = with_meters_and_lag_lookout(ports, settings, measures, opening)
        world = coordinator.World(
            ports.log,
            ports.table,
            found.sources,
            SystemClock(),
            lambda: ensure_control_topic(settings.kafka, settings.control.topic),
            settings.redaction,
            log.topic_id,
            ports.on_trouble,
            ports.secondaries,
            found.new_token,
        )
        driver = build_coordinator_driver(settings, life, world)
        return _CoordinatorLife(driver, opening.pop_all().close)


def build_coordinator_driver(
    settings: SinkSettings, life: Sender, world: coordinator.World
) -> coordinator.CoordinatorDriver:
    """Return the coordinator of one life on these ports."""
    start_ms = settings.source.start_at_ms
    return coordinator.CoordinatorDriver(
        build_coordinator_identity(settings, life),
        settings.coordinator,
        world,
        coordinator.StartAt(settings.source.start_at if start_ms is None else start_ms),
        limits=settings.bad_record_limits,
    )


def build_coordinator_identity(settings: SinkSettings, life: Sender) -> Identity:
    """Return what the state machine knows about its sink."""
    evolves = settings.table.schema.unknown_fields is UnknownFields.EVOLVE
    return Identity(
        settings.name,
        settings.source.group_id,
        life,
        frozenset(settings.table.shared_with),
        settings.control.topic,
        settings_to_agree_on(settings),
        quarantine_as_secondary_tables(settings.quarantine),
        configuration_digest(settings),
        routed=bool(settings.tables),
        makes=settings.tables.create.schema is not CreateFrom.OFF,
        makes_anew=settings.tables.on_missing is OnMissing.CREATE,
        evolves=bool(settings.tables) or evolves,
        paces=settings.tables.delivery_lingers,
        refresh_ms=settings.tables.valid_through_refresh_ms,
        keyed=settings.replaces_primary_rows,
        routed_keys=KeysByRoute.from_settings(settings),
        growth_ms=settings.changes.added_partitions_hold_ms,
        multiples_only=settings.changes.refuses_uneven_partition_growth,
        first_interval=0.5 + 0.5 * jitter_fraction_of(life),
    )


def jitter_fraction_of(life: Sender) -> float:
    """Return a number in [0, 1), another one for each life."""
    return zlib.crc32(life.incarnation.encode()) / 2**32


@contextmanager
def open_batch_writer(
    settings: SinkSettings, planning: Planning, session: OpenSession | None = None
) -> Iterator[BatchWriter]:
    """Yield the writer that turns source ranges into files of the planned tables.

    It uses the ``session`` if there is one already.
    """
    if settings.spark.writer is WriterKind.IN_PROCESS:
        _require_loadable_transform(planning)
        writer: BatchWriter = InProcessWriter(
            lambda batch, abandoned: planning.write_planned(
                batch, lambda plan: write_ranges_around_poison(plan, batch, abandoned=abandoned)
            )
        )
        try:
            yield RenewingWriter(writer, planning)
        finally:
            writer.close()
        return
    from headgate.data_plane.spark.batch_writer import SparkBatchWriter
    from headgate.data_plane.spark.transform import transform_function_of

    if transform := planning.plans.shaping.transform:
        transform_function_of(transform)  # finds an unusable transform before Spark starts
    with ExitStack() as stack:
        spark = session or stack.enter_context(_open_only_spark_session(settings))
        with closing(SparkBatchWriter(spark, planning.write_planned)) as writer:
            yield RenewingWriter(writer, planning)


def _require_loadable_transform(planning: Planning) -> None:
    """Find an unusable function before anything is read."""
    if (transform := planning.plans.shaping.transform) and transform.in_process:
        from headgate.data_plane.transform.user_function import load_function

        load_function(transform.function)


def second_spark_sink_error(sink: SinkName) -> SinksClash:
    """Build the error for a second sink that writes with Spark in one process."""
    return SinksClash(
        f"sink {sink} writes with Spark, and so does another sink of this process",
        'give it a process of its own, or set spark.writer = "in-process"',
    )


@contextmanager
def _open_only_spark_session(settings: SinkSettings) -> Iterator[OpenSession]:
    """Hold the process's only Spark session: closing it would close it for other sinks too."""
    from headgate.data_plane.spark.session import open_session

    if not _SPARK.acquire(blocking=False):
        raise second_spark_sink_error(settings.name)
    try:
        with closing(open_session(spark_options(settings))) as session:
            yield session
    finally:
        _SPARK.release()
