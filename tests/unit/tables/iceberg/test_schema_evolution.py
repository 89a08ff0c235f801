"""One update of a table's columns: what it requires, what it keeps, and an answer that is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.iceberg_table_world import IcebergWorld
from pyiceberg.table.update import AssertRefSnapshotId, SetCurrentSchemaUpdate
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StructType

from headgate.control_protocol.columns import Column, ListOf, Struct
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TransactionId,
    TransactionNumber,
    tag_name,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, Landed, PrimaryTable, TableView
from headgate.tables.iceberg.schema_evolution import plan_evolution

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


@pytest.mark.parametrize("branch", ["main", "audit"])
def test_an_update_requires_the_tag_and_the_branch_as_they_were_read(
    world: IcebergWorld, branch: str
) -> None:
    head = claimed(world.open()).head
    assert head is not None
    world.table().manage_snapshots().create_branch(head, "audit").commit()
    metadata = world.table().metadata
    tag = tag_name(SinkName("sink"), "main")
    step = plan_evolution(metadata, TIP, readd_dropped=False)
    assert {
        each.ref: each.snapshot_id
        for each in step.requirements(tag, branch)
        if isinstance(each, AssertRefSnapshotId)
    } == {tag: metadata.refs[tag].snapshot_id, branch: metadata.refs[branch].snapshot_id}


def test_a_column_that_an_older_spec_partitions_by_keeps_its_type(world: IcebergWorld) -> None:
    """Files of that spec have its values in their manifests."""
    with world.table().update_schema() as update:
        update.add_column("day", IntegerType())
    with world.table().update_spec() as update:
        update.add_identity("day")
    with world.table().update_spec() as update:
        update.remove_field("day")
    table = world.open()
    evolved = table.evolve(claimed(table), Struct((Column("day", "long"), *TIP.fields)))
    assert evolved.changes == ("+tip",)
    assert [refusal.path for refusal in evolved.refused] == [("day",)]


def test_a_name_that_was_renamed_away_is_not_added_even_where_dropped_ones_return(
    world: IcebergWorld,
) -> None:
    with world.table().update_schema() as update:
        update.add_column("tip", DoubleType())
        update.add_column("note", LongType())
    with world.table().update_schema() as update:
        update.rename_column("tip", "gratuity")
        update.delete_column("note")
    step = plan_evolution(
        world.table().metadata, Struct((*TIP.fields, Column("note", "long"))), readd_dropped=True
    )
    assert step.changes == ("+note",)


def test_a_new_schema_has_a_number_of_its_own_where_somebody_went_back_to_an_older_one(
    world: IcebergWorld,
) -> None:
    first = world.table().metadata.current_schema_id
    with world.table().update_schema() as update:
        update.add_column("note", LongType())
    back = SetCurrentSchemaUpdate(schema_id=first)
    table = world.table()
    table.catalog.commit_table(table, (), (back,))
    metadata = world.table().metadata
    assert metadata.current_schema_id == first
    step = plan_evolution(metadata, TIP, readd_dropped=False)
    assert step.schema is not None
    assert step.schema.schema_id not in {each.schema_id for each in metadata.schemas}


def test_a_type_that_cannot_be_is_refused_and_ends_nothing(world: IcebergWorld) -> None:
    """In a table of version 2 nanoseconds would make metadata that other readers refuse."""
    table = world.open()
    view = claimed(table)
    wanted = (Column("odd", "gibberish"), Column("when", "timestamptz_ns"), *TIP.fields)
    evolved = table.evolve(view, Struct(wanted))
    assert evolved.changes == ("+tip",)
    assert {refusal.path for refusal in evolved.refused} == {("odd",), ("when",)}
    assert not {"odd", "when"} & set(names(world))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("s.a", Struct((Column("s", Struct((Column("a", "long"),))),))),
        ("s.element.a", Struct((Column("s", ListOf(Column("", Struct((Column("a", "long"),))))),))),
    ],
)
def test_a_column_is_refused_whose_field_would_have_another_columns_name(
    world: IcebergWorld, name: str, wanted: Struct
) -> None:
    with world.table().update_schema() as update:
        update.add_column((name,), LongType())
    table = world.open()
    evolved = table.evolve(claimed(table), Struct((*wanted.fields, *TIP.fields)))
    assert evolved.changes == ("+tip",)
    assert [refusal.path for refusal in evolved.refused] == [("s",)]


def test_a_field_is_refused_whose_name_with_the_structs_is_another_columns(
    world: IcebergWorld,
) -> None:
    with world.table().update_schema() as update:
        update.add_column(("s.a",), LongType())
        update.add_column("s", StructType(NestedField(0, "b", LongType(), required=False)))
    table = world.open()
    fields = Column("s", Struct((Column("a", "long"), Column("c", "long"))))
    evolved = table.evolve(claimed(table), Struct((fields,)))
    assert evolved.changes == ("+s.c",)
    assert [refusal.path for refusal in evolved.refused] == [("s", "a")]
