"""ROLLBACK-1: a ledger and all that it has filled go back together, and come back again."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError
from unit.operations.filled_table import ARROW, SCHEMA, catalog_properties
from unit.operations.routed_shop import (
    AT,
    CLICKS,
    FILE,
    LATE,
    LEDGER,
    ORDERS,
    Shop,
    Source,
    shop_settings,
)

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import Suspended
from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    RetryLater,
    RollbackUnfinished,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    Landed,
    Lineage,
    Refused,
    Unknown,
)
from headgate.operations.access.tables import (
    find_unfinished_rollback_error,
    open_tables_for_reading,
)
from headgate.operations.cli.main import main
from headgate.operations.control import rollback
from headgate.operations.control.rollback import (
    carry_out_rollback,
    make_rollback_branches,
    plan_rollback,
)
from headgate.operations.control.set_offsets import require_claimable_record
from headgate.operations.http.operator_actions import MOVES
from headgate.tables.iceberg.table import IcebergTable


@pytest.fixture
def settings(tmp_path: Path) -> SinkSettings:
    return shop_settings(tmp_path, "")


@pytest.fixture
def shop(
    catalog: Catalog, settings: SinkSettings, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> Shop:
    assert not told

    monkeypatch.setattr(rollback, "open_reachable_source_topics", lambda _: nullcontext(Source()))
    monkeypatch.setattr(rollback, "require_no_running_participants", lambda _: None)
    shop = Shop(catalog, settings)
    shop.commits({ORDERS: [0, 1], CLICKS: [2]})
    shop.commits({ORDERS: [3]})
    shop.commits({CLICKS: [4], LATE: [5]})
    return shop


FULL = {ORDERS: [0, 1, 3], CLICKS: [2, 4], LATE: [5]}
BACK = {ORDERS: [0, 1], CLICKS: [2], LATE: list[int]()}


def test_rollback_1_all_tables_go_back_and_the_ledger_last(
    shop: Shop, settings: SinkSettings
) -> None:
    plan = plan_rollback(settings, "1.1")
    assert (plan.dropped, plan.removed_primary_row_count) == (("1.3", "1.2"), 3)
    assert f"{LATE}: to before its first rows; 1 row leaves it" in str(plan)
    assert shop.rows() == FULL, "a plan changes nothing"
    carry_out_rollback(settings, plan)
    assert shop.rows() == BACK
    after = shop.ledger.read()
    assert after.record is not None
    assert after.record.offsets == Offsets({AT: 3})
    assert (after.record.transaction.epoch, after.record.going_back) == (3, None)
    for name in (LEDGER, ORDERS, CLICKS, LATE):
        view = shop.table(name).read()
        assert view.lineage is Lineage.CONTAINS_TAG
        refs = shop.catalog.load_table(name).metadata.refs
        assert refs["headgate.shop.before-2"].max_ref_age_ms == rollback.KEPT_MS
    shop.assert_proven(3)


def test_rollback_1_what_is_read_again_is_there_once(shop: Shop, settings: SinkSettings) -> None:
    carry_out_rollback(settings, plan_rollback(settings, "1.1"))
    shop.claims(4)
    shop.commits({ORDERS: [3], LATE: [4, 5]})
    assert shop.rows() == {ORDERS: [0, 1, 3], CLICKS: [2], LATE: [4, 5]}
    shop.assert_proven(6)


def test_rollback_1_the_way_back_is_the_same_move(shop: Shop, settings: SinkSettings) -> None:
    carry_out_rollback(settings, plan_rollback(settings, "1.1"))
    shop.claims(4)
    shop.commits({"db.new": [3], CLICKS: [4]})
    carry_out_rollback(settings, plan_rollback(settings, "headgate.shop.before-2"))
    assert shop.rows() == FULL
    assert shop.catalog.load_table("db.new").scan().to_arrow().num_rows == 0
    shop.assert_proven(6)
    shop.claims(7)
    shop.commits({ORDERS: [6]})
    shop.assert_proven(7)


def test_rollback_1_a_paused_coordinator_commits_nothing_and_delivers_nothing(
    shop: Shop, settings: SinkSettings
) -> None:
    pending_commits = shop.decides({ORDERS: [6]})
    late_delivery = shop.delivery(ORDERS, pending_commits)
    assert isinstance(shop.table(ORDERS).commit(late_delivery), Landed)
    slept_through = shop.delivery(
        CLICKS, [replace(pending_commits[0], secondary=shop.table(CLICKS).read().uuid)]
    )
    late_decision = CommitAttempt(shop.ledger.read(), shop.record(9))
    carry_out_rollback(settings, plan_rollback(settings, "1.1"))
    assert isinstance(shop.ledger.commit(late_decision), Refused)
    assert isinstance(shop.table(ORDERS).commit(late_delivery), Refused)
    assert isinstance(shop.table(CLICKS).commit(slept_through), Refused)
    carry_out_rollback(settings, plan_rollback(settings, "headgate.shop.before-2"))
    assert isinstance(shop.ledger.commit(late_decision), Refused), "neither after the way back"
    assert isinstance(shop.table(CLICKS).commit(slept_through), Refused)
    shop.assert_proven(7)


class Dies(Exception):
    """The person's process ends here."""


