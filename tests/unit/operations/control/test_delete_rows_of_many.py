"""``headgate delete`` of a sink with many tables: all of them, or those named; never another's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from unit.operations.filled_table import SCHEMA
from unit.operations.routed_shop import CLICKS, LATE, LEDGER, ORDERS, Shop, shop_settings

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import DeletionRefused, PredicateUnfit
from headgate.operations.control import delete_rows
from headgate.operations.control.delete_rows import (
    Deleted,
    RowDeletion,
    carry_out_deletion,
    plan_deletion,
)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SinkSettings:
    monkeypatch.setattr(delete_rows, "try_announce_command", lambda *_: None)
    monkeypatch.setattr(delete_rows, "waiter_for_calm_after_commit", lambda *_: lambda: None)
    return shop_settings(tmp_path, "")


@pytest.fixture
def shop(catalog: Catalog, settings: SinkSettings) -> Shop:
    shop = Shop(catalog, settings)
    shop.commits({ORDERS: [0, 1], CLICKS: [2, 3]})
    shop.commits({CLICKS: [4], LATE: [5]})
    return shop


def deleted(settings: SinkSettings, where: str, *tables: str) -> list[Deleted]:
    return list(carry_out_deletion(settings, RowDeletion(where, tables=tables)))


def test_what_matches_goes_from_every_table_and_the_ledger_is_not_asked(
    shop: Shop, settings: SinkSettings
) -> None:
    ledger = shop.catalog.load_table(LEDGER).metadata_location
    expected = [Deleted(CLICKS, 2, 2), Deleted(LATE, 0, 0), Deleted(ORDERS, 1, 1)]
    assert plan_deletion(settings, RowDeletion("offset in (1, 2, 4)")) == expected
    assert deleted(settings, "offset in (1, 2, 4)") == expected
    assert shop.rows() == {ORDERS: [0], CLICKS: [3], LATE: [5]}
    assert shop.catalog.load_table(LEDGER).metadata_location == ledger
    shop.commits({ORDERS: [6], LATE: [7]})
    assert shop.rows() == {ORDERS: [0, 6], CLICKS: [3], LATE: [5, 7]}


def test_only_the_tables_that_are_named(shop: Shop, settings: SinkSettings) -> None:
    assert deleted(settings, "offset >= 0", ORDERS, LATE) == [
        Deleted(ORDERS, 2, 1),
        Deleted(LATE, 1, 1),
    ]
    assert shop.rows() == {ORDERS: [], CLICKS: [2, 3, 4], LATE: []}
    with pytest.raises(DeletionRefused, match=f"{LEDGER} is not a table of sink shop"):
        deleted(settings, "offset >= 0", LEDGER)


def test_tables_of_former_routes_lose_rows_too(shop: Shop, settings: SinkSettings) -> None:
    route = replace(settings.tables.route[0], to="db.of_{field}")
    edited = replace(settings, tables=replace(settings.tables, route=(route,)))
    assert [each.rows for each in deleted(edited, "offset in (1, 2)")] == [1, 0, 1]
    assert shop.rows() == {ORDERS: [0], CLICKS: [3, 4], LATE: [5]}


def test_a_table_that_is_somebody_elses_now_is_left_alone(
    shop: Shop, settings: SinkSettings
) -> None:
    shop.catalog.drop_table(CLICKS)
    shop.catalog.create_table(CLICKS, SCHEMA)
    assert deleted(settings, "offset = 1") == [Deleted(LATE, 0, 0), Deleted(ORDERS, 1, 1)]


def test_one_that_is_refused_is_refused_before_any_row_goes(
    shop: Shop, settings: SinkSettings
) -> None:
    with shop.catalog.load_table(ORDERS).transaction() as transaction:
        transaction.set_properties({"write.delete.mode": "copy-on-write"})
    before = shop.rows()
    with pytest.raises(DeletionRefused, match=f"{ORDERS} asks for .*copy-on-write"):
        deleted(settings, "offset >= 0")
    assert shop.rows() == before
    assert deleted(settings, "offset >= 0", CLICKS, LATE) == [
        Deleted(CLICKS, 3, 2),
        Deleted(LATE, 1, 1),
    ]


def test_a_predicate_that_fits_some_tables_names_the_one_that_it_does_not_fit(
    shop: Shop, settings: SinkSettings
) -> None:
    from pyiceberg.types import StringType

    with shop.catalog.load_table(CLICKS).update_schema() as update:
        update.add_column("mail", StringType())
    with pytest.raises(PredicateUnfit, match=LATE):
        plan_deletion(settings, RowDeletion("mail = 'a'"))
    assert plan_deletion(settings, RowDeletion("mail is null", tables=(CLICKS,))) == [
        Deleted(CLICKS, 3, 2)
    ]


def test_rows_that_a_table_is_pending_are_told(shop: Shop, settings: SinkSettings) -> None:
    shop.decides({ORDERS: [6, 7]})
    found = {
        each.table: (each.rows, each.pending) for each in deleted(settings, "offset in (0, 6)")
    }
    assert found == {CLICKS: (0, 0), LATE: (0, 0), ORDERS: (1, 2)}
