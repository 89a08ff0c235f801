"""Tables that records name are made and changed by what records show (CREATE-1 to CREATE-4,
ROUTE-4, SCHEMA-1 to SCHEMA-3).

The writer, the maker and a real catalog, without log and machines between them.
"""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2
from integration.registry.server import RegistryServer
from support.local_catalog import LocalCatalog
from unit.data_plane.formats.protobuf_worlds import field as protobuf_field

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.errors import ConfigurationError, IncompatibleValue, TablesUnfit
from headgate.control_protocol.events import Destination, TableStart, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import (
    Batch,
    BatchFailed,
    BatchNeeds,
    BatchOutcome,
    BatchWritten,
    Changed,
    TableNeed,
    TopicState,
    Want,
)
from headgate.control_protocol.schema_evolution import FIELDS_MAX, Refusal
from headgate.control_protocol.table_format import Use
from headgate.data_plane.routing.routes import RAW_NAME_PROPERTY
from headgate.data_plane.routing.table_resolution import NEW_MAX
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.data_plane.write.write_batch import write_chunk_around_poison
from headgate.kafka.push_source import Record
from headgate.runtime.routed_table_creation import TableMaker
from headgate.runtime.sink_tables import SinkTables
from headgate.tables.concurrent_secondary_tables import SecondaryTables
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

FILE = """
name = "shop"
[source]
topics = ["shop.orders", "^shop\\\\..+", "events"]
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
[tables]
ledger = "db.ledger"
[[tables.route]]
topic = "^shop\\\\.(?P<name>.+)$"
to = "db.{name}"
[[tables.route]]
topic = "events"
field = "type"
to = "db.event_{field}"
[tables.create]
schema = "infer"
[tables.schema]
unknown_fields = "evolve"
[quarantine]
policy = "quarantine"
per_thousand_max = 1000
[spark]
writer = "in-process"
"""


@dataclass
class Shop:
    """One participant's writer, and what its coordinator makes of what it asks for."""

    local: LocalCatalog
    settings: SinkSettings
    now_s: float = 0.0
    told: dict[str, TableStart] = field(default_factory=dict)
    asked: list[tuple[TableNeed, ...]] = field(default_factory=list)
    filled: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        catalog = self.local.catalog
        for name, declared in (
            ("db.ledger", TableDeclaration({"note": "string"})),
            ("db.ledger_quarantine", quarantine_declaration()),
        ):
            create_table_if_missing(catalog, name, declared)
        self.maker = TableMaker(
            self.settings,
            SinkTables.from_open_catalog(self.settings, catalog),
            lambda: self.now_s,
            filled=lambda: self.filled,
        )
        self.secondaries = SecondaryTables(
            partial(
                SinkTables.from_open_catalog(self.settings, catalog).open_table, use=Use.SECONDARY
            ),
            threads=False,
            make=self.maker.create_requested_or_why_not,
        )
        self.planning = SinkTables.from_open_catalog(self.settings, catalog).build_planning()

    def outcome(self, topics: Mapping[str, Sequence[Any]], begin: int = 0) -> BatchOutcome:
        """What comes of the values of each topic, from the offset on."""
        records = [
            [
                Record(topic, 0, begin + at, 1_785_585_600_123, _octets(value), b"k", [])
                for at, value in enumerate(values)
            ]
            for topic, values in topics.items()
        ]
        ranges = {
            TopicPartition(topic, 0): OffsetRange(begin, begin + len(values))
            for topic, values in topics.items()
        }
        batch = Batch(
            1,
            TransactionId(Epoch(3), TransactionNumber(7)),
            self._start("db.ledger"),
            ranges,
            1 << 27,
            {topic: TopicId(topic) for topic in topics},
            self._start("db.ledger_quarantine"),
            folder="headgate/shop/3-a1/7",
            changed_tables=tuple(self.told.values()),
        )
        self.maker.try_create_declared_tables(
            {topic: TopicState(TopicId(topic), {}) for topic in topics}
        )
        chunk = chunk_of(records)
        return self.planning.write_planned(
            batch, lambda plan: write_chunk_around_poison(plan, batch, chunk)
        )

    def write(self, topics: Mapping[str, Sequence[Any]], rounds: int = 5) -> dict[str, list[Any]]:
        """By table what the files hold, once all that is asked for was answered."""
        for _ in range(rounds):
            outcome = self.outcome(topics)
            if isinstance(outcome, BatchNeeds):
                self.answer(outcome)
                continue
            assert isinstance(outcome, BatchWritten), outcome
            found = {
                at.table.removeprefix("db."): _rows(files)
                for at, files in outcome.secondary_files.items()
            }
            aside = _rows(outcome.quarantined)
            return {**found, **({"q": aside} if aside else {})}
        raise AssertionError("asks again and again")

    def answer(self, needs: BatchNeeds) -> tuple[Changed, ...]:
        """As the coordinator does."""
        self.asked.append(needs.tables)
        wants = [Want(need.at, need.columns, need.raw) for need in needs.tables]
        answers = self.secondaries.create_or_change_tables(wants)
        for said in answers:
            if said.failure:
                continue  # it is asked for again
            ids = said.uuid, said.schema_id, said.spec_id, ""
            refused = said.refused if said.uuid else (Refusal((), said.why),)
            start = TableStart(said.table, *ids, refused=refused)
            self.told[said.table] = start
            if said.any_other:
                self.told[""] = replace(start, table="")
        return answers

    def columns(self, table: str) -> dict[str, str]:
        schema = self.local.catalog.load_table(f"db.{table}").schema()
        return {each.name: str(each.field_type) for each in schema.fields}

    def _start(self, name: str) -> TableStart:
        table = self.local.catalog.load_table(name)
        prefix = f"{table.location()}/data/headgate/shop/3-a1/7"
        uuid, schema = str(table.metadata.table_uuid), table.schema().schema_id
        return TableStart(name, uuid, schema, table.spec().spec_id, prefix)


