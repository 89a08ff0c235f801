"""Keeps a consumer group in memory, whose assignment the test decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.testing.clock import FakeClock
from headgate.control_protocol.testing.source import FakeSource


@dataclass(slots=True)
class FakeGroup:
    """Stands for the group's coordinator at the broker: who should have which partition, and who
    holds it.

    As in a cooperative rebalance a partition goes to its next owner only after the previous one
    released it, in a poll of its own, or was declared dead by ``expel``.
    """

    source: FakeSource
    clock: FakeClock = field(default_factory=FakeClock)
    wanted: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)
    holders: dict[TopicPartition, str] = field(default_factory=dict)

    def set_target_assignment(self, wanted: Mapping[str, Iterable[TopicPartition]]) -> None:
        """Rebalance towards this, over the members' next polls. Members not named get nothing."""
        self.wanted = {member: frozenset(partitions) for member, partitions in wanted.items()}

    def expel(self, member: str) -> None:
        """Expire the member's session: its partitions are free. It learns of it when it polls."""
        self.wanted.pop(member, None)
        for at in self.partitions_owned_by(member):
            del self.holders[at]

    def partitions_owned_by(self, member: str) -> frozenset[TopicPartition]:
        return frozenset(at for at, holder in self.holders.items() if holder == member)


class FakeMember:
    """Implements ``GroupMember``; ``on_revoke`` is called inside ``poll``, before anything is
    released.
    """

    def __init__(
        self,
        group: FakeGroup,
        name: str,
        on_revoke: Callable[[frozenset[TopicPartition]], None] = lambda _: None,
    ) -> None:
        self._group = group
        self._name = name
        self._on_revoke = on_revoke
        self._owned: frozenset[TopicPartition] = frozenset()

    def poll(self, timeout_ms: int) -> None:
        group = self._group
        group.clock.advance(timeout_ms)
        lost = self._owned - group.partitions_owned_by(self._name)
        self._owned -= lost
        wanted = group.wanted.get(self._name, frozenset())
        leaving = self._owned - wanted
        if leaving:
            try:
                self._on_revoke(leaving)
            finally:
                self._release(leaving)
        # a partition lost or given up in this poll returns in the next: its owner sees the gap
        for at in wanted - lost - leaving:
            group.holders.setdefault(at, self._name)
        self._owned = group.partitions_owned_by(self._name)

    def assignment(self) -> frozenset[TopicPartition]:
        return self._owned

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._group.source.end_offsets(partitions)

    def is_buffer_full(self) -> bool:
        return False

    def copy_offsets_to_group(self, offsets: Offsets, metadata: str) -> None:
        held = self._owned & self._group.partitions_owned_by(self._name)
        for at, offset in offsets.restricted_to(held).items():
            self._group.source.committed[at] = (offset, metadata)

    def close(self) -> None:
        self._release(self._owned)
        self._group.wanted.pop(self._name, None)

    def _release(self, partitions: frozenset[TopicPartition]) -> None:
        for at in partitions & self._group.partitions_owned_by(self._name):
            del self._group.holders[at]
        self._owned -= partitions
