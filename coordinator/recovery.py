"""Decides where a new epoch begins: offsets and epoch from the table, checked against the sources
(EPOCH-1).

Every way in which table or source could contradict the stored state has a named error and a
policy here; nothing is skipped silently (PROTOCOL.md, section "Recovery").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.commit_record import (
    CommitRecord,
    PartitionCohorts,
    group_taken_error,
    sink_in_offset_metadata,
    table_uuid_in_offset_metadata,
)
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import (
    HistoryUndecidable,
    OffsetOutOfRange,
    SinkNameTaken,
    SinkStopped,
    SourceShared,
    SourcesTooLarge,
    TableRecreated,
    TableRolledBack,
    TagMissing,
    TopicRecreated,
)
from headgate.control_protocol.identifiers import LEAP_MAX, Epoch, SinkName, TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import CommitAttempt, Lineage, TableView, TopicState
from headgate.coordinator.settings import (
    CoordinatorSettings,
    OffsetPolicy,
    RollbackPolicy,
    TableRecreatedPolicy,
    TagMissingPolicy,
)
from headgate.coordinator.state import Identity


@dataclass(frozen=True, slots=True)
class Resumption:
    """Says what the claim will store. ``offsets`` may name topics that are no longer configured."""

    offsets: Offsets
    topic_ids: Mapping[str, TopicId]
    valid_through_ms: int | None = None
    paused: bool = False
    cohorts: PartitionCohorts = field(default_factory=dict)


def record_to_resume_from(view: TableView, settings: CoordinatorSettings) -> CommitRecord | None:
    """Return the commit record to go on from; ``None`` on a first start. Raises a ``StopSink``."""
    match view.lineage:
        case Lineage.FRESH:
            return None
        case Lineage.CONTAINS_TAG:
            return _require_tag_names_newest_record(view)
        case Lineage.ROLLED_BACK:
            return _record_after_rollback(view, settings.on_rollback)
        case Lineage.UNDECIDABLE:
            return _record_after_undecidable_rollback(view, settings.on_rollback)
        case Lineage.TAG_MISSING:
            return _record_after_missing_tag(view, settings.on_tag_missing)


def _require_tag_names_newest_record(view: TableView) -> CommitRecord | None:
    """Return the tag's record. Raises ``TagMissing`` where the branch holds a newer one: the tag
    was moved by hand."""
    newest, record = view.branch_record, view.record
    if newest and record and newest.transaction > record.transaction:
        raise TagMissing(
            f"{view.table}: the sink's tag names transaction {record.transaction}, but the branch "
            f"holds {newest.transaction}: the tag was moved by hand",
            "move it back to the sink's newest snapshot",
        )
    return record


def _record_after_rollback(view: TableView, policy: RollbackPolicy) -> CommitRecord:
    if policy is RollbackPolicy.KEEP_OFFSETS and view.record:
        return view.record
    if policy is RollbackPolicy.FOLLOW_TABLE and view.branch_record:
        return view.branch_record
    raise TableRolledBack(
        f"{view.table}: the branch was rolled back behind the sink's tag (snapshot {view.tag})",
        "headgate resume SINK --accept HG-201=follow-table (reads the rows again) or "
        "HG-201=keep-offsets (leaves them out) does so once, coordinator.on_rollback at each start",
    )


def _record_after_undecidable_rollback(view: TableView, policy: RollbackPolicy) -> CommitRecord:
    if policy is RollbackPolicy.KEEP_OFFSETS and view.record:
        return view.record
    raise HistoryUndecidable(
        f"{view.table}: snapshots between the branch head and the sink's tag (snapshot {view.tag}) "
        "have expired, so a rollback cannot be excluded",
        "look at the table's history; if it was not rolled back, go on with headgate resume SINK "
        "--accept HG-204=keep-offsets (coordinator.on_rollback would do so at each start)",
    )


def _record_after_missing_tag(view: TableView, policy: TagMissingPolicy) -> CommitRecord:
    if policy is TagMissingPolicy.FOLLOW_TABLE and view.branch_record:
        return view.branch_record
    raise TagMissing(
        f"{view.table}: the sink's tag is gone, but the table once had it; starting over "
        "would duplicate rows",
        "restore the tag on the sink's newest snapshot, or follow the branch: once by headgate "
        "resume SINK --accept HG-203=follow-table, at each start by coordinator.on_tag_missing",
    )


def require_quarantine_intact(
    quarantine: TableView,
    record: CommitRecord | None,
    settings: CoordinatorSettings,
    *,
    routed: bool,
) -> None:
    """QUARANTINE-1: raise a ``StopSink`` if the quarantine lost rows that the table's offsets have
    passed.

    Reading them again would double the table's rows: it cannot be followed, only left as it is.
    """
    require_quarantine_not_replaced(
        quarantine.table, quarantine.uuid, record, settings, routed=routed
    )
    keep = settings.on_rollback is RollbackPolicy.KEEP_OFFSETS
    if quarantine.lineage in (Lineage.ROLLED_BACK, Lineage.UNDECIDABLE) and not keep:
        kind = HistoryUndecidable if quarantine.lineage is Lineage.UNDECIDABLE else TableRolledBack
        raise kind(
            f"the quarantine {quarantine.table} was rolled back behind the sink's tag, or that "
            "cannot be excluded",
            f"headgate resume SINK --accept {kind.code}=keep-offsets goes on, once: its rows stay "
            "out",
        )
    if quarantine.lineage is Lineage.TAG_MISSING:
        _record_after_missing_tag(quarantine, settings.on_tag_missing)


def require_quarantine_not_replaced(
    name: str,
    uuid: str | None,
    record: CommitRecord | None,
    settings: CoordinatorSettings,
    *,
    routed: bool,
) -> None:
    """QUARANTINE-1: raise ``TableRecreated`` if bad records went to another quarantine so far.

    ``uuid`` is that of the quarantine with this name; ``None``: there is no such table yet. A
    ``routed`` sink, which can accept nothing, may go on with one of another name.
    """
    if record is None:
        return
    known, namesake = record.secondaries, record.secondary_uuid(name)
    if routed:
        known = {name: namesake} if namesake else {}
    restart = settings.on_table_recreated is TableRecreatedPolicy.RESTART
    if not known or uuid in known.values() or restart:
        return
    former, their_uuid = next(iter(known.items()))
    pending = sum(
        pending_commit.record_count
        for pending_commit in record.pending_commits
        if pending_commit.secondary == their_uuid
    )
    raise TableRecreated(
        f"the quarantine {name} {f'has UUID {uuid}' if uuid else 'does not exist'}, but this sink "
        f"wrote to {former or name} with UUID {their_uuid}: it was dropped, or the sink file "
        "names another one now (quarantine.table, type, location or catalog)"
        + (
            f"; as far as the table knows, that one is pending {count_of(pending, 'row')}"
            if pending
            else ""
        ),
        "name it as before; or headgate resume SINK --accept HG-202=restart continues with "
        "this one, and rows pending for the former one expire (docs/guides/quarantine.md, Another "
        "quarantine, says how to avoid that)",
    )


def require_table_not_recreated(
    view: TableView,
    known_uuid: str | None,
    offset_metadata: str | None,
    settings: CoordinatorSettings,
) -> None:
    """Raise ``TableRecreated`` when this process or the group's metadata knew another table."""
    before = known_uuid or (
        table_uuid_in_offset_metadata(offset_metadata) if view.lineage is Lineage.FRESH else None
    )
    if before in (None, view.uuid) or settings.on_table_recreated is TableRecreatedPolicy.RESTART:
        return
    raise TableRecreated(
        f"{view.table} has UUID {view.uuid}, but this sink wrote to {before}: the table was "
        "dropped and re-created",
        "if the sink's other participants have another table in their file, correct this one; if "
        "it was re-created, headgate resume SINK --accept HG-202=restart (at each start: "
        "coordinator.on_table_recreated) fills the new table from source.start_at; or use another "
        "sink name and group id",
    )


