"""Records with fields that their table lacks: proposed, refused, ignored or bad (SCHEMA-1 to
SCHEMA-7)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import (
    DecimalType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)
from support.local_catalog import LocalCatalog, local_catalog
from unit.data_plane.formats.avro_worlds import encoded
from unit.data_plane.formats.avro_worlds import record as avro_record

from headgate.control_protocol import message_encoding
from headgate.control_protocol.columns import Column, Struct, describe_schema_growth
from headgate.control_protocol.errors import PoisonRecord, UnknownField
from headgate.control_protocol.events import Envelope, Proposal, TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch, BatchNeeds, BatchWritten
from headgate.control_protocol.quarantine_policy import BadRecordLimits, Disposal
from headgate.control_protocol.schema_evolution import COLUMNS_MAX, Refusal
from headgate.data_plane.batch.writer_task_plan import Handling, Plans, SourcePlan
from headgate.data_plane.formats.column_options import ColumnRule
from headgate.data_plane.write.columns_to_add import IGNORED_MAX, evolution_of
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.data_plane.write.write_batch import write_chunks
from headgate.kafka.push_source import Record
from headgate.participant.settings import SchemaPolicy, UnknownFields
from headgate.tables.iceberg.schema_evolution import columns_of
from headgate.tables.iceberg.table import IcebergTable

P0 = TopicPartition("trips", 0)
SKIPS = Handling(Disposal.SKIP, limits=BadRecordLimits(per_thousand_max=1_000))


def _table_schema() -> Schema:
    stop = StructType(NestedField(8, "zone", StringType()))
    return Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "pax", IntegerType()),
        NestedField(3, "fare", DecimalType(5, 2)),
        NestedField(4, "ratio", FloatType()),
        NestedField(5, "user", StructType(NestedField(6, "name", StringType()))),
        NestedField(7, "stops", ListType(9, stop, element_required=False)),
        NestedField(10, "tags", MapType(11, StringType(), 12, stop_in_map(), value_required=False)),
    )


def stop_in_map() -> StructType:
    return StructType(NestedField(13, "zone", StringType()))


@dataclass
class Desk:
    """A table, and batches of records that were put; what they need is done to it."""

    local: LocalCatalog
    source: SourcePlan
    refused: tuple[Refusal, ...] = ()
    schema_id: int | None = None
    """Which schema START names, if not the table's current one."""

    def write(self, *values: Any) -> BatchWritten | BatchNeeds:
        texts = [v if isinstance(v, bytes) else json.dumps(v).encode() for v in values]
        records = [[Record("trips", 0, n, 1, text, None, []) for n, text in enumerate(texts)]]
        table = self.local.catalog.load_table("db.t")
        start = TableStart(
            "db.t",
            str(table.metadata.table_uuid),
            table.schema().schema_id if self.schema_id is None else self.schema_id,
            table.spec().spec_id,
            f"{table.location()}/data/7",
            refused=self.refused,
        )
        transaction = TransactionId(Epoch(3), TransactionNumber(7))
        ranges = {P0: OffsetRange(0, len(values))}
        batch = Batch(1, transaction, start, ranges, 1 << 27)
        plan = Plans(self.local.catalog).load_plan(batch, self.source)
        return write_chunks(plan, batch, [chunk_of(records)])

    def evolve(self, needs: BatchNeeds, *, readd_dropped: bool = False) -> tuple[str, ...]:
        table = IcebergTable(self.local.catalog, "db.t", SinkName("s"), readd_dropped=readd_dropped)
        done = table.evolve(table.read(), needs.columns)
        self.refused += done.refused
        return done.changes

    def settled(self, *values: Any) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
        """What was done to the table, and the rows."""
        outcome, done = self.write(*values), ()
        while isinstance(outcome, BatchNeeds):
            more = self.evolve(outcome)
            assert more or self.refused, "it asks for ever"
            done, outcome = (*done, *more), self.write(*values)
        return done, rows_of(outcome)

    def files(self) -> list[Path]:
        return list(Path(self.local.catalog.load_table("db.t").location()[7:]).rglob("*.parquet"))


def rows_of(written: BatchWritten) -> list[dict[str, Any]]:
    tables = [pq.ParquetFile(f.path.removeprefix("file://")).read() for f in written.files]
    return list(pa.concat_tables(tables).to_pylist()) if tables else []


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    local = local_catalog(tmp_path)
    local.catalog.create_table("db.t", _table_schema())
    yield Desk(local, evolving("json"))
    local.catalog.close()


