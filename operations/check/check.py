"""Checks whether this sink would run: settings, reachability, rights, and what the table says.

It changes nothing except for a one-line file below the location of a table on an object store,
which it writes, reads and removes: rights on files cannot be checked in another way.

Each question is one line: well, wrong with what to do, or not checked and why. What depends on
something that failed is not asked.
"""

from __future__ import annotations

import importlib.util
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from headgate.config.quarantine_settings import QuarantineSettings
from headgate.config.sink_sections import ControlSettings, SparkSettings, WriterKind
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_format_registry import traits_of_format
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import (
    ClockDiffers,
    ConfigurationError,
    ControlTopicUnfit,
    HeadgateError,
    MissingRights,
    Unreachable,
)
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.redaction import to_printable_line
from headgate.kafka.authentication import token_keeper_for
from headgate.kafka.cluster_queries import (
    ANSWER_S_MAX,
    Cluster,
    read_newest_append_time,
    with_log_silenced,
)
from headgate.kafka.consumer_group import require_accepted_group_settings
from headgate.kafka.control_topic import require_fitting_topic_if_present, will_use_append_time
from headgate.kafka.record_fetch import try_batch_consumer_and_describe
from headgate.kafka.token_providers import unverified_claims_of
from headgate.native.kernels import InPython, loops
from headgate.operations.access.kafka_connection import (
    open_reachable_source_topics,
    require_every_partition_led,
)
from headgate.operations.access.tables import check_routed_tables
from headgate.operations.check.keys_and_transform import check_key, check_keys, check_transform
from headgate.operations.check.records import (
    can_describe_records,
    can_dry_run,
    check_by_dry_run,
    check_records,
)
from headgate.operations.check.report_receivers import (
    check_receiver,
    join_operations,
    require_topic_rights,
)
from headgate.operations.check.required_grants import RIGHTS, Rights, Role
from headgate.operations.check.table import (
    NotChecked,
    TableCheck,
    check_catalog_rights,
)
from headgate.operations.http.app import require_server_library
from headgate.operations.http.certificates import load_tls_context_if_configured
from headgate.operations.java_installation import java_version, require_java
from headgate.operations.many_tables.list import describe_routes_and_collisions
from headgate.runtime.configuration_comparison import (
    SIGNS_MISSED,
    find_participants_with_other_file,
    try_read_recent_envelopes,
)
from headgate.runtime.health import summarize_heard_events
from headgate.runtime.telemetry.opentelemetry import require_telemetry_libraries
from headgate.runtime.wall_clock import wall_ms

CLOCKS_DIFFER_MS_MAX = 60_000
"""Signs of life, ages and expired pending commits compare clocks; a minute harms none of them."""

_TOO_WIDE = frozenset({"alter", "alter_configs", "delete"})
"""Operations from a principal's rights on a topic that go beyond any role."""


