"""Reports what a Kafka cluster does that nobody here has seen: ``headgate check --kafka``.

Each line says what was tried and what was answered. The last one says whether a sink may run there,
and with which settings. It makes a topic of its own and deletes it; the sink's are only described.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import (
    ClockDiffers,
    ConfigurationError,
    ControlTopicUnfit,
    HeadgateError,
    MissingRights,
    Unreachable,
)
from headgate.control_protocol.identifiers import SinkName
from headgate.kafka.cluster_queries import Cluster
from headgate.kafka.cluster_trial import NO_ID, ClusterTrial, describe_client
from headgate.kafka.control_topic import APPEND_TIME, CONTROL_SETTINGS
from headgate.kafka.record_samples import read_newest_records
from headgate.operations.check.check import (
    CLOCKS_DIFFER_MS_MAX,
    Check,
    Questions,
    State,
    ask_about_brokers,
)
from headgate.operations.check.required_grants import RIGHTS, Role
from headgate.operations.check.table import NotChecked

_NEEDED = frozenset({"broker", "batch consumer", "control events", "rebalance: classic"})
"""Without these no sink runs; all else changes its settings, or what it can notice."""


@dataclass(slots=True)
class _Advice:
    """What a person has to write or to know, gathered while questions are asked."""

    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def add_line(self, line: str) -> None:
        if line not in self.lines:
            self.lines.append(line)


def check_kafka_by_trial(settings: SinkSettings) -> tuple[Check, ...]:
    """Ask the cluster of a sink file. Raises nothing foreseeable."""
    questions, advice = Questions(settings), _Advice()
    questions.ask("client", describe_client)
    cluster = ask_about_brokers(questions, settings)
    if cluster:
        with ExitStack() as stack:
            name = f"{settings.control.topic}-check-{secrets.token_hex(4)}"
            trial = ClusterTrial(settings.kafka, name)
            stack.callback(_ask_to_delete_topic, questions, trial)
            questions.ask("cluster", lambda: _describe_cluster(trial))
            _ask_about_topics_and_group(questions, settings, cluster, trial)
            questions.ask("trial topic", lambda: _create_trial_topic(trial, advice))
            if trial.made:
                _ask_by_trial(questions, trial, advice)
    questions.ask(
        "verdict", lambda: _require_sink_can_run(questions.answers, settings.name, advice)
    )
    return tuple(questions.answers)


def _ask_to_delete_topic(questions: Questions, trial: ClusterTrial) -> None:
    """Delete the topic as the last thing, whatever came before; say so if it stays."""
    if trial.made:
        questions.ask("clean-up", lambda: _delete_topic(trial))


def _delete_topic(trial: ClusterTrial) -> str:
    trial.delete_topic()
    return f"topic {trial.name} was deleted; its groups expire by themselves"


def _describe_cluster(trial: ClusterTrial) -> str:
    name, nodes = trial.cluster_id_and_broker_count()
    return f"it calls itself {name}, with {count_of(nodes, 'broker')}"


def _ask_about_topics_and_group(
    questions: Questions, settings: SinkSettings, cluster: Cluster, trial: ClusterTrial
) -> None:
    """Describe what the sink names, as far as it is there."""
    for topic in settings.source.topics:
        if not topic.startswith("^"):
            questions.ask(f"source {topic}", partial(_check_topic, cluster, trial, topic))
    control, group = settings.control.topic, settings.source.group_id
    questions.ask(f"control {control}", lambda: _check_topic(cluster, trial, control, control=True))
    questions.ask(f"group {group}", lambda: _check_group(cluster, group))
    questions.ask("reading", lambda: _check_reading_source(settings))


def _check_topic(
    cluster: Cluster, trial: ClusterTrial, topic: str, *, control: bool = False
) -> str:
    found = cluster.describe_topic(topic)
    if found is None:
        try:
            may = cluster.may_create_control_topic(topic) if control else False
        except ControlTopicUnfit as error:
            raise NotChecked(error.message) from None
        also = f", and may {'' if may else 'not '}be created" if control else ""
        raise NotChecked(f"it is not there{also}")
    needed = RIGHTS[Role.SINK].control if control else RIGHTS[Role.SINK].source
    rights = _require_rights_if_told(found.operations, needed)
    config = _topic_settings_if_told(trial, topic, needed)
    policy = config.get("cleanup.policy", "not told")
    count = count_of(found.partitions, "partition")
    number = _describe_topic_id(trial.topic_id(topic))
    return f"{count}, id {number}, cleanup.policy {policy}; {rights}"


def _topic_settings_if_told(
    trial: ClusterTrial, topic: str, needed: Sequence[str]
) -> Mapping[str, str]:
    try:
        return trial.topic_settings_of(topic)
    except MissingRights:
        if "describe_configs" in needed:
            raise
        return {}


def _describe_topic_id(topic_id: str) -> str:
    return "none" if topic_id == NO_ID else topic_id


def _require_rights_if_told(operations: frozenset[str] | None, needed: Sequence[str]) -> str:
    if operations is None:
        return "the cluster does not tell what this principal may do"
    if lacking := [each for each in needed if each not in operations]:
        raise MissingRights(
            f"not allowed to {', '.join(lacking)}", f"grant {', '.join(needed)} to the principal"
        )
    return f"this principal may {', '.join(needed)}"


def _check_group(cluster: Cluster, name: str) -> str:
    group = cluster.describe_group(name)
    rights = _require_rights_if_told(group.operations, RIGHTS[Role.SINK].group)
    return f"{group.state}, {count_of(len(group.members), 'member')}; {rights}"


def _check_reading_source(settings: SinkSettings) -> str:
    topic = settings.source.topics[0]
    records = read_newest_records(settings.kafka, topic, 1)
    return f"the newest record of {topic} was read" if records else f"{topic} holds no record"


def _create_trial_topic(trial: ClusterTrial, advice: _Advice) -> str:
    try:
        refused = trial.create_topic_and_list_refused_settings()
    except HeadgateError as error:
        remedy = ""
        if isinstance(error, MissingRights):
            advice.add_line(
                "create the control topic by hand, and grant what docs/guides/security.md lists"
            )
            remedy = ": run it with a principal that may create topics"
        raise NotChecked(
            f"{error.message}; so nothing is tried that needs a topic of one's own{remedy}"
        ) from None
    if not refused:
        return f"{trial.name} was created, with the settings of a control topic"
    own = _format_settings({name: CONTROL_SETTINGS[name] for name in refused})
    advice.add_line(f"the cluster takes these with no new topic, so set them elsewhere: {own}")
    return f"{trial.name} was created; refused: {', '.join(refused)}"


def _format_settings(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _ask_by_trial(questions: Questions, trial: ClusterTrial, advice: _Advice) -> None:
    questions.ask("topic ids", lambda: _check_trial_topic_id(trial, advice))
    questions.ask("topic settings", lambda: _check_trial_topic_settings(trial, advice))
    questions.ask("control events", lambda: _check_append(trial, advice))
    questions.ask("batch consumer", trial.try_batch_consumer_and_describe)
    questions.ask("transactions", lambda: _check_aborted_records_hidden(trial, advice))
    questions.ask("rebalance: classic", lambda: _check_classic_rebalance(trial))
    questions.ask("rebalance: consumer", lambda: _check_consumer_rebalance(trial, advice))


def _check_trial_topic_id(trial: ClusterTrial, advice: _Advice) -> str:
    found = trial.topic_id(trial.name)
    if found == NO_ID:
        advice.add_line("never delete a topic and create it again: nobody would notice (HG-206)")
        raise NotChecked("topics have no ids, so one that is created again is not noticed")
    return f"topics have ids: {found}"


def _check_trial_topic_settings(trial: ClusterTrial, advice: _Advice) -> str:
    found = trial.topic_settings_of(trial.name)
    unknown = [name for name in CONTROL_SETTINGS if name not in found]
    if not found:
        advice.add_line(
            "an admin client sees no settings of topics: look at the provider's console that the "
            "control topic has one partition and does not compact (Event Hubs: az eventhubs "
            "eventhub create --partition-count 1 --cleanup-policy Delete)"
        )
        raise NotChecked("DescribeConfigs is not answered")
    other = {n: found[n] for n, v in CONTROL_SETTINGS.items() if n in found and found[n] != v}
    untold = f"not told: {', '.join(unknown)}" if unknown else "all of a control topic are told"
    asked = f"otherwise than asked for: {_format_settings(other)}" if other else "as asked for"
    return f"{untold}; {asked}"


def _check_append(trial: ClusterTrial, advice: _Advice) -> str:
    appended = trial.append_and_read_back()
    if not appended.append_time:
        advice.add_line(
            "brokers do not put their own time on control events: keep all clocks together; set "
            f"message.timestamp.type={APPEND_TIME} on the control topic if the provider can"
        )
        return "written idempotently and read again; the time on it is its writer's"
    ahead_ms = appended.ahead_ms
    if abs(ahead_ms) > CLOCKS_DIFFER_MS_MAX:
        raise ClockDiffers(
            f"written and read again; this machine's clock is {abs(ahead_ms) / 1000:.0f} s "
            f"{'ahead of' if ahead_ms > 0 else 'behind'} the brokers'",
            "synchronize the clocks of both",
        )
    return (
        "written idempotently and read again, with the brokers' time: within "
        f"{max(1, -(-abs(ahead_ms) // 1000))} s of this machine's"
    )


def _check_aborted_records_hidden(trial: ClusterTrial, advice: _Advice) -> str:
    try:
        seen = trial.run_transactions_and_read_back()
    except MissingRights as error:
        raise NotChecked(f"{error.message}; a sink itself needs no transaction") from None
    except Unreachable as error:
        advice.add_line("no producer of the source topics can use transactions here")
        raise NotChecked(f"{error.message}; a sink itself needs no transaction") from None
    if b"3" in seen:
        advice.faults.append("records of aborted transactions are delivered as if they counted")
        raise ConfigurationError(
            "an aborted record was read by a reader of committed ones only",
            "do not read topics with transactions from this cluster",
        )
    return "of a committed and an aborted record only the first is read"


def _check_classic_rebalance(trial: ClusterTrial) -> str:
    trial.join_and_leave_group("classic")
    return "a member of the classic protocol (cooperative-sticky) got its partition, and left"


def _check_consumer_rebalance(trial: ClusterTrial, advice: _Advice) -> str:
    try:
        trial.join_and_leave_group("consumer")
    except HeadgateError as error:
        advice.add_line('leave source.group_protocol at "classic"')
        raise NotChecked(f"not here: {error.message}") from None
    advice.add_line('source.group_protocol may be "classic" or "consumer"')
    return "a member of KIP-848's protocol got its partition, and left"


def _require_sink_can_run(answers: Sequence[Check], sink: SinkName, advice: _Advice) -> str:
    asked = {answer.what: answer.state for answer in answers}
    wrong = [what for what, state in asked.items() if state is State.WRONG]
    if missing := sorted(_NEEDED & {*wrong}) or advice.faults:
        codes = {answer.exit_code for answer in answers if answer.what in missing}
        # Nothing has to be changed where what failed did not answer: it is asked again.
        kind = Unreachable if codes == {Unreachable.exit_code} else ControlTopicUnfit
        raise kind(f"a sink cannot run here: {', '.join(missing)}", "; ".join(advice.lines))
    if untried := sorted(_NEEDED - asked.keys()):
        raise NotChecked(
            f"not known: {', '.join(untried)} could not be tried. {_advice_text(advice)}"
        )
    but = f" once this is mended: {', '.join(wrong)}" if wrong else ""
    return f"sink {sink} may run here{but}. {_advice_text(advice)}"


def _advice_text(advice: _Advice) -> str:
    return "Settings: " + "; ".join(advice.lines) if advice.lines else "No setting is needed"