def evolving(format_name: str, **options: str) -> SourcePlan:
    policy = SchemaPolicy(UnknownFields.EVOLVE)
    source = SourcePlan({}, schema_policy=policy, handling=SKIPS, format_name=format_name)
    return replace(source, format_options=options)


def test_a_batch_that_meets_needs_is_read_to_its_end_and_writes_nothing(desk: Desk) -> None:
    needs = desk.write({"id": 1}, {"id": 2, "tip": 1}, {"id": 3}, {"id": 4, "who": "x", "tip": 2.5})
    assert isinstance(needs, BatchNeeds)
    assert {c.name: c.type for c in needs.columns.fields} == {"tip": "double", "who": "string"}
    assert needs.first == Offsets({P0: 1})
    assert needs.records == 2
    assert desk.files() == []


def test_the_first_record_with_a_new_field_has_its_value(desk: Desk) -> None:
    done, rows = desk.settled({"id": 1}, {"id": 2, "tip": 1}, {"id": 3, "tip": None})
    assert done == ("+tip",)
    assert [row["tip"] for row in rows] == [None, 1, None]


def test_fields_appear_in_structs_lists_and_maps(desk: Desk) -> None:
    done, rows = desk.settled(
        {"id": 1, "user": {"name": "n", "vip": True}},
        {"id": 2, "stops": [{"zone": "a"}, {"zone": "b", "at": 5}]},
        {"id": 3, "tags": {"any": {"zone": "c", "deep": {"x": [1, 2.5]}}}},
    )
    assert set(done) == {"+user.vip", "+stops.at", "+tags.deep"}
    assert rows[0]["user"] == {"name": "n", "vip": True}
    assert rows[1]["stops"] == [{"zone": "a", "at": None}, {"zone": "b", "at": 5}]
    assert dict(rows[2]["tags"])["any"]["deep"] == {"x": [1.0, 2.5]}


def test_columns_are_widened_for_values_that_need_it(desk: Desk) -> None:
    done, rows = desk.settled(
        {"id": 1, "pax": 2**31}, {"id": 2, "fare": 12345.25}, {"id": 3, "ratio": 1e300}
    )
    assert set(done) == {"pax: long", "fare: decimal(7, 2)", "ratio: double"}
    assert [row["pax"] for row in rows] == [2**31, None, None]
    assert [str(row["fare"]) for row in rows][1] == "12345.25"
    assert rows[2]["ratio"] == 1e300


@pytest.mark.usefixtures("either_loops")
@pytest.mark.parametrize(
    ("format_name", "record"),
    [("json", b"%b"), ("connect-json", b'{"schema": null, "payload": %b}')],
)
def test_a_decimal_of_fractions_alone_stays_as_it_is_while_its_values_fit(
    sqlite_catalog: LocalCatalog, format_name: str, record: bytes
) -> None:
    columns = NestedField(1, "id", LongType()), NestedField(2, "share", DecimalType(4, 4))
    sqlite_catalog.catalog.create_table("db.t", Schema(*columns))
    desk = Desk(sqlite_catalog, evolving(format_name))
    plain, new, whole = (
        record % row
        for row in (b'{"share": 0.1234}', b'{"share": 0, "new": "x"}', b'{"share": 1.5}')
    )
    done, rows = desk.settled(plain, new)
    assert done == ("+new",)
    assert [str(row["share"]) for row in rows] == ["0.1234", "0.0000"]
    assert desk.settled(whole)[0] == ("share: decimal(5, 4)",)


@pytest.mark.parametrize("value", [None, [], {}, {"a": None}, [None], [[]]])
def test_what_says_nothing_proposes_nothing(desk: Desk, value: Any) -> None:
    assert isinstance(desk.write({"id": 1, "new": value, "user": {"new": value}}), BatchWritten)


def test_a_value_that_fits_no_wider_column_stays_a_bad_record(desk: Desk) -> None:
    written = desk.write({"id": "x"}, {"id": 2, "pax": 1.5}, {"id": 3, "fare": 1.234}, b"{bad")
    assert isinstance(written, BatchWritten)
    assert written.partitions[P0].bad == 4


def test_a_bad_record_alone_asks_for_no_column(desk: Desk) -> None:
    assert isinstance(desk.write(b'{"id": 1, "new": 1,}'), BatchWritten)


