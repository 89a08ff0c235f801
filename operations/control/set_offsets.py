"""Moves a stopped sink's offsets by hand: a claim whose coordinator is a person (rule EPOCH-1)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from headgate.config.keyed_table_checks import find_added_keyed_partitions
from headgate.config.sink_sections import parse_timestamp_ms
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import (
    CommitRecord,
    require_rollback_finished,
)
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import (
    ConfigurationError,
    RetryLater,
    SinkNameTaken,
    StopSink,
)
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    Lineage,
    TableView,
    TopicState,
)
from headgate.coordinator.recovery import valid_through_of_claim
from headgate.operations.access.kafka_connection import (
    open_reachable_source_topics,
    require_every_partition_led,
)
from headgate.operations.access.tables import open_primary
from headgate.operations.control.deleted_rows_guard import require_deleted_not_read_again
from headgate.operations.control.operator_claim import (
    commit_claim_or_raise,
    make_claim,
    with_secondary_claims,
)
from headgate.operations.status.status import read_status

_WORDS = ("earliest", "latest")
_FORM = (
    'write TOPIC/PARTITION=OFFSET, with a number, "earliest", "latest" or a time from '
    "1970 on such as 2026-01-31T06:00:00Z; without /PARTITION for all of the topic, but by no "
    "number"
)


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """One partition's next offset, from the table's value to the wanted one."""

    partition: TopicPartition
    begin: int
    end: int

    def __str__(self) -> str:
        number = abs(self.end - self.begin)
        what = f"up to {count_of(number, 'record is', 'records are')} "
        if self.end < self.begin:
            what += "read again, and in the table TWICE unless you deleted the rows"
        else:
            what += "skipped, and LOST to the table"
        return f"{self.partition}: from {self.begin} to {self.end}: {what}"


@dataclass(frozen=True, slots=True)
class OffsetPlan:
    """What to do to the table as it was read; a plan changes nothing.

    ``recreated_topics``: topics that are others than those of the stored offsets.
    """

    view: TableView
    record: CommitRecord
    moves: tuple[OffsetMove, ...]
    recreated_topics: frozenset[str] = frozenset()

    def describe_moves(self) -> Iterator[str]:
        """Yield what each move does; where no offset is stored none brings or takes a record."""
        if self.recreated_topics:
            yield (
                f"{', '.join(sorted(self.recreated_topics))}: not the topic that was read before "
                "(another cluster, or re-created); its records begin where the group's word says"
            )
        for move in self.moves:
            if self.view.record is None or move.partition.topic in self.recreated_topics:
                yield f"{move.partition}: begins at {move.end}"
            else:
                yield str(move)


def plan_offset_moves(
    settings: SinkSettings,
    assignments: Iterable[str],
    *,
    deleted_back: bool = False,
    takes_other_topics: bool = False,
) -> OffsetPlan:
    """Plan the assignments: ``topic/0=17``, ``topic/0=earliest``, ``topic=TIME``.

    By a time, it continues from the first record with that timestamp or a later one.
    ``deleted_back``: records whose rows people deleted may be read again; else they stand in the
    way (``DeletedBack``). ``takes_other_topics``: a topic of the same name with another id, as on
    another cluster, begins anew where the assignments say, else at its log's begin.

    Raises ``ConfigurationError`` for an invalid request, and while participants are alive;
    ``RetryLater`` if table or source do not answer; ``StopSink`` if the table is not in order, or
    if what people deleted would be read again.
    """
    parsed = [_parse_assignment(text) for text in assignments]
    if not parsed:
        raise ConfigurationError("no offset is named", _FORM)
    require_no_running_participants(settings)
    with open_primary(settings) as table:
        view = table.read()
    record = require_claimable_record(settings, view)
    with open_reachable_source_topics(settings) as topics:
        described = topics.describe()
        partitions = _expand_to_partitions(parsed, described, topics.offsets_at)
    anew = frozenset[str]()
    if takes_other_topics:
        require_every_partition_led(described)
        record, begun = _with_recreated_topics_and_begins(record, described)
        anew = frozenset(at.topic for at in begun)
        partitions = {**{at: str(begin) for at, begin in begun.items()}, **partitions}
    record = _with_begins_of_new_topics(record, described, {at.topic for at in partitions})
    _require_no_added_keyed_partitions(settings, record, partitions)
    moves = [
        OffsetMove(at, record.offsets.get(at, 0), _resolve_offset(at, text, described, record))
        for at, text in sorted(partitions.items())
    ]
    _require_key_versions_not_read_again(settings, moves, anew)
    if not deleted_back:
        after = {move.partition: move.end for move in moves}
        require_deleted_not_read_again(settings, record.offsets, after, record.topic_ids)
    wanted = (move for move in moves if move.begin != move.end or move.partition.topic in anew)
    return OffsetPlan(view, record, tuple(wanted), anew)


def _with_recreated_topics_and_begins(
    record: CommitRecord, described: Mapping[str, TopicState]
) -> tuple[CommitRecord, Mapping[TopicPartition, int]]:
    """Return the record as a claim has it that reads other topics of these names from their logs'
    beginnings, and those."""
    ids = {topic: state.topic_id for topic, state in described.items()}
    begun = {
        TopicPartition(topic, number): log.begin
        for topic, state in described.items()
        if record.topic_ids.get(topic, state.topic_id) != state.topic_id
        for number, log in state.partitions.items()
    }
    return (record.with_replaced_topics(begun, ids) if begun else record), begun


def _with_begins_of_new_topics(
    record: CommitRecord, described: Mapping[str, TopicState], named: Collection[str]
) -> CommitRecord:
    """Return the record as a claim has it that begins to read the ``named`` topics.

    All partitions begin together: one that is named later would seem to have been added (KEY-8).
    """
    known = {at.topic for at in record.offsets}
    new = {topic: described[topic] for topic in named if topic in described and topic not in known}
    require_every_partition_led(new)
    begins = {
        TopicPartition(topic, number): log.begin
        for topic, state in new.items()
        for number, log in state.partitions.items()
    }
    ids = {topic: state.topic_id for topic, state in new.items()}
    return record.with_offsets(Offsets({**begins, **record.offsets}), {**ids, **record.topic_ids})


def _require_no_added_keyed_partitions(
    settings: SinkSettings, record: CommitRecord, partitions: Iterable[TopicPartition]
) -> None:
    """KEY-8: only a coordinator can tell when no older record comes any more."""
    if added := find_added_keyed_partitions(settings, record.offsets, partitions):
        raise ConfigurationError(
            f"{', '.join(map(str, added))}: added to a topic of a keyed table, and keys may have "
            "moved there",
            'name the other partitions; with changes.on_partitions_added = "wait" the sink reads '
            "these when it can tell which records are newer",
        )


def _require_key_versions_not_read_again(
    settings: SinkSettings, moves: Iterable[OffsetMove], recreated_topics: Collection[str]
) -> None:
    """KEY-16: refuse what would bring the versions of a history twice, or out of their order."""
    back = [str(each.partition) for each in moves if each.end < each.begin]
    if settings.changes.history and (back or recreated_topics):
        raise ConfigurationError(
            f"{', '.join(back or sorted(recreated_topics))}: changes.history is set: records that "
            "are read again would be second versions, and offsets of another topic have another "
            "order",
            "fill a new table: drop this one, and start with "
            'coordinator.on_table_recreated = "restart"',
        )


def carry_out_offset_plan(settings: SinkSettings, plan: OffsetPlan) -> None:
    """Commit once, on the table as it was when the plan was made.

    Raises ``RetryLater`` if it was refused, or if it is unknown whether it landed.
    """
    moved = {move.partition: move.end for move in plan.moves}
    offsets = Offsets({**plan.record.offsets, **moved})
    claim = make_claim(
        plan.record,
        "offsets set",
        offsets=offsets,
        valid_through_ms=valid_through_of_claim(plan.record, offsets, plan.record.topic_ids),
    )
    failed = RetryLater(
        f"the offsets of sink {settings.name} were not moved",
        "look with headgate offsets show, and try again",
    )
    commit_claim_or_raise(
        settings, plan.view, with_secondary_claims(settings.quarantine, claim), failed
    )


@dataclass(frozen=True, slots=True)
class _Requested:
    """``partition``: ``None`` for the whole topic. ``place``: a number, a word or a time."""

    topic: str
    partition: int | None
    place: str


def _parse_assignment(text: str) -> _Requested:
    where, _, place = text.partition("=")
    topic, _, partition = where.rpartition("/")
    numbered = place.isdecimal()
    if not where or not (numbered or place in _WORDS or _time_ms_or_none(place) is not None):
        raise ConfigurationError(f"{text!r} is not an offset of a partition", _FORM)
    if topic and partition.isdecimal():
        return _Requested(topic, int(partition), place)
    if numbered:
        raise ConfigurationError(f"{text!r} is not an offset of a partition", _FORM)
    return _Requested(where, None, place)


def _time_ms_or_none(place: str) -> int | None:
    """Return a time with a zone as epoch milliseconds."""
    try:
        return None if place.isdecimal() else parse_timestamp_ms(place)
    except ConfigurationError:
        return None


def _expand_to_partitions(
    assignments: Iterable[_Requested],
    described: Mapping[str, TopicState],
    offsets_at: Callable[[int], Offsets],
) -> Mapping[TopicPartition, str]:
    """Return every partition that is meant, with a number or a word. The last one named counts."""
    places: dict[TopicPartition, str] = {}
    for each in assignments:
        topic = described.get(each.topic)
        numbers: Iterable[int]
        if each.partition is not None:
            numbers = [each.partition]
        elif topic is None:
            raise ConfigurationError(f"{each.topic} is not in the source", _FORM)
        else:
            require_every_partition_led({each.topic: topic})
            numbers = topic.partitions
        time_ms = _time_ms_or_none(each.place) if each.place not in _WORDS else None
        offsets = None if time_ms is None else offsets_at(time_ms)
        for number in numbers:
            at = TopicPartition(each.topic, number)
            places[at] = each.place if offsets is None else str(offsets.get(at, 0))
    return places


def require_no_running_participants(settings: SinkSettings) -> None:
    """Raise ``ConfigurationError`` while a participant runs, ``RetryLater`` if nobody knows."""
    report = read_status(settings)
    if not report.participants_known:
        raise RetryLater(
            f"whether sink {settings.name} is running is not known: {'; '.join(report.notes)}",
            "this is done only while no participant runs: wait until the brokers answer",
        )
    if alive := [participant.member for participant in report.participants]:
        raise ConfigurationError(
            f"sink {settings.name} is running: {', '.join(alive)}",
            "stop every participant first; one that has just ended counts as running for a moment",
        )


def require_claimable_record(settings: SinkSettings, view: TableView) -> CommitRecord:
    """Return the record that a person's claim may follow.

    Raises as ``require_record_of_unchanged_table``, and amid a rollback of many tables
    (ROLLBACK-1).
    """
    record = require_record_of_unchanged_table(settings, view)
    require_rollback_finished(record, settings.name)
    return record


def require_record_of_unchanged_table(settings: SinkSettings, view: TableView) -> CommitRecord:
    """Return the record of a table that is as the sink left it.

    Raises ``ConfigurationError`` without one, ``StopSink`` for a table that was changed.
    """
    if view.record is None:
        raise ConfigurationError(
            f"sink {settings.name} has no offsets yet", "set source.start_at before its first start"
        )
    if view.lineage is not Lineage.CONTAINS_TAG:
        raise StopSink(
            f"table {view.table} is not as sink {settings.name} left it: {view.lineage.value}",
            "start the sink: its error names what was done to the table, and what to do",
        )
    if view.record.group_id != settings.source.group_id:
        raise SinkNameTaken(
            f"sink {settings.name} belongs to group {view.record.group_id}",
            "correct source.group_id",
        )
    return view.record


def _resolve_offset(
    at: TopicPartition, text: str, described: Mapping[str, TopicState], record: CommitRecord
) -> int:
    topic = described.get(at.topic)
    if topic is None or at.partition not in topic.partitions:
        raise ConfigurationError(f"{at} is not in the source", "see headgate offsets show")
    if record.topic_ids.get(at.topic, topic.topic_id) != topic.topic_id:
        raise ConfigurationError(
            f"{at.topic} was re-created since, so that its offsets name other records",
            "headgate resume SINK --accept HG-206=earliest or HG-206=latest; or set --from-group, "
            "where a group says where to begin in it",
        )
    log = topic.partitions[at.partition]
    offset = {"earliest": log.begin, "latest": log.end}.get(text)
    offset = int(text) if offset is None else offset
    if not log.begin <= offset <= log.end:
        raise ConfigurationError(f"{at}: offset {offset} is not in the log, which is {log}")
    return offset