def require_not_stopped(record: CommitRecord | None, sink: SinkName) -> None:
    """EPOCH-1. Raise ``SinkStopped`` where a person's claim says so."""
    if record and record.stopped:
        who = record.actor or "a person"
        raise SinkStopped(
            f"sink {sink} was stopped by {who}", "headgate start SINK ends that; nothing is lost"
        )


def require_sink_name_not_taken(record: CommitRecord | None, identity: Identity) -> None:
    """Raise ``SinkNameTaken``: one sink name belongs to one consumer group."""
    if record and record.group_id != identity.group_id:
        raise SinkNameTaken(
            f"sink {identity.sink!r} belongs to consumer group {record.group_id!r} in this table, "
            f"not to {identity.group_id!r}",
            "give the sink another name, or use the same source.group_id",
        )


def require_group_not_taken(offset_metadata: str | None, identity: Identity) -> None:
    """CONFIG-1. Raise ``GroupTaken``: the members of a group are participants of one sink."""
    other = sink_in_offset_metadata(offset_metadata)
    if other not in (None, identity.sink):
        raise group_taken_error(identity.group_id, other, identity.sink)


def require_sources_unshared(
    view: TableView, topic_ids: Mapping[str, TopicId], shared_with: Collection[str]
) -> None:
    """TABLE-5. Raise ``SourceShared``: each record would be in the branch once per sink."""
    for sink, theirs in sorted(view.others.items()):
        same = sorted(t for t, id_ in topic_ids.items() if theirs.get(t) == id_)
        if same and sink not in shared_with:
            raise SourceShared(
                f"{view.table}: sink {sink!r} fills the same branch from the same topic, "
                f"{', '.join(same)}: each record would be there twice",
                "is this sink one of two names for the same? then use that name; if the other is "
                f"no longer used, delete its tag; if you want both sinks, name {sink!r} in "
                "table.shared_with",
            )