def test_of_several_kinds_a_column_is_text_and_numbers_are_bad(desk: Desk) -> None:
    done, rows = desk.settled({"id": 1, "m": "x"}, {"id": 2, "m": 5}, {"id": 3, "m": {"a": 1}})
    assert done == ("+m",)
    assert [row["m"] for row in rows] == ["x", '{"a":1}']


def test_whole_numbers_of_any_size_are_of_one_kind(desk: Desk) -> None:
    done, rows = desk.settled({"id": 1, "n": 5}, {"id": 2, "n": 2**64 - 1})
    assert (done, [row["n"] for row in rows]) == (("+n",), [5, 2**64 - 1])


def test_names_that_become_no_column_are_ignored_and_counted(desk: Desk) -> None:
    some = [{"id": n, "PAX": n, "a.b": 1} for n in range(1, 5)]
    written = desk.write(*some)
    assert isinstance(written, BatchWritten)
    assert written.partitions[P0].records == 4
    again = desk.write(*some)
    assert isinstance(again, BatchWritten)


@pytest.mark.usefixtures("either_loops")
def test_a_dropped_column_is_ignored_counted_and_readded_when_asked(desk: Desk) -> None:
    with desk.local.catalog.load_table("db.t").update_schema() as update:
        update.delete_column("pax")
    written = desk.write({"id": 1, "pax": 5}, {"id": 2}, {"id": 3, "pax": 7})
    assert isinstance(written, BatchWritten)
    assert written.ignored == {"pax": 2}
    policy = SchemaPolicy(UnknownFields.EVOLVE, readd_dropped=True)
    desk.source = replace(desk.source, schema_policy=policy)
    needs = desk.write({"id": 1, "pax": 5})
    assert isinstance(needs, BatchNeeds)
    assert desk.evolve(needs, readd_dropped=True) == ("+pax",)


def test_a_column_that_came_after_the_start_is_asked_for_and_not_taken_for_a_dropped_one(
    desk: Desk,
) -> None:
    """Another participant's proposal was granted between START and this one's look at the table."""
    with desk.local.catalog.load_table("db.t").update_schema() as update:
        update.add_column("old", LongType())
    with desk.local.catalog.load_table("db.t").update_schema() as update:
        update.delete_column("old")
    desk.schema_id = desk.local.catalog.load_table("db.t").schema().schema_id
    needs = desk.write({"id": 1, "old": 2, "fee": 5})
    assert isinstance(needs, BatchNeeds)
    desk.evolve(needs)
    assert desk.write({"id": 1, "old": 2, "fee": 5}) == needs, "by a plan under the START before"
    desk.schema_id = None
    _, rows = desk.settled({"id": 1, "old": 2, "fee": 5})
    assert (rows[0]["fee"], "old" in rows[0]) == (5, False)


def test_a_field_by_its_former_name_goes_into_the_renamed_column(desk: Desk) -> None:
    with desk.local.catalog.load_table("db.t").update_schema() as update:
        update.rename_column("pax", "passengers").rename_column("user.name", "full")
    done, rows = desk.settled(
        {"id": 1, "pax": 5, "user": {"name": "n"}}, {"id": 2, "passengers": 6, "tip": 1}
    )
    assert done == ("+tip",)
    assert [row["passengers"] for row in rows] == [5, 6]
    assert rows[0]["user"] == {"full": "n"}
    both = desk.write({"id": 1, "pax": 5, "passengers": 6})
    assert isinstance(both, BatchWritten)
    assert both.partitions[P0].bad == 1


def test_names_of_a_name_mapping_are_known(desk: Desk) -> None:
    mapping = NameMapping([MappedField(**{"field-id": 2, "names": ["pax", "seats"]})])
    table = desk.local.catalog.load_table("db.t")
    with table.transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": mapping.model_dump_json()})
    done, rows = desk.settled({"id": 1, "seats": 5}, {"id": 2, "tip": 1})
    assert done == ("+tip",)
    assert [row["pax"] for row in rows] == [5, None]
    properties = desk.local.catalog.load_table("db.t").properties
    assert "tip" in properties["schema.name-mapping.default"]


def test_regardless_of_case_where_that_is_asked_for(desk: Desk) -> None:
    desk.source = replace(desk.source, format_options={"case-insensitive": "true"})
    done, rows = desk.settled({"ID": 1, "PAX": 5}, {"id": 2, "Tip": 1})
    assert done == ("+Tip",)
    assert [row["pax"] for row in rows] == [5, None]


