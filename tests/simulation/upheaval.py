"""Breaks the table or the source under the sink, and tells the oracle what is still exact.

``roll back`` under ``keep-offsets``: rows taken away stay out, all others are there once; under
``follow-table``: exact, the offsets go back. ``delete tag``: exact; in one seed of two with
all else that says that the table was claimed once. ``recreate table``: the new one
is exact from where it begins. ``recreate topic``: the old topic's rows stay as they are, the new
one's are exact from where it begins. ``expire source``: exact but for what retention took, and
under ``latest`` for what the policy leaves out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.identifiers import TopicPartition
from headgate.coordinator.settings import OffsetPolicy, RollbackPolicy

if TYPE_CHECKING:
    from simulation.world import World


def break_something(world: World) -> bool:
    """What the climate says; ``False`` when it cannot be broken yet."""
    done = {
        "roll back": _roll_back,
        "delete tag": _delete_tag,
        "recreate table": _recreate_table,
        "recreate topic": _recreate_topic,
        "expire source": _expire_source,
        "poison": _poison,
    }[world.climate.upheaval or ""](world)
    if done:
        world.note("UPHEAVAL: {}", world.climate.upheaval)
        world.struck[f"upheaval: {world.climate.upheaval}"] += 1
    return done


def _roll_back(world: World) -> bool:
    """To a snapshot that holds an older commit of ours, when there is one."""
    catalog, tag = world.catalog, world.catalog.tags.get(f"headgate-{world.sink}")
    way = list(catalog.ancestry(catalog.branches.get("main")))
    ids = [snapshot.snapshot_id for snapshot in way]
    if tag not in ids:
        return False
    older = way[ids.index(tag) + 1 :]
    older = [
        s for s in older if commit_record_codec.decode_record(world.sink, s.summary) is not None
    ]
    if not older:
        return False
    before = set(catalog.visible_rows())
    catalog.roll_back(world.random.choice(older).snapshot_id)
    world.oracle.may_fall = True
    world.oracle.branch_was_set()
    if world.climate.coordinators.on_rollback is RollbackPolicy.KEEP_OFFSETS:
        world.oracle.gone |= before - set(catalog.visible_rows())
    return True


def _delete_tag(world: World) -> bool:
    tag = f"headgate-{world.sink}"
    if tag not in world.catalog.tags:
        return False
    world.catalog.delete_tag(tag)
    if world.seed % 2:
        world.catalog.delete_property(commit_record_codec.claim_marker_property(world.sink))
    return True


def _recreate_table(world: World) -> bool:
    if world.oracle.newest is None:
        return False
    world.catalog.recreate()
    world.oracle.forget_table()
    return True


def _recreate_topic(world: World) -> bool:
    if world.oracle.newest is None:
        return False
    count = len(world.source.partitions)
    world.source.create_or_replace("source", count)
    for number in range(count):
        if world.random.random() < 0.8:
            world.events.produced(TopicPartition("source", number), world.random.randint(1, 20))
    return True


def _expire_source(world: World) -> bool:
    """Retention overtakes the sink in one partition."""
    stored, source = world.oracle.stored(), world.source
    behind = [at for at, log in source.partitions.items() if stored.get(at, log.end) < log.end]
    if not behind:
        return False
    at = world.random.choice(behind)
    before = world.random.randint(stored[at] + 1, source.partitions[at].end)
    world.oracle.excuse((source.topic_ids[at.topic], at), stored[at], before)
    world.oracle.may_jump = world.climate.coordinators.on_offset_out_of_range is OffsetPolicy.LATEST
    source.expire(at, before)
    return True


def _poison(world: World) -> bool:
    """The next record of some partition cannot be converted."""
    at = world.random.choice(list(world.source.partitions))
    world.poison = (at, world.source.partitions[at].end)
    world.events.produced(at, 1)
    return True
