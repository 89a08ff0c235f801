"""Plans for files of tables that a ``TableFormat`` describes by neutral layouts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol

from headgate.control_protocol.errors import TableChanged, Unreachable
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.table_format import FileSchema
from headgate.control_protocol.table_history import TableReader
from headgate.data_plane.batch.transform_and_distribution import Shaping
from headgate.data_plane.batch.writer_task_plan import (
    SourcePlan,
    WriterPlan,
    plan_of_file_schema,
    quarantine_source_of,
    require_own_folder,
)
from headgate.data_plane.quarantine.already_quarantined import (
    RangesReadAgain,
    read_quarantined_from_reader,
    read_quarantined_offsets,
)


class QuarantinePlans(Protocol):
    """Plans the files of a quarantine; ``Plans`` does it for Iceberg."""

    def add_quarantine_plan(self, plan: WriterPlan, batch: Batch, source: SourcePlan) -> WriterPlan:
        """Return the plan with that of the batch's quarantine. Raises as ``load_plan``."""

    def drop_plans_with_temporary_credentials(self) -> bool: ...


class FileSchemaPlans:
    """Plans the files of a sink's table, and with ``quarantine`` of its quarantine.

    ``layout`` returns the table's current layout.
    """

    def __init__(
        self,
        layout: Callable[[], FileSchema],
        shaping: Shaping,
        quarantine: QuarantinePlans | None = None,
    ) -> None:
        self._plan = _OnePlan(layout, shaping)
        self._quarantine = quarantine
        self.shaping = shaping

    def load_plan(self, batch: Batch, source: SourcePlan) -> WriterPlan:
        """Return the plan for the batch's tables. Raises ``TableChanged``, ``Unreachable``; and
        ``FolderElsewhere`` for folders that no coordinator of these tables issues."""
        plan = self._plan.load_plan(batch.table, source)
        return (
            self._quarantine.add_quarantine_plan(plan, batch, source) if self._quarantine else plan
        )

    def drop_plans_with_temporary_credentials(self) -> bool:
        """Forget the quarantine's temporary keys; the table has none."""
        return (
            self._quarantine is not None
            and self._quarantine.drop_plans_with_temporary_credentials()
        )


class FileSchemaQuarantinePlans:
    """Plans the files of a quarantine of the table's format.

    ``layout`` returns its current layout, and ``read`` opens it for its rows.
    """

    def __init__(self, layout: Callable[[], FileSchema], read: Callable[[], TableReader]) -> None:
        self._plan = _OnePlan(layout, Shaping())
        self._read = read

    def add_quarantine_plan(self, plan: WriterPlan, batch: Batch, source: SourcePlan) -> WriterPlan:
        if batch.quarantine is None:
            return plan
        quarantine = self._plan.load_plan(batch.quarantine, quarantine_source_of(source))
        return replace(
            plan,
            quarantine=quarantine,
            already_quarantined=read_quarantined_offsets(batch, source, self._read_quarantine_rows),
        )

    def drop_plans_with_temporary_credentials(self) -> bool:
        """Return ``False``: there are no temporary keys."""
        return False

    def _read_quarantine_rows(
        self, start: TableStart, source: SourcePlan, again: RangesReadAgain
    ) -> list[dict[str, Any]]:
        with closing(self._read()) as reader:
            if reader.view().uuid != start.uuid:
                raise table_replaced_error(start, reader.view().uuid)
            return list(read_quarantined_from_reader(reader, source, again))


class _OnePlan:
    """Keeps the plan of one table until the table changes."""

    def __init__(self, layout: Callable[[], FileSchema], shaping: Shaping) -> None:
        self._layout = layout
        self._shaping = shaping
        self._kept: WriterPlan | None = None
        self._known: tuple[str, int] | None = None

    def load_plan(self, start: TableStart, source: SourcePlan) -> WriterPlan:
        wanted = (start.uuid, start.schema_id)
        if self._kept is None or self._known != wanted or self._kept.source != source:
            layout = self._layout()
            if layout.uuid != start.uuid:
                raise table_replaced_error(start, layout.uuid)
            if layout.schema_id != start.schema_id:
                raise Unreachable(
                    f"the columns of {start.table} are not those of the START any more",
                    "the next one names them",
                )
            self._kept = plan_of_file_schema(layout, start.table, source, self._shaping)
            self._known = wanted
        if self._kept.shape.marking is None:
            require_own_folder(start, self._kept.shape.data_location)
        return self._kept


def table_replaced_error(start: TableStart, uuid: str) -> TableChanged:
    return TableChanged(
        f"{start.table} is another table now: UUID {uuid}, not {start.uuid}",
        "it was dropped and created again",
    )