def _octets(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def _rows(files: Sequence[WrittenFile]) -> list[Any]:
    rows = [pq.read_table(pa.BufferReader(_bytes(file))).to_pylist() for file in files]
    return [row for some in rows for row in some]


def _bytes(file: WrittenFile) -> bytes:
    return Path(file.path.removeprefix("file://")).read_bytes()


@pytest.fixture
def shop(sqlite_catalog: LocalCatalog) -> Shop:
    return Shop(sqlite_catalog, parse(FILE))


def shop_of(sqlite_catalog: LocalCatalog, *changes: tuple[str, str]) -> Shop:
    text = FILE
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return Shop(sqlite_catalog, parse(text))


# ----------------------------------------------------------------------------------- creation (N)


def test_create_1_a_table_is_made_of_what_the_first_records_show(shop: Shop) -> None:
    rows = shop.write({"shop.orders": [{"id": 1}, {"id": 2, "zone": "a", "fare": 1.5}]})
    assert shop.columns("orders") == {"id": "long", "zone": "string", "fare": "double"}
    assert rows == {
        "orders": [{"id": 1, "zone": None, "fare": None}, {"id": 2, "zone": "a", "fare": 1.5}]
    }
    assert len(shop.asked) == 1
    made = shop.local.catalog.load_table("db.orders")
    assert made.properties[RAW_NAME_PROPERTY] == "db.orders"


def test_create_1_all_that_a_batch_needs_is_asked_for_at_once(shop: Shop) -> None:
    topics = {f"shop.t{n}": [{"id": n, f"own{n}": True}] for n in range(30)}
    topics["events"] = [{"type": "click", "x": 1}, {"type": "view", "y": "b"}]
    rows = shop.write(topics)
    assert len(shop.asked) == 1
    assert len(shop.asked[0]) == 32
    assert rows["t7"] == [{"id": 7, "own7": True}]
    assert rows["event_click"] == [{"type": "click", "x": 1}]
    assert rows["event_view"] == [{"type": "view", "y": "b"}]


def test_schema_4_every_record_of_a_table_that_is_missing_waits_for_it(shop: Shop) -> None:
    """Those that show no column too: what lies before the first of them may be written."""
    needs = shop.outcome({"shop.orders": [{}, {"id": None}, {"id": 4}]}, begin=7)
    assert isinstance(needs, BatchNeeds)
    assert needs.first == Offsets({TopicPartition("shop.orders", 0): 7})
    assert needs.records == 3


def test_create_2_dates_stay_text_and_nothing_comes_of_what_says_nothing(shop: Shop) -> None:
    values = [{"at": "2026-01-01", "n": None, "l": [], "o": {}}, {"at": "x", "l": [1], "k": 2.5}]
    shop.write({"shop.orders": [*values, {"k": 3, "mixed": 1}, {"mixed": "a"}]})
    assert shop.columns("orders") == {
        "at": "string",
        "l": "list<long>",
        "k": "double",
        "mixed": "string",
    }


def test_create_2_objects_of_many_keys_become_maps_over_all_records_of_a_batch(
    shop: Shop,
) -> None:
    half = FIELDS_MAX // 2 + 1
    first = {"tags": {f"a{n}": n for n in range(half)}}
    second = {"tags": {f"b{n}": n for n in range(half)}}
    wide = {"tags": {f"c{n}": n for n in range(3 * half)}}
    rows = shop.write({"shop.orders": [first, second], "shop.wide": [first, wide]})
    assert shop.columns("orders") == {"tags": "map<string, long>"}
    assert dict(rows["orders"][1]["tags"])["b3"] == 3
    assert shop.columns("wide") == {"tags": "map<string, long>"}


def test_create_2_depth_and_columns_are_bounded(shop: Shop) -> None:
    deep: Any = 1
    for level in range(8):
        deep = {f"l{level}": deep}
    wild = {f"f{n}": n for n in range(600)}
    rows = shop.write({"shop.deep": [{"id": 1, "deep": deep}], "shop.wild": [wild]})
    assert len(shop.columns("wild")) == 500
    assert rows["wild"][0]["f499"] == 499
    assert rows["deep"][0]["id"] == 1


def test_create_1_declared_columns_come_before_inference(sqlite_catalog: LocalCatalog) -> None:
    declared = '[[tables.table]]\nmatch = "db.event_cl.*"\ncolumns = [{ name = "type", type = '
    shop = shop_of(sqlite_catalog, ("[quarantine]", declared + '"string" }]\n[quarantine]'))
    rows = shop.write({"events": [{"type": "click", "x": 1}]})
    assert shop.columns("event_click") == {"type": "string", "x": "long"}
    assert rows == {"event_click": [{"type": "click", "x": 1}]}
    assert len(shop.asked) == 2, "the table, then its column"


def test_declared_tables_of_a_field_are_made_too_and_others_are_not(
    sqlite_catalog: LocalCatalog,
) -> None:
    declared = '[[tables.table]]\nmatch = "db.event_c.*"\ncolumns = [{ name = "type", type = '
    shop = shop_of(
        sqlite_catalog,
        ('schema = "infer"', 'schema = "declared"'),
        ('unknown_fields = "evolve"', ""),
        ("[quarantine]", declared + '"string" }]\n[quarantine]'),
    )
    rows = shop.write({"events": [{"type": "click"}, {"type": "other"}]})
    assert rows["event_click"] == [{"type": "click"}]
    assert "no table db.event_other, and none is declared" in rows["q"][0]["message"]
    assert not sqlite_catalog.catalog.table_exists("db.event_other")


def test_create_3_the_first_column_that_there_is_partitions_or_the_table_is_not_made(
    sqlite_catalog: LocalCatalog,
) -> None:
    shop = shop_of(
        sqlite_catalog,
        ('schema = "infer"', 'schema = "infer"\npartition_by = ["zone|kind"]\nsort_by = ["id|n"]'),
    )
    rows = shop.write({"shop.a": [{"id": 1, "kind": "x"}], "shop.b": [{"n": 1}]})
    table = sqlite_catalog.catalog.load_table("db.a")
    assert [each.name for each in table.spec().fields] == ["kind"]
    assert [each.source_id for each in table.sort_order().fields] == [
        table.schema().find_field("id").field_id
    ]
    assert "no column zone or kind" in rows["q"][0]["message"]
    assert not sqlite_catalog.catalog.table_exists("db.b")


def test_create_3_a_table_that_was_refused_is_asked_for_again_later(
    sqlite_catalog: LocalCatalog,
) -> None:
    shop = shop_of(
        sqlite_catalog, ('schema = "infer"', 'schema = "infer"\npartition_by = ["zone"]')
    )
    assert set(shop.write({"shop.b": [{"n": 1}]})) == {"q"}
    assert set(shop.write({"shop.b": [{"n": 1, "zone": "a"}]})) == {"q"}
    shop.told.clear()
    assert set(shop.write({"shop.b": [{"n": 1, "zone": "a"}]})) == {"b"}


def test_location_properties_and_format_version(
    sqlite_catalog: LocalCatalog, tmp_path: Path
) -> None:
    place = f'location = "file://{tmp_path}/own/{{namespace}}/{{table}}"'
    properties = 'properties = { "format-version" = "3", "owner" = "me" }'
    created = f'schema = "infer"\n{place}\n{properties}'
    shop = shop_of(sqlite_catalog, ('schema = "infer"', created))
    shop.write({"shop.orders": [{"id": 1}]})
    table = sqlite_catalog.catalog.load_table("db.orders")
    assert table.location() == f"file://{tmp_path}/own/db/orders"
    assert table.metadata.format_version == 3
    assert table.properties["owner"] == "me"


def test_create_4_a_person_makes_the_table_meanwhile(shop: Shop) -> None:
    """Its columns and its partitioning stay; what it lacks is added."""
    needs = shop.outcome({"shop.orders": [{"id": 1, "zone": "a"}]})
    assert isinstance(needs, BatchNeeds)
    theirs = TableDeclaration({"zone": "string", "note": "string"}, ["zone"])
    create_table_if_missing(shop.local.catalog, "db.orders", theirs)
    shop.answer(needs)
    rows = shop.write({"shop.orders": [{"id": 1, "zone": "a"}]})
    assert shop.columns("orders") == {"zone": "string", "note": "string", "id": "long"}
    assert rows == {"orders": [{"zone": "a", "note": None, "id": 1}]}
    spec = shop.local.catalog.load_table("db.orders").spec()
    assert [each.name for each in spec.fields] == ["zone"]


def test_create_4_racing_creators_make_one_table(sqlite_catalog: LocalCatalog) -> None:
    others = [load_catalog(sqlite_catalog.name, sqlite_catalog.properties) for _ in range(3)]
    shops = [Shop(replace_catalog(sqlite_catalog, other), parse(FILE)) for other in others]
    needs = [shop.outcome({"shop.orders": [{"id": n, f"c{n}": 1}]}) for n, shop in enumerate(shops)]
    answers: list[tuple[Changed, ...]] = []

    def ask(shop: Shop, need: BatchOutcome) -> None:
        assert isinstance(need, BatchNeeds)
        answers.append(shop.answer(need))

    threads = [threading.Thread(target=ask, args=each) for each in zip(shops, needs, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({said.uuid for some in answers for said in some}) == 1
    for n, shop in enumerate(shops):
        rows = shop.write({"shop.orders": [{"id": n, f"c{n}": 1}]})
        assert (rows["orders"][0]["id"], rows["orders"][0][f"c{n}"]) == (n, 1)
    assert set(shops[0].columns("orders")) == {"id", "c0", "c1", "c2"}
    for other in others:
        other.close()


def replace_catalog(sqlite_catalog: LocalCatalog, catalog: Any) -> LocalCatalog:
    return replace(sqlite_catalog, catalog=catalog)


def test_create_1_the_schema_that_records_were_written_with_makes_the_table(
    sqlite_catalog: LocalCatalog,
) -> None:
    written = json.dumps(
        {
            "type": "record",
            "name": "Order",
            "fields": [
                {"name": "id", "type": "long"},
                {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
                {"name": "note", "type": ["null", "string"]},
            ],
        }
    )
    avro = f'[format]\ntype = "avro"\n[format.options]\nschema = {json.dumps(written)}\n'
    shop = shop_of(
        sqlite_catalog,
        ('schema = "infer"', 'schema = "registry"\npartition_by = ["day(created|at)"]'),
        ("[quarantine]", f"{avro}[quarantine]"),
    )
    rows = shop.write({"shop.orders": [bytes([4, 2, 0]), bytes([6, 4, 2, 2]) + b"x", b""]})
    assert [row["value"] for row in rows.pop("q")] == [b""]
    assert shop.columns("orders") == {"id": "long", "at": "timestamptz", "note": "string"}
    assert [(row["id"], row["note"]) for row in rows["orders"]] == [(2, None), (3, "x")]
    spec = sqlite_catalog.catalog.load_table("db.orders").spec()
    assert [str(each.transform) for each in spec.fields] == ["day"]


def test_create_1_the_registrys_schema_makes_and_evolves_the_table(
    sqlite_catalog: LocalCatalog,
) -> None:
    """Records of two versions in one batch: the table has what both have."""
    fields = [{"name": "id", "type": "long"}, {"name": "tip", "type": ["null", "double"]}]
    with RegistryServer() as registry:
        ids = [
            registry.subjects.register("shop", {"schema": json.dumps(order)})
            for order in (
                {"type": "record", "name": "Order", "fields": fields[:1]},
                {"type": "record", "name": "Order", "fields": fields},
            )
        ]
        shop = shop_of(sqlite_catalog, *from_registry("avro-registry", registry.url))
        one, two = (b"\0" + number.to_bytes(4, "big") for number in ids)
        rows = shop.write({"shop.orders": [one + b"\4"]})
        assert (shop.columns("orders"), rows) == ({"id": "long"}, {"orders": [{"id": 2}]})
        tip = b"\2" + struct.pack("<d", 1.5)
        rows = shop.write({"shop.orders": [one + b"\4", two + b"\6" + tip, b"\0junk"]})
        assert shop.columns("orders") == {"id": "long", "tip": "double"}
        assert rows["orders"] == [{"id": 2, "tip": None}, {"id": 3, "tip": 1.5}]
        assert [row["value"] for row in rows["q"]] == [b"\0junk"]
        rows = shop.write({"shop.returns": [two + b"\6" + tip]})
        assert rows == {"returns": [{"id": 3, "tip": 1.5}]}


@pytest.mark.parametrize("registered", [True, False])
def test_create_1_a_protobuf_descriptor_makes_the_table(
    sqlite_catalog: LocalCatalog, registered: bool
) -> None:
    made = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = made.message_type.add(name="Order")
    protobuf_field(order, "id", 1, "int64")
    protobuf_field(order, "note", 2, "string")
    message = b"\x08\x07\x12\x02hi"
    with RegistryServer() as registry:
        if registered:
            text = base64.b64encode(made.SerializeToString()).decode()
            body = {"schema": text, "schemaType": "PROTOBUF"}
            number = registry.subjects.register("shop", body)
            message = b"\0" + number.to_bytes(4, "big") + b"\0" + message
            changes = from_registry("protobuf-registry", registry.url)
        else:
            files = descriptor_pb2.FileDescriptorSet(file=[made]).SerializeToString()
            options = f'descriptor = "{base64.b64encode(files).decode()}"\nmessage = "shop.Order"'
            changes = from_schemas("protobuf", options)
        shop = shop_of(sqlite_catalog, *changes)
        rows = shop.write({"shop.orders": [message, b"\xff"]})
    assert shop.columns("orders") == {"id": "long", "note": "string"}
    assert rows["orders"] == [{"id": 7, "note": "hi"}]
    assert [row["value"] for row in rows["q"]] == [b"\xff"]


def from_registry(name: str, url: str) -> tuple[tuple[str, str], ...]:
    return from_schemas(name, f'"registry.url" = "{url}"')


def from_schemas(name: str, options: str) -> tuple[tuple[str, str], ...]:
    """A sink file's changes: tables are made of the schemas that records are written with."""
    given = f'[format]\ntype = "{name}"\n[format.options]\n{options}\n'
    return ('schema = "infer"', 'schema = "registry"'), ("[quarantine]", f"{given}[quarantine]")


def test_create_1_the_schema_that_connect_brings_makes_and_evolves_the_table(
    sqlite_catalog: LocalCatalog,
) -> None:
    shop = shop_of(
        sqlite_catalog,
        ('schema = "infer"', 'schema = "connect"'),
        ("[quarantine]", '[format]\ntype = "connect-json"\n[quarantine]'),
    )
    rows = shop.write({"shop.orders": [connected(id=("int32", 7))]})
    assert shop.columns("orders") == {"id": "int"}
    assert rows == {"orders": [{"id": 7}]}
    rows = shop.write({"shop.orders": [connected(id=("int64", 2**40), zone=("string", "a"))]})
    assert shop.columns("orders") == {"id": "long", "zone": "string"}
    assert rows == {"orders": [{"id": 2**40, "zone": "a"}]}


def connected(**fields: tuple[str, Any]) -> dict[str, Any]:
    """A value as Connect's JsonConverter writes it."""
    kinds = [{"field": name, "type": kind, "optional": True} for name, (kind, _) in fields.items()]
    payload = {name: value for name, (_, value) in fields.items()}
    return {"schema": {"type": "struct", "fields": kinds, "optional": False}, "payload": payload}


# --------------------------------------------------------------------------------- guards (ROUTE-4)


def test_route_4_records_wait_for_tables_beyond_those_of_a_minute(
    sqlite_catalog: LocalCatalog,
) -> None:
    """In the quarantine they would have no way back to a table with a key."""
    shop = shop_of(
        sqlite_catalog, ('ledger = "db.ledger"', 'ledger = "db.ledger"\nnew_per_minute_max = 3')
    )
    snapshot = {"events": [{"type": f"v{n}", "x": n} for n in range(8)], "shop.orders": [{"id": 1}]}
    for made in (3, 6):
        needs = shop.outcome(snapshot)
        assert isinstance(needs, BatchNeeds)
        waiting = [said.failure for said in shop.answer(needs) if said.failure]
        assert len(waiting) == 8 - made
        assert all("new_per_minute_max = 3 tables were created" in why for why in waiting)
        shop.now_s += 61
    rows = shop.write(snapshot)
    assert rows == {
        "orders": [{"id": 1}],
        **{f"event_v{n}": [{"type": f"v{n}", "x": n}] for n in range(8)},
    }


def test_route_4_the_wait_for_a_wild_field_ends_at_tables_max(sqlite_catalog: LocalCatalog) -> None:
    limits = 'ledger = "db.ledger"\nnew_per_minute_max = 3\nmax = 8'
    shop = shop_of(sqlite_catalog, ('ledger = "db.ledger"', limits))
    wild = {"events": [{"type": f"v{n}", "x": n} for n in range(2 * NEW_MAX)]}
    minutes = 0
    while isinstance(outcome := shop.outcome(wild), BatchNeeds):
        shop.answer(outcome)
        shop.now_s += 61
        minutes += 1
        assert minutes < 8, "the batch waits for ever"
    assert isinstance(outcome, BatchWritten)
    made = len(outcome.secondary_files)
    assert made == 8 - 2, "the ledger and its quarantine have names that a route could make"
    aside = _rows(outcome.quarantined)
    assert len(aside) == 2 * NEW_MAX - made
    assert all("tables.max = 8" in row["message"] for row in aside)


def test_route_4_there_are_no_more_tables_than_tables_max(sqlite_catalog: LocalCatalog) -> None:
    shop = shop_of(sqlite_catalog, ('ledger = "db.ledger"', 'ledger = "db.ledger"\nmax = 4'))
    shop.write({"shop.a": [{"id": 1}]})
    again = shop_of(sqlite_catalog, ('ledger = "db.ledger"', 'ledger = "db.ledger"\nmax = 4'))
    topics = {f"shop.b{n}": [{"id": n}] for n in range(6)}
    rows = again.write(topics)
    # the ledger and its quarantine have names that a route could make
    assert sum(name.startswith("b") for name in rows) == 1
    assert any("tables.max = 4" in row["message"] for row in rows["q"])


def test_route_4_tables_that_exist_take_their_records_however_many_there_are(
    sqlite_catalog: LocalCatalog,
) -> None:
    """Whatever a participant met before: one that has just started decides alike."""
    limit = ('ledger = "db.ledger"', 'ledger = "db.ledger"\nmax = 3')
    shop = shop_of(sqlite_catalog, limit)
    by_hand = ["a", "b", "z"]
    for kind in by_hand:
        declared = TableDeclaration({"type": "string", "x": "long"})
        create_table_if_missing(sqlite_catalog.catalog, f"db.event_{kind}", declared)
    assert set(shop.write({"events": [{"type": "z", "x": 1}]})) == {"event_z"}
    for participant in (shop, shop_of(sqlite_catalog, limit)):
        rows = participant.write(
            {"events": [{"type": kind, "x": 2} for kind in (*by_hand, "new")], "shop.other": [{}]}
        )
        assert set(rows) == {*(f"event_{kind}" for kind in by_hand), "q"}
        reasons = [row["message"] for row in rows["q"]]
        assert len(reasons) == 2
        assert all("there are tables.max = 3 tables" in why for why in reasons), reasons


def test_route_4_each_namespace_may_have_tables_max_tables(sqlite_catalog: LocalCatalog) -> None:
    by_namespace = '"^shop\\\\.(?P<schema>\\\\w+)\\\\.(?P<name>\\\\w+)$"\nto = "{schema}.{name}"'
    shop = shop_of(
        sqlite_catalog,
        ('ledger = "db.ledger"', 'ledger = "db.ledger"\nmax = 2'),
        ('"^shop\\\\.(?P<name>.+)$"\nto = "db.{name}"', by_namespace),
    )
    topics = [f"shop.{schema}.t{n}" for schema in ("a", "b", "c") for n in (1, 2)]
    rows = shop.write({topic: [{"id": 1}] for topic in topics})
    assert set(rows) == {topic.removeprefix("shop.") for topic in topics}


def test_route_4_only_names_that_routes_can_make(shop: Shop) -> None:
    want = Want(Destination("other.secrets"), Struct((Column("id", "long"),)))
    (said,) = shop.secondaries.create_or_change_tables([want])
    assert "no route" in said.why
    assert not shop.local.catalog.table_exists("other.secrets")


def test_route_3_a_table_whose_name_was_cut_is_made(sqlite_catalog: LocalCatalog) -> None:
    shop = shop_of(sqlite_catalog, ('to = "db.{name}"', 'to = "db.{name}_events"'))
    (table,) = shop.write({f"shop.{'t' * 130}": [{"id": 1}]})
    assert table.startswith("t" * 103)


def test_a_value_that_is_not_its_own_name_is_the_tables_once_it_made_it(
    shop: Shop,
) -> None:
    rows = shop.write({"events": [{"type": "Click", "x": 1}, {"type": "click", "x": 2}]})
    assert rows["event_click"] == [{"type": "Click", "x": 1}]
    assert "merge = true" in rows["q"][0]["message"]


def test_the_sinks_own_tables_take_no_records(shop: Shop) -> None:
    rows = shop.write({"shop.ledger": [{"id": 1}], "shop.ledger_quarantine": [{"id": 2}]})
    assert set(rows) == {"q"}
    assert {"own tables" in row["message"] for row in rows["q"]} == {True}


def test_topics_of_any_size_are_made_without_waiting_for_a_minute(
    shop: Shop,
) -> None:
    names = {f"shop.n{n}": TopicState(TopicId(str(n)), {}) for n in range(25)}
    shop.maker.try_create_declared_tables(names)
    rows = shop.write({name: [{"id": 1}] for name in names})
    assert len(rows) == 25


# ---------------------------------------------------------------------------------- evolution (S)


def test_schema_1_the_first_record_with_a_new_field_has_its_value_in_its_table(
    shop: Shop,
) -> None:
    shop.write({"shop.a": [{"id": 1}], "shop.b": [{"id": 1}]})
    shop.asked.clear()
    rows = shop.write({"shop.a": [{"id": 2}, {"id": 3, "tip": 1.5}], "shop.b": [{"id": 2}]})
    assert rows == {"a": [{"id": 2, "tip": None}, {"id": 3, "tip": 1.5}], "b": [{"id": 2}]}
    ((need,),) = shop.asked
    assert (need.at.table, need.records) == ("db.a", 1)
    assert need.first == Offsets({TopicPartition("shop.a", 0): 1})


def test_schema_2_needs_of_many_tables_are_one_question(shop: Shop) -> None:
    shop.write({f"shop.t{n}": [{"id": 1}] for n in range(5)})
    shop.asked.clear()
    more = {f"shop.t{n}": [{"id": 2, f"more{n}": "x"}] for n in range(5)}
    rows = shop.write({**more, "shop.new": [{"id": 1}]})
    assert len(shop.asked) == 1
    assert all(rows[f"t{n}"][0][f"more{n}"] == "x" for n in range(5))
    assert rows["new"] == [{"id": 1}]


def test_schema_6_a_refused_field_is_not_asked_for_again(shop: Shop) -> None:
    shop.write({"shop.a": [{"id": 1}]})
    shop.asked.clear()
    rows = shop.write({"shop.a": [{"id": 2, "ID": 3, "bad name": 1}]})
    assert rows == {"a": [{"id": 2}]}
    assert shop.asked == []


def test_policies_are_per_table(sqlite_catalog: LocalCatalog) -> None:
    one = '[[tables.table]]\nmatch = "db.{}"\nunknown_fields = "{}"\n'
    shop = shop_of(
        sqlite_catalog,
        (
            "[quarantine]",
            one.format("a", "ignore") + one.format("b", "quarantine") + "[quarantine]",
        ),
    )
    shop.write({f"shop.{name}": [{"id": 1}] for name in "abc"})
    rows = shop.write({f"shop.{name}": [{"id": 2, "x": 1}] for name in "abc"})
    assert rows["a"] == [{"id": 2}]
    assert rows["c"] == [{"id": 2, "x": 1}]
    assert [row["topic"] for row in rows["q"]] == ["shop.b"]


def test_incompatible_values_are_left_out_and_counted(sqlite_catalog: LocalCatalog) -> None:
    shop = shop_of(
        sqlite_catalog,
        ('unknown_fields = "evolve"', 'unknown_fields = "evolve"\nincompatible = "ignore"'),
    )
    shop.write({"shop.a": [{"id": 1, "n": 1, "at": "x"}]})
    values = [
        {"id": 2, "n": "many", "at": "y"},
        {"id": 3, "n": 3, "at": 7},
        b"no object",
        {"id": "all", "n": "of", "at": 1},
        {"id": 5, "n": 5, "at": "z", "new": True},
    ]
    rows = shop.write({"shop.a": values})
    assert [(row["id"], row["n"], row["at"], row["new"]) for row in rows["a"]] == [
        (2, None, "y", None),
        (3, 3, None, None),
        (None, None, None, None),
        (5, 5, "z", True),
    ]
    assert len(rows["q"]) == 1, "it cannot be read at all"
    outcome = shop.outcome({"shop.a": values})
    assert isinstance(outcome, BatchWritten)
    assert outcome.ignored == {
        "db.a: id, where it does not fit": 1,
        "db.a: n, where it does not fit": 2,
        "db.a: at, where it does not fit": 2,
    }


def test_incompatible_values_may_stop_the_sink(sqlite_catalog: LocalCatalog) -> None:
    stops = '[[tables.table]]\nmatch = "db.a"\nincompatible = "fail"\n'
    shop = shop_of(sqlite_catalog, ("[quarantine]", f"{stops}[quarantine]"))
    shop.write({"shop.a": [{"n": 1}], "shop.b": [{"n": 1}]})
    outcome = shop.outcome({"shop.b": [{"n": "x"}]})
    assert isinstance(outcome, BatchWritten)
    outcome = shop.outcome({"shop.a": [{"n": 2}, {"n": "x"}]})
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, IncompatibleValue)
    assert outcome.fatal.first == Offsets({TopicPartition("shop.a", 0): 1})
    assert "shop.a/0 offset 1" in outcome.reason


# ----------------------------------------------------------------------------------- sink files


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('schema = "infer"', 'schema = "registry"', "does not tell of columns"),
        ('schema = "infer"', 'schema = "connect"', "does not tell of columns"),
        ("[quarantine]", '[format]\ntype = "csv"\n[quarantine]', "format csv"),
        ('"evolve"', '"evolv"', "cannot be 'evolv'"),
        (
            "[quarantine]",
            '[[tables.table]]\nmatch = "db.a"\nunknown_fields = "no"\n[quarantine]',
            "cannot be 'no'",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(before: str, after: str, why: str) -> None:
    assert before in FILE
    with pytest.raises(ConfigurationError, match=why):
        parse(FILE.replace(before, after))


# ------------------------------------------------------------------------ dropped tables (LEDGER-2)

CREATES = (
    '[tables]\nledger = "db.ledger"',
    '[tables]\nledger = "db.ledger"\non_missing = "create"',
)


def test_ledger_2_what_was_filled_is_not_made_anew_and_its_records_are_diverted(
    shop: Shop,
) -> None:
    shop.filled = {"db.orders"}
    (aside,) = shop.write({"shop.orders": [{"id": 1}]})["q"]
    assert aside["error_class"] == "table"
    assert "HG-102 table db.orders no longer exists" in str(aside)
    assert not shop.local.catalog.table_exists("db.orders")
    assert shop.write({"shop.trips": [{"id": 1}]}) == {"trips": [{"id": 1}]}


def test_ledger_2_nor_is_one_that_is_declared(sqlite_catalog: LocalCatalog) -> None:
    declared = '[[tables.table]]\nmatch = "db.orders"\ncolumns = [{name = "id", type = "long"}]\n'
    shop = shop_of(sqlite_catalog, ("[quarantine]", f"{declared}[quarantine]"))
    shop.filled = {"db.orders"}
    assert shop.write({"shop.orders": [{"id": 1}]})["q"][0]["error_class"] == "table"
    assert not sqlite_catalog.catalog.table_exists("db.orders")
    shop.filled = set()
    shop.told = {}
    assert shop.write({"shop.orders": [{"id": 1}]}) == {"orders": [{"id": 1}]}


def test_ledger_2_create_makes_a_new_one_which_begins_empty(sqlite_catalog: LocalCatalog) -> None:
    shop = shop_of(sqlite_catalog, CREATES)
    shop.filled = {"db.orders"}
    shop.write({"shop.orders": [{"id": 1}]})
    sqlite_catalog.catalog.drop_table("db.orders")
    sqlite_catalog.catalog.create_namespace_if_not_exists("db")
    shop.write({"shop.other": [{"id": 1}]})  # the writer has looked which tables there are
    rows = shop.write({"shop.orders": [{"id": 2, "tip": 1.5}]})
    assert rows == {"orders": [{"id": 2, "tip": 1.5}]}


def test_ledger_2_one_whose_columns_are_asked_for_is_known_as_dropped(shop: Shop) -> None:
    wants = [Want(Destination("db.orders", "uuid-old"), Struct())]
    (said,) = shop.secondaries.create_or_change_tables(wants)
    assert said.dropped
    assert said.why.startswith("HG-102 ")
    assert not shop.local.catalog.table_exists("db.orders")


def test_ledger_2_nobody_asks_for_a_new_one_that_is_never_made() -> None:
    with pytest.raises(TablesUnfit, match="on_missing"):
        parse(FILE.replace(*CREATES).replace('schema = "infer"', 'schema = "off"'))
