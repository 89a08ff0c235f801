"""What ``headgate check --catalog`` says of its scratch tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.local_catalog import local_catalog

from headgate.control_protocol.errors import Unreachable
from headgate.operations.check.catalog_report import _drop_scratch_tables
from headgate.tables.iceberg.catalog_trial import CatalogTrial


def test_only_the_table_that_was_made_is_said_to_be_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = local_catalog(tmp_path).catalog
    make, trial = catalog.create_table, CatalogTrial(catalog, "db", "scratch")

    def create_table(name: str, *of: Any, **more: Any) -> Any:
        if name != trial.names[0]:
            raise ConnectionError("no more tables")
        return make(name, *of, **more)

    monkeypatch.setattr(catalog, "create_table", create_table)
    with pytest.raises(Unreachable):
        trial.create_scratch_tables()
    assert "dropped: db.scratch" in _drop_scratch_tables(trial).split(";")
    catalog.close()
