"""Starts a sink where another consumer group is, or moves a stopped one there (rule TAKEOVER-12).

The group is whatever read the topics before: Kafka Connect stopped in order, a consumer of one's
own, or what a mirroring tool made of it on another cluster. Its word is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import ConfigurationError, TableMissing
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.ports import Lineage, TableView, TopicState
from headgate.kafka.cluster_queries import ANSWER_S_MAX, Cluster, with_log_silenced
from headgate.kafka.group_offsets import read_group_offsets
from headgate.operations.access.kafka_connection import read_topics
from headgate.operations.access.tables import open_primary
from headgate.operations.control.operator_claim import make_first_record
from headgate.operations.control.set_offsets import (
    OffsetMove,
    OffsetPlan,
    plan_offset_moves,
    require_no_running_participants,
)
from headgate.runtime.sink_tables import SinkTables

_FORM = "write --map OLD/PARTITION=NEW/PARTITION, or OLD=NEW for a whole topic"


def plan_group_offsets_creating_table(
    settings: SinkSettings, group: str, maps: Sequence[str] = (), *, deleted_back: bool = False
) -> OffsetPlan:
    """Plan to go on where the group is; ``maps`` say which partition of the sink is which of its.

    A missing table that the sink may create is created, empty: the claim needs one. Raises as
    ``plan_offset_moves``, ``ConfigurationError`` for a group that is at work or has no offsets
    there, and ``Unreachable`` while a partition has no leader.
    """
    require_no_running_participants(settings)
    if members := Cluster(settings.kafka).describe_group(group).members:
        raise ConfigurationError(
            f"group {group} has {count_of(len(members), 'member')}: {', '.join(members)}",
            "stop them first: who reads on beside the sink reads the same records",
        )
    topics = read_topics(settings)  # one left out would not begin where the group is
    places = [TopicPartition(t, n) for t, state in topics.items() for n in state.partitions]
    offsets = _read_offsets_by_sink_partition(settings.kafka, group, places, maps)
    if not offsets:
        raise ConfigurationError(
            f"group {group} has no offsets of {', '.join(sorted(topics))}",
            "Kafka forgets those of a group without members after a week (offsets.retention."
            "minutes); --map says how its topics were called",
        )
    view = read_or_create_primary(settings)
    if view.record is None and view.lineage is Lineage.FRESH:
        return _plan_first_claim(settings, view, topics, offsets)
    assignments = [f"{at}={offset}" for at, offset in sorted(offsets.items())]
    return plan_offset_moves(
        settings, assignments, deleted_back=deleted_back, takes_other_topics=True
    )


def _read_offsets_by_sink_partition(
    kafka: Mapping[str, str],
    group: str,
    sink_partitions: Sequence[TopicPartition],
    maps: Sequence[str],
) -> dict[TopicPartition, int]:
    """Return the group's offsets by the sink's partitions, as far as it has some.

    What a map names as the old one is not the partition that has its name now. Raises
    ``ConfigurationError`` for a map without an effect.
    """
    renamed = {text: _group_partition_by_sink_partition(text, sink_partitions) for text in maps}
    former = {old for old_names in renamed.values() for old in old_names.values()}
    group_partition_of = {at: at for at in sink_partitions if at not in former}
    for old_names in renamed.values():
        group_partition_of |= old_names
    asked = set(group_partition_of.values())
    found = read_group_offsets(with_log_silenced(kafka), group, asked, ANSWER_S_MAX)
    offsets = {at: found[old] for at, old in group_partition_of.items() if old in found}
    for text, old_names in renamed.items():
        if not old_names.keys() & offsets.keys():
            named = text.partition("=")[0]
            raise ConfigurationError(f"{text!r}: group {group} has no offsets of {named}", _FORM)
    return offsets


def _group_partition_by_sink_partition(
    text: str, sink_partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, TopicPartition]:
    """Return the group's partition of each of the sink's that the map names."""
    old, _, new = text.partition("=")
    if not (old and new):
        raise ConfigurationError(f"{text!r} maps nothing", _FORM)
    (of, old_number), (to, new_number) = (
        _parse_topic_or_partition(old),
        _parse_topic_or_partition(new),
    )
    if (old_number is None) != (new_number is None):
        raise ConfigurationError(f"{text!r} maps a topic to a partition", _FORM)
    named = [at for at in sink_partitions if at.topic == to and new_number in (None, at.partition)]
    if not named:
        raise ConfigurationError(f"{text!r}: the sink reads no {new}", _FORM)
    return {
        at: TopicPartition(of, at.partition if old_number is None else old_number) for at in named
    }


def _parse_topic_or_partition(text: str) -> tuple[str, int | None]:
    topic, _, number = text.rpartition("/")
    return (topic, int(number)) if topic and number.isdecimal() else (text, None)


def read_or_create_primary(settings: SinkSettings) -> TableView:
    """Return the sink's table, which is created empty if it is missing and may be."""
    try:
        with open_primary(settings) as table:
            return table.read()
    except TableMissing:
        if not settings.table.create:
            raise
    with ExitStack() as opening:
        tables = SinkTables(settings, opening).prepare_tables()
        with closing(tables.open_primary()) as table:
            return table.read()


def _plan_first_claim(
    settings: SinkSettings,
    view: TableView,
    topics: Mapping[str, TopicState],
    offsets: Mapping[TopicPartition, int],
) -> OffsetPlan:
    """Plan the first claim: where the group has no offset, a partition's log begins."""
    begins = {
        TopicPartition(topic, number): log.begin
        for topic, state in topics.items()
        for number, log in state.partitions.items()
    }
    for at, offset in offsets.items():
        log = topics[at.topic].partitions[at.partition]
        if not log.begin <= offset <= log.end:
            raise ConfigurationError(
                f"{at}: the group is at {offset}, which is not in the log, {log}",
                "is it the same topic, on the same cluster? else --map names its old one",
            )
    record = make_first_record(settings, begins, topics)
    moves = (OffsetMove(at, begin, offsets.get(at, begin)) for at, begin in sorted(begins.items()))
    return OffsetPlan(view, record, tuple(moves))