def test_a_column_is_known_by_its_letters_in_lower_case_and_not_folded(desk: Desk) -> None:
    desk.source = replace(desk.source, format_options={"case-insensitive": "true"})
    assert desk.settled({"id": 1, "straße": {"no": 1}})[0] == ("+straße",)
    done, rows = desk.settled({"id": 2, "STRAßE": {"no": 2, "town": "x"}})
    assert done == ("+straße.town",)
    assert [row["straße"] for row in rows] == [{"no": 2, "town": "x"}]


def test_what_the_coordinator_refused_is_not_asked_for_again(desk: Desk) -> None:
    desk.refused = (Refusal(("tip",), "no"), Refusal(("user", "vip"), "no"))
    written = desk.write({"id": 1, "tip": 2, "user": {"name": "n", "vip": 1}}, {"id": 2})
    assert isinstance(written, BatchWritten)
    assert written.partitions[P0].records == 2
    desk.refused = (Refusal((), "more than enough"),)
    assert isinstance(desk.write({"id": 1, "tip": 2}), BatchWritten)


def test_a_column_that_partitions_the_table_keeps_its_type(desk: Desk) -> None:
    with desk.local.catalog.load_table("db.t").update_spec() as update:
        update.add_identity("pax")
    done, rows = desk.settled({"id": 1, "pax": 2**31}, {"id": 2, "pax": 5, "tip": 1})
    assert done == ("+tip",)
    assert [row["id"] for row in rows] == [2]
    assert [refusal.path for refusal in desk.refused] == [("pax",)]


@pytest.mark.parametrize("key", ["an identifier field", "table.key"])
def test_schema_5_a_column_that_identifies_rows_stays_required(key: str) -> None:
    own = [1] if key == "an identifier field" else []
    fields = [NestedField(n, name, LongType(), required=True) for n, name in ((1, "id"), (2, "n"))]
    columns = Schema(*fields, identifier_field_ids=own).model_dump_json()
    policy = SchemaPolicy(UnknownFields.EVOLVE)
    evolution = evolution_of(columns, (), policy).with_key(() if own else ("id",))
    written = Struct((Column("id", "long", required=False), Column("n", "long", required=False)))
    wanted = evolution.with_identifiers_kept_required(written)
    assert [column.required for column in wanted.fields] == [True, False]


def test_schema_5_nullable_identifiers_are_not_asked_for_for_ever(
    sqlite_catalog: LocalCatalog,
) -> None:
    columns = NestedField(1, "id", LongType(), required=True), NestedField(2, "n", LongType())
    sqlite_catalog.catalog.create_table("db.t", Schema(*columns, identifier_field_ids=[1]))
    schema = avro_record(id=["null", "long"], n="long")
    records = [encoded(schema, {"id": key, "n": 2}) for key in (1, None)]
    desk = Desk(sqlite_catalog, evolving("avro", schema=json.dumps(schema)))
    assert desk.settled(*records) == ((), [{"id": 1, "n": 2}])


def test_fields_that_rules_and_record_columns_take_are_known(desk: Desk) -> None:
    rules = {"pax": ColumnRule(("payload", "seats"))}
    desk.source = replace(desk.source, rules=rules, record_columns={"offset": "id"})
    written = desk.write({"id": "not looked at", "payload": {"seats": 3, "more": 1}})
    assert isinstance(written, BatchWritten)
    assert rows_of(written)[0]["pax"] == 3


@pytest.mark.parametrize(
    "rule", [ColumnRule(("key",)), ColumnRule(default=7), ColumnRule(value=7)], ids=repr
)
def test_a_required_column_that_a_rule_fills_stays_required(
    sqlite_catalog: LocalCatalog, rule: ColumnRule
) -> None:
    columns = NestedField(1, "id", LongType(), required=True), NestedField(2, "n", LongType())
    sqlite_catalog.catalog.create_table("db.t", Schema(*columns))
    schema = avro_record(key="long", n="long")
    source = evolving("avro", schema=json.dumps(schema))
    desk = Desk(sqlite_catalog, replace(source, rules={"id": rule}))
    done, rows = desk.settled(encoded(schema, {"key": 7, "n": 2}))
    assert done == (() if rule.path else ("+key",))
    assert [(row["id"], row["n"]) for row in rows] == [(7, 2)]