class State(StrEnum):
    """The answer to one question."""

    OK = "ok"
    WRONG = "wrong"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the answer. ``code`` and ``exit_code`` come from the underlying error."""

    what: str
    state: State
    detail: str
    hint: str = ""
    code: str = ""
    exit_code: int = 0


def check(settings: SinkSettings, role: Role = Role.SINK) -> tuple[Check, ...]:
    """Ask every question about a sink whose file could be loaded. Raises nothing foreseeable.

    For a role other than the sink's, only the rights that it needs are asked.
    """
    if role is not Role.SINK:
        return _check_rights_of_role(settings, RIGHTS[role])
    questions = Questions(settings)
    questions.ask("settings", lambda: _describe_settings(settings))
    cluster = ask_about_brokers(questions, settings)
    if cluster:
        questions.ask("source topics", lambda: _check_source(settings, cluster))
        if questions.are_asked_and_not_wrong("source topics"):
            questions.ask("batch consumer", lambda: _check_batch_consumer(settings))
        questions.ask("control topic", lambda: _check_control_topic(settings, cluster))
        questions.ask("consumer group", lambda: _check_group(settings, cluster))
        if questions.are_asked_and_not_wrong("control topic"):
            questions.ask(
                "control events", lambda: _check_control_topic_writers(settings.control, cluster)
            )
            questions.ask("participants", lambda: _check_participants_sink_file(settings))
            questions.ask("clock", lambda: _check_clock(settings))
        if settings.quarantine.dead_letter_topic:
            questions.ask(
                "dead-letter topic", lambda: _check_dead_letter_topic(settings.quarantine, cluster)
            )
        if can_describe_records(settings) and questions.are_asked_and_not_wrong("source topics"):
            questions.ask("records", lambda: check_records(settings))
        if settings.tables and questions.are_asked_and_not_wrong("source topics"):
            _ask_about_routes(questions, settings)
    asks_group = questions.are_asked_and_not_wrong("source topics", "consumer group")
    table = TableCheck(settings, asks_group=asks_group)
    _ask_about_table(questions, table, settings)
    if can_dry_run(settings) and questions.are_asked_and_not_wrong("source topics", "table"):
        questions.ask("rows", lambda: check_by_dry_run(settings))
    _ask_about_writer(questions, table, settings)
    _ask_about_receivers(questions, settings, cluster)
    return tuple(questions.answers)


def check_offline(settings: SinkSettings) -> tuple[Check, ...]:
    """Ask only what the file itself answers; that it could be loaded is the most of it."""
    questions = Questions(settings)
    questions.ask("settings", lambda: _describe_settings(settings))

    def raise_not_checked() -> str:
        raise NotChecked("--offline: neither brokers nor catalog nor storage were asked")

    questions.ask("the rest", raise_not_checked)
    return tuple(questions.answers)


def _ask_about_table(questions: Questions, table: TableCheck, settings: SinkSettings) -> None:
    """Ask about the sink's table and its quarantine, as far as their format has the question."""
    if table.has_catalog:
        questions.ask("catalog", table.check_catalog)
        if not questions.are_asked_and_not_wrong("catalog"):
            return
    questions.ask("table", table.check_table)
    well = questions.are_asked_and_not_wrong("table")
    if well and table.has_catalog:
        questions.ask("catalog rights", table.check_rights)
    if well and table.has_found_table:
        questions.ask("columns", table.check_columns)
        if table.has_catalog:
            if settings.table.key and questions.are_asked_and_not_wrong("columns"):
                questions.ask("keys", lambda: check_key(settings, table.loaded_table))
            if settings.maintenance.rows_after_ms and questions.are_asked_and_not_wrong("columns"):
                questions.ask("row expiry", table.check_row_expiry)
            questions.ask("files", table.check_file_properties)
        if settings.tables:
            questions.ask("routed tables", lambda: check_routed_tables(settings))
        _ask_about_stored_state(questions, table)
    if table.has_lock:
        questions.ask("lock", table.check_lock)
    if settings.quarantine.keeps_rejected_records and well:
        questions.ask("quarantine", table.check_quarantine)
        if settings.has_quarantine_of_other_format and questions.are_asked_and_not_wrong(
            "quarantine"
        ):
            quarantine = settings.quarantine.table
            questions.ask("quarantine rights", lambda: check_catalog_rights(settings, quarantine))
    questions.ask("storage", table.check_storage)


def _ask_about_writer(questions: Questions, table: TableCheck, settings: SinkSettings) -> None:
    """Ask about what writes files, and what a participant serves beside it."""
    questions.ask("writer", lambda: _check_writer(settings))
    if settings.http.listen or settings.http.certificate or settings.telemetry.otlp_endpoint:
        questions.ask("http", lambda: _check_http_and_telemetry(settings))
    on_spark = settings.spark.is_writer and questions.are_asked_and_not_wrong("writer")
    if on_spark and questions.are_asked_and_not_wrong("storage"):
        questions.ask("executors", table.check_executors)
    if on_spark and (settings.kafka_auth or settings.format.auth):
        questions.ask("executors' tokens", table.check_executor_tokens)
    if settings.transform and questions.are_asked_and_not_wrong("writer", "table"):
        questions.ask("transform", lambda: check_transform(settings))


def _ask_about_receivers(
    questions: Questions, settings: SinkSettings, cluster: Cluster | None
) -> None:
    lineage, signal = settings.lineage, settings.signal
    if lineage:
        questions.ask("lineage", lambda: check_receiver("lineage", lineage, cluster))
    if signal:
        questions.ask("signal", lambda: check_receiver("signal", signal, cluster))


def _ask_about_routes(questions: Questions, settings: SinkSettings) -> None:
    questions.ask("routes", lambda: describe_routes_and_collisions(settings))
    if settings.tables.has_keyed_table:
        questions.ask("keys", lambda: check_keys(settings))


def _ask_about_stored_state(questions: Questions, table: TableCheck) -> None:
    questions.ask("sink state", table.check_sink_state)
    if questions.are_asked_and_not_wrong("sink state", "source topics"):
        questions.ask("stored offsets", table.check_stored_offsets)


