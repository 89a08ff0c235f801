"""Tests a sink of many tables, of which a ledger decides: what befalls one, and who dies."""

from __future__ import annotations

import pytest

from headgate.data_plane.routing.routes import RAW_NAME_PROPERTY
from headgate.operations.audit.audit import audit
from headgate.operations.many_tables.list import list_tables
from headgate.testing.contract.world import (
    EACH,
    ManyTablesSinkWorld,
    QuarantineSinkWorld,
    RoutedSinkWorld,
    SuspensionSinkWorld,
    assert_each_record_once,
    expected_zone_by_key,
    keyed_tables_toml,
    many_tables_toml,
    open_filled_sink,
    open_sink,
    produce_and_deliver,
    restart_produce_and_deliver,
    row_coordinates,
    sometimes_bad_value,
    upsert_or_delete_value,
)
from headgate.testing.sink_in_process import SinkInProcess

EVERY = ("orders", "returns", "zone_a", "rejected")


def table_states(sink: SinkInProcess) -> dict[str, str]:
    """Return each table's state, as ``headgate tables`` says it."""
    return {each.table: str(each.state) for each in list_tables(sink.settings).tables}


def has_no_suspended_table(sink: SinkInProcess) -> bool:
    return sink.record is not None and not sink.record.suspended


class ManyTablesSinkContract:
    """The tests take a fixture ``world``, a ``ManyTablesSinkWorld``."""

    def test_each_record_is_in_its_table_and_what_no_route_takes_is_rejected(
        self, world: ManyTablesSinkWorld
    ) -> None:
        with open_filled_sink(many_tables_toml(world), sometimes_bad_value) as sink:
            restart_produce_and_deliver(sink)
            assert_each_record_once(sink, world, *EVERY)
            assert {topic for topic, *_ in row_coordinates(world, "orders")} == {"shop.orders"}
            assert {n % 3 for _, _, n in row_coordinates(world, "zone_a")} == {0}
            assert table_states(sink) == dict.fromkeys(
                ("db.orders", "db.returns", "db.zone_a"), "open"
            )

    def test_a_coordinator_dies_between_two_tables_and_one_is_gone_meanwhile(
        self, world: ManyTablesSinkWorld
    ) -> None:
        with open_filled_sink(many_tables_toml(world), sometimes_bad_value) as sink:
            with world.lock_table("zone_a"):
                sink.produce(EACH)
                sink.run_until(
                    lambda: sink.tables_with_pending_commits() == {"db.zone_a"} and sink.lag() == 0
                )
                sink.end_lives()
            world.take_table_away("returns")
            sink.begin_life()
            sink.run_until(lambda: "db.returns" in sink.reasons_of_suspended_tables())
            assert sink.reasons_of_suspended_tables()["db.returns"].startswith("HG-102")
            produce_and_deliver(sink, "db.returns")
            assert list_tables(sink.settings).exit_code == 1
            remarks = audit(sink.settings, with_source=False).remarks
            assert any("db.returns is suspended" in remark for remark in remarks)
            world.bring_table_back("returns")
            sink.resume_tables("db.returns")
            sink.run_until(lambda: has_no_suspended_table(sink))
            produce_and_deliver(sink)
            assert_each_record_once(sink, world, *EVERY)


class SuspensionSinkContract:
    """The tests take a fixture ``world``, a ``SuspensionSinkWorld``."""

    def test_a_table_that_cannot_be_filled_is_suspended_and_all_others_go_on(
        self, world: SuspensionSinkWorld
    ) -> None:
        with open_filled_sink(many_tables_toml(world), sometimes_bad_value) as sink:
            with world.damage_table("orders"):
                sink.produce(EACH)
                sink.run_until(lambda: "db.orders" in sink.reasons_of_suspended_tables())
                sink.run_until_settled("db.orders")
                assert {
                    name: state for name, state in table_states(sink).items() if state != "open"
                } == {"db.orders": "suspended"}
            sink.resume_tables("db.orders")
            sink.run_until(lambda: has_no_suspended_table(sink))
            sink.run_until_settled()
            assert_each_record_once(sink, world, *EVERY)


class CreatedTablesSinkContract:
    """The tests take a fixture ``world``, a ``RoutedSinkWorld``."""

    @pytest.mark.parametrize("step", ["", "change", "changed"])
    def test_tables_of_a_field_are_made_of_what_records_show(
        self, world: RoutedSinkWorld, step: str
    ) -> None:
        """``step``: at which a process dies that makes them."""
        with open_sink(many_tables_toml(world, inferred=True), sometimes_bad_value) as sink:
            sink.produce(EACH)
            if step:
                sink.run_until_killed(step)
                sink.begin_life()
            sink.run_until_settled()
            restart_produce_and_deliver(sink)
            assert_each_record_once(sink, world, *EVERY, "zone_b", "zone_c")
            assert set(world.rows("zone_b")[0]) >= {"id", "zone"}
            kept = sink.tables.file_schema("db.zone_b").properties
            assert kept.get(RAW_NAME_PROPERTY) == "db.zone_b"


class KeyedSinkContract:
    """The tests take a fixture ``world``, a ``QuarantineSinkWorld`` of a format that upserts."""

    def test_a_table_with_a_key_is_the_fold_of_what_several_lives_had_decided(
        self, world: QuarantineSinkWorld
    ) -> None:
        with open_filled_sink(keyed_tables_toml(world), upsert_or_delete_value) as sink:
            with world.lock_table("orders"):
                for _ in range(2):
                    sink.produce(EACH)
                    sink.run_until(
                        lambda: (
                            sink.tables_with_pending_commits() == {"db.orders"} and sink.lag() == 0
                        )
                    )
                    sink.begin_life()
                remarks = audit(sink.settings, with_source=False).remarks
                assert any("are pending for db.orders" in remark for remark in remarks)
                sink.end_lives()
            restart_produce_and_deliver(sink)
            assert_keyed_rows(sink, world)

    @pytest.mark.parametrize("step", ["stage", "staged", "committed", "deliver", "delivered"])
    def test_a_death_at_a_step_of_a_delivery_by_key_leaves_the_fold(
        self, world: QuarantineSinkWorld, step: str
    ) -> None:
        with open_filled_sink(keyed_tables_toml(world), upsert_or_delete_value) as sink:
            sink.produce(EACH)
            sink.run_until_killed(step)
            restart_produce_and_deliver(sink)
            assert_keyed_rows(sink, world)

    @pytest.mark.parametrize("did_land", [True, False])
    def test_a_delivery_by_key_whose_answer_is_lost_is_found_out(
        self, world: QuarantineSinkWorld, *, did_land: bool
    ) -> None:
        with open_filled_sink(keyed_tables_toml(world), upsert_or_delete_value) as sink:
            sink.lost_deliveries.append(did_land)
            produce_and_deliver(sink)
            assert not sink.lost_deliveries
            restart_produce_and_deliver(sink)
            assert_keyed_rows(sink, world)


def assert_keyed_rows(sink: SinkInProcess, world: QuarantineSinkWorld) -> None:
    """Assert it of ``orders``, by somebody else's reader; ``returns`` has each of its records."""
    count = sink.produced // len(sink.settings.source.topics)
    expected, rows = expected_zone_by_key(count), world.rows("orders")
    assert {row["id"]: row["zone"] for row in rows} == expected
    assert len(rows) == len(expected)
    assert row_coordinates(world, "returns") == [
        ("shop.returns", 0, offset) for offset in range(count)
    ]
    report = audit(sink.settings, with_source=False)
    assert not report.findings
    assert f"db.orders: each of {len(expected)} live rows has a key of its own" in report.proven
