"""Holds many tables with a whole coordinator and real tables, as the benchmark has it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from many_tables import ROWS, Shop, SlowCatalog, make_tables, report
from pyiceberg.catalog import Catalog
from support.local_catalog import local_catalog
from support.small_rest_catalog import SmallRestCatalog

from headgate.coordinator.settings import DeliveryLinger
from headgate.tables.iceberg.atomic_deliveries import AtomicDeliveries
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.rest_catalog import BoundedRestCatalog
from headgate.tables.iceberg.tag_lineage import summary_properties_of

ONE, TWO = "db.one", "db.two"
FOR_EVER_MS = 10**7


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    made = local_catalog(tmp_path)
    yield made.catalog
    made.catalog.close()


def snapshots(catalog: Catalog, name: str) -> list[int]:
    """By snapshot how many rows it brought."""
    found = catalog.load_table(name).metadata.snapshots
    return [int(summary_properties_of(each).get("added-records", 0)) for each in found]


def shop_of(catalog: Catalog) -> Shop:
    make_tables(catalog, [ONE, TWO])
    return Shop(catalog, [ONE, TWO])


def test_linger_1_what_a_table_is_pending_gathers_and_comes_in_one_commit(catalog: Catalog) -> None:
    shop = shop_of(catalog)
    shop.leads(paces=(DeliveryLinger(ONE, FOR_EVER_MS),))
    for _ in range(3):
        shop.decides([ONE, TWO])
    shop.goes_on(lambda: sum(snapshots(catalog, TWO)) == 3 * ROWS)
    assert snapshots(catalog, ONE) == [], "the offsets are safe, and the rows are pending"
    shop.leads()  # a new epoch delivers to all that it finds
    shop.goes_on(lambda: not shop.pending)
    assert snapshots(catalog, ONE) == [3 * ROWS]
    assert snapshots(catalog, TWO) == [ROWS] * 3


def test_fresh_2_a_table_without_new_rows_learns_how_far_it_is_complete(
    catalog: Catalog,
) -> None:
    shop = shop_of(catalog)
    shop.leads(refresh_ms=1)
    shop.transaction([ONE, TWO])
    shop.transaction([ONE])
    shop.goes_on(lambda: len(snapshots(catalog, TWO)) > 1 and not shop.pending)
    assert sum(snapshots(catalog, TWO)) == ROWS


def test_pending_5_all_secondaries_of_a_decision_are_delivered_by_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SmallRestCatalog(tmp_path, {"warehouse": tmp_path.as_uri()}) as server:
        rest = {"type": "rest", "uri": server.uri}
        with load_catalog("lake", rest, timeout_s=30.0) as catalog:
            assert isinstance(catalog, BoundedRestCatalog)
            catalog.create_namespace("db")
            shop = shop_of(catalog)
            calls, together = list[int](), catalog.commit_tables

            def counting(changes: Any) -> None:
                calls.append(len(changes))
                together(changes)

            monkeypatch.setattr(catalog, "commit_tables", counting)
            shop.leads(joint=AtomicDeliveries(catalog))
            shop.transaction([ONE, TWO])
            shop.transaction([ONE, TWO])
            assert calls == [2, 2]
            assert snapshots(catalog, ONE) == snapshots(catalog, TWO) == [ROWS] * 2


def test_the_report_tells_all_figures(catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    make_tables(catalog, [ONE, TWO])
    given = argparse.Namespace(tables=2, touched=2, intervals=1, wait_ms=2)
    report(Shop(SlowCatalog(catalog), [ONE, TWO]), given)
    told = capsys.readouterr().out
    for figure in (
        "CPU-ms for each touched table",
        "START",
        "lead to first START",
        "of 2 ms",
        "2 deliveries",
    ):
        assert figure in told
