"""Tests a sink of one table, and its quarantine: each record is there once, whenever a process
dies."""

from __future__ import annotations

import json

import pytest

from headgate.config.load import parse
from headgate.control_protocol.errors import TableRolledBack, TagMissing
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.ports import Landed
from headgate.operations.audit.audit import audit
from headgate.operations.status.status import read_status
from headgate.testing.contract.world import (
    EACH,
    QuarantineSinkWorld,
    RollbackSinkWorld,
    SinkWorld,
    TagSinkWorld,
    assert_each_record_once,
    good_value,
    one_table_toml,
    one_table_toml_with_quarantine,
    open_filled_sink,
    produce_and_deliver,
    restart_produce_and_deliver,
    row_coordinates,
    sometimes_bad_value,
    source_coordinates,
)

ASIDE = "orders_quarantine"
STEPS = (
    *("append StartCommit", "appended StartCommit", "append WriteStatus", "appended WriteStatus"),
    *("append EndCommit", "appended EndCommit", "commit", "committed"),
    *("append AckCommit", "appended AckCommit"),
)


class SinkContract:
    """The tests take a fixture ``world``, a ``SinkWorld``."""

    def test_each_record_is_there_once_over_many_lives(self, world: SinkWorld) -> None:
        with open_filled_sink(one_table_toml(world)) as sink:
            for _ in range(2):
                restart_produce_and_deliver(sink)
            assert_each_record_once(sink, world, "orders")

    @pytest.mark.parametrize("step", STEPS)
    def test_a_death_at_a_step_of_a_transaction_loses_and_doubles_nothing(
        self, world: SinkWorld, step: str
    ) -> None:
        with open_filled_sink(one_table_toml(world)) as sink:
            sink.produce(EACH)
            sink.run_until_killed(step)
            restart_produce_and_deliver(sink)
            assert_each_record_once(sink, world, "orders")

    @pytest.mark.parametrize("step", ["claim", "claimed"])
    def test_a_death_in_a_claim_loses_and_doubles_nothing(
        self, world: SinkWorld, step: str
    ) -> None:
        with open_filled_sink(one_table_toml(world)) as sink:
            sink.begin_life()
            sink.run_until_killed(step)
            restart_produce_and_deliver(sink)
            assert_each_record_once(sink, world, "orders")

    @pytest.mark.parametrize("did_land", [True, False])
    def test_a_commit_whose_answer_is_lost_is_found_out(
        self, world: SinkWorld, *, did_land: bool
    ) -> None:
        with open_filled_sink(one_table_toml(world)) as sink:
            sink.lost_answers.append(did_land)
            produce_and_deliver(sink)
            assert not sink.lost_answers
            restart_produce_and_deliver(sink)
            assert_each_record_once(sink, world, "orders")

    def test_a_commit_that_arrives_when_another_life_goes_on_does_not_land(
        self, world: SinkWorld
    ) -> None:
        with open_filled_sink(one_table_toml(world)) as sink:
            sink.produce(EACH)
            late = sink.run_until_killed("commit")
            sink.freeze_life()
            restart_produce_and_deliver(sink)
            assert not isinstance(late(), Landed)
            produce_and_deliver(sink)
            assert_each_record_once(sink, world, "orders")

    def test_the_table_tells_a_new_life_all_when_the_control_topic_is_lost(
        self, world: SinkWorld
    ) -> None:
        with open_filled_sink(one_table_toml(world)) as sink:
            sink.produce(EACH)
            sink.run_until_killed("committed")
            sink.log.recreate()
            restart_produce_and_deliver(sink)
            assert_each_record_once(sink, world, "orders")


class EvolutionSinkContract:
    """The tests take a fixture ``world``, a ``SinkWorld`` of a format whose tables get columns."""

    @pytest.mark.parametrize("step", ["", "evolve", "evolved", "commit", "committed"])
    def test_a_column_that_records_need_is_there_before_them(
        self, world: SinkWorld, step: str
    ) -> None:
        text = one_table_toml(world, more='[table.schema]\nunknown_fields = "evolve"\n')
        with open_filled_sink(text, value_with_later_field) as sink:
            sink.produce(EACH)
            if step:
                sink.run_until_killed(step)
                sink.begin_life()
            produce_and_deliver(sink)
            assert_each_record_once(sink, world, "orders")
        tips = {row["offset"]: row["tip"] for row in world.rows("orders")}
        assert tips == {n: None if n < EACH else f"{n}" for n in range(len(tips))}


def value_with_later_field(at: TopicPartition, offset: int) -> bytes:
    """Records have one more field from some time on."""
    more = {"tip": f"{offset}"} if offset >= EACH else {}
    return json.dumps({**json.loads(good_value(at, offset)), **more}).encode()