def _check_rights_of_role(settings: SinkSettings, rights: Rights) -> tuple[Check, ...]:
    questions = Questions(settings)
    questions.ask("settings", lambda: _describe_settings(settings))
    cluster = ask_about_brokers(questions, settings)
    if cluster:
        questions.ask("source topics", lambda: _check_source(settings, cluster, rights))
        questions.ask("control topic", lambda: _check_control_topic(settings, cluster, rights))
        questions.ask("consumer group", lambda: _check_group(settings, cluster, rights))
    table = TableCheck(settings, commits=rights.commits, creates=False)
    if table.has_catalog:
        questions.ask("catalog", table.check_catalog)
    if not table.has_catalog or questions.are_asked_and_not_wrong("catalog"):
        questions.ask("table", table.check_table)
        if table.has_catalog and questions.are_asked_and_not_wrong("table") and rights.commits:
            questions.ask("catalog rights", table.check_rights)
    return tuple(questions.answers)


def exit_code_of(answers: tuple[Check, ...]) -> int:
    """Return 0 if well, else what a person must fix first: configuration, state, network."""
    found = {answer.exit_code for answer in answers}
    return next((code for code in (2, 1, 3) if code in found), 0)


class Questions:
    """Asks, and keeps the answers."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self.answers: list[Check] = []

    def ask(self, what: str, question: Callable[[], str]) -> None:
        try:
            answer = Check(what, State.OK, question())
        except NotChecked as reason:
            answer = Check(what, State.UNCHECKED, str(reason))
        except HeadgateError as error:
            answer = Check(
                what,
                State.WRONG,
                self._settings.redact(error.message),
                self._settings.redact(error.hint),
                error.code,
                error.exit_code,
            )
        self.answers.append(self._without_repetition(answer))

    def _without_repetition(self, answer: Check) -> Check:
        """Return the answer, or where the same fault was said already."""
        for earlier in self.answers:
            if answer.code and (earlier.code, earlier.detail) == (answer.code, answer.detail):
                return replace(answer, detail=f"the same as {earlier.what}", hint="")
        return answer

    def ask_and_keep_cluster(
        self, what: str, open_cluster: Callable[[], Cluster], question: Callable[[Cluster], str]
    ) -> Cluster | None:
        """Return the object itself if the answer to its question is good."""
        things: list[Cluster] = []

        def open_and_ask() -> str:
            things.append(open_cluster())
            return question(things[0])

        self.ask(what, open_and_ask)
        return things[0] if self.are_asked_and_not_wrong(what) else None

    def are_asked_and_not_wrong(self, *names: str) -> bool:
        """Return whether all of these were asked and none is wrong."""
        states = {answer.what: answer.state for answer in self.answers}
        return all(states.get(name, State.WRONG) is not State.WRONG for name in names)


def ask_about_brokers(questions: Questions, settings: SinkSettings) -> Cluster | None:
    """Ask for a token first, if there is to be one: so it is known which half has failed."""
    if token_keeper_for(settings.kafka):
        questions.ask("token", lambda: _check_token(settings.kafka))
        if not questions.are_asked_and_not_wrong("token"):
            return None
    return questions.ask_and_keep_cluster("broker", lambda: Cluster(settings.kafka), _check_brokers)


def _check_token(kafka: Mapping[str, Any]) -> str:
    keeper = token_keeper_for(kafka)
    assert keeper is not None
    token = keeper.require_token()
    audience = unverified_claims_of(token.text).get("aud", "")
    to = f", audience {audience}" if isinstance(audience, str) and audience else ""
    left_s = token.expires_at_s - time.time()
    return to_printable_line(
        f"a token for {token.principal}{to}, valid for {left_s:.0f} s; renewed at half of its life"
    )


def _describe_settings(settings: SinkSettings) -> str:
    guarantee = traits_of_format(settings).guarantee
    return (
        f"sink {settings.name!r}: {', '.join(settings.source.topics)} into "
        f"{settings.table.identifier} ({settings.table.branch}), {guarantee}"
    )


def _check_brokers(cluster: Cluster) -> str:
    return count_of(cluster.count_brokers(), "broker answers", "brokers answer")


def _check_source(
    settings: SinkSettings, cluster: Cluster, rights: Rights = RIGHTS[Role.SINK]
) -> str:
    with open_reachable_source_topics(settings) as topics:
        found = topics.describe()
    for name in found:
        granted = cluster.describe_topic(name)
        if granted and (lacking := granted.known_missing_operations(*rights.source)):
            raise MissingRights(
                f"topic {name}: not allowed to {', '.join(lacking)}",
                f"grant {join_operations(rights.source)} to the principal",
            )
    require_every_partition_led(found)
    return ", ".join(
        f"{name} ({count_of(len(topic.partitions), 'partition')})" for name, topic in found.items()
    )


def _check_batch_consumer(settings: SinkSettings) -> str:
    """Ask the client that no other question asks: it has its own way to tokens and brokers."""
    with open_reachable_source_topics(settings) as topics:
        found = topics.describe()
    if not found:
        raise NotChecked("there is no topic yet that it could read")
    at = TopicPartition(min(found), 0)
    return try_batch_consumer_and_describe(settings.kafka, at, 2 * ANSWER_S_MAX)


def _check_control_topic(
    settings: SinkSettings, cluster: Cluster, rights: Rights = RIGHTS[Role.SINK]
) -> str:
    name = settings.control.topic
    looks = "describe_configs" in rights.control  # a viewer may not, and need not
    if looks:
        exists = require_fitting_topic_if_present(
            with_log_silenced(settings.kafka), name, int(ANSWER_S_MAX * 1000)
        )
    else:
        exists = cluster.describe_topic(name) is not None
    if not exists:
        if not cluster.may_create_control_topic(name):
            raise ControlTopicUnfit(
                f"control topic {name} does not exist and may not be created",
                "create it with one partition, or grant CREATE",
            )
        return f"{name} does not exist yet; the first start creates it"
    topic = cluster.describe_topic(name)
    needed = tuple(operation for operation in rights.control if operation != "describe_configs")
    if topic and (lacking := topic.known_missing_operations(*needed)):
        raise MissingRights(
            f"control topic {name}: not allowed to {', '.join(lacking)}",
            f"grant {join_operations(needed)} to the principal",
        )
    written = " and written" if "write" in needed else ""
    fit = "is as it should be, and " if looks else ""
    own_time = ""
    if looks and not will_use_append_time(
        with_log_silenced(settings.kafka), name, int(ANSWER_S_MAX * 1000)
    ):
        own_time = (
            "; it takes its writers' time, so brokers refuse one whose clock is far ahead: set its "
            "message.timestamp.type=LogAppendTime"
        )
    return f"{name} {fit}may be read{written}{own_time}"


def _check_clock(settings: SinkSettings) -> str:
    """Compare this machine's clock with the brokers' as the newest event shows it."""
    topic, interval_ms = settings.control.topic, settings.participant.presence_interval_ms
    newest_ms = read_newest_append_time(settings.kafka, topic, settings.source.group_id)
    if newest_ms is None:
        raise NotChecked(f"{topic} does not say what time the brokers have")
    ahead_ms = wall_ms() - newest_ms
    if ahead_ms > interval_ms:  # nothing was said lately; or by this clock only
        heard_events = try_read_recent_envelopes(settings)
        if (
            summarize_heard_events(heard_events, newest_ms, SIGNS_MISSED * interval_ms).ended
            is not False
        ):
            raise NotChecked("nobody is at work, so that no event says what time the brokers have")
        wait_s = 2 * interval_ms / 1000
        next_ms = read_newest_append_time(settings.kafka, topic, settings.source.group_id, wait_s)
        if next_ms is None:
            raise NotChecked("nobody says anything now that would tell the brokers' time")
        ahead_ms = wall_ms() - next_ms
    if abs(ahead_ms) > CLOCKS_DIFFER_MS_MAX:
        raise ClockDiffers(
            f"this machine's clock is {abs(ahead_ms) / 1000:.0f} s "
            f"{'ahead of' if ahead_ms > 0 else 'behind'} the brokers'",
            "synchronize the clocks of both",
        )
    return f"within {max(1, -(-abs(ahead_ms) // 1000))} s of the brokers'"


def _check_participants_sink_file(settings: SinkSettings) -> str:
    """CONFIG-1: ask what a start asks: whether those at work have this file."""
    heard_events, now_ms = try_read_recent_envelopes(settings), wall_ms()
    error = find_participants_with_other_file(settings, heard_events, now_ms).error
    if error:
        raise error
    silent_ms = SIGNS_MISSED * settings.participant.presence_interval_ms
    alive = summarize_heard_events(heard_events, now_ms, silent_ms).alive
    return f"{len(alive)} at work, with this sink file" if alive else "none is at work"


def _check_control_topic_writers(control: ControlSettings, cluster: Cluster) -> str:
    """Report who could speak for the sink, and whether this principal may do more than it needs."""
    name = control.topic
    granted = cluster.describe_topic(name)
    wide = sorted(_TOO_WIDE & (granted.operations or frozenset())) if granted else []
    if wide:
        raise NotChecked(
            f"this principal may {', '.join(wide)} control topic {name}, which no role needs "
            "(docs/guides/security.md)"
        )
    if control.signing_keys:
        return "signed: only members with control.key are heard"
    return f"not signed: anybody who may write to {name} is heard (docs/guides/security.md)"


def _check_group(
    settings: SinkSettings, cluster: Cluster, rights: Rights = RIGHTS[Role.SINK]
) -> str:
    name = settings.source.group_id
    if "read" in rights.group:
        require_accepted_group_settings(settings.kafka, name, settings.source.group_protocol.value)
    group = cluster.describe_group(name)
    may = "joined" if "read" in rights.group else "described"
    if group.known_missing_operations(*rights.group):
        raise MissingRights(
            f"consumer group {name} may not be {may}",
            f"grant {join_operations(rights.group)} to the principal",
        )
    state = "has no members" if group.state in ("dead", "empty") else f"is {group.state}"
    return f"{name} may be {may}, and {state} now"


def _check_dead_letter_topic(quarantine: QuarantineSettings, cluster: Cluster) -> str:
    name = quarantine.dead_letter_topic
    return require_topic_rights(
        cluster,
        f"dead-letter topic {name}",
        name,
        operations=("read", "write", "describe"),
        missing_hint="create it; until then dead letters wait in the quarantine",
        purpose=" (READ for its group's offset)",
    )


def _check_writer(settings: SinkSettings) -> str:
    without = (
        "; installed without a C compiler, which makes it slower (docs/reference/performance.md)"
    )
    return _check_spark_writer(settings.spark) + (without if isinstance(loops(), InPython) else "")


def _check_spark_connect_server(remote: str) -> str:
    if remote.startswith("local"):
        require_java()
        return f"Spark Connect in this process, with Java {java_version()}"
    host, _, port = remote.removeprefix("sc://").partition("/")[0].rpartition(":")
    if not host:
        host, port = port, "15002"  # Spark's own default
    if error := find_connect_error(host, port):
        raise Unreachable(
            f"spark.remote: nothing answers at {host}:{port}: {error}",
            "start the Spark Connect server, or correct the address",
        ) from error
    return f"Spark Connect: {host}:{port} accepts connections"


def _require_reachable_standalone_master(master: str) -> None:
    """Raise ``Unreachable`` if none of a standalone cluster's masters accepts a connection."""
    if not master.startswith("spark://"):
        return
    errors = []
    for at in master.removeprefix("spark://").split(","):
        host, _, port = at.rpartition(":")
        if (error := find_connect_error(host or port, port if host else "7077")) is None:
            return
        errors.append(error)
    raise Unreachable(
        f"spark.master: nothing answers at {master}: {errors[0]}",
        "start Spark's master, or correct the address",
    )


