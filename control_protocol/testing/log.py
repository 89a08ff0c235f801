"""Keeps a control topic in memory, with the ways in which a real one fails."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache

from headgate.control_protocol.errors import AppendUnconfirmed, LogDiscontinuity, Unreachable
from headgate.control_protocol.events import Envelope, LogRecord
from headgate.control_protocol.identifiers import ControlOffset, TopicId
from headgate.control_protocol.message_encoding import Skipped, SkipReason, Wire
from headgate.control_protocol.testing.clock import FakeClock

_read = lru_cache(4096)(
    Wire.verify_and_decode
)  # every reader of the topic decodes the same messages


class AppendFault(Enum):
    """Says what happens to one append; each but ``UNREACHABLE`` ends in ``AppendUnconfirmed``."""

    ANSWER_LOST = auto()
    """The events are in the log."""

    LOST = auto()
    """They never will be."""

    LATE = auto()
    """They stay under way until ``FakeLogServer.land_oldest_in_flight``."""

    UNREACHABLE = auto()


@dataclass(slots=True)
class FakeLogServer:
    """Keeps the topic itself: encoded messages from offset ``begin`` on, shared by many
    ``FakeLog``.

    ``faults`` hit the next appends of any client, in order, one each.
    """

    clock: FakeClock = field(default_factory=FakeClock)
    begin: int = 0
    messages: list[bytes] = field(default_factory=list)
    faults: deque[AppendFault] = field(default_factory=deque)
    in_the_air: list[bytes] = field(default_factory=list)
    reachable: bool = True
    generation: int = 0

    @property
    def end(self) -> int:
        return self.begin + len(self.messages)

    @property
    def topic_id(self) -> TopicId:
        return TopicId(f"control-{self.generation}")

    def append(self, *messages: bytes) -> None:
        """Append anything: foreign bytes, or a message a second time."""
        self.messages.extend(messages)

    def land_oldest_in_flight(self, count: int = 1) -> None:
        """Let the oldest messages under way arrive."""
        self.append(*self.in_the_air[:count])
        del self.in_the_air[:count]

    def truncate(self, to: int) -> None:
        """Lose the offsets from ``to`` on; they will be given out again."""
        del self.messages[max(0, to - self.begin) :]

    def expire(self, before: int) -> None:
        """Let retention take everything below the offset."""
        before = min(max(before, self.begin), self.end)
        del self.messages[: before - self.begin]
        self.begin = before

    def recreate(self) -> None:
        """Delete the topic and create it again: empty, from offset 0."""
        self.messages.clear()
        self.begin = 0
        self.generation += 1


class FakeLog:
    """Implements ``ControlLog`` as one client of the server. Reads from the log's begin until
    ``seek``.
    """

    def __init__(self, server: FakeLogServer, wire: Wire | None = None) -> None:
        self._server = server
        self._wire = wire or Wire()
        self._position = server.begin
        self._generation = server.generation
        self.skipped: Counter[SkipReason] = Counter()

    @property
    def position(self) -> int:
        """Return the next offset to read."""
        return self._position

    def append(self, envelopes: Sequence[Envelope]) -> None:
        server, written = self._server, self._wire.encode_and_sign_if_keyed
        messages = [written(envelope, server.topic_id) for envelope in envelopes]
        fault = self._server.faults.popleft() if self._server.faults else None
        if fault is AppendFault.UNREACHABLE:
            raise Unreachable("the fake control log was told to be unreachable")
        self._require_reachable()
        if fault is AppendFault.LATE:
            self._server.in_the_air.extend(messages)
        elif fault is not AppendFault.LOST:
            self._server.append(*messages)
        if fault is not None:
            raise AppendUnconfirmed(f"the fake control log was told to fail: {fault.name}")

    def read(self, timeout_ms: int) -> list[LogRecord]:
        self._require_reachable()
        server = self._server
        if self._generation != server.generation:
            raise LogDiscontinuity("the control topic was re-created")
        if not server.begin <= self._position <= server.end:
            raise LogDiscontinuity(
                f"offset {self._position} is outside of [{server.begin}, {server.end})"
            )
        if self._position == server.end:
            server.clock.advance(timeout_ms)
        records = []
        for message in server.messages[self._position - server.begin :]:
            envelope = _read(self._wire, message, server.topic_id)
            if isinstance(envelope, Skipped):
                self.skipped[envelope.reason] += 1
            else:
                records.append(LogRecord(ControlOffset(self._position), envelope))
            self._position += 1
        return records

    def seek(self, offset: ControlOffset) -> None:
        self._position = offset
        self._generation = self._server.generation

    def end_offset(self) -> ControlOffset:
        self._require_reachable()
        return ControlOffset(self._server.end)

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _require_reachable(self) -> None:
        if not self._server.reachable:
            raise Unreachable("the fake control log is not reachable")
