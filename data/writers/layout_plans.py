"""Plans for files of a table that a ``TableKind`` describes by a neutral layout."""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from headgate.control_protocol.errors import TableChanged, Unreachable
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.table_kinds import Layout
from headgate.data.writers.plan import SourcePlan, WriterPlan, check_columns, check_folder
from headgate.data.writers.shaping import Shaping
from headgate.tables.layouts import schema_of, spec_of
from headgate.tables.stores.object_stores import for_files


class LayoutPlans:
    """The plans of one table. ``layout`` asks it how its files are to be written now."""

    def __init__(self, layout: Callable[[], Layout], shaping: Shaping) -> None:
        self._layout = layout
        self._kept: WriterPlan | None = None
        self._known: tuple[str, int] | None = None
        self.shaping = shaping

    def plan_of(self, batch: Batch, source: SourcePlan) -> WriterPlan:
        """For the batch's table. Raises ``TableChanged``, ``Unreachable``; and ``WriteFailed`` for
        folders that no coordinator of this table issues."""
        start = batch.table
        wanted = (start.uuid, start.schema_id)
        if self._kept is None or self._known != wanted or self._kept.source != source:
            layout = self._layout()
            if layout.uuid != start.uuid:
                raise TableChanged(
                    f"{start.table} is another table now: UUID {layout.uuid}, not {start.uuid}",
                    "it was dropped and created again",
                )
            if layout.layout_id != start.schema_id:
                raise Unreachable(
                    f"the columns of {start.table} are not those of the START any more",
                    "the next one names them",
                )
            self._kept = plan_of_layout(layout, start.table, source, self.shaping)
            self._known = wanted
        if self._kept.dressing is None:
            check_folder(start, self._kept.data_location)
        return self._kept

    def forget_temporary(self) -> bool:
        """No keys are given out for a while."""
        return False


def plan_of_layout(
    layout: Layout, table: str, source: SourcePlan, shaping: Shaping | None = None
) -> WriterPlan:
    """Raises ``ConfigurationError`` for record columns that the table does not have."""
    schema = schema_of(layout.columns)
    check_columns(table, schema, source.record_columns)
    return WriterPlan(
        source=source,
        schema_json=schema.model_dump_json(),
        spec_json=spec_of(layout).model_dump_json(),
        sort_order_json=UNSORTED_SORT_ORDER.model_dump_json(),
        table_properties={},
        io_properties=for_files(dict(layout.storage)),
        location=layout.location,
        shaping=(shaping or Shaping()).settled(table, {}),
        dressing=layout.dressing,
        values=layout.values,
    )
