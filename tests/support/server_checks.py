"""A catalog that checks no more than a REST server can: what requirements look like on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter
from pyiceberg.catalog import Catalog
from pyiceberg.table import CommitTableResponse
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableRequirement

Around = Callable[[Callable[[], CommitTableResponse]], CommitTableResponse]

_ON_THE_WIRE: TypeAdapter[TableRequirement] = TypeAdapter(TableRequirement)


def as_on_the_wire(requirements: Any) -> tuple[TableRequirement, ...]:
    """What is left of requirements when a server reads them."""
    return tuple(_ON_THE_WIRE.validate_json(r.model_dump_json()) for r in requirements)


class ServerChecks:
    """Over a real catalog. Something may happen ``around`` the next removal of snapshots."""

    def __init__(self, real: Catalog) -> None:
        self._real = real
        self.around: Around | None = None
        self.removals = 0

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> CommitTableResponse:
        def send() -> CommitTableResponse:
            return self._real.commit_table(table, as_on_the_wire(requirements), updates)

        if not any(isinstance(update, RemoveSnapshotsUpdate) for update in updates):
            return send()
        self.removals += 1
        around, self.around = self.around, None
        return around(send) if around else send()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
