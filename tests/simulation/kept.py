"""The followers' checker: looks at every step, and knows only these tables and what is bad."""

from __future__ import annotations

from collections import Counter
from typing import Any

from simulation.branch import Branch, fell
from simulation.keys import Keys, live_by_counts
from simulation.quarantine import Quarantine
from verdicts import Kind, Violation

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.identifiers import SinkName, TopicPartition
from headgate.control_protocol.record import CommitRecord, Debt, Parked
from headgate.control_protocol.testing import SourceRecord


class _Table:
    """One follower, as it was looked at last."""

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
        self.gone |= self.rows - frozenset(self.catalog.records())
        self.snapshot = self.branch.stored()[1]
        self.closed = True

    def look(self) -> bool:
        """Whether anything has changed."""
        if not self.branch.moved():
            return False
        if self.closed and self.branch.stored()[1] != self.snapshot:
            raise Violation(Kind.UNTRUTH, f"{self.catalog.table} was set back, and is paid on")
        for record, snapshot in self.branch.stored_since(self.snapshot):
            if self.newest is not None and self.newest.lead == record.lead:
                fell(self.newest, record)
            self.newest, self.snapshot = record, snapshot
        self._only_more()
        return True

    def _only_more(self) -> None:
        catalog, before = self.catalog, self.rows
        gone = [f.path for f in catalog.files() if f.path not in catalog.storage.files]
        if gone:
            raise Violation(Kind.LOSS, f"{catalog.table} names files that are not there: {gone}")
        rows = catalog.records()
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

    def owes(self, debt: Debt, lead: str) -> bool:
        """D6, in the checker's own words: nothing at or above it is in the follower's record."""
        newest = self.newest
        return newest is None or newest.lead != lead or newest.transaction < debt.transaction


class _KeyedTable(_Table):
    """One whose rows are replaced: ``rows`` are all records that it was paid, whatever lives."""

    def __init__(self, sink: SinkName, catalog: Any, keys: Keys, kept: Kept) -> None:
        super().__init__(sink, catalog)
        self._keys, self._kept = keys, kept
        self._live = 0
        self._counted: int | None = None

    def _only_more(self) -> None:
        """U1, for a payment: the fold of what was decided up to its transaction, and no more."""
        catalog, live = self.catalog, self.catalog.records()
        if self.newest is not None:
            self.rows |= self._kept.received(catalog.table, self.newest)
        self._keys.are_folded(live, self.rows, self._kept.lapsed)
        since = [record for record, _ in self.branch.stored_since(self._counted)]
        counted = live_by_counts(self._live, since)
        if len(live) != counted:
            what = f"{len(live)} rows live in {catalog.table}, and {counted} were counted"
            raise Violation(Kind.UNTRUTH, what)
        self._live, self._counted = len(live), self.snapshot


