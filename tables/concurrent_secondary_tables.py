"""Calls all secondary tables of a sink in threads: one that hangs does not block the others.

Deliveries that are made together (PENDING-5) are the exception: they wait for the slowest of their
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.current_sink import bound_to_current_sink
from headgate.control_protocol.errors import HeadgateError, RetryLater, TableMissing
from headgate.control_protocol.identifiers import Epoch
from headgate.control_protocol.ports import (
    Changed,
    CommitAttempt,
    CommitOutcome,
    SecondaryTable,
    Staging,
    TableView,
    Unknown,
    Want,
)
from headgate.control_protocol.schema_evolution import Refusal
from headgate.control_protocol.table_format import AtomicCommits, Delivery, DeliveryOutcome
from headgate.tables.iceberg.catalog import missing_rights_or_none

AT_ONCE = 16

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class SecondaryTables:
    """Implements ``ports.AllSecondaryTables``. ``open_table`` opens one by name.

    ``on_commit`` is called, and must not block, when the tables are first looked at and after
    every delivery: there may be new rows. Without ``threads`` the caller makes one
    call after another. ``required``: an error of any other secondary table is an answer (rule
    SUSPEND-1). ``make`` creates a requested table, or says why it does not. ``listed`` names the
    tables of a namespace. ``together`` delivers several in one call.
    """

    def __init__(
        self,
        open_table: Callable[[str], SecondaryTable],
        on_commit: Callable[[], None] = lambda: None,
        *,
        threads: bool = True,
        required: Collection[str] | None = None,
        make: Callable[[Want], Changed | None] | None = None,
        listed: Callable[[str], Collection[str]] = lambda _: (),
        together: AtomicCommits | None = None,
    ) -> None:
        self._open = open_table
        self._on_commit = on_commit
        self._threads = threads
        self._required = required
        self._make = make
        self._listed = listed
        self._together = together
        self._pool: ThreadPoolExecutor | None = None
        self._opened: dict[str, SecondaryTable] = {}
        self._delivering: dict[str, Future[Mapping[str, DeliveryOutcome]]] = {}
        self._looked = False

    def try_read_views(self, tables: Collection[str]) -> Mapping[str, TableView | HeadgateError]:
        """Read tables at once, but for busy ones: they are left out."""
        free = [name for name in tables if not self._is_delivery_running(name)]
        views = self.call_each(self._read_view_unless_unreachable, free)
        if not self._looked:
            self._looked = True
            self._on_commit()
        return dict(zip(free, views, strict=True))

    def find_missing_tables(self, tables: Collection[str]) -> Mapping[str, TableMissing]:
        """LEDGER-2: a list shows what to look at; a table counts as gone when it cannot be
        loaded."""
        spaces = {name.rpartition(".")[0] for name in tables}
        there = {f"{space}.{short}" for space in sorted(spaces) for short in self._listed(space)}
        found = self.try_read_views(sorted(set(tables) - there)) if set(tables) - there else {}
        return {n: answer for n, answer in found.items() if isinstance(answer, TableMissing)}

    def stage(
        self, stagings: Sequence[Staging]
    ) -> Mapping[str, tuple[PendingCommit, ...] | HeadgateError]:
        staged = self.call_each(self._stage, stagings)
        return {
            d.table.table: pending_commits
            for d, pending_commits in zip(stagings, staged, strict=True)
        }

    def create_or_change_tables(self, wants: Sequence[Want]) -> tuple[Changed, ...]:
        return tuple(self.call_each(self._create_or_evolve, wants))

    def deliver(
        self, deliveries: Sequence[CommitAttempt], timeout_ms: int
    ) -> Mapping[str, CommitOutcome | HeadgateError]:
        begun = [
            Delivery(
                self._open_or_reuse_table(delivery.base.table), delivery
            )  # this thread opens it
            for delivery in deliveries
            if not self._is_delivery_running(delivery.base.table)
        ]
        together = [[delivery] for delivery in begun]
        if self._together and begun:
            together = [begun]
        if not self._threads:
            outcomes = [self._deliver(group) for group in together]
            self._on_commit()
            return {name: outcome for group in outcomes for name, outcome in group.items()}
        for group in together:
            delivering = self._executor().submit(self._deliver, group)
            self._delivering |= {delivery.table_name: delivering for delivery in group}
        wait(self._delivering.values(), timeout_ms / 1000)
        self._on_commit()
        return {p.base.table: self._take_delivery_outcome(p.base.table) for p in deliveries}

    def delete_undecided_manifests(
        self, before_epoch: Epoch, pending_manifests: frozenset[str]
    ) -> None:
        for table in self._opened.values():
            if self._threads:
                self._executor().submit(
                    table.delete_undecided_manifests, before_epoch, pending_manifests
                )  # nobody waits for it
            else:
                table.delete_undecided_manifests(before_epoch, pending_manifests)

    def delete_delivered_key_files(self, delivered_commits: Sequence[PendingCommit]) -> None:
        by_table: dict[str, list[PendingCommit]] = {}
        for pending_commit in delivered_commits:
            by_table.setdefault(pending_commit.table, []).append(pending_commit)
        for name, struck in by_table.items():
            table = self._open_or_reuse_table(name)
            if self._threads:
                self._executor().submit(
                    table.delete_delivered_key_files, struck
                )  # nobody waits for it
            else:
                table.delete_delivered_key_files(struck)

    def close(self) -> None:
        """Start no more calls; those under way end by themselves, since each is bounded."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for table in self._opened.values():
            table.close()

    def call_each(self, call: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
        """Call with each of the items, several at a time; raises what the first one raised."""
        if len(items) < 2 or not self._threads:
            return [call(item) for item in items]
        return list(self._executor().map(call, items))

    def call_or_suspending_error_of_table(
        self, table: str, call: Callable[[], _Answer]
    ) -> _Answer | HeadgateError:
        """Return the error that is this table's own trouble; raise any other (SUSPEND-1)."""
        try:
            return call()
        except HeadgateError as error:
            trouble = self._suspending_error_or_none(table, error)
            if trouble is None:
                raise
            return trouble

    def _read_view_unless_unreachable(self, name: str) -> TableView | HeadgateError:
        try:
            return self.call_or_suspending_error_of_table(
                name, lambda: self._open_or_reuse_table(name).read()
            )
        except RetryLater as error:
            return error

    def _create_or_evolve(self, want: Want) -> Changed:
        name = want.at.table
        if self._is_delivery_running(name):
            return Changed(name, failure="it is just being delivered")
        try:
            return self._create_if_uuid_unknown(want) or self._evolve_if_same_table(want)
        except TableMissing as error:
            return Changed(name, why=str(error), dropped=bool(want.at.uuid))
        except HeadgateError as error:
            later = want.at.uuid or isinstance(error, RetryLater)
            return Changed(name, failure=str(error)) if later else Changed(name, why=str(error))

    def _create_if_uuid_unknown(self, want: Want) -> Changed | None:
        """Create the table if ``want`` knows no UUID of it; return ``None`` if it does."""
        if want.at.uuid:
            return None
        return self._make(want) if self._make else Changed(want.at.table, why="none are made")

    def _evolve_if_same_table(self, want: Want) -> Changed:
        """Return the table as it is now; if it is not the one asked for, leave it alone."""
        table = self._open_or_reuse_table(want.at.table)
        view, changes, refused = table.read(), tuple[str, ...](), tuple[Refusal, ...]()
        if view.uuid == want.at.uuid and want.columns.fields:
            evolved = table.evolve(view, want.columns)
            view, changes, refused = evolved.view, evolved.changes, evolved.refused
        return Changed(
            view.table,
            view.uuid,
            view.schema_id,
            view.spec_id,
            view.data_root,
            changes,
            refused,
        )

    def _stage(self, staging: Staging) -> tuple[PendingCommit, ...] | HeadgateError:
        name = staging.table.table
        return self.call_or_suspending_error_of_table(
            name, lambda: self._open_or_reuse_table(name).stage(staging)
        )

    def _deliver(self, deliveries: Sequence[Delivery]) -> Mapping[str, DeliveryOutcome]:
        if self._together:
            outcomes = self._together.deliver(deliveries, self)
            return {p.table_name: outcome for p, outcome in zip(deliveries, outcomes, strict=True)}
        return {
            p.table_name: self.call_or_suspending_error_of_table(p.table_name, p.deliver)
            for p in deliveries
        }

    def _suspending_error_or_none(self, name: str, error: HeadgateError) -> HeadgateError | None:
        """Return what suspends the table; ``None`` if the error is not to suspend it.

        The sink cannot do without the table then, or it is merely unreachable.
        """
        if self._is_required_table(name):
            return None
        if isinstance(error, RetryLater):
            return missing_rights_or_none(error)
        return error

    def _is_required_table(self, name: str) -> bool:
        return self._required is None or name in self._required

    def _open_or_reuse_table(self, name: str) -> SecondaryTable:
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name]

    def _is_delivery_running(self, name: str) -> bool:
        return name in self._delivering and not self._delivering[name].done()

    def _take_delivery_outcome(self, name: str) -> CommitOutcome | HeadgateError:
        if self._is_delivery_running(name):
            return Unknown(f"{name} does not answer in time")
        return self._delivering.pop(name).result()[name]

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None:
            # Each thread is told whose it is, once; there is nothing else to begin with.
            self._pool = ThreadPoolExecutor(
                AT_ONCE,
                "headgate-secondary-tables",
                initializer=bound_to_current_sink(lambda: None),
            )
        return self._pool
