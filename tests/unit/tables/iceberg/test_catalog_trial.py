"""What a trial of a catalog says when it does not know what became of its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.local_catalog import local_catalog

from headgate.control_protocol.errors import Unreachable
from headgate.tables.iceberg.catalog_trial import CatalogTrial


def test_a_table_that_may_have_been_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = local_catalog(tmp_path).catalog
    make = catalog.create_table

    def made_unheard(*of: Any, **more: Any) -> None:
        make(*of, **more)
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(catalog, "create_table", made_unheard)
    trial = CatalogTrial(catalog, "db", "scratch")
    with pytest.raises(Unreachable, match="may have been made all the same") as found:
        trial.create_tables_and_locate()
    assert "look for db.scratch, and drop it" in str(found.value)
    assert catalog.table_exists("db.scratch")
    catalog.close()
