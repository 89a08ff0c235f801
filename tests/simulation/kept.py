"""The secondary tables' checker: looks at every step, and knows only these tables and what is
bad."""

from __future__ import annotations

from collections import Counter
from typing import Any

from simulation.branch import Branch, fell
from simulation.keys import Keys, live_by_counts
from simulation.quarantine import Quarantine
from support.verdicts import Kind, Violation

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit, Suspended
from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.identifiers import SinkName, TopicPartition
from headgate.control_protocol.testing import SourceRecord


class _Table:
    """One secondary table, as it was looked at last."""

    def __init__(self, sink: SinkName, catalog: Any) -> None:
        self.catalog = catalog
        self.branch = Branch(sink, catalog)
        self.newest: CommitRecord | None = None
        self.snapshot: int | None = None
        self.rows: frozenset[SourceRecord] = frozenset()
        self.gone: frozenset[SourceRecord] = frozenset()
        """Rows that somebody took away by setting the table back: they must not come again."""
        self.closed = False
        """It was set back, and nobody resumed it since."""

    def was_set_back(self) -> None:
        self.branch.was_set()
        self.gone |= self.rows - frozenset(self.catalog.visible_rows())
        self.snapshot = self.branch.stored()[1]
        self.closed = True

    def look(self) -> bool:
        """Whether anything has changed."""
        if not self.branch.moved():
            return False
        if self.closed and self.branch.stored()[1] != self.snapshot:
            raise Violation(Kind.UNTRUTH, f"{self.catalog.table} was set back, and is delivered on")
        for record, snapshot in self.branch.stored_since(self.snapshot):
            if self.newest is not None and self.newest.primary == record.primary:
                fell(self.newest, record)
            self.newest, self.snapshot = record, snapshot
        self._only_more()
        return True

    def _only_more(self) -> None:
        catalog, before = self.catalog, self.rows
        gone = [f.path for f in catalog.files() if f.path not in catalog.storage.files]
        if gone:
            raise Violation(Kind.LOSS, f"{catalog.table} names files that are not there: {gone}")
        rows = catalog.visible_rows()
        self.rows = frozenset(rows)
        again = sorted(self.rows & self.gone)
        if again:
            raise Violation(Kind.DOUBLE, f"rows came again into {catalog.table}: {again[:5]}")
        if len(self.rows) < len(rows):
            doubled = [row for row, times in Counter(rows).items() if times > 1]
            raise Violation(Kind.DOUBLE, f"rows twice in {catalog.table}: {sorted(doubled)[:5]}")
        self.rows |= self.gone
        if before - self.rows:
            lost = sorted(before - self.rows)[:5]
            raise Violation(Kind.LOSS, f"rows are gone from {catalog.table}: {lost}")

    def owes(self, pending_commit: PendingCommit, primary: str) -> bool:
        """PENDING-6, in the checker's own words: nothing at or above it is in the secondary table's
        record."""
        newest = self.newest
        return (
            newest is None
            or newest.primary != primary
            or newest.transaction < pending_commit.transaction
        )


class _KeyedTable(_Table):
    """One whose rows are replaced: ``rows`` are all records that it was delivered to, whatever
    lives."""

    def __init__(self, sink: SinkName, catalog: Any, keys: Keys, kept: Kept) -> None:
        super().__init__(sink, catalog)
        self._keys, self._kept = keys, kept
        self._live = 0
        self._counted: int | None = None

    def _only_more(self) -> None:
        """KEY-1, for a delivery: the fold of what was decided up to its transaction, and no
        more."""
        catalog, live = self.catalog, self.catalog.visible_rows()
        decided = frozenset[SourceRecord]()
        if self.newest is not None:
            decided = self._kept.decided_for(catalog.table, self.newest)
            self.rows |= decided - self._kept.expired
        self._keys.are_folded(live, self.rows | decided, self._kept.expired)
        since = [record for record, _ in self.branch.stored_since(self._counted)]
        counted = live_by_counts(self._live, since)
        if len(live) != counted:
            what = f"{len(live)} rows live in {catalog.table}, and {counted} were counted"
            raise Violation(Kind.UNTRUTH, what)
        self._live, self._counted = len(live), self.snapshot


