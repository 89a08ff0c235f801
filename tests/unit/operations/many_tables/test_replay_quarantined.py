"""SUSPEND-6: what the quarantine took in for a suspended table is put again, once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.catalog import Catalog
from pyiceberg.types import LongType, StringType
from unit.operations.filled_table import catalog_properties
from unit.operations.routed_shop import (
    CLICKS,
    FILE,
    ORDERS,
    QUARANTINE,
    Shop,
    Source,
    shop_settings,
    without_quarantine,
)

from headgate.config.multi_table_settings import RouteSettings
from headgate.config.quarantine_settings import QuarantineSettings
from headgate.config.sink_sections import TransformSettings, WriterKind
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_settings import ColumnSettings
from headgate.control_protocol.commit_record import Suspended
from headgate.control_protocol.errors import ReplayRefused, ReplayUnfit, RetryLater
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Landed, Refused, Unknown
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.operations.audit.audit import audit
from headgate.operations.cli.main import main
from headgate.operations.control import rollback
from headgate.operations.many_tables import replay_quarantined as module
from headgate.operations.many_tables.replay_quarantined import ReplayedTable, replay_tables
from headgate.participant.settings import UnknownFields
from headgate.tables.iceberg.table import IcebergTable

GOOD = '{"kind": "clicks"}'
BAD = "not json"


@pytest.fixture
def settings(tmp_path: Path) -> SinkSettings:
    return shop_settings(tmp_path)


@pytest.fixture
def shop(catalog: Catalog, settings: SinkSettings, told: list[str]) -> Shop:
    """Two tables with rows; records of one of them were diverted, and it is open again."""
    assert not told
    shop = Shop(catalog, settings)
    shop.commits({ORDERS: [0, 1], CLICKS: [2]})
    shop.diverts({CLICKS: {3: GOOD, 5: GOOD}}, {ORDERS: [4]})
    shop.commits({CLICKS: [6]})
    return shop


def offsets(shop: Shop, name: str = CLICKS) -> list[int]:
    found: list[int] = shop.catalog.load_table(name).scan().to_arrow()["offset"].to_pylist()
    return sorted(found)


def test_suspend_6_what_was_diverted_is_put_again_once(shop: Shop, settings: SinkSettings) -> None:
    assert replay_tables(settings, [CLICKS]) == (ReplayedTable(CLICKS, 2),)
    assert offsets(shop) == [2, 3, 5, 6]
    assert replay_tables(settings, [CLICKS]) == (ReplayedTable(CLICKS),)
    assert replay_tables(settings, []) == (ReplayedTable(CLICKS),)
    assert offsets(shop) == [2, 3, 5, 6]
    view = shop.table(CLICKS).read()
    assert view.record is not None
    assert (str(view.record.transaction), view.record.gives_back_missed_rows) == ("1.3", True)


def test_suspend_6_the_audit_knows_what_was_put_again(shop: Shop, settings: SinkSettings) -> None:
    assert audit(settings, with_source=False).findings == ()
    replay_tables(settings, [CLICKS])
    report = audit(settings, with_source=False)
    assert report.findings == ()
    assert any("2 records" in remark and "replayed" in remark for remark in report.remarks)
    twice = pa.Table.from_pylist(
        [{"topic": "shop", "partition": 0, "offset": 3}],
        schema=shop.catalog.load_table(ORDERS).schema().as_arrow(),
    )
    shop.catalog.load_table(ORDERS).append(twice)
    assert "record-twice" in {finding.what for finding in audit(settings).findings}


def test_suspend_6_the_audit_says_that_a_quarantine_which_was_dropped_since_tells_nothing(
    shop: Shop, settings: SinkSettings
) -> None:
    replay_tables(settings, [CLICKS])
    shop.catalog.drop_table(settings.quarantine.table)
    report = audit(without_quarantine(settings), with_source=False)
    assert any("the quarantine cannot be read here" in text for text in report.unproven)


def test_suspend_6_deliveries_carry_on_what_was_put_again(
    shop: Shop, settings: SinkSettings
) -> None:
    replay_tables(settings, [CLICKS])
    shop.commits({CLICKS: [7]})
    shop.diverts({CLICKS: {8: GOOD}})
    assert replay_tables(settings, []) == (ReplayedTable(CLICKS, 1),)
    assert offsets(shop) == [2, 3, 5, 6, 7, 8]
    assert audit(settings, with_source=False).findings == ()


def test_suspend_6_a_delivery_that_was_slept_through_is_refused_and_made_again(
    shop: Shop, settings: SinkSettings
) -> None:
    pending_commits = shop.decides({CLICKS: [7]})
    late = shop.delivery(CLICKS, pending_commits)
    replay_tables(settings, [CLICKS])
    assert isinstance(shop.table(CLICKS).commit(late), Refused)
    assert isinstance(shop.table(CLICKS).commit(shop.delivery(CLICKS, pending_commits)), Landed)
    assert offsets(shop) == [2, 3, 5, 6, 7]
    assert replay_tables(settings, [CLICKS]) == (ReplayedTable(CLICKS),)


def test_suspend_6_delivered_in_between_it_is_tried_again_with_the_same_files(
    shop: Shop, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, waiting = IcebergTable.commit, [shop.decides({CLICKS: [7]})]

    def meanwhile(self: IcebergTable, attempt: CommitAttempt) -> CommitOutcome:
        if attempt.record.gives_back_missed_rows and waiting:
            pending_commits = waiting.pop()
            assert isinstance(
                commit(shop.table(CLICKS), shop.delivery(CLICKS, pending_commits)), Landed
            )
        return commit(self, attempt)

    monkeypatch.setattr(IcebergTable, "commit", meanwhile)
    assert replay_tables(settings, [CLICKS]) == (ReplayedTable(CLICKS, 2),)
    assert offsets(shop) == [2, 3, 5, 6, 7]


@pytest.mark.parametrize("landed", [True, False])
def test_suspend_6_an_answer_that_is_lost_doubles_nothing(
    shop: Shop, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    commit, lost = IcebergTable.commit, [True]

    def losing(self: IcebergTable, attempt: CommitAttempt) -> CommitOutcome:
        if attempt.record.gives_back_missed_rows and lost:
            lost.clear()
            if landed:
                commit(self, attempt)
            return Unknown("the answer was lost")
        return commit(self, attempt)

    monkeypatch.setattr(IcebergTable, "commit", losing)
    if landed:
        assert replay_tables(settings, [CLICKS]) == (ReplayedTable(CLICKS, 2),)
    else:
        with pytest.raises(RetryLater, match="did not get its records back"):
            replay_tables(settings, [CLICKS])
        assert replay_tables(settings, [CLICKS]) == (ReplayedTable(CLICKS, 2),)
    assert offsets(shop) == [2, 3, 5, 6]


def test_suspend_6_of_two_that_replay_at_once_one_is_refused(
    shop: Shop, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, first = IcebergTable.commit, [True]

    def raced(self: IcebergTable, attempt: CommitAttempt) -> CommitOutcome:
        if attempt.record.gives_back_missed_rows and first:
            first.clear()
            assert replay_tables(settings, [CLICKS]) == (ReplayedTable(CLICKS, 2),)
        return commit(self, attempt)

    monkeypatch.setattr(IcebergTable, "commit", raced)
    with pytest.raises(RetryLater, match="run the command again"):
        replay_tables(settings, [CLICKS])
    assert offsets(shop) == [2, 3, 5, 6]


def test_suspend_6_many_come_portion_by_portion_and_an_interruption_loses_none(
    shop: Shop, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.diverts({CLICKS: dict.fromkeys(range(7, 12), GOOD)})
    monkeypatch.setattr(module, "PORTION", 3)
    commit, calls = IcebergTable.commit, list[int]()

    def dying(self: IcebergTable, attempt: CommitAttempt) -> CommitOutcome:
        calls.append(attempt.record.records)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return commit(self, attempt)

    monkeypatch.setattr(IcebergTable, "commit", dying)
    with pytest.raises(KeyboardInterrupt):
        replay_tables(settings, [CLICKS])
    assert offsets(shop) == [2, 3, 5, 6, 7]
    assert replay_tables(settings, [CLICKS]) == (ReplayedTable(CLICKS, 4),)
    assert offsets(shop) == [2, 3, 5, 6, *range(7, 12)]
    assert calls == [3, 3, 3, 1]
    assert audit(settings, with_source=False).findings == ()


def test_suspend_6_bad_records_stay_in_the_quarantine_and_are_counted(
    shop: Shop, settings: SinkSettings
) -> None:
    shop.diverts({CLICKS: {7: BAD, 8: GOOD}})
    assert replay_tables(settings, []) == (ReplayedTable(CLICKS, 3, bad=1),)
    assert offsets(shop) == [2, 3, 5, 6, 8]
    assert audit(settings, with_source=False).findings == ()


def test_suspend_6_records_that_the_settings_leave_out_are_not_called_bad(
    shop: Shop, tmp_path: Path
) -> None:
    shaped = shop_settings(tmp_path, f"{QUARANTINE}[shape]\nwhere = \"kind = 'clicks'\"\n")
    with shop.catalog.load_table(CLICKS).update_schema() as update:
        update.add_column("kind", StringType())
    shop.diverts({CLICKS: {7: BAD, 8: GOOD, 9: '{"kind": "views"}'}})
    assert replay_tables(shaped, []) == (ReplayedTable(CLICKS, 3, bad=1, filtered=1),)
    assert offsets(shop) == [2, 3, 5, 6, 8]


def test_suspend_6_without_names_a_table_that_is_not_in_order_stops_no_other(
    shop: Shop, tmp_path: Path, told: list[str]
) -> None:
    shop.diverts({ORDERS: {7: '{"kind": "orders"}'}})
    _lose_the_tag(shop)
    file = tmp_path / "sink.toml"
    file.write_text(FILE.format(**catalog_properties(tmp_path)) + QUARANTINE)
    result = CliRunner().invoke(main, ["tables", str(file), "resume", "--replay"])
    clicks, orders = result.stdout.splitlines()
    assert f"replayed: {CLICKS}: HG-" in clicks
    assert orders == f"replayed: {ORDERS}: 1 record replayed"
    assert told[-1] == f"tables resume --replay {ORDERS}", "what failed is not announced"
    assert result.exit_code == 3
    assert offsets(shop, ORDERS) == [0, 1, 4, 7]


def test_suspend_6_new_columns_of_what_is_put_again_are_taken_up(
    shop: Shop, catalog: Catalog, settings: SinkSettings
) -> None:
    policy = replace(settings.tables.schema, unknown_fields=UnknownFields.EVOLVE)
    evolving = replace(settings, tables=replace(settings.tables, schema=policy))
    shop.diverts({CLICKS: {7: '{"kind": "clicks", "tip": 12}'}})
    assert replay_tables(evolving, [CLICKS]) == (ReplayedTable(CLICKS, 3),)
    table = catalog.load_table(CLICKS)
    assert table.schema().find_field("tip").field_type == LongType()
    rows = table.scan().to_arrow().to_pylist()
    assert [row["tip"] for row in rows if row["offset"] == 7] == [12]


def test_suspend_6_the_table_that_was_meant_counts_not_todays_routes(
    shop: Shop, settings: SinkSettings
) -> None:
    """Else a record that was put again under one route would be so under the next one, too."""
    replay_tables(settings, [CLICKS])
    other = replace(settings.tables.route[0], to=ORDERS)
    edited = replace(settings, tables=replace(settings.tables, route=(other,)))
    assert replay_tables(edited, [ORDERS]) == (ReplayedTable(ORDERS),)
    assert offsets(shop, ORDERS) == [0, 1, 4]


@pytest.mark.parametrize("order", [("topic-id-0", "topic-id-1"), ("topic-id-1", "topic-id-0")])
def test_suspend_6_a_record_of_a_deleted_topic_does_not_stand_for_another_of_its_offset(
    shop: Shop, settings: SinkSettings, order: tuple[str, ...]
) -> None:
    for topic_id in order:
        value = GOOD if topic_id == "topic-id-1" else BAD
        shop.diverts({CLICKS: {7: value}}, topic_id=topic_id)
    assert replay_tables(settings, [CLICKS]) == (ReplayedTable(CLICKS, 3),)
    assert offsets(shop) == [2, 3, 5, 6, 7]


def _suspend(shop: Shop) -> None:
    shop.decides({ORDERS: [7]}, suspended=(Suspended(CLICKS, "HG-201 rolled back"),))


def _lose_the_tag(shop: Shop) -> None:
    shop.catalog.load_table(CLICKS).manage_snapshots().remove_tag("headgate-shop").commit()


def _make_anew(shop: Shop) -> None:
    schema = shop.catalog.load_table(CLICKS).schema()
    shop.catalog.drop_table(CLICKS)
    shop.catalog.create_table(CLICKS, schema)


def _roll_the_quarantine_back(shop: Shop) -> None:
    table = shop.catalog.load_table(shop.settings.quarantine.table)
    table.manage_snapshots().remove_tag("headgate-shop").commit()


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (_suspend, f"{CLICKS} is suspended: HG-201 rolled back"),
        (_lose_the_tag, f"{CLICKS} is not as sink shop left it"),
        (_make_anew, f"{CLICKS} is not as sink shop left it, or has received nothing yet"),
        (_roll_the_quarantine_back, "the quarantine .* is not as sink shop left it: tag-missing"),
    ],
)
def test_suspend_6_a_table_that_is_not_in_order_is_refused(
    shop: Shop, settings: SinkSettings, happens: Callable[[Shop], None], why: str
) -> None:
    happens(shop)
    before = offsets(shop)
    with pytest.raises(ReplayRefused, match=why):
        replay_tables(settings, [CLICKS])
    assert offsets(shop) == before


def test_suspend_6_what_cannot_be_meant_is_refused_by_name(
    shop: Shop, settings: SinkSettings
) -> None:
    skipping = QuarantineSettings(policy=Disposal.SKIP, tombstones=Disposal.SKIP)
    skips = replace(settings.tables, unmatched=Disposal.SKIP)
    with pytest.raises(ReplayUnfit, match="keeps no records"):
        replay_tables(replace(settings, quarantine=skipping, tables=skips), [])
    transform = TransformSettings(
        sql="SELECT * FROM records", columns=(ColumnSettings(name="kind", type="string"),)
    )
    by_topic = replace(settings.tables, route=(RouteSettings(topic="shop", to=CLICKS),))
    spark = replace(settings.spark, writer=WriterKind.SPARK)
    shaped = replace(settings, transform=transform, spark=spark, tables=by_topic)
    with pytest.raises(ReplayUnfit, match="has a transform"):
        replay_tables(shaped, [])
    with shop.catalog.load_table(settings.quarantine.table).update_schema() as update:
        update.delete_column("table_name")
    with pytest.raises(ReplayUnfit, match="has no column table_name"):
        replay_tables(settings, [])


def test_suspend_6_a_table_that_goes_back_forgets_what_leaves_it_and_knows_what_stays(
    shop: Shop, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ROLLBACK-1: what it was given back goes with the snapshot that brought it."""

    monkeypatch.setattr(rollback, "open_reachable_source_topics", lambda _: nullcontext(Source()))
    monkeypatch.setattr(rollback, "require_no_running_participants", lambda _: None)
    replay_tables(settings, [CLICKS])
    shop.commits({CLICKS: [7]})
    rollback.carry_out_rollback(settings, rollback.plan_rollback(settings, "1.3"))
    assert offsets(shop) == [2, 3, 5, 6]
    assert replay_tables(settings, [CLICKS]) == (ReplayedTable(CLICKS),)
    rollback.carry_out_rollback(settings, rollback.plan_rollback(settings, "1.2"))
    assert offsets(shop) == [2]
    assert replay_tables(settings, [CLICKS]) == (ReplayedTable(CLICKS, 2),)
    assert offsets(shop) == [2, 3, 5]
