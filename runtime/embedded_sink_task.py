"""Runs headgate inside your own consumer loop: ``open``, ``put``, ``pre_commit``, ``close``.

The loop keeps its consumer; the task takes part in the protocol with what the loop delivers. Made
by ``headgate.open_task``::

    with headgate.open_task(settings, steering) as task:
        consumer.subscribe(topics, on_assign=lambda c, p: task.open(...),
                           on_revoke=lambda c, p: task.close(...))
        while running:
            task.put(records of consumer.consume(500, 0.1))
            consumer.commit(offsets=task.pre_commit())      # for lag tools only
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.kafka.push_source import Buffers, EmbeddedMember, Record
from headgate.participant.driver import ParticipantDriver


class SinkTask:
    """One participant whose records are put. Use from the thread of the consumer loop.

    Call ``put`` at least every second or so, with nothing when there is nothing: the protocol makes
    its turns there. Only the task decides where to read: the loop must not seek by itself, and the
    group's offsets mean nothing to it. Each method raises the ``HeadgateError`` that ends the sink.
    """

    def __init__(self, driver: ParticipantDriver, buffers: Buffers, member: EmbeddedMember) -> None:
        self._driver = driver
        self._buffers = buffers
        self._member = member

    def open(self, partitions: Iterable[TopicPartition]) -> None:
        """Add assigned partitions. Records are ignored until the task has sought its offset."""
        self._buffers.open(partitions)
        # Nothing is sought here: the loop may hold records that were delivered before the seek, and
        # put them later as if they came behind it. ``put`` takes them in first.
        self._driver.run_once(0)

    def put(self, records: Iterable[Record]) -> None:
        """Take records, in each partition's order, and make a turn of the protocol."""
        self._buffers.put(records)
        self._driver.run_once(0)
        self._buffers.reseek_where_off_and_resume(self._buffer_begin_offsets())

    def pre_commit(self) -> Offsets:
        """Return the next offsets that are settled in the table: safe to store in the group."""
        return self._member.settled.restricted_to(self._buffers.partitions())

    def close(self, partitions: Iterable[TopicPartition]) -> None:
        """Announce what is written, bounded in time (POSITION-1), and give up the revoked
        partitions."""
        leaving = frozenset(partitions)
        self._driver.release(leaving)
        self._buffers.close(leaving)

    def _buffer_begin_offsets(self) -> Mapping[TopicPartition, int]:
        """Return where each partition's buffer should begin: behind the batch that runs."""
        state = self._driver.state
        batch = state.run.batch
        running = batch.ranges if batch else {}
        return {
            p: running[p].end if p in running else position
            for p, position in state.positions.items()
        }