class Kept:
    """Rules Q1, Q7 and D: whether a row is in two tables or in none, the oracle says.

    ``rows`` are those in the followers, as of the last look; ``owed`` those of the debts in the
    lead's record that no follower shows as paid; ``lapsed`` those that it gave up by name.
    """

    def __init__(self, sink: SinkName, quarantine: Quarantine, keys: Keys | None = None) -> None:
        """``keys``: of those followers that have them."""
        self._quarantine = quarantine
        self._tables: dict[str, _Table] = {}
        for name, catalog in quarantine.catalogs.items():
            if keys and name in keys.tables:
                self._tables[name] = _KeyedTable(sink, catalog, keys, self)
            else:
                self._tables[name] = _Table(sink, catalog)
        self._decided: dict[str, Debt] = {}
        """Everything that was ever owed, by its manifest."""
        self._owed: tuple[Debt, ...] = ()
        self._given_up: tuple[Debt, ...] = ()
        self._lead = ""
        self._parked: dict[str, Parked] = {}
        self._asked = False
        """An operator wanted parked tables filled again."""
        self._ids: dict[str, list[str]] = {}
        """Of each topic the ids that the lead has known, in order."""
        self.rows: frozenset[SourceRecord] = frozenset()
        self.lapsed: set[SourceRecord] = set()

    def learn(self, decided: CommitRecord | None) -> None:
        """The lead knows these topics, and a follower that is paid since may."""
        for topic, id_ in decided.topic_ids.items() if decided else ():
            if id_ not in self._ids.setdefault(topic, []):
                self._ids[topic].append(id_)

    def learn_debts(self, decided: CommitRecord) -> None:
        """The lead owes this, or lets it lapse."""
        self._decided |= {debt.manifest: debt for debt in decided.debts if debt.manifest}
        self.lapsed.update(row for debt in decided.lapsed for row in self._of(debt))

    def received(self, table: str, record: CommitRecord) -> frozenset[SourceRecord]:
        """What a follower with this record has been paid, of all that was ever decided for it."""
        debts = (d for d in self._decided.values() if d.table == table)
        paid = (d for d in debts if d.transaction <= record.transaction)
        return frozenset(row for debt in paid for row in self._of(debt)) - self.lapsed

    def look(self) -> bool:
        """Whether anything has changed."""
        moved = [table.look() for table in self._tables.values()]
        if not any(moved):
            return False
        before, rows = self.rows, Counter(r for t in self._tables.values() for r in t.rows)
        self.rows = frozenset(rows)
        doubled = sorted(row for row, times in rows.items() if times > 1)
        if doubled:
            raise Violation(Kind.DOUBLE, f"rows in two followers: {doubled[:5]}")
        for row in self.rows - before:
            self._belongs(row)
        return True

    def _belongs(self, row: SourceRecord) -> None:
        name, record = next((n, t.newest) for n, t in self._tables.items() if row in t.rows)
        at = TopicPartition(row.topic, row.partition)
        known = record.topic_ids.get(row.topic) if record else None
        if record is None or (known != row.topic_id and not self._since(row, known)):
            raise Violation(Kind.DOUBLE, f"the follower's record knows no topic of {row}")
        if known != row.topic_id:
            return
        if row.offset >= record.offsets.get(at, 0):
            raise Violation(Kind.DOUBLE, f"beyond the follower's offsets: {row}")
        if self._quarantine.misplaced(name, row):
            raise Violation(Kind.UNTRUTH, f"{name} holds what it can never be given: {row}")

    def _since(self, row: SourceRecord, known: str | None) -> bool:
        """Whether the topic was re-created between the decision and the payment."""
        ids = self._ids.get(row.topic, [])
        return known in ids and row.topic_id in ids[: ids.index(known)]

    def beside(self, record: CommitRecord, lead: str) -> None:
        """The lead has this record now. Q7: it is within the limits. D8: what lapses is named."""
        self._owed, self._given_up, self._lead = record.debts, record.lapsed, lead
        self.lapsed.update(row for debt in record.lapsed for row in self._of(debt))
        self._beside_parked(record)
        objection = self._quarantine.limits.too_many(record.quarantined)
        if objection and not self._quarantine.diverts:  # what is diverted is not bad
            raise Violation(Kind.UNTRUTH, f"committed as {record.transaction}: {objection}")

    def _beside_parked(self, record: CommitRecord) -> None:
        """I1: parking is carried on until a person ends it. I2: nothing new is owed meanwhile."""
        before, now = self._parked, {parked.table: parked for parked in record.parked}
        ended = before.keys() - now.keys()
        if ended and not self._asked:
            raise Violation(Kind.UNTRUTH, f"{sorted(ended)} were parked, and nobody resumed them")
        if any(parked.why.startswith(Unreachable.code) for parked in record.parked):
            self._quarantine.diverts = True  # I3: nothing struck it, it was not paid for too long
        for debt in record.debts:
            fresh = debt.manifest and debt.transaction == record.transaction
            if fresh and debt.table in before.keys() & now.keys():
                raise Violation(Kind.UNTRUTH, f"{debt.table} is parked, and is owed {debt}")
        self._parked = now

    def was_set_back(self, table: str) -> None:
        """Somebody set a follower to an older snapshot."""
        self._tables[table].was_set_back()

    def is_asked_for(self, table: str) -> None:
        """An operator says that a parked table takes rows again: from now on it may be paid."""
        self._asked, self._tables[table].closed = True, False

    def waits(self, debt: Debt) -> bool:
        """Whether the debt is of a table that is parked, and so is not paid."""
        parked = self._parked.get(debt.table)
        return parked is not None and not parked.resuming

    @property
    def debts(self) -> tuple[Debt, ...]:
        """What is owed now."""
        return tuple(d for d in self._owed if self._tables[d.table].owes(d, self._lead))

    @property
    def payable(self) -> tuple[Debt, ...]:
        """D8: what has lapsed, and could still be paid by somebody who slept through that.

        Not while the table is dropped: no payment lands there. It counts again when it is back.
        """
        return tuple(
            debt
            for debt in self._given_up
            if (table := self._tables[debt.table]).catalog.uuid == debt.follower
            and getattr(table.catalog, "exists", True)
            and table.owes(debt, self._lead)
        )

    @property
    def owed(self) -> frozenset[SourceRecord]:
        rows = [row for debt in self.debts for row in self._of(debt)]
        if len(set(rows)) < len(rows):
            raise Violation(Kind.DOUBLE, f"owed twice: {sorted(rows)[:5]}")
        both = self.rows & set(rows)
        if both:
            raise Violation(Kind.DOUBLE, f"owed, and there already: {sorted(both)[:5]}")
        return frozenset(rows)

    def left_behind(self) -> list[str]:
        """Key files of debts that their tables show as paid."""
        drafted = self._quarantine.drafted
        return [
            file.path
            for debt in self._decided.values()
            if debt.deletes and not self._tables[debt.table].owes(debt, self._lead)
            for file in drafted.get(debt.manifest, ())
            if self._tables[debt.table].catalog.storage.holds(file.path)
        ]

    def _of(self, debt: Debt) -> tuple[SourceRecord, ...]:
        return self._quarantine.records.get(debt.manifest, ())

    def good(self, rows: set[SourceRecord]) -> None:
        if self._quarantine.ledger and rows:
            raise Violation(Kind.UNTRUTH, f"the ledger holds rows: {sorted(rows)[:5]}")
        bad = [row for row in rows if self._quarantine.always(row)]
        if bad:
            raise Violation(Kind.UNTRUTH, f"bad records are in the table: {sorted(bad)[:5]}")
