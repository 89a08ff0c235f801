"""The checkers: they live outside the nodes, look at every step, and know only source and table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from simulation.ages import Ages
from simulation.branch import Branch, fell
from simulation.columns import Columns
from simulation.kept import Kept
from simulation.keys import Keys, live_by_counts, nothing_is_added
from support.verdicts import Kind, Violation

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.events import StartCommit
from headgate.control_protocol.identifiers import SinkName, TopicId, TopicPartition, TransactionId
from headgate.control_protocol.testing import FakeCatalog, FakeSource, SourceRecord

Place = tuple[TopicId, TopicPartition]


class Oracle:
    """PROTOCOL.md section 1, checked whenever the table's branch has moved.

    ``ledger`` remembers every record that was ever produced. What a policy or a rollback takes out
    of the promise is told by whoever does it: ``excused`` rows may be there or not, ``gone`` rows
    must not come again. ``kept`` watches the quarantine, if there is one.
    """

    def __init__(
        self,
        sink: SinkName,
        catalog: FakeCatalog,
        source: FakeSource,
        kept: Kept | None,
        *,
        columns: Columns | None = None,
        keys: Keys | None = None,
        ages: Ages | None = None,
    ) -> None:
        self._columns = columns
        self._keys = keys
        self._ages = ages
        self._aged = 0
        """How many rows had expired at the last look."""
        self._live: int | None = None
        """Rows of a keyed table at the last look; ``None``: not as its commits count them."""
        self._catalog = catalog
        self._source = source
        self._kept = kept
        self._branch = Branch(sink, catalog)
        self._snapshot: int | None = None
        self._begins: dict[Place, int] = {}
        self._past: frozenset[SourceRecord] = frozenset()
        self.ledger: dict[Place, dict[int, int]] = defaultdict(dict)
        self.newest: CommitRecord | None = None
        self.excused: set[SourceRecord] = set()
        self.gone: set[SourceRecord] = set()
        self.may_fall = False
        self.may_jump = False
        self.checks_valid_through = False
        self.nobody_is_idle = True
        self._started_ms: dict[TransactionId, int] = {}
        self._through = 0
        self._unknowing: dict[TopicPartition, int] = {}
        """Valid-through as it was said while nobody knew of the partition yet (COMMIT-4)."""
        self.commits = 0

    def produced(self, at: TopicPartition, offsets: Iterable[int], timestamp_ms: int) -> None:
        place = (self._source.topic_ids[at.topic], at)
        self.ledger[place].update(dict.fromkeys(offsets, timestamp_ms))

    def started(self, start: StartCommit, transaction: TransactionId, now_ms: int) -> None:
        """Once a START was said, nothing from its offsets on may ever be skipped (EPOCH-1)."""
        self._started_ms.setdefault(transaction, now_ms)
        if start.tables[0].uuid != self._catalog.uuid:
            return  # said of a table that was dropped meanwhile
        for at, offset in start.offsets.items():
            place = (start.topic_ids[at.topic], at)
            self._begins[place] = min(offset, self._begins.get(place, offset))

    def branch_was_set(self) -> None:
        """By hand, to another snapshot."""
        self._branch.was_set()
        self._live = None

    def forget_table(self) -> None:
        """It was dropped and created again."""
        self._branch.forget()
        self.newest, self._past, self._live = None, frozenset(), None
        self._begins.clear()

    # ---------------------------------------------------------------------------------- every step

    def look(self) -> None:
        if self._ages is not None:
            self._ages.look()
        moved = self._branch.moved()
        if moved and self._kept is not None:
            self._kept.learn(self._branch.stored()[0])
            for decided, _ in self._branch.stored_since(self._snapshot):
                self._kept.learn_pending_commits(decided)
        kept_moved = self._kept is not None and self._kept.look()
        if not (moved or kept_moved):
            return
        record, snapshot = self._branch.stored()
        if self._keys is not None and moved:
            self._are_counted()
        if moved and record is not None and snapshot != self._snapshot:
            self._nothing_falls(record)
            self._topics_changed(record)
            self.newest, self._snapshot = record, snapshot
            self._valid_through(record)
            if self._kept is not None:
                self._kept.beside(record, self._catalog.uuid)
                self.excused |= self._kept.expired
        if record is not None:
            self._rows_are_the_source_up_to(record)
        if self._columns is not None:
            self._columns.look(self._catalog.files())
        if self._ages is not None:
            self._ages.is_chosen(record is not None)

    def _nothing_falls(self, record: CommitRecord) -> None:
        self.commits += 1
        before = self.newest
        if before is None:
            return
        if self._keys is not None:
            nothing_is_added(before, record)
        if self.may_jump and record.is_claim:
            self._excuse_jumps(before, record)
        if self.may_fall:
            self.may_fall = False
            return
        fell(before, record)

    def _excuse_jumps(self, before: CommitRecord, record: CommitRecord) -> None:
        """The policy ``latest`` goes on at the log's end."""
        for at, offset in record.offsets.items():
            place = (record.topic_ids[at.topic], at)
            self.excuse(place, before.offsets.get(at, offset), offset)

    def excuse(self, place: Place, begin: int, end: int) -> None:
        """Whether the records in between are in the table, nobody promises."""
        id_, at = place
        self.excused.update(
            SourceRecord(id_, at.topic, at.partition, offset)
            for offset in self.ledger[place]
            if begin <= offset < end
        )

    def _topics_changed(self, record: CommitRecord) -> None:
        """A re-created topic begins anew; the old one's rows stay as they are."""
        before = self.newest
        if before is not None and dict(before.topic_ids) != dict(record.topic_ids):
            ids = set(record.topic_ids.values())
            rows = self._catalog.visible_rows()
            self._past = frozenset(row for row in rows if row.topic_id not in ids)

    def _valid_through(self, record: CommitRecord) -> None:
        """No record that is there already, and not in the table, may be older.

        A partition that is taken for idle was seen at its end in the transaction: what came after
        its START may be older than what others brought.
        """
        through = record.valid_through_ms
        before, self._through = self._through, through or 0
        for at in record.offsets:
            self._unknowing.setdefault(at, before)
        if through is None or not self.checks_valid_through:
            return
        if not self.nobody_is_idle:
            through = min(through, self._started_ms.get(record.transaction, 0))
        for at, stored in record.offsets.items():
            left = self.ledger[record.topic_ids[at.topic], at]
            if through <= self._unknowing[at]:
                continue
            older = [offset for offset, t in left.items() if offset >= stored and t < through]
            if older:
                raise Violation(
                    Kind.UNTRUTH, f"valid-through {through}, but {at} has older ones: {older[:3]}"
                )

    def _rows_are_the_source_up_to(self, record: CommitRecord) -> None:
        for file in self._catalog.files():
            if file.path not in self._catalog.storage.files:
                raise Violation(Kind.LOSS, f"the table names a file that is not there: {file.path}")
        rows = self._catalog.visible_rows()
        there = set(rows)
        if len(there) < len(rows):
            doubled = [row for row, times in Counter(rows).items() if times > 1]
            raise Violation(Kind.DOUBLE, f"rows twice in the table: {sorted(doubled)[:5]}")
        expected = self._source_up_to(record) - self.gone - self._kept_instead(there, record)
        if self._keys is not None:
            expired = self._ages.expired if self._ages else frozenset()
            self._keys.are_folded(rows, expected, self.excused, expired)
            return
        if self._ages is not None:
            expected -= self._ages.expired
        if there == expected:
            return
        lost = expected - there - self.excused
        if lost:
            raise Violation(
                Kind.LOSS, f"rows lost: {sorted(lost)[:5]} at transaction {record.transaction}"
            )
        invented = there - expected - self.excused
        if invented:
            raise Violation(Kind.DOUBLE, f"rows beyond the stored offsets: {sorted(invented)[:5]}")

    def _are_counted(self) -> None:
        """KEY-10: live rows grow by what the commits since the last look say."""
        assert self._keys is not None
        rows, before = len(self._catalog.visible_rows()), self._live
        aged, self._aged = self._aged, self._ages.gone if self._ages else 0
        self._live = rows
        if before is None:
            return
        since = [record for record, _ in self._branch.stored_since(self._snapshot)]
        counted = live_by_counts(before, since) - (self._aged - aged)
        if rows != counted:
            raise Violation(Kind.UNTRUTH, f"{rows} rows live, and {counted} were counted")

    def _kept_instead(
        self, there: set[SourceRecord], record: CommitRecord
    ) -> frozenset[SourceRecord]:
        """What is in the secondary tables or pending for them, and so must not be in the primary
        table."""
        if self._kept is None:
            return frozenset()
        self._kept.good(there)
        elsewhere = self._kept.rows | self._kept.pending
        both = there & elsewhere
        if both:
            raise Violation(Kind.DOUBLE, f"rows in both tables: {sorted(both)[:5]}")
        beyond = sorted(row for row in elsewhere if self._lies_beyond(row, record))
        if beyond and self.checks_valid_through:  # nobody set the lead back
            raise Violation(
                Kind.DOUBLE,
                f"in a secondary table, beyond the primary table's offsets: {beyond[:5]}",
            )
        return elsewhere

    @staticmethod
    def _lies_beyond(row: SourceRecord, record: CommitRecord) -> bool:
        at = TopicPartition(row.topic, row.partition)
        return row.offset >= record.offsets.get(at, 0)

    def _source_up_to(self, record: CommitRecord) -> set[SourceRecord]:
        rows = set(self._past)
        for at, stored in record.offsets.items():
            id_ = record.topic_ids[at.topic]
            begin = self._begins.get((id_, at), stored)
            rows.update(
                SourceRecord(id_, at.topic, at.partition, offset)
                for offset in self.ledger[id_, at]
                if begin <= offset < stored
            )
        return rows

    # ----------------------------------------------------------------------------------- progress

    def pending(self) -> int:
        """How many pending commits no secondary table shows as delivered, or beyond being
        delivered; not of those suspended."""
        kept = self._kept
        if kept is None:
            return 0
        return sum(
            not kept.waits(pending_commit)
            for pending_commit in (*kept.pending_commits, *kept.deliverable)
        )

    def stored(self) -> Mapping[TopicPartition, int]:
        """The next offsets, of the topics as they are now."""
        if self.newest is None:
            return {}
        now, then = self._source.topic_ids, self.newest.topic_ids
        return {at: o for at, o in self.newest.offsets.items() if then[at.topic] == now[at.topic]}

    def lag(self) -> dict[TopicPartition, int]:
        """What the table lacks, per partition."""
        stored = self.stored()
        return {
            at: log.end - stored.get(at, 0)
            for at, log in self._source.partitions.items()
            if log.end > stored.get(at, 0)
        }
