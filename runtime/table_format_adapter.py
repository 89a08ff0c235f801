"""Implements ``Format`` for every ``TableFormat``: our drafts, and the kind's own commits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, cast

from headgate.config.sink_settings import SinkSettings
from headgate.config.table_formats import wanted_made, wanted_secondary, wanted_table
from headgate.config.table_settings import TableSettings
from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import (
    HeadgateError,
    RetryLater,
    TableMissing,
    TableRecreated,
)
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Evolved,
    PrimaryTable,
    SecondaryTable,
    SinkTable,
    TableView,
)
from headgate.control_protocol.schema_evolution import Refusal
from headgate.control_protocol.table_format import (
    Capability,
    FileSchema,
    SupportsDelivery,
    TableFormat,
    TableSpec,
)
from headgate.control_protocol.table_history import FileRows
from headgate.runtime.sink_tables import Answer, Format, Maintained, TableAtRest, secondary_names
from headgate.tables.iceberg.catalog import rights_taken
from headgate.tables.pending_files import Drafts
from headgate.tables.secondary_table import KindSecondary

if TYPE_CHECKING:
    from headgate.data_plane.batch.plugin_plans import (
        PluginPlans,
        PluginQuarantinePlans,
        QuarantinePlans,
    )
    from headgate.data_plane.batch.write_plan import SourcePlan, WriterPlan
    from headgate.data_plane.routing.table_lookup import KindStock
    from headgate.tables.iceberg.commit_lock import Gates
    from headgate.tables.iceberg.multi_table_commit import JointDeliveries


class KindFormat:
    """The tables of one kind."""

    def __init__(self, settings: SinkSettings, kind: TableFormat) -> None:
        self.settings = settings
        self.kind = kind

    def wanted(self, name: str) -> TableSpec:
        settings = self.settings
        primary = name == settings.table.identifier
        return wanted_table(settings) if primary else wanted_secondary(settings, name)

    def file_schema(self, name: str) -> FileSchema:
        """Return how its files are written now. Raises what ``TableFormat.file_schema`` raises."""
        return self.kind.file_schema(self.wanted(name))

    def ready(self) -> None:
        from headgate.runtime.missing_tables import PATIENCE_S, refuse_gone
        from headgate.runtime.start_checks import refuse_layout, refuse_place

        settings, name = self.settings, self.settings.table.identifier
        try:
            layout = self.file_schema(name)
        except TableMissing:
            if not settings.table.create:
                raise
            refuse_gone(settings, PATIENCE_S)
            refuse_place(settings.table.location)
            self.kind.create(self.wanted(name))
            layout = self.file_schema(name)
        refuse_layout(layout, settings)

    def refuse_unfit(self) -> None:
        from headgate.runtime.start_checks import refuse_layout

        refuse_layout(self.file_schema(self.settings.table.identifier), self.settings)

    def ready_quarantine(self) -> None:
        from headgate.runtime.start_checks import refuse_quarantine

        name = self.settings.quarantine.table
        self.kind.create(self.wanted(name))
        refuse_quarantine(self.file_schema(name), self.settings)

    def open(self, name: str, *, leads: bool = False) -> SecondaryTable:
        del leads  # nothing of theirs is read ahead
        settings, is_primary = self.settings, name == self.settings.table.identifier
        if not (is_primary or settings.tables or name in secondary_names(settings)):
            self._require_former(name)
        wanted = self.wanted(name)
        if is_primary:  # nothing is ever pending for it, so nobody asks it for drafts
            return cast("SecondaryTable", self._primary(self.kind.open(wanted, settings.name)))
        table = cast("SupportsDelivery", self.kind.open(wanted, settings.name))
        return KindSecondary(table, self._primary(table), self._drafts(wanted))

    def _primary(self, table: SinkTable) -> PrimaryTable:
        """Return a table of the kind as one that can be asked for new columns."""
        if Capability.EVOLUTION in self.kind.capabilities:
            return cast("PrimaryTable", table)
        return FixedColumns(table)

    def _drafts(self, wanted: TableSpec) -> Drafts:
        """Return what is pending for a table."""
        return Drafts(wanted.storage, wanted.location, self.settings.name)

    def _require_former(self, name: str) -> None:
        """Find a quarantine that the sink file does not ask for any more, but may be to receive
        rows.

        Raises ``TableRecreated`` if it cannot be found.
        """
        if name == self.settings.quarantine.table:
            with suppress(TableMissing):
                self.file_schema(name)
                return
        raise TableRecreated(
            f"as far as {self.settings.table.identifier} knows, {name} is to receive "
            "rows, but the sink "
            "file names no such quarantine any more",
            "name it as before, until headgate status says that nothing is pending, and "
            "stop the sink "
            "with headgate stop SINK (docs/guides/quarantine.md, Another quarantine)",
        )

    def at_rest(self, name: str) -> TableAtRest:
        wanted = self.wanted(name)
        is_primary = name == self.settings.table.identifier
        drafted = _nothing_pending if is_primary else self._drafts(wanted).rows
        reader = self.kind.reader(wanted, self.settings.name)
        return TableAtRest(reader, drafted, lambda: reader.view().schema_id)

    def each_at_rest(self, names: Collection[str]) -> Iterator[tuple[str, Answer]]:
        for name in names:
            try:
                answer: Answer = self.at_rest(name)
            except RetryLater as error:
                answer = rights_taken(error) or error
            except (
                HeadgateError
            ):  # dropped, or damaged: such tables are suspended, which is reported
                continue
            yield name, answer

    def exists(self, name: str) -> bool:
        return self.kind.exists(self.wanted(name))

    def names(self, namespace: str) -> Collection[str]:
        return self.kind.names(self.wanted(f"{namespace}.any"))

    def named_by_routes(self) -> set[str]:
        return set()

    def missing(self, names: Collection[str]) -> list[str]:
        return sorted(name for name in names if not self.exists(name))

    def create(self, table: TableSettings, raw: str, inferred: Struct) -> bool:
        wanted = wanted_made(self.settings, table, raw, inferred)
        self.kind.refuse(wanted)
        return self.kind.create(wanted)

    def plans(self, aside: QuarantinePlans | None) -> PluginPlans:
        from headgate.data_plane.batch.plugin_plans import PluginPlans
        from headgate.runtime.write_planning import shaping

        name = self.settings.table.identifier
        return PluginPlans(lambda: self.file_schema(name), shaping(self.settings), aside)

    def plan(self, source: SourcePlan) -> WriterPlan:
        from headgate.data_plane.batch.plugin_plans import plan_of_file_schema
        from headgate.runtime.write_planning import shaping

        name = self.settings.table.identifier
        return plan_of_file_schema(self.file_schema(name), name, source, shaping(self.settings))

    def quarantine_plans(self) -> PluginQuarantinePlans:
        from headgate.data_plane.batch.plugin_plans import PluginQuarantinePlans

        name = self.settings.quarantine.table
        return PluginQuarantinePlans(
            lambda: self.file_schema(name), lambda: self.at_rest(name).reader
        )

    def stock(self) -> KindStock:
        from headgate.data_plane.routing.table_lookup import KindStock  # not for readers

        return KindStock(self.names, self.exists, self.file_schema)

    def at_work(self, settings: SinkSettings, gates: Gates) -> Format:
        del gates
        return KindFormat(settings, self.kind)

    def told(self, opening: ExitStack) -> Callable[[], None]:
        del opening
        return lambda: None

    def joint(self) -> JointDeliveries | None:
        return None

    def maintain(self, opening: ExitStack, maintained: Maintained | None) -> None:
        """Refused in the settings (``kinds.check_kind``)."""


def _nothing_pending(manifest: str, _columns: Sequence[str]) -> Iterator[FileRows]:
    raise FileNotFoundError(f"the sink's own table is to receive nothing: {manifest}")


class FixedColumns:
    """Implements ``ports.PrimaryTable`` over a table whose columns never change.

    ``bare``: that table; optional protocols are those of the bare one.
    """

    def __init__(self, table: SinkTable) -> None:
        self.bare = table

    def read(self) -> TableView:
        return self.bare.read()

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        return self.bare.commit(attempt)

    def evolve(self, base: TableView, columns: Struct) -> Evolved:
        why = "tables of this kind get no new columns"
        refused = tuple(Refusal((column.name,), why) for column in columns.fields)
        return Evolved(base, refused=refused)

    def close(self) -> None:
        self.bare.close()