class QuarantineSinkContract:
    """The tests take a fixture ``world``, a ``QuarantineSinkWorld``."""

    def test_bad_records_are_in_the_quarantine_and_all_others_in_the_table(
        self, world: QuarantineSinkWorld
    ) -> None:
        with open_filled_sink(one_table_toml_with_quarantine(world), sometimes_bad_value) as sink:
            restart_produce_and_deliver(sink)
            assert_each_record_once(sink, world, "orders", ASIDE)
            assert {n % 10 for _, _, n in row_coordinates(world, ASIDE)} == {7}
            assert 7 not in {n % 10 for _, _, n in row_coordinates(world, "orders")}

    @pytest.mark.parametrize(
        "step", ["stage", "staged", "commit", "committed", "deliver", "delivered"]
    )
    def test_a_death_at_a_step_of_a_delivery_loses_and_doubles_nothing(
        self, world: QuarantineSinkWorld, step: str
    ) -> None:
        with open_filled_sink(one_table_toml_with_quarantine(world), sometimes_bad_value) as sink:
            sink.produce(EACH)
            sink.run_until_killed(step)
            restart_produce_and_deliver(sink)
            assert_each_record_once(sink, world, "orders", ASIDE)

    @pytest.mark.parametrize("did_land", [True, False])
    def test_a_delivery_whose_answer_is_lost_is_found_out(
        self, world: QuarantineSinkWorld, *, did_land: bool
    ) -> None:
        with open_filled_sink(one_table_toml_with_quarantine(world), sometimes_bad_value) as sink:
            sink.lost_deliveries.append(did_land)
            produce_and_deliver(sink)
            assert not sink.lost_deliveries
            restart_produce_and_deliver(sink)
            assert_each_record_once(sink, world, "orders", ASIDE)

    def test_a_delivery_that_arrives_when_another_life_goes_on_does_not_land(
        self, world: QuarantineSinkWorld
    ) -> None:
        with open_filled_sink(one_table_toml_with_quarantine(world), sometimes_bad_value) as sink:
            sink.produce(EACH)
            late = sink.run_until_killed("deliver")
            sink.freeze_life()
            restart_produce_and_deliver(sink)
            assert not isinstance(late(), Landed)
            produce_and_deliver(sink)
            assert_each_record_once(sink, world, "orders", ASIDE)

    def test_whoever_comes_next_delivers_what_a_dead_coordinator_decided(
        self, world: QuarantineSinkWorld
    ) -> None:
        with open_filled_sink(one_table_toml_with_quarantine(world), sometimes_bad_value) as sink:
            before = len(row_coordinates(world, ASIDE))
            with world.lock_table(ASIDE):
                sink.produce(EACH)
                sink.run_until(
                    lambda: (
                        sink.lag() == 0 and sink.tables_with_pending_commits() == {f"db.{ASIDE}"}
                    )
                )
                assert len(row_coordinates(world, ASIDE)) == before
                assert read_status(sink.settings).pending_rows == before
                remarks = audit(sink.settings, with_source=False).remarks
                assert any("are pending for the quarantine" in remark for remark in remarks)
                sink.end_lives()
            restart_produce_and_deliver(sink)
            assert_each_record_once(sink, world, "orders", ASIDE)


class RollbackSinkContract:
    """The tests take a fixture ``world``, a ``RollbackSinkWorld``."""

    def test_a_table_that_its_owner_rolled_back_stops_the_sink_with_its_own_error(
        self, world: RollbackSinkWorld
    ) -> None:
        with open_filled_sink(one_table_toml(world)) as sink:
            before, held = world.version("orders"), row_coordinates(world, "orders")
            produce_and_deliver(sink)
            sink.end_lives()
            world.restore("orders", before)
            with pytest.raises(TableRolledBack):
                restart_produce_and_deliver(sink)
            assert row_coordinates(world, "orders") == held

    def test_what_the_quarantine_has_is_not_put_again_where_the_table_went_back(
        self, world: RollbackSinkWorld
    ) -> None:
        with open_filled_sink(one_table_toml_with_quarantine(world), sometimes_bad_value) as sink:
            before = world.version("orders")
            produce_and_deliver(sink)
            sink.end_lives()
            world.restore("orders", before)
            follows = one_table_toml_with_quarantine(
                world, coordinator='on_rollback = "follow-table"'
            )
            restart_produce_and_deliver(sink, parse(follows))
            assert row_coordinates(world, "orders", ASIDE) == source_coordinates(sink)


class TagSinkContract:
    """The tests take a fixture ``world``, a ``TagSinkWorld``."""

    def test_a_sink_whose_tag_is_gone_stops_and_follows_the_table_if_told_to(
        self, world: TagSinkWorld
    ) -> None:
        with open_filled_sink(one_table_toml(world)) as sink:
            sink.end_lives()
            world.delete_tag("orders")
            with pytest.raises(TagMissing):
                restart_produce_and_deliver(sink)
            follows = one_table_toml(world, coordinator='on_tag_missing = "follow-table"')
            restart_produce_and_deliver(sink, parse(follows))
            assert_each_record_once(sink, world, "orders")