@pytest.mark.parametrize("unknown", [UnknownFields.QUARANTINE, UnknownFields.FAIL])
@pytest.mark.parametrize(
    ("inside", "path"),
    [
        ("{}", "tip"),
        ('{"user": {}}', "user.tip"),
        ('{"stops": [{"zone": "a"}, {}]}', "stops.tip"),
        ('{"tags": {"any": {}}}', "tags.tip"),
    ],
)
def test_other_policies(desk: Desk, unknown: UnknownFields, inside: str, path: str) -> None:
    desk.source = replace(desk.source, schema_policy=SchemaPolicy(unknown))
    tips = [json.loads(inside.replace("{}", f'{{"tip": {tip}}}')) for tip in ("5", "null")]
    some = ({"id": 1}, {"id": 2, **tips[0]}, {"id": 3, **tips[1]})
    if unknown is UnknownFields.FAIL:
        with pytest.raises(UnknownField, match=rf"trips/0 offset 1 .*\+{path}") as stopped:
            desk.write(*some)
        assert set(stopped.value.first.values()) == {1}
        return
    written = desk.write(*some)
    assert isinstance(written, BatchWritten)
    assert [row["id"] for row in rows_of(written)] == [1, 3]
    desk.source = replace(desk.source, handling=Handling(Disposal.FAIL))
    with pytest.raises(PoisonRecord, match=rf"lacks: \+{path}"):
        desk.write(*some)


def test_ignored_fields_cost_no_look(desk: Desk) -> None:
    desk.source = replace(desk.source, schema_policy=SchemaPolicy())
    written = desk.write({"id": 1, "tip": 5})
    assert isinstance(written, BatchWritten)
    assert written.ignored == {}


def test_the_schema_has_what_was_done_to_it_and_keeps_all_else(desk: Desk) -> None:
    before = desk.local.catalog.load_table("db.t").schema()
    desk.settled({"id": 1, "user": {"vip": True}, "new": [{"a": 1}]})
    after = desk.local.catalog.load_table("db.t").schema()
    assert describe_schema_growth(columns_of(before), columns_of(after)) == ("+user.vip", "+new")
    for name in before.column_names:
        assert after.find_field(name).field_id == before.find_field(name).field_id
    assert len(set(after.field_ids)) == len(after.field_ids)


def message_bytes(needs: BatchNeeds) -> int:
    said = Proposal(1, "db.t", "uuid", 0, needs.columns, needs.first, needs.records)
    nobody, number = Sender("", ""), TransactionNumber(1)
    return message_encoding.encoded_size_bytes(
        Envelope(SinkName("s"), Epoch(1), number, nobody, 1, 0, said)
    )


def test_records_that_each_bring_their_own_fields_fill_the_table_and_go_on(
    desk: Desk,
) -> None:
    """Ids as keys: what the first records need is proposed in one message, and then it is full."""
    values = [{"id": n, f"{n:04d}{'k' * 190}": n} for n in range(1_500)]
    needs = desk.write(*values)
    assert isinstance(needs, BatchNeeds)
    assert needs.first == Offsets({P0: 0})
    assert needs.records == 1_500
    assert message_bytes(needs) < message_encoding.MESSAGE_BYTES_MAX
    few = COLUMNS_MAX + 10
    done, rows = desk.settled(*values[:few])
    assert len(done) == COLUMNS_MAX - 10  # what the table has already, at every level
    assert [row["id"] for row in rows] == list(range(few))
    assert rows[1][f"0001{'k' * 190}"] == 1


def test_an_object_of_many_keys_over_many_records_is_a_map(desk: Desk) -> None:
    done, rows = desk.settled(*({"id": n, "by": {f"k{n}": n}} for n in range(1_500)))
    assert done == ("+by",)
    assert dict(rows[7]["by"]) == {"k7": 7}


@pytest.mark.parametrize("name", ["k{}", "no column: {}"])
def test_fields_that_become_no_column_are_remembered_in_bounds(desk: Desk, name: str) -> None:
    desk.refused = (Refusal((), "more than enough"),)
    written = desk.write(*({"id": n, name.format(n): n} for n in range(IGNORED_MAX + 500)))
    assert isinstance(written, BatchWritten)
    assert sum(file.records for file in written.files) == IGNORED_MAX + 500
    told = ", ".join(written.ignored)
    assert told.count(",") <= IGNORED_MAX