def fit_offsets_to_sources(
    offsets: Offsets,
    topic_ids: Mapping[str, TopicId],
    topics: Mapping[str, TopicState],
    settings: CoordinatorSettings,
) -> Offsets:
    """Fit the offsets to the sources as they are: new partitions begin at their log's begin.

    Raises ``TopicRecreated`` and ``OffsetOutOfRange`` unless a policy says where to go on.
    """
    fit = dict(offsets)
    for topic, now in topics.items():
        known = topic_ids.get(topic)
        anew = known is not None and known != now.topic_id
        if anew and settings.on_topic_recreated is OffsetPolicy.FAIL:
            raise TopicRecreated(
                f"topic {topic} has id {now.topic_id}, but the stored offsets belong to {known}: "
                "it was deleted and created again",
                "headgate resume SINK --accept HG-206=earliest or HG-206=latest, once; or set "
                "coordinator.on_topic_recreated",
            )
        if anew:
            fit = {
                partition: offset for partition, offset in fit.items() if partition.topic != topic
            }
        for number, log in now.partitions.items():
            partition = TopicPartition(topic, number)
            if anew:
                fit[partition] = _offset_by_policy(log, settings.on_topic_recreated)
            elif partition not in fit:
                fit[partition] = log.begin
            else:
                fit[partition] = _fit_offset_into_log(partition, fit[partition], log, settings)
    return Offsets(fit)


def _offset_by_policy(log: OffsetRange, policy: OffsetPolicy) -> int:
    return log.end if policy is OffsetPolicy.LATEST else log.begin


def _fit_offset_into_log(
    partition: TopicPartition, offset: int, log: OffsetRange, settings: CoordinatorSettings
) -> int:
    if log.begin <= offset <= log.end:
        return offset
    if settings.on_offset_out_of_range is OffsetPolicy.FAIL:
        what = "removed by retention" if offset < log.begin else "beyond the log's end"
        raise OffsetOutOfRange(
            f"{partition}: the next offset is {offset}, but the log holds {log} ({what})",
            "headgate resume SINK --accept HG-205=earliest or HG-205=latest, once; or set "
            "coordinator.on_offset_out_of_range",
        )
    if offset > log.end:
        # Most of what a log that lost its end still holds is in the table, and would come twice.
        return log.end
    return _offset_by_policy(log, settings.on_offset_out_of_range)


def valid_through_of_claim(
    record: CommitRecord, offsets: Offsets, topic_ids: Mapping[str, TopicId]
) -> int | None:
    """Return what a claim on these offsets knows: nothing if records come again, or are others."""
    back = any(offsets.get(at, offset) < offset for at, offset in record.offsets.items())
    other = any(topic_ids.get(topic, known) != known for topic, known in record.topic_ids.items())
    return None if back or other else record.valid_through_ms


def next_epoch(tables: Collection[TableView], highest_heard: Epoch) -> Epoch:
    """Return an epoch above all that the tables or the log have seen, as far as credible
    (LOG-6)."""
    return Epoch(max(credible_heard_epoch_or_zero(tables, highest_heard), newest_epoch(tables)) + 1)


def credible_heard_epoch_or_zero(tables: Collection[TableView], highest_heard: Epoch) -> Epoch:
    """Return the highest epoch heard; none when it leaps too far from what the tables hold."""
    return highest_heard if highest_heard <= newest_epoch(tables) + LEAP_MAX else Epoch(0)


