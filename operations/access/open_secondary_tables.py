"""Opens tables that a ledger has filled, for commands that add rows to one of them (rule
SUSPEND-6)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TypeVar

from headgate.config.multi_table_settings import TablesSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    ReplayRefused,
    ReplayUnfit,
    WriteFailed,
)
from headgate.control_protocol.events import Destination, TableStart
from headgate.control_protocol.ports import (
    Batch,
    BatchNeeds,
    Lineage,
    SecondaryTable,
    TableView,
    Want,
)
from headgate.control_protocol.schema_evolution import Refusal
from headgate.control_protocol.table_format import LoadedReader, Use
from headgate.runtime.routed_table_creation import TableMaker
from headgate.runtime.sink_tables import SinkTables
from headgate.tables.concurrent_secondary_tables import SecondaryTables

_Result = TypeVar("_Result")


def call_for_tables(
    names: Collection[str],
    all_names: Callable[[], Iterable[str]],
    call: Callable[[str], _Result],
    result_of_failure: Callable[[str, str], _Result],
) -> tuple[_Result, ...]:
    """Return each table's result; without ``names``, of all, where one that fails stops no other.

    ``result_of_failure`` takes its name, and why. Raises what a call for a named table raises.
    """
    if names:
        return tuple(map(call, sorted(names)))
    results = []
    for name in all_names():
        try:
            results.append(call(name))
        except HeadgateError as error:
            results.append(result_of_failure(name, str(error)))
    return tuple(results)


class FilledTables:
    """Secondary tables; ``ledger`` is as it was read when this was created."""

    def __init__(self, tables: SinkTables) -> None:
        self._tables = tables
        self.ledger_reader, self.ledger = self.read_table(tables.name)

    def read_table(self, name: str) -> tuple[LoadedReader, TableView]:
        """Return a reader of the table as it is now, and its view. Raises what loading raises."""
        reader = self._tables.open_committable_reader(name)
        return reader, reader.view()

    def open_table(self, name: str) -> SecondaryTable:
        return self._tables.open_table(name)

    def suspension_reasons(self) -> Mapping[str, str]:
        """Return why each suspended table is suspended."""
        record = self.ledger.record
        return {each.table: each.why for each in record.suspended} if record else {}

    def require_table_as_sink_left_it(self, name: str) -> tuple[LoadedReader, TableView]:
        """Do as ``read_table`` for a table that is as the ledger left it.

        Raises ``ReplayRefused``, and what loading raises.
        """
        if why := self.suspension_reasons().get(name):
            raise ReplayRefused(
                f"{name} is suspended: {why}",
                "headgate tables SINK resume TABLE, with --replay or --reread, opens it",
            )
        reader, view = self.read_table(name)
        delivered = view.record is not None and view.record.primary == self.ledger.uuid
        if view.lineage is not Lineage.CONTAINS_TAG or not delivered:
            raise ReplayRefused(
                f"{name} is not as sink {self._tables.settings.name} left it, or has received "
                "nothing yet",
                "start the sink: it delivers to the table, or suspends it and says why "
                "(headgate tables SINK); then ask again",
            )
        return reader, view


def require_many_tables(tables: TablesSettings) -> None:
    """Raise ``ConfigurationError`` for a sink without routes."""
    if not tables:
        raise ConfigurationError("this sink fills one table", "only routed tables can be suspended")


def require_unkeyed(tables: TablesSettings, names: Collection[str], what: str, hint: str) -> None:
    """Raise ``ReplayUnfit`` for tables with a key, to which nothing older can be given."""
    routing = tables.routing
    if keyed := sorted(name for name in names if routing.key_of(name)):
        raise ReplayUnfit(
            f"{', '.join(keyed)} has a key, and later records may have replaced or deleted rows of "
            f"what {what}",
            "have the source send those keys again (a snapshot of its table), or take all tables "
            f"back with headgate rollback{hint}",
        )


def commit_record_of_checked_view(view: TableView) -> CommitRecord:
    """Return the commit record of a table that passed all checks."""
    assert view.record is not None, "refused before"
    return view.record


# Meets what records need of tables without a coordinator, for a dry run or a replay.


def create_and_change_tables(
    tables: SinkTables, batch: Batch, needs: BatchNeeds, *, maker: TableMaker | None = None
) -> Batch:
    """Create and change what a coordinator would for the batch, and return it as it is written
    then (CREATE-1, SCHEMA-3).

    Without a ``maker`` no table is created. Raises ``WriteFailed`` if a table could not be changed.
    """
    wants = [
        Want(Destination(need.at.table, need.at.uuid), need.columns, need.raw)
        for need in needs.tables
    ]
    opened = partial(tables.open_table, use=Use.SECONDARY)
    make = maker.create_requested_or_why_not if maker else None
    with closing(SecondaryTables(opened, make=make)) as secondaries:
        changed = secondaries.create_or_change_tables(wants)
    if failures := [outcome.failure for outcome in changed if outcome.failure]:
        raise WriteFailed(failures[0])
    starts = {start.table: start for start in batch.changed_tables}
    for outcome in changed:
        refused = outcome.refused if outcome.uuid else (Refusal((), outcome.why),)
        ids, prefix = (
            (outcome.uuid, outcome.schema_id, outcome.spec_id),
            f"{outcome.data}/{batch.folder}",
        )
        starts[outcome.table] = TableStart(outcome.table, *ids, prefix, refused=refused)
        if outcome.any_other:
            starts[""] = replace(starts[outcome.table], table="")
    return replace(batch, changed_tables=tuple(starts.values()))


def build_table_start(view: TableView, folder: str) -> TableStart:
    """Return what a START would say about the table as read; files go to the folder."""
    prefix = f"{view.data_root}/{folder}"
    return TableStart(view.table, view.uuid, view.schema_id, view.spec_id, prefix)
