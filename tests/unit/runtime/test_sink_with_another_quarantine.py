"""A sink whose quarantine becomes another table: of another kind, name, place or catalog."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from unit.runtime.test_sink_with_quarantine_of_another_format import (
    ASIDE,
    ONE,
    catalog,
    filled,
    kept,
)

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import TableRecreated, TableUnfit
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import AuditReport
from headgate.operations.check.table import TableCheck
from headgate.testing.contract.world import BEGIN, COLUMNS, source_coordinates
from headgate.testing.contract.world import sometimes_bad_value as value
from headgate.testing.sink_in_process import SinkInProcess

OWN, RENAMED, MOVED = "", 'table = "db.rejected"\n', 'location = "LAKE/rejected"\n'
OTHER_CATALOG = ASIDE.replace("aside.sqlite", "other.sqlite")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (tmp_path / "lake").mkdir()
    return tmp_path / "lake"


def kept_in(lake: Path, aside: str, *, restart: bool = False) -> SinkSettings:
    begin = BEGIN
    if restart:
        begin = BEGIN.replace("[coordinator]", '[coordinator]\non_table_recreated = "restart"')
    return parse((begin + ONE + aside).replace("LAKE", str(lake)).replace("COLUMNS", COLUMNS))


def filled_with(lake: Path, aside: str) -> SinkInProcess:
    """A sink that is well, has had bad records, and was begun once more since."""
    shop = SinkInProcess(kept_in(lake, aside), value)
    shop.begin_life()
    goes_on(shop)
    shop.begin_life()
    shop.run_until(lambda: shop.record is not None and shop.record.transaction.epoch == 2)
    shop.end_lives()
    return shop


def goes_on(shop: SinkInProcess) -> None:
    shop.produce(30)
    shop.run_until_settled()


def checked(settings: SinkSettings, shop: SinkInProcess) -> str:
    check = TableCheck(settings)
    check.check_sink_state()
    return check.check_quarantine()


def audited(shop: SinkInProcess) -> AuditReport:
    return audit(shop.settings, with_source=False)


@pytest.mark.parametrize(
    ("before", "after"),
    [(OWN, ASIDE), (ASIDE, OTHER_CATALOG), (OWN, RENAMED + MOVED)],
    ids=["kind", "catalog", "name and place"],
)
def test_quarantine_1_another_quarantine_is_refused_by_name_at_a_start_and_by_check(
    lake: Path, before: str, after: str
) -> None:
    shop = filled_with(lake, before)
    decided = shop.record
    other = kept_in(lake, after)
    with pytest.raises(TableRecreated, match=r"does not exist, but this sink wrote to db\.orders_"):
        checked(other, shop)
    shop.settings = other
    shop.begin_life()
    with pytest.raises(TableRecreated, match="names another one now"):
        goes_on(shop)
    with pytest.raises(TableRecreated, match=r"has UUID .* with UUID .* names another one now"):
        checked(other, shop)
    assert shop.record == decided
    shop.settings = kept_in(lake, before)
    assert "exists" in checked(shop.settings, shop)
    shop.begin_life()
    goes_on(shop)
    shop.end_lives()
    assert not audited(shop).findings


def test_quarantine_1_rows_that_were_copied_count_and_nothing_expires(lake: Path) -> None:
    shop = filled_with(lake, OWN)
    shop.settings = kept_in(lake, ASIDE)
    shop.begin_life()
    with pytest.raises(TableRecreated):
        goes_on(shop)
    rows = DeltaTable(lake / "orders_quarantine").to_pyarrow_table()
    theirs = catalog(lake).load_table("db.orders_quarantine")
    theirs.append(rows.cast(theirs.schema().as_arrow()))
    shop.settings = kept_in(lake, ASIDE, restart=True)
    shop.begin_life()
    shop.run_until_settled()
    shop.end_lives()
    assert sorted(filled(lake, "orders") + kept(lake)) == source_coordinates(shop)
    report = audited(shop)
    assert not report.findings
    assert any("9 records were quarantined in db.orders_quarantine" in r for r in report.remarks)


def test_pending_7_what_is_pending_to_a_quarantine_with_another_name_is_neither_lost_nor_a_crash(
    lake: Path,
) -> None:
    shop = SinkInProcess(kept_in(lake, OWN), value)
    shop.begin_life()
    goes_on(shop)
    shop.end_lives()
    shop.settings = kept_in(lake, RENAMED, restart=True)
    shop.begin_life()
    with pytest.raises(TableRecreated, match=r"db\.orders_quarantine is to receive rows"):
        goes_on(shop)
    shop.settings = kept_in(lake, OWN)
    shop.begin_life()
    goes_on(shop)
    shop.end_lives()
    assert not audited(shop).findings


@pytest.mark.parametrize("before", [OWN, ASIDE], ids=["own", "iceberg"])
def test_pending_7_a_sink_without_its_quarantine_goes_on_once_nothing_is_pending(
    lake: Path, before: str
) -> None:
    shop = SinkInProcess(kept_in(lake, before), value)
    shop.begin_life()
    goes_on(shop)
    shop.end_lives()
    shop.value = lambda at, _: value(at, 1)
    shop.settings = without_quarantine(lake)
    shop.begin_life()
    if before is ASIDE:
        with pytest.raises(TableRecreated, match=r"db\.orders_quarantine is to receive rows"):
            goes_on(shop)
        shop.settings = kept_in(lake, before)
        shop.begin_life()
        shop.run_until(lambda: shop.record is not None and shop.record.transaction.epoch == 2)
        shop.settings = without_quarantine(lake)
        shop.begin_life()
    goes_on(shop)
    shop.end_lives()
    assert [finding.what for finding in audited(shop).findings] == ["quarantined"]


def without_quarantine(lake: Path) -> SinkSettings:
    text = (BEGIN + ONE).partition("[quarantine]")[0]
    return parse(text.replace("LAKE", str(lake)).replace("COLUMNS", COLUMNS))


def test_a_table_of_its_own_kind_made_by_hand_that_cannot_be_the_quarantine(
    lake: Path,
) -> None:
    columns = pa.schema({"topic": pa.string(), "partition": pa.int32(), "sink": pa.string()})
    DeltaTable.create(lake / "orders_quarantine", columns)
    shop = SinkInProcess(kept_in(lake, OWN), value)
    with pytest.raises(TableUnfit, match="no column offset"):
        TableCheck(shop.settings).check_quarantine()
    with pytest.raises(TableUnfit, match="no column offset"):
        shop.begin_life()
