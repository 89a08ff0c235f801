"""Tables that no route names any more are the sink's still: audited, and listed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from unit.operations.filled_table import SCHEMA
from unit.operations.routed_shop import CLICKS, LATE, ORDERS, Shop, shop_settings

from headgate.config.sink_settings import SinkSettings
from headgate.operations.audit.audit import audit
from headgate.operations.many_tables.list import list_tables


@pytest.fixture
def settings(tmp_path: Path) -> SinkSettings:
    return shop_settings(tmp_path, "")


@pytest.fixture
def shop(catalog: Catalog, settings: SinkSettings) -> Shop:
    shop = Shop(catalog, settings)
    shop.commits({ORDERS: [0, 1], CLICKS: [2]})
    shop.commits({CLICKS: [3], LATE: [4]})
    return shop


@pytest.fixture
def edited(settings: SinkSettings) -> SinkSettings:
    """The routes were edited between a kill and a restart; none names the tables of before."""
    route = replace(settings.tables.route[0], to="db.of_{field}")
    return replace(settings, tables=replace(settings.tables, route=(route,)))


def states(settings: SinkSettings) -> dict[str, str]:
    return {each.table: each.state for each in list_tables(settings).tables}


def test_tables_of_former_routes_are_listed_and_audited(
    shop: Shop, settings: SinkSettings, edited: SinkSettings
) -> None:
    assert states(edited) == states(settings) == dict.fromkeys((CLICKS, LATE, ORDERS), "open")
    shop.commits({"db.of_click": [5]})
    assert states(edited).keys() == {CLICKS, LATE, ORDERS, "db.of_click"}
    report = audit(edited, with_source=False)
    assert report.findings == ()
    assert (report.rows, report.distinct) == (6, 6)
    assert not any("cannot be examined" in text for text in report.unproven)


def test_one_that_is_gone_or_somebody_elses_now_is_missing(
    shop: Shop, edited: SinkSettings
) -> None:
    shop.catalog.drop_table(CLICKS)
    assert states(edited) == {CLICKS: "missing", LATE: "open", ORDERS: "open"}
    shop.catalog.create_table(CLICKS, SCHEMA)
    assert states(edited)[CLICKS] == "missing"
    report = audit(edited, with_source=False)
    assert report.findings == ()
    assert any(f"{CLICKS} cannot be examined" in text for text in report.unproven)


def test_one_that_lost_the_tag_is_a_finding(shop: Shop, edited: SinkSettings) -> None:
    shop.catalog.load_table(CLICKS).manage_snapshots().remove_tag("headgate-shop").commit()
    assert {finding.what for finding in audit(edited, with_source=False).findings} == {
        "tag-missing"
    }
