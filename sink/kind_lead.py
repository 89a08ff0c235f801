"""Opens the tables of any sink that is not Iceberg, for the coordinator or for reading only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from headgate.control_protocol.column_growth import Refusal
from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import TableMissing, TableRecreated
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Evolved,
    Follower,
    Lead,
    SinkTable,
    TableView,
)
from headgate.control_protocol.table_kinds import Capability, FollowingTable, TableKind
from headgate.sink.kinds import wanted_follower, wanted_table
from headgate.sink.routing import follower_names
from headgate.sink.settings import SinkSettings
from headgate.tables.drafts import Drafts
from headgate.tables.follower import KindFollower
from headgate.tables.followers import FollowerTables

if TYPE_CHECKING:  # a reader creates no tables
    from headgate.sink.made_tables import TableMaker


def kind_lead(settings: SinkSettings, kind: TableKind) -> Lead:
    """Return the table, which the caller closes."""
    return as_lead(kind.open(wanted_table(settings), settings.name), kind)


def kind_followers(
    settings: SinkSettings,
    kind: TableKind,
    maker: TableMaker | None = None,
    *,
    aside: Callable[[], Follower] | None = None,
    told: Callable[[], None] = lambda: None,
) -> FollowerTables:
    """Return the table's followers, which the caller closes.

    ``aside`` opens a quarantine of another kind; ``told``: as in ``FollowerTables``.
    """

    def opened(name: str) -> Follower:
        if aside is not None and name == settings.quarantine.table:
            return aside()
        if settings.tables or name in follower_names(settings):
            return kind_follower(settings, kind, name)
        return _former(settings, kind, name)

    return FollowerTables(
        opened,
        told,
        required=follower_names(settings) if settings.tables else None,
        make=maker.wanted if maker else None,
        listed=maker.listed if maker else lambda _: (),
    )


def _former(settings: SinkSettings, kind: TableKind, name: str) -> Follower:
    """Open a quarantine that the sink file does not ask for any more, but that may be owed rows.

    Raises ``TableRecreated`` if it cannot be found.
    """
    if name == settings.quarantine.table:
        with suppress(TableMissing):
            kind.layout(wanted_follower(settings, name))
            return kind_follower(settings, kind, name)
    raise TableRecreated(
        f"as far as {settings.table.identifier} knows, {name} is owed rows, but the sink file "
        "names no such quarantine any more",
        "name it as before, until headgate status says that nothing is owed, and stop the sink "
        "with headgate stop SINK (docs/quarantine.md, Another quarantine)",
    )


def kind_follower(settings: SinkSettings, kind: TableKind, name: str) -> Follower:
    """Return the follower with this name, which the caller closes."""
    wanted = wanted_follower(settings, name)
    table = cast("FollowingTable", kind.open(wanted, settings.name))
    return KindFollower(table, as_lead(table, kind), drafts_of(settings, name))


def drafts_of(settings: SinkSettings, name: str) -> Drafts:
    """Return what the follower with this name is owed."""
    wanted = wanted_follower(settings, name)
    return Drafts(wanted.storage, wanted.location, settings.name)


def as_lead(table: SinkTable, kind: TableKind) -> Lead:
    """Return a table of the kind as one that can be asked for new columns."""
    if Capability.EVOLUTION in kind.capabilities:
        return cast("Lead", table)
    return FixedColumns(table)


class FixedColumns:
    """Implements ``ports.Lead`` over a table whose columns never change."""

    def __init__(self, table: SinkTable) -> None:
        self._table = table

    def read(self) -> TableView:
        return self._table.read()

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        return self._table.commit(attempt)

    def evolve(self, base: TableView, columns: Struct) -> Evolved:
        why = "tables of this kind get no new columns"
        refused = tuple(Refusal((column.name,), why) for column in columns.fields)
        return Evolved(base, refused=refused)

    def close(self) -> None:
        self._table.close()