def find_connect_error(host: str, port: str) -> Exception | None:
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S_MAX).close()
    except (OSError, ValueError) as error:
        return error
    return None


def _check_http_and_telemetry(settings: SinkSettings) -> str:
    """Ask what a participant asks before it serves its state or sends metrics."""
    require_telemetry_libraries(settings.telemetry)
    if settings.http.listen:
        require_server_library()
    encrypted = load_tls_context_if_configured(settings.http) is not None
    listen = settings.http.listen
    where = f"listens at {listen} {'with' if encrypted else 'without'} TLS" if listen else ""
    sent = settings.telemetry.otlp_endpoint and "metrics are sent over OTLP"
    return "; ".join(filter(None, (where, sent))) or "the certificate can be used"


def _check_spark_writer(spark: SparkSettings) -> str:
    if spark.writer is WriterKind.IN_PROCESS:
        return "in-process, without Spark"
    for module, extra in (("pyspark", "spark"), ("pandas", "spark")):
        if importlib.util.find_spec(module) is None:
            raise ConfigurationError(
                f"spark.writer is spark, but {module} is not installed",
                f"pip install 'headgate[{extra}]', or set spark.writer to in-process",
            )
    if spark.remote:
        if importlib.util.find_spec("grpc") is None:
            raise ConfigurationError(
                "spark.remote is set, but grpcio is not installed",
                "pip install 'headgate[spark-connect]'",
            )
        return _check_spark_connect_server(spark.remote)
    _require_reachable_standalone_master(spark.master or spark.conf.get("spark.master", ""))
    require_java()
    return f"Spark with Java {java_version()}"
