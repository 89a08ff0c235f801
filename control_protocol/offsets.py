"""Defines the algebra of offsets: always the next to read; ranges are half-open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headgate.control_protocol.identifiers import TopicPartition


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Spans offsets ``[begin, end)`` of one partition. Not each of them need hold a record."""

    begin: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end:
            raise ValueError(
                f"an offset range needs 0 <= begin <= end, not [{self.begin}, {self.end})"
            )

    @property
    def is_empty(self) -> bool:
        return self.begin == self.end

    def __len__(self) -> int:
        return self.end - self.begin

    def __str__(self) -> str:
        return f"[{self.begin}, {self.end})"

    def extended_by(self, later: OffsetRange) -> OffsetRange:
        """Return this range and the one that continues it, as one."""
        if later.begin != self.end:
            raise ValueError(f"{later} does not continue {self}")
        return OffsetRange(self.begin, later.end)


class Offsets(Mapping[TopicPartition, int]):
    """Holds next offsets, one per partition; it is immutable."""

    __slots__ = ("_next",)

    def __init__(
        self, offsets: Mapping[TopicPartition, int] | Iterable[tuple[TopicPartition, int]] = ()
    ) -> None:
        self._next = dict(offsets)
        for partition, offset in self._next.items():
            if offset < 0:
                raise ValueError(f"{partition}: an offset cannot be {offset}")

    def __getitem__(self, partition: TopicPartition) -> int:
        return self._next[partition]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._next)

    def __len__(self) -> int:
        return len(self._next)

    def __hash__(self) -> int:
        return hash(frozenset(self._next.items()))

    def __eq__(self, other: object) -> bool:
        return self._next == other._next if isinstance(other, Offsets) else NotImplemented

    def __repr__(self) -> str:
        inside = ", ".join(f"{partition}: {offset}" for partition, offset in sorted(self.items()))
        return f"Offsets({inside})"

    def with_offsets(self, changes: Mapping[TopicPartition, int]) -> Offsets:
        """Return these offsets with some replaced or added."""
        return Offsets({**self._next, **changes})

    def restricted_to(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return only the named partitions; those without an offset are left out."""
        return Offsets({p: self._next[p] for p in partitions if p in self._next})

    def are_continued_by(self, ranges: Mapping[TopicPartition, OffsetRange]) -> bool:
        """Return whether every range begins exactly at the next offset (rule RANGE-2: ranges
        decide)."""
        return all(self._next.get(partition) == each.begin for partition, each in ranges.items())

    def after_ranges(self, ranges: Mapping[TopicPartition, OffsetRange]) -> Offsets:
        """Return the next offsets once the (admitted) ranges are in."""
        return self.with_offsets({partition: each.end for partition, each in ranges.items()})

    def minimum_per_partition(self, other: Offsets) -> Offsets:
        """Return the smaller offset of each partition that either has."""
        both = self.keys() | other.keys()
        return Offsets({p: min(some[p] for some in (self, other) if p in some) for p in both})

    def partitions_behind(self, other: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the partitions in which these offsets are smaller than the other ones, sorted."""
        return sorted(p for p, offset in self._next.items() if p in other and offset < other[p])
