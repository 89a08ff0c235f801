"""A catalog with something happening between a committer's last look and its call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pyiceberg.catalog import Catalog
from pyiceberg.table import CommitTableResponse


class InterruptedCatalog:
    """``before`` runs once, when the next commit is about to be sent."""

    def __init__(self, real: Catalog) -> None:
        self._real = real
        self.before: Callable[[], object] | None = None
        self.calls = 0

    def as_catalog(self) -> Catalog:
        return cast("Catalog", self)

    def commit_table(self, *arguments: Any) -> CommitTableResponse:
        before, self.before = self.before, None
        if before:
            before()
        self.calls += 1
        return self._real.commit_table(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
