"""Decides which specs a worker follows: of the slots that it has, and of those that nobody took.
Pure.

The group says which slots a worker has. What it does not say is acted on late: a session that has
expired, or topics that are gone, stop no sink that could work (FLEET-9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.control_protocol.message_encoding import Skipped
from headgate.runtime.fleet.fleet_records import SinkSpec
from headgate.runtime.fleet.fleet_view import CommandRecord, FleetRecords, effective_specs

RETAINED_MS = 15_000
"""So long after the group has answered again are slots kept that were lost and did not come back:
in a cooperative group they come in two steps."""


@dataclass(slots=True)
class _Slot:
    records: FleetRecords = field(default_factory=FleetRecords)
    reading: FleetRecords | None = None
    """What was read since the slot was gained; counts once its end is reached."""
    keys_read: set[str] = field(default_factory=set)
    """Keys that it spoke of meanwhile."""
    owned: bool = True
    drop_ms: int | None = None


@dataclass(slots=True)
class FollowedSlots:
    """Keeps the slots of a worker. Times are monotonic milliseconds."""

    slots: dict[int, _Slot] = field(default_factory=dict)
    orphans: dict[str, SinkSpec] = field(default_factory=dict)
    """Specs of a topic that is gone: followed until the fleet says something of their keys."""
    _lost: bool = False
    """The group has not answered since."""

    @property
    def owned_and_read_slots(self) -> frozenset[int]:
        """Return the slots that the group says this worker has, and that have been read."""
        return frozenset(
            number for number, slot in self.slots.items() if slot.owned and slot.reading is None
        )

    def on_gained(self, numbers: frozenset[int], now_ms: int) -> None:
        """Read these from their beginning; what was known of them counts until that is done."""
        for number in numbers:
            slot = self.slots.setdefault(number, _Slot())
            slot.owned, slot.drop_ms, slot.reading = True, None, FleetRecords()
            slot.keys_read = set()
        if self._lost:
            self._lost = False
            for slot in self.slots.values():
                if not slot.owned:
                    slot.drop_ms = now_ms + RETAINED_MS

    def on_revoked(self, numbers: frozenset[int]) -> None:
        """Forget these: the group gives them to others."""
        for number in numbers:
            self.slots.pop(number, None)

    def on_lost(self, numbers: frozenset[int] | None = None) -> None:
        """Keep what was desired in these slots, or in all, until the group answers again."""
        for number in [*self.slots] if numbers is None else numbers & self.slots.keys():
            slot = self.slots[number]
            slot.owned, slot.reading = False, None
        self._lost = True

    def on_record(self, record: CommandRecord) -> None:
        """Take a record of a slot that this worker has; a late one of another slot says nothing."""
        slot = self.slots.get(record.slot)
        if slot is None:
            return
        (slot.records if slot.reading is None else slot.reading).take_record(record)
        if isinstance(record.value, Skipped):
            return
        if slot.reading is None:
            self.orphans.pop(record.key, None)
        else:  # its spec is not followed yet: nobody would want the sink until the slot's end
            slot.keys_read.add(record.key)

    def on_slot_read(self, number: int) -> None:
        """Follow what was read: the slot's end is reached."""
        slot = self.slots.get(number)
        if slot and slot.reading is not None:
            slot.records, slot.reading = slot.reading, None
            for key in slot.keys_read:
                self.orphans.pop(key, None)

    def on_topic_gone(self) -> None:
        """Keep what is followed, without a slot: nobody has taken anything back."""
        self.orphans = dict(self.followed_specs())
        self.slots.clear()
        self._lost = False

    def release_orphan_specs(self, keys: frozenset[str]) -> None:
        """Let these go: the fleet has specs of them again, and somebody follows those.

        That may be this worker: nothing is let go until it has its slots, and has read them.
        """
        if self._lost or any(slot.reading is not None for slot in self.slots.values()):
            return
        for key in keys:
            self.orphans.pop(key, None)

    def on_tick(self, now_ms: int) -> None:
        """Drop what was lost, and did not come back after the group had answered."""
        for number, slot in [*self.slots.items()]:
            if slot.drop_ms is not None and now_ms >= slot.drop_ms:
                del self.slots[number]

    def followed_specs(self) -> Mapping[str, SinkSpec]:
        """Return what is followed: of a key in two slots, the spec with the higher number."""
        said = [r for slot in self.slots.values() for r in slot.records.specs.values()]
        found = {key: record.value for key, record in effective_specs(said).items()}
        return {
            **self.orphans,
            **{k: each for k, each in found.items() if isinstance(each, SinkSpec)},
        }

    def refused_records(self) -> list[CommandRecord]:
        """Return the records that are not believed, and are not followed."""
        return [r for slot in self.slots.values() for r in slot.records.refused.values()]

    def is_drain_requested(self, worker: str, incarnation: str) -> bool:
        """Return whether somebody wants this start of this worker to give its slots away."""
        return any(
            (drain.worker, drain.incarnation) == (worker, incarnation)
            for slot in self.slots.values()
            for drain in slot.records.drains.values()
        )