@pytest.mark.parametrize("calls", (0, 2, 4))
def test_rollback_1_the_same_command_finishes_what_was_interrupted(
    shop: Shop, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Behind the claim, in the midst of three tables, behind the ledger."""
    commit, made = IcebergTable._commit, list[str]()

    def dying(self: IcebergTable, *given: Any) -> Any:
        made.append(given[0].base.table)
        outcome = commit(self, *given)
        if len(made) > calls:
            raise Dies
        return outcome

    with monkeypatch.context() as patched, pytest.raises(Dies):
        patched.setattr(IcebergTable, "_commit", dying)
        carry_out_rollback(settings, plan_rollback(settings, "1.1"))
    assert made == [LEDGER, CLICKS, LATE, ORDERS, LEDGER][: calls + 1]
    if calls < 4:
        with open_tables_for_reading(settings) as tables:
            error = find_unfinished_rollback_error(tables)
        assert isinstance(error, RollbackUnfinished)
        for refused in (
            lambda: plan_rollback(settings, "1.2"),
            lambda: require_claimable_record(settings, shop.ledger.read()),
        ):
            with pytest.raises(RollbackUnfinished, match=r"rollback SINK 1\.1"):
                refused()
        plan = plan_rollback(settings, "1.1")
        assert (plan.dropped, plan.kept_as) == (("1.3", "1.2"), "headgate.shop.before-2")
        carry_out_rollback(settings, plan)
    assert shop.rows() == BACK
    shop.assert_proven(3)
    carry_out_rollback(settings, plan_rollback(settings, "headgate.shop.before-2"))
    assert shop.rows() == FULL
    shop.assert_proven(6)


def test_rollback_1_an_unknown_answer_is_looked_at(
    shop: Shop, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, lost = IcebergTable._commit, [CLICKS, LATE]

    def unsure(self: IcebergTable, *given: Any) -> Any:
        name = given[0].base.table
        if name == LATE and name in lost:
            lost.remove(name)
            return Unknown("nothing was sent")
        outcome = commit(self, *given)
        return Unknown("no answer") if name in lost else outcome

    monkeypatch.setattr(IcebergTable, "_commit", unsure)
    with pytest.raises(RetryLater, match=rf"not wholly rolled back: {LATE}.*same command"):
        carry_out_rollback(settings, plan_rollback(settings, "1.1"))
    carry_out_rollback(settings, plan_rollback(settings, "1.1"))
    assert shop.rows() == BACK
    shop.assert_proven(3)


def _suspend(shop: Shop) -> None:
    shop.decides({ORDERS: [6]}, suspended=(Suspended(CLICKS, "HG-201 rolled back"),))


def _drop(shop: Shop) -> None:
    shop.catalog.drop_table(CLICKS)


def _owe(shop: Shop) -> None:
    shop.decides({CLICKS: [6]})


def _merge(shop: Shop) -> None:
    first = shop.decides({CLICKS: [6]})
    second = shop.decides({CLICKS: [7]}, still=first)
    delivered = shop.delivery(CLICKS, (*first, *second))
    assert isinstance(shop.table(CLICKS).commit(delivered), Landed)


def _roll_back_by_hand(shop: Shop) -> None:
    table = shop.catalog.load_table(CLICKS)
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()


def _write_besides(shop: Shop) -> None:
    other = pa.Table.from_pylist([{"topic": "x", "partition": 0, "offset": 0}], schema=ARROW)
    shop.catalog.load_table(CLICKS).append(other)


def _lose_the_tag(shop: Shop) -> None:
    shop.catalog.load_table(ORDERS).manage_snapshots().remove_tag("headgate-shop").commit()


def _make_anew(shop: Shop) -> None:
    shop.catalog.drop_table(ORDERS)
    shop.catalog.create_table(ORDERS, SCHEMA)


@pytest.mark.parametrize(
    ("does", "says"),
    [
        (_suspend, f"{CLICKS}: suspended, gone, or not to be read"),
        (_drop, f"{CLICKS}: suspended, gone, or not to be read"),
        (_owe, f"{CLICKS}: rows are still pending"),
        (_merge, f"{CLICKS} took rows of 1.4 and later ones.*headgate pause"),
        (_roll_back_by_hand, f"{CLICKS} is not as sink shop left it"),
        (_lose_the_tag, f"{ORDERS} is not as sink shop left it"),
        (_make_anew, f"{ORDERS} is not as sink shop left it"),
        (_write_besides, f"others have written since 1.[14]: {CLICKS}: snapshot"),
    ],
)
def test_rollback_1_what_cannot_go_back_is_named_and_nothing_moves(
    shop: Shop, settings: SinkSettings, does: Any, says: str
) -> None:
    does(shop)
    to = "1.4" if does is _merge else "1.1"
    before = shop.ledger.read()
    with pytest.raises(HeadgateError, match=says):
        plan_rollback(settings, to)
    assert shop.ledger.read() == before


def test_rollback_1_a_listed_table_that_may_not_be_read_is_named_and_nothing_moves(
    shop: Shop, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = SqlCatalog.load_table

    def forbidden(self: SqlCatalog, name: Any) -> Any:
        if name == ORDERS:
            raise ForbiddenError("403")
        return load(self, name)

    monkeypatch.setattr(SqlCatalog, "load_table", forbidden)
    before = shop.ledger.read()
    with pytest.raises(ConfigurationError, match=f"{ORDERS} cannot be read"):
        plan_rollback(settings, "1.1")
    assert shop.ledger.read() == before


def test_rollback_1_a_table_of_a_former_route_goes_along(
    shop: Shop, settings: SinkSettings
) -> None:
    (route,) = settings.tables.route
    other = replace(settings.tables, route=(replace(route, to="elsewhere.{field}"),))
    carry_out_rollback(settings, plan_rollback(replace(settings, tables=other), "1.1"))
    assert shop.rows() == BACK
    shop.assert_proven(3)


def test_rollback_1_a_way_back_that_one_table_has_lost_is_refused(
    shop: Shop, settings: SinkSettings
) -> None:
    carry_out_rollback(settings, plan_rollback(settings, "1.1"))
    shop.catalog.load_table(CLICKS).manage_snapshots().remove_tag("headgate.shop.before-2").commit()
    with pytest.raises(
        ConfigurationError, match=f"{CLICKS}: the tag headgate.shop.before-2 is gone"
    ):
        plan_rollback(settings, "headgate.shop.before-2")
    assert shop.rows() == BACK


def test_rollback_1_snapshots_of_others_go_along_where_asked(
    shop: Shop, settings: SinkSettings
) -> None:
    _write_besides(shop)
    carry_out_rollback(settings, plan_rollback(settings, "1.1", drop_foreign=True))
    assert shop.rows() == BACK
    shop.assert_proven(3)


def test_rollback_1_a_branch_of_each_table_shows_it(shop: Shop, settings: SinkSettings) -> None:
    before = shop.ledger.read()
    make_rollback_branches(settings, plan_rollback(settings, "1.1", look_only=True), "look")
    assert shop.ledger.read() == before
    assert shop.rows() == FULL
    for name, rows in ((ORDERS, 2), (CLICKS, 1)):
        table = shop.catalog.load_table(name)
        assert table.scan(snapshot_id=table.metadata.refs["look"].snapshot_id).count() == rows


def test_rollback_1_from_the_command_line_and_over_http(
    shop: Shop, settings: SinkSettings, tmp_path: Path
) -> None:
    known = catalog_properties(tmp_path)
    sink_file = tmp_path / "shop.toml"
    sink_file.write_text(FILE.format(uri=known["uri"], warehouse=known["warehouse"]))
    said = CliRunner().invoke(main, ["rollback", str(sink_file), "1.1", "--dry-run"])
    assert said.exit_code == 0, said.output
    assert f"{ORDERS}: to snapshot" in said.output
    assert shop.rows() == FULL
    told = MOVES["POST", "rollback"](settings, {"to": "1.1"}, False)
    assert {each["table"]: each["rows"] for each in told["tables"]} == {
        CLICKS: 1,
        LATE: 1,
        ORDERS: 1,
    }
    assert shop.rows() == BACK
