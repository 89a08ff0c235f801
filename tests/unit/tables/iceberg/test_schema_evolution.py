"""One update of a table's columns: what it requires, what it keeps, and an answer that is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.iceberg_table_world import IcebergWorld
from pyiceberg.types import LongType

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, Landed, PrimaryTable, TableView

TIP = Struct((Column("tip", "double"),))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[IcebergWorld]:
    world = IcebergWorld(tmp_path)
    yield world
    world.close()


def claimed(table: PrimaryTable, number: int = 0) -> TableView:
    transaction = TransactionId(Epoch(1), TransactionNumber(number))
    record = CommitRecord(SinkName("sink"), "g", transaction, Sender("m", "1"), Offsets())
    landed = table.commit(CommitAttempt(table.read(), record))
    assert isinstance(landed, Landed)
    return landed.view


def names(world: IcebergWorld) -> list[str]:
    return [field.name for field in world.table().schema().fields]


def test_columns_are_added_behind_the_others(world: IcebergWorld) -> None:
    table = world.open()
    view, before = claimed(table), names(world)
    evolved = table.evolve(view, TIP)
    assert evolved.changes == ("+tip",)
    assert names(world) == [*before, "tip"]
    assert evolved.view.schema_id != view.schema_id
    assert (evolved.view.tag, evolved.view.head) == (view.tag, view.head)


def test_what_is_there_needs_no_update(world: IcebergWorld) -> None:
    table = world.open()
    view = claimed(table)
    first = table.evolve(view, TIP)
    metadata = world.table().metadata_location
    assert table.evolve(first.view, TIP).changes == ()
    assert world.table().metadata_location == metadata


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_answer_is_asked_for_again(world: IcebergWorld, *, landed: bool) -> None:
    table = world.open()
    view = claimed(table)
    world.lose_next_answer(landed=landed)
    with pytest.raises(Unreachable):
        table.evolve(view, TIP)
    assert table.evolve(view, TIP).view.schema_id != view.schema_id
    assert names(world).count("tip") == 1


def test_a_table_that_others_have_claimed_is_left_alone(world: IcebergWorld) -> None:
    table = world.open()
    view = claimed(table)
    newer = claimed(world.open(), 1)
    evolved = table.evolve(view, TIP)
    assert (evolved.changes, evolved.view.tag) == ((), newer.tag)
    assert "tip" not in names(world)


@pytest.mark.parametrize("amid_the_call", [False, True])
def test_a_table_that_took_the_name_of_the_one_that_was_read_is_left_alone(
    world: IcebergWorld, *, amid_the_call: bool
) -> None:
    """Before the first claim neither has a tag, and their columns and snapshots are the same."""
    table = world.open()
    view = table.read()
    if amid_the_call:
        world.lie_next(lambda send: (world.recreate(), send())[1])
        with pytest.raises(Unreachable):
            table.evolve(view, TIP)
    else:
        world.recreate()
        evolved = table.evolve(view, TIP)
        assert (evolved.changes, evolved.view.uuid != view.uuid) == ((), True)
    assert "tip" not in names(world)


def test_somebody_else_may_be_quicker_between_reading_and_updating(
    world: IcebergWorld,
) -> None:
    table = world.open()
    view = claimed(table)
    with world.table().update_schema() as update:
        update.add_column("note", LongType())
    evolved = table.evolve(view, TIP)
    assert evolved.changes == ("+tip",)
    assert names(world)[-2:] == ["note", "tip"]


def test_a_type_that_cannot_be_is_refused_and_ends_nothing(world: IcebergWorld) -> None:
    """In a table of version 2 nanoseconds would make metadata that other readers refuse."""
    table = world.open()
    view = claimed(table)
    wanted = (Column("odd", "gibberish"), Column("when", "timestamptz_ns"), *TIP.fields)
    evolved = table.evolve(view, Struct(wanted))
    assert evolved.changes == ("+tip",)
    assert {refusal.path for refusal in evolved.refused} == {("odd",), ("when",)}
    assert not {"odd", "when"} & set(names(world))