def newest_epoch(tables: Collection[TableView]) -> Epoch:
    """Return the newest epoch that the primary table and its secondary tables hold; 0 when there is
    none."""
    records = [record for table in tables for record in (table.record, table.branch_record)]
    return max((record.transaction.epoch for record in records if record), default=Epoch(0))


# Limits how many topics and partitions a sink can have: its START and its record name them all.


START_BYTES_MAX = 880_000
"""The size of a control message less the names of sink, tables and folders."""

_PER_TOPIC = 16
_PER_PARTITION = 5
_BITS_PER_BYTE = 7
_WAY_OUT = (
    "read fewer topics with one sink (source.topics), or divide them among several sinks; names "
    "count, so shorter ones help"
)


def require_sources_fit_in_start(offsets: Offsets, topic_ids: Mapping[str, TopicId]) -> None:
    """Raise ``SourcesTooLarge`` for what no START could name: nobody would ever hear it."""
    needed = start_event_size_bytes(offsets, topic_ids)
    if needed > START_BYTES_MAX:
        raise SourcesTooLarge(
            f"{len(topic_ids)} topics with {len(offsets)} partitions need a START of about "
            f"{needed} bytes on the control topic, at most {START_BYTES_MAX} fit",
            _WAY_OUT,
        )


def require_record_not_too_large(record: CommitRecord) -> None:
    """Raise ``SourcesTooLarge`` for a record that could be written but not be read again."""
    try:
        commit_record_codec.encode_record(record)
    except ValueError as error:
        raise SourcesTooLarge(
            f"the offsets of {len(record.topic_ids)} topics with {len(record.offsets)} partitions "
            f"do not fit into the table's record: {error}",
            _WAY_OUT,
        ) from error


def start_event_size_bytes(offsets: Offsets, topic_ids: Mapping[str, TopicId]) -> int:
    """Return the bytes of topics and offsets in a START, and one more for each offset to grow."""
    names = {topic: len(topic.encode()) for topic in {*topic_ids, *(at.topic for at in offsets)}}
    ids = sum(names[topic] + len(id_) for topic, id_ in topic_ids.items())
    read = sum(names[topic] for topic in {at.topic for at in offsets})
    numbers = sum(
        _PER_PARTITION + (offset.bit_length() + 1) // _BITS_PER_BYTE + 1
        for offset in offsets.values()
    )
    return ids + read + _PER_TOPIC * len(names) + numbers


# Decides from the table as it is now what a commit that did not simply land means (OUTCOME-2).


class Resolution(Enum):
    LANDED = "one of our attempts is under the tag"
    AGAIN = "our tag is untouched: the same files, a fresh snapshot, on the new branch head"
    SUPERSEDED = "another coordinator holds this epoch or a higher one"
    RECOVER = "the table is not what we knew: begin again with a new epoch"


def judge_attempt(attempt: CommitAttempt, view: TableView) -> Resolution:
    """Judge by the table alone; nothing that the catalog answered before matters.

    Attempts still under way cannot harm: each requires the tag that it was built on, so that at
    most one of them lands, and ``is_same_commit`` recognises whichever did.
    """
    # The order of the tests is the rule. With ``is_same_commit`` first, a commit that landed and
    # was rolled back would count as landed: its offsets would be kept without its rows.
    ours, base = attempt.record, attempt.base
    if view.uuid != base.uuid:
        return Resolution.RECOVER
    if view.lineage not in (Lineage.CONTAINS_TAG, Lineage.FRESH):
        return Resolution.RECOVER  # even if it landed: the branch no longer holds it
    if ours.is_same_commit(view.record):
        return Resolution.LANDED
    if view.tag == base.tag:  # every attempt requires the tag it was built on: one lands at most
        return Resolution.AGAIN
    if ours.is_claim:
        return Resolution.RECOVER  # EPOCH-1: refused; read again, and claim above what is there
    return Resolution.SUPERSEDED if has_rival_moved_tag(ours, view) else Resolution.RECOVER


def has_rival_moved_tag(ours: CommitRecord, view: TableView) -> bool:
    """Return whether another coordinator moved the tag.

    An older record of our own means that the catalog once confirmed a commit that it did not keep.
    """
    theirs = view.record
    return (
        theirs is not None
        and theirs.transaction.epoch >= ours.transaction.epoch
        and theirs.coordinator != ours.coordinator
    )