class Kept:
    """PENDING-1 to PENDING-9, QUARANTINE-5: whether a row is in two tables or in none, the oracle
    says.

    ``rows`` are those in the secondary tables, as of the last look; ``pending`` those of the
    pending commits in the lead's record that no secondary table shows as delivered; ``expired``
    those that it gave up by name.
    """

    def __init__(self, sink: SinkName, quarantine: Quarantine, keys: Keys | None = None) -> None:
        """``keys``: of those secondary tables that have them."""
        self._quarantine = quarantine
        self._tables: dict[str, _Table] = {}
        for name, catalog in quarantine.catalogs.items():
            if keys and name in keys.tables:
                self._tables[name] = _KeyedTable(sink, catalog, keys, self)
            else:
                self._tables[name] = _Table(sink, catalog)
        self._decided: dict[str, PendingCommit] = {}
        """Everything that was ever pending, by its manifest."""
        self._pending: tuple[PendingCommit, ...] = ()
        self._given_up: tuple[PendingCommit, ...] = ()
        self._primary = ""
        self._suspended: dict[str, Suspended] = {}
        self._asked = False
        """An operator wanted suspended tables filled again."""
        self._ids: dict[str, list[str]] = {}
        """Of each topic the ids that the primary table has known, in order."""
        self.rows: frozenset[SourceRecord] = frozenset()
        self.expired: set[SourceRecord] = set()

    def learn(self, decided: CommitRecord | None) -> None:
        """The primary table knows these topics, and a secondary table that is delivered since
        may."""
        for topic, id_ in decided.topic_ids.items() if decided else ():
            if id_ not in self._ids.setdefault(topic, []):
                self._ids[topic].append(id_)

    def learn_pending_commits(self, decided: CommitRecord) -> None:
        """The primary table has pending this, or lets it expire."""
        self._decided |= {
            pending_commit.manifest: pending_commit
            for pending_commit in decided.pending_commits
            if pending_commit.manifest
        }
        self.expired.update(
            row for pending_commit in decided.expired for row in self._of(pending_commit)
        )

    def decided_for(self, table: str, record: CommitRecord) -> frozenset[SourceRecord]:
        """What a secondary table with this record has been delivered, of all that was ever decided
        for it; of what has expired nobody knows: until a fence is delivered, it may come
        (PENDING-8)."""
        pending_commits = (d for d in self._decided.values() if d.table == table)
        delivered = (d for d in pending_commits if d.transaction <= record.transaction)
        return frozenset(row for pending_commit in delivered for row in self._of(pending_commit))

    def look(self) -> bool:
        """Whether anything has changed."""
        moved = [table.look() for table in self._tables.values()]
        if not any(moved):
            return False
        before, rows = self.rows, Counter(r for t in self._tables.values() for r in t.rows)
        self.rows = frozenset(rows)
        doubled = sorted(row for row, times in rows.items() if times > 1)
        if doubled:
            raise Violation(Kind.DOUBLE, f"rows in two secondary tables: {doubled[:5]}")
        for row in self.rows - before:
            self._belongs(row)
        return True

    def _belongs(self, row: SourceRecord) -> None:
        name, record = next((n, t.newest) for n, t in self._tables.items() if row in t.rows)
        at = TopicPartition(row.topic, row.partition)
        known = record.topic_ids.get(row.topic) if record else None
        if record is None or (known != row.topic_id and not self._since(row, known)):
            raise Violation(Kind.DOUBLE, f"the secondary table's record knows no topic of {row}")
        if known != row.topic_id:
            return
        if row.offset >= record.offsets.get(at, 0):
            raise Violation(Kind.DOUBLE, f"beyond the secondary table's offsets: {row}")
        if self._quarantine.misplaced(name, row):
            raise Violation(Kind.UNTRUTH, f"{name} holds what it can never be given: {row}")

    def _since(self, row: SourceRecord, known: str | None) -> bool:
        """Whether the topic was re-created between the decision and the delivery."""
        ids = self._ids.get(row.topic, [])
        return known in ids and row.topic_id in ids[: ids.index(known)]

    def beside(self, record: CommitRecord, primary: str) -> None:
        """The primary table has this record now. QUARANTINE-5: it is within the limits. PENDING-8:
        what expires is named."""
        self._pending, self._given_up, self._primary = (
            record.pending_commits,
            record.expired,
            primary,
        )
        self.expired.update(
            row for pending_commit in record.expired for row in self._of(pending_commit)
        )
        self._beside_suspended(record)
        objection = self._quarantine.limits.reason_if_too_many(record.quarantined)
        if objection and not self._quarantine.diverts:  # what is diverted is not bad
            raise Violation(Kind.UNTRUTH, f"committed as {record.transaction}: {objection}")

    def _beside_suspended(self, record: CommitRecord) -> None:
        """SUSPEND-1: suspending is carried on until a person ends it. SUSPEND-2: nothing new is
        pending meanwhile."""
        before, now = (
            self._suspended,
            {suspended.table: suspended for suspended in record.suspended},
        )
        ended = before.keys() - now.keys()
        if ended and not self._asked:
            raise Violation(
                Kind.UNTRUTH, f"{sorted(ended)} were suspended, and nobody resumed them"
            )
        if any(suspended.why.startswith(Unreachable.code) for suspended in record.suspended):
            self._quarantine.diverts = (
                True  # SUSPEND-3: nothing struck it, it was not delivered for too long
            )
        for pending_commit in record.pending_commits:
            fresh = pending_commit.manifest and pending_commit.transaction == record.transaction
            if fresh and pending_commit.table in before.keys() & now.keys():
                raise Violation(
                    Kind.UNTRUTH,
                    f"{pending_commit.table} is suspended, and is pending {pending_commit}",
                )
        self._suspended = now

    def was_set_back(self, table: str) -> None:
        """Somebody set a secondary table to an older snapshot."""
        self._tables[table].was_set_back()

    def is_asked_for(self, table: str) -> None:
        """An operator says that a suspended table takes rows again: from now on it may be
        delivered."""
        self._asked, self._tables[table].closed = True, False

    def waits(self, pending_commit: PendingCommit) -> bool:
        """Whether the pending commit is of a table that is suspended, and so is not delivered."""
        suspended = self._suspended.get(pending_commit.table)
        return suspended is not None and not suspended.resuming

    @property
    def pending_commits(self) -> tuple[PendingCommit, ...]:
        """What is pending now."""
        return tuple(d for d in self._pending if self._tables[d.table].owes(d, self._primary))

    @property
    def deliverable(self) -> tuple[PendingCommit, ...]:
        """PENDING-8: what has expired, and could still be delivered by somebody who slept through
        that.

        Not while the table is dropped: no delivery lands there. It counts again when it is back.
        """
        return tuple(
            pending_commit
            for pending_commit in self._given_up
            if (table := self._tables[pending_commit.table]).catalog.uuid
            == pending_commit.secondary
            and getattr(table.catalog, "exists", True)
            and table.owes(pending_commit, self._primary)
        )

    @property
    def pending(self) -> frozenset[SourceRecord]:
        rows = [row for pending_commit in self.pending_commits for row in self._of(pending_commit)]
        if len(set(rows)) < len(rows):
            raise Violation(Kind.DOUBLE, f"pending twice: {sorted(rows)[:5]}")
        both = self.rows & set(rows)
        if both:
            raise Violation(Kind.DOUBLE, f"pending, and there already: {sorted(both)[:5]}")
        return frozenset(rows)

    def left_behind(self) -> list[str]:
        """Key files of pending commits that their tables show as delivered."""
        drafted = self._quarantine.drafted
        return [
            file.path
            for pending_commit in self._decided.values()
            if pending_commit.deletes
            and not self._tables[pending_commit.table].owes(pending_commit, self._primary)
            for file in drafted.get(pending_commit.manifest, ())
            if self._tables[pending_commit.table].catalog.storage.holds(file.path)
        ]

    def _of(self, pending_commit: PendingCommit) -> tuple[SourceRecord, ...]:
        return self._quarantine.records.get(pending_commit.manifest, ())

    def good(self, rows: set[SourceRecord]) -> None:
        if self._quarantine.ledger and rows:
            raise Violation(Kind.UNTRUTH, f"the ledger holds rows: {sorted(rows)[:5]}")
        bad = [row for row in rows if self._quarantine.always(row)]
        if bad:
            raise Violation(Kind.UNTRUTH, f"bad records are in the table: {sorted(bad)[:5]}")
