"""The tables of routes that a batch knows, and those that it wants to know (R2, R3, R5)."""

from __future__ import annotations

from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.ports import Batch
from headgate.data.writers.failures import TablesWanted
from headgate.data.writers.plan import NOTHING_IS_MADE, WriterPlan
from headgate.data.writers.routed_table import RoutedTable
from headgate.data.writers.routes import Target, folded

NO_ROUTE = "no route sends it to a table"


def own_tables(batch: Batch) -> frozenset[str]:
    """Return the folded names of the tables that START names, which take no routed rows (R8)."""
    quarantine = (batch.quarantine,) if batch.quarantine else ()
    return frozenset(folded(start.table) for start in (batch.table, *quarantine, *batch.followers))


class KnownTables:
    """The tables of one batch's plan. ``wanted``: those that it needs before it can be written."""

    def __init__(self, plan: WriterPlan, batch: Batch) -> None:
        if not batch.folder:
            raise ConfigurationError(
                "the coordinator names no folder for tables that are routed to",
                "start every participant with the same sink file",
            )
        assert plan.source.routing is not None, "chosen for it"
        self._plan = plan
        self._parked = batch.parked
        self._own = own_tables(batch)
        topics = sorted({*batch.topic_ids, *(at.topic for at in batch.ranges)})
        named = plan.source.routing.tables_of(topics)
        self._alone = {target.table: target.raw for target in named.values()}
        self.wanted: set[str] = set()

    def own(self, target: Target) -> str:
        """Return why no record may name this table: whoever writes to the source could else fill
        the ledger or the quarantine, and no status with such files is ever admitted."""
        if folded(target.table) not in self._own:
            return ""
        return f"names {target.table}, which is one of the sink's own tables"

    def trouble(self, target: Target) -> str:
        """Return why the records of a table are diverted (I1), if there is a quarantine."""
        if self._plan.quarantine is None:
            return ""
        known = self._plan.tables.get(target.table)
        return self._parked.get(target.table) or (known.trouble if known else "")

    def find(self, target: Target | None) -> RoutedTable | str | None:
        """Return the table, or why its records are unmatched; ``None`` once tables are wanted:
        nothing of such an attempt counts."""
        if target is None:
            return NO_ROUTE
        known = self._plan.tables.get(target.table)
        if known is None and self._may_be(target.table):
            self.wanted.add(target.table)
        if self.wanted:
            return None
        if known is None:
            return f"there is no table {target.table}, {self._plan.closed or NOTHING_IS_MADE}"
        return known.problem or self._collision(known, target) or known

    def require(self) -> None:
        """Raise ``TablesWanted`` if tables are wanted."""
        if self.wanted:
            raise TablesWanted(frozenset(self.wanted))

    def by_topic(self, name: str) -> bool:
        """Return whether a topic of the batch names the table."""
        return name in self._alone

    def _may_be(self, name: str) -> bool:
        """Return whether there is such a table, or may be made, or nobody has looked yet."""
        namespace, _, table = name.rpartition(".")
        listed = self._plan.listed.get(namespace)
        return listed is None or table in listed or not self._plan.closed

    def _collision(self, known: RoutedTable, target: Target) -> str:
        owner = target.raw if known.making else target.table  # the first one gives it its name
        taken = known.raw_name or self._alone.get(target.table, owner)
        if target.merge or target.raw == taken:
            return ""
        return (
            f"{target.raw} would go to {target.table}, which takes {taken}: merge = true in the "
            "route lets it"
        )
