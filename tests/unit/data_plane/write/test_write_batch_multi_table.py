"""Batches whose records go to many tables: each record once, in its table or aside (ROUTE-1 to
ROUTE-7, LEDGER-1)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import ForbiddenError
from support.local_catalog import LocalCatalog, local_catalog, lookup_in

from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.errors import PoisonRecord, RecordUnmatched
from headgate.control_protocol.events import TableStart, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    SinkName,
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
)
from headgate.control_protocol.quarantine_policy import BadRecordLimits, Disposal
from headgate.control_protocol.schema_evolution import Refusal
from headgate.data_plane.batch.routed_table import CreationSource
from headgate.data_plane.batch.transform_and_distribution import Shaping
from headgate.data_plane.batch.writer_task_plan import Handling, Plans, SourcePlan, WriterPlan
from headgate.data_plane.files.data_files import OPEN_FILES_MAX
from headgate.data_plane.routing import table_resolution as targets
from headgate.data_plane.routing.routes import RAW_NAME_PROPERTY, Route, Routing
from headgate.data_plane.routing.table_lookup import (
    LISTED_S,
    NAMESPACES_WITHOUT_TABLES_MAX,
    RoutedPlans,
)
from headgate.data_plane.routing.table_resolution import NEW_MAX, REASONS_MAX
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.data_plane.write.write_batch import _Table, write_chunk_around_poison
from headgate.kafka.librdkafka_binding import LentHeaders
from headgate.kafka.push_source import HEADER_BYTES, Record
from headgate.kafka.record_fetch import Chunk
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

SINK = SinkName("shop")
KEPT = Handling(
    Disposal.QUARANTINE,
    Disposal.QUARANTINE,
    limits=BadRecordLimits(per_thousand_max=1_000),
    unmatched=Disposal.QUARANTINE,
)
BY_TOPIC = Route(topic=r"^shop\.(?P<name>.+)$", to="db.{name}")
BY_FIELD = Route(topic="events", field="type", to="db.event_{field}")
BY_HEADER = Route(topic="events", header="kind", to="db.kind_{header}")


class Unsaid:
    """A sink file that says nothing of single tables, and makes none."""

    recreates_missing = False

    def source_plan_for_table(self, source: SourcePlan, _table: str) -> SourcePlan:
        return replace(source, routing=None)

    def creation_source_of(self, _source: SourcePlan, _table: str) -> None:
        return None


@dataclass
class Desk:
    """Tables, routes, and batches of records that were put."""

    local: LocalCatalog
    routes: tuple[Route, ...]
    handling: Handling = KEPT
    shaping: Shaping = field(default_factory=Shaping)
    now_s: float = 0.0
    looked: list[str] = field(default_factory=list)
    suspended: dict[str, str] = field(default_factory=dict)
    changed: tuple[TableStart, ...] = ()
    ledger: str = "db.ledger"
    plans: RoutedPlans = field(init=False)

    def __post_init__(self) -> None:
        catalog = self.local.catalog
        self.plans = RoutedPlans(
            lookup_in(catalog),
            Plans(catalog, self.shaping),
            Unsaid(),
            lambda: self.now_s,
        )

    def table(self, *names: str, raw: str = "") -> None:
        properties = {RAW_NAME_PROPERTY: raw} if raw else {}
        for name in names:
            columns = {"id": "long not null", "type": "string"}
            declared = TableDeclaration(columns, properties=properties)
            create_table_if_missing(self.local.catalog, name, declared)

    @property
    def source(self) -> SourcePlan:
        routing = Routing(self.routes)
        return SourcePlan({}, handling=self.handling, sink=SINK, routing=routing)

    def outcome(self, topics: Mapping[str, Sequence[Any]]) -> BatchOutcome:
        """What comes of the values (or values with headers) of each topic, from offset 0 on."""
        records = [
            [_record(topic, offset, value) for offset, value in enumerate(values)]
            for topic, values in topics.items()
        ]
        batch = Batch(
            number=1,
            transaction=TransactionId(Epoch(3), TransactionNumber(7)),
            table=self._start(self.ledger),
            ranges={
                TopicPartition(topic, 0): OffsetRange(0, len(values))
                for topic, values in topics.items()
            },
            target_file_bytes=1 << 27,
            topic_ids={topic: TopicId(topic) for topic in topics},
            quarantine=self._start("db.q"),
            folder="headgate/shop/3-a1/7",
            suspended=self.suspended,
            changed_tables=self.changed,
        )
        chunk = chunk_of(records)

        def write(plan: WriterPlan) -> BatchOutcome:
            self.looked.append(",".join(sorted(plan.tables)))
            return self.written(plan, batch, chunk)

        return self.plans.write_until_tables_planned(batch, self.source, write)

    def written(self, plan: WriterPlan, batch: Batch, chunk: Chunk) -> BatchOutcome:
        return write_chunk_around_poison(plan, batch, chunk)

    def write(self, topics: Mapping[str, Sequence[Any]]) -> dict[str, list[int]]:
        """By table, the ids of its rows; under ``q`` those that were quarantined."""
        written = self.outcome(topics)
        assert isinstance(written, BatchWritten), written
        assert written.files == ()
        rows = sum(file.records for some in written.secondary_files.values() for file in some)
        assert rows == sum(result.records for result in written.partitions.values())
        found = {
            at.table.removeprefix("db."): _ids(files)
            for at, files in written.secondary_files.items()
        }
        aside = [json.loads(row["value"])["id"] for row in rows_in(written.quarantined)]
        return {**found, **({"q": sorted(aside)} if aside else {})}

    def messages(self, topics: Mapping[str, Sequence[Any]]) -> set[str]:
        written = self.outcome(topics)
        assert isinstance(written, BatchWritten), written
        return {row["message"] for row in rows_in(written.quarantined)}

    def _start(self, name: str) -> TableStart:
        table = self.local.catalog.load_table(name)
        prefix = f"{table.location()}/data/headgate/shop/3-a1/7"
        uuid, schema = str(table.metadata.table_uuid), table.schema().schema_id
        return TableStart(name, uuid, schema, table.spec().spec_id, prefix)


def _record(topic: str, offset: int, value: Any) -> Record:
    value, headers = value if isinstance(value, tuple) else (value, [])
    octets = value if isinstance(value, bytes | None) else json.dumps(value).encode()
    return Record(topic, 0, offset, 1_785_585_600_123, octets, b"key", headers)


def rows_in(files: Sequence[WrittenFile]) -> list[dict[str, Any]]:
    tables = [pq.ParquetFile(file.path.removeprefix("file://")).read() for file in files]
    return list(pa.concat_tables(tables).to_pylist()) if tables else []


def _ids(files: Sequence[WrittenFile]) -> list[int]:
    return sorted(row["id"] for row in rows_in(files))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    local = local_catalog(tmp_path)
    create_table_if_missing(local.catalog, "db.ledger", TableDeclaration({"note": "string"}))
    create_table_if_missing(local.catalog, "db.q", quarantine_declaration())
    yield Desk(local, (BY_TOPIC, BY_FIELD))
    local.catalog.close()


def some(*ids: int, kind: str | None = None) -> list[dict[str, Any]]:
    return [{"id": number, "type": kind} for number in ids]


def test_topics_and_fields_name_tables(desk: Desk) -> None:
    desk.table("db.orders", "db.event_a", "db.event_b")
    events = [*some(1, kind="a"), *some(2, kind="b"), *some(3), *some(4, kind="a")]
    found = desk.write({"shop.orders": some(10, 11), "events": events, "other": some(20)})
    assert found == {"orders": [10, 11], "event_a": [1, 4], "event_b": [2], "q": [3, 20]}


def test_a_batch_is_read_again_for_tables_that_a_field_names_and_then_no_more(
    desk: Desk,
) -> None:
    desk.table("db.event_a")
    batch = {"events": some(1, kind="a")}
    assert desk.write(batch) == {"event_a": [1]}
    assert desk.write(batch) == {"event_a": [1]}
    assert desk.looked == ["", "db.event_a", "db.event_a"]


def test_routed_tables_alone_may_have_had_temporary_credentials(desk: Desk) -> None:
    desk.table("db.orders")
    desk.outcome({"shop.orders": some(1)})
    assert not desk.plans.drop_plans_with_temporary_credentials()
    desk.outcome({"shop.orders": some(1)})
    until_s, routed = desk.plans._loaded["db.orders"]
    assert routed.plan is not None
    vended = replace(routed.plan, io_properties={"s3.session-token": "t"})
    desk.plans._loaded["db.orders"] = until_s, replace(routed, plan=vended)
    assert desk.plans.drop_plans_with_temporary_credentials()
    assert not desk.plans.drop_plans_with_temporary_credentials()


def test_a_missing_table_is_named_and_found_once_it_is_there(desk: Desk) -> None:
    by_field, by_topic = {"events": some(1, kind="a")}, {"shop.orders": some(2)}
    assert desk.write({**by_field, **by_topic}) == {"q": [1, 2]}
    assert any("no table db.event_a" in text for text in desk.messages(by_field))
    desk.table("db.event_a")
    assert desk.write(by_field) == {"q": [1]}
    desk.now_s += LISTED_S
    assert desk.write(by_field) == {"event_a": [1]}
    desk.table("db.orders")
    assert desk.write(by_topic) == {"orders": [2]}, "a topic's table is looked for at once"


def test_wild_values_cost_no_catalog_calls(desk: Desk) -> None:
    wild = [some(n, kind=f"wild{n}")[0] for n in range(300)]
    assert desk.write({"events": wild}) == {"q": list(range(300))}
    looks = len(desk.looked)
    assert desk.write({"events": wild}) == {"q": list(range(300))}
    assert len(desk.looked) == looks + 1


def test_of_namespaces_without_end_that_have_no_table_few_are_listed_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of them costs a question to the catalog every ten seconds, for good."""
    desk.routes = (Route(topic="events", field="type", to="n{field}.t"),)
    desk.table("na.t")
    lookup, listed = desk.plans._lookup, list[str]()

    def list_table_names(namespace: str) -> frozenset[str]:
        listed.append(namespace)
        return lookup.list_table_names(namespace)

    looking = SimpleNamespace(look_up_table=lookup.look_up_table, list_table_names=list_table_names)
    monkeypatch.setattr(desk.plans, "_lookup", looking)
    wild = NAMESPACES_WITHOUT_TABLES_MAX + 50
    for n in range(0, wild, 10):
        new = [some(i, kind=str(i))[0] for i in range(n, n + 10)]
        desk.outcome({"events": [*some(1, kind="a"), *new]})
    assert len(set(listed)) == wild + 1
    desk.now_s += LISTED_S
    listed.clear()
    assert isinstance(desk.outcome({"events": some(1, kind="a")}), BatchWritten)
    assert len(listed) == NAMESPACES_WITHOUT_TABLES_MAX + 1
    assert "na" in listed


def test_a_name_in_each_record_is_dealt_with_once_and_not_once_for_each(desk: Desk) -> None:
    """Else whoever writes to a routed field holds up every other record."""
    desk.table("db.event_a")
    wild = [some(n, kind=f"wild{n}")[0] for n in range(3_000)]
    batch = {"events": [*wild, *some(3_000, kind="a")]}
    assert desk.write(batch) == {"event_a": [3_000], "q": list(range(3_000))}
    told = desk.messages(batch)
    assert len(told) == REASONS_MAX + 1
    assert any(text.startswith("there is no table of the name that") for text in told)
    assert all(table.count(",") <= NEW_MAX for table in desk.looked)


def test_spellings_without_end_of_one_name_are_dealt_with_together(desk: Desk) -> None:
    desk.table("db.event_a_b")
    wild = [some(n, kind=f"a{chr(0x4E00 + n)}b")[0] for n in range(500)]
    assert desk.write({"events": wild}) == {"q": list(range(500))}
    assert len(desk.messages({"events": wild})) == REASONS_MAX + 1


@dataclass
class Maker(Desk):
    """A sink file that lets tables be made from what records show."""

    def __post_init__(self) -> None:
        catalog = self.local.catalog
        plans = Plans(catalog, self.shaping)
        self.plans = RoutedPlans(
            lookup_in(catalog),
            plans,
            Makes(),
            lambda: self.now_s,
        )

    @property
    def source(self) -> SourcePlan:
        return replace(super().source, creates_tables=True)


@dataclass
class Declarer(Maker):
    """A sink file that declares one table, and lets no other be made."""

    @property
    def source(self) -> SourcePlan:
        routing = Routing(self.routes, (), (("db.event_declared", True),), creates_others=False)
        return replace(super().source, routing=routing)


class Makes(Unsaid):
    def creation_source_of(self, source: SourcePlan, table: str) -> CreationSource | None:
        assert source.routing is not None, "there are routes"
        made = source.routing.may_create(table)
        return CreationSource(replace(source, routing=None)) if made else None


def test_of_names_without_end_a_few_are_proposed_and_all_tables_that_exist_are_found(
    desk: Desk,
) -> None:
    """CREATE-1: the batch is done again for the others, whatever they are."""
    there = [f"db.event_t{n}" for n in range(NEW_MAX + 20)]
    desk.table(*there)
    maker = Maker(desk.local, desk.routes)
    wild = [some(n, kind=f"wild{n}")[0] for n in range(2_000)]
    known = [some(n, kind=f"t{n}")[0] for n in range(len(there))]
    outcome = maker.outcome({"events": [*wild, *known]})
    assert isinstance(outcome, BatchNeeds), outcome
    assert len(outcome.tables) == NEW_MAX
    assert len(maker.looked) <= 4
    assert maker.looked[-1].count(",") + 1 <= len(there) + NEW_MAX
    assert set(there) <= set(maker.looked[-1].split(","))


def test_names_without_end_of_which_none_is_declared_do_not_hold_a_batch_up(desk: Desk) -> None:
    """CREATE-1: each is one more than a writing may ask for."""
    desk.table("db.event_a")
    maker = Declarer(desk.local, desk.routes)
    wild = [some(n, kind=f"wild{n}")[0] for n in range(6 * NEW_MAX)]
    batch = {"events": [*wild, *some(len(wild), kind="a")]}
    assert maker.write(batch) == {"event_a": [len(wild)], "q": list(range(len(wild)))}
    assert any("db.event_wild0, and none is declared" in text for text in maker.messages(batch))
    made = maker.outcome({"events": [*wild, *some(len(wild), kind="declared")]})
    assert isinstance(made, BatchNeeds), made
    assert [need.at.table for need in made.tables] == ["db.event_declared"]


def test_tables_that_the_coordinator_refused_do_not_hold_a_batch_up(desk: Desk) -> None:
    """CREATE-1: they are known at once, however many there are; the others are proposed."""
    why = (Refusal((), "its partitions lack a column"),)
    maker = Maker(desk.local, desk.routes)
    maker.changed = tuple(
        TableStart(f"db.event_wild{n}", "", 0, 0, "", refused=why) for n in range(5 * NEW_MAX)
    )
    wild = [some(n, kind=f"wild{n}")[0] for n in range(6 * NEW_MAX)]
    outcome = maker.outcome({"events": wild})
    assert isinstance(outcome, BatchNeeds), outcome
    assert len(outcome.tables) == NEW_MAX
    assert len(maker.looked) <= 3


def test_route_4_a_table_that_was_made_after_it_was_refused_takes_its_records(desk: Desk) -> None:
    maker = Maker(desk.local, desk.routes)
    why = (Refusal((), "its partitions lack a column"),)
    maker.changed = (TableStart("db.event_a", "", 0, 0, "", refused=why),)
    batch = {"events": some(1, kind="a")}
    assert maker.write(batch) == {"q": [1]}
    maker.table("db.event_a")
    maker.now_s = LISTED_S + 1
    assert maker.write(batch) == {"event_a": [1]}


def test_names_that_collide_are_unmatched_unless_they_may_merge(desk: Desk) -> None:
    desk.table("db.a_b", "db.event_click")
    desk.table("db.event_view", raw="db.event_View")
    batch = {
        "shop.a-b": some(1),
        "shop.a.b": some(2),
        "events": [*some(3, kind="Click"), *some(4, kind="click"), *some(5, kind="View")],
    }
    assert desk.write(batch) == {
        "a_b": [1],
        "event_click": [4],
        "event_view": [5],
        "q": [2, 3],
    }
    desk.routes = tuple(replace(route, merge=True) for route in desk.routes)
    assert desk.write(batch) == {"a_b": [1, 2], "event_click": [3, 4], "event_view": [5]}


def test_headers_name_tables(desk: Desk) -> None:
    desk.routes = (BY_HEADER,)
    desk.table("db.kind_a")
    events = [
        (some(1)[0], [("kind", b"a")]),
        (some(2)[0], [("kind", b"b"), ("kind", b"a")]),
        (some(3)[0], [("kind", None)]),
        (some(4)[0], []),
    ]
    assert desk.write({"events": events}) == {"kind_a": [1, 2], "q": [3, 4]}


FITS_THE_QUARANTINE = {
    "id": 2,
    "topic": "events",
    "partition": 0,
    "offset": 0,
    "sink": "shop",
    "value": "e30=",
    "epoch": 1,
    "transaction": 1,
    "error_class": "table",
    "table_name": "db.a",
    "message": "m",
}


def one_by_one(desk: Desk, *kinds: str) -> list[set[tuple[str, str, str]]]:
    """Four batches that differ in nothing: the writer learns of tables from one to the next."""
    events = [dict(FITS_THE_QUARANTINE, type=kind) for kind in kinds]
    batch = {"events": [*events, *some(1, kind="a")], "shop.orders": some(3)}
    found = []
    for _ in range(4):
        written = desk.outcome(batch)
        assert isinstance(written, BatchWritten), written
        assert {at.table for at in written.secondary_files} == {"db.a", "db.orders"}
        (result, _) = written.partitions.values()
        assert (result.records, result.quarantined, result.bad) == (1, len(kinds), len(kinds))
        rows = rows_in(written.quarantined)
        found.append({(row["error_class"], row["message"]) for row in rows})
        desk.now_s += 2 * LISTED_S
    return found


BY_KIND = Route(topic="events", field="type", to="db.{field}")


def test_a_record_that_names_the_ledger_or_the_quarantine_is_bad_in_every_batch(
    desk: Desk,
) -> None:
    """As rows of the ledger, no status would be admitted any more; as rows of the quarantine it
    would say what no sink ever said."""
    desk.routes = (BY_TOPIC, BY_KIND)
    desk.table("db.a", "db.orders")
    said = {
        ("own table", f"names db.{name}, which is one of the sink's own tables")
        for name in ("ledger", "q")
    }
    assert one_by_one(desk, "ledger", "q") == [said] * 4


@pytest.mark.parametrize("own", ["db.Ledger", "db.LEDGER", "Db.ledger", "db.\uff4cedger"])
def test_whatever_letters_name_the_ledger_a_record_does_not(desk: Desk, own: str) -> None:
    """Catalogs that fold case or normalise names would take both for the same table."""
    catalog = desk.local.catalog
    catalog.create_namespace_if_not_exists(own.partition(".")[0])
    create_table_if_missing(catalog, own, TableDeclaration({"note": "string"}))
    desk.ledger = own
    desk.routes = (BY_TOPIC, BY_KIND)
    desk.table("db.a", "db.orders")
    (said, *others) = one_by_one(desk, "ledger", "LEDGER")
    assert {why for why, _ in said} == {"own table"}
    assert others == [said] * 3


def test_a_topic_that_names_the_ledger_makes_bad_records(desk: Desk) -> None:
    desk.table("db.orders")
    for _ in range(3):
        assert desk.write({"shop.ledger": some(1), "shop.q": some(2), "shop.orders": some(3)}) == {
            "orders": [3],
            "q": [1, 2],
        }


def test_the_policy_says_what_becomes_of_a_record_that_names_the_ledger(desk: Desk) -> None:
    desk.routes = (BY_KIND,)
    batch = {"events": some(1, kind="ledger")}
    desk.handling = replace(KEPT, policy=Disposal.FAIL)
    outcome = desk.outcome(batch)
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, PoisonRecord)
    assert "events partition 0 offset 0: names db.ledger" in outcome.reason
    desk.handling = replace(KEPT, policy=Disposal.SKIP)
    written = desk.outcome(batch)
    assert isinstance(written, BatchWritten)
    assert not written.all_files


def test_each_table_and_partition_has_a_first_record_that_stops_the_sink(desk: Desk) -> None:
    """BATCH-2: tables are decoded when they are worth it, so that a later record may be met
    first."""
    desk.table("db.orders", "db.users", "db.event_a")
    desk.handling = replace(KEPT, policy=Disposal.FAIL)
    bad = {"id": "x", "type": "a"}
    outcome = desk.outcome(
        {
            "shop.orders": [*some(1, 2), bad, *some(4)],
            "shop.users": some(1, 2),
            "events": [*some(1, kind="a"), bad, b"{", *some(4, kind="a")],
        }
    )
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, PoisonRecord)
    at = {TopicPartition("shop.orders", 0): 2, TopicPartition("events", 0): 1}
    assert outcome.fatal.first == Offsets(at)
    assert not list(desk.local.warehouse.rglob("*.parquet"))


def test_a_field_that_no_record_has_is_no_failure(desk: Desk) -> None:
    assert desk.write({"events": [{"id": 1}, {"id": 2}]}) == {"q": [1, 2]}


def test_what_no_field_sends_anywhere_goes_by_its_topic(desk: Desk) -> None:
    """The first route that matches a record: the second, where the first looks at a field."""
    desk.routes = (BY_FIELD, Route(topic="events", to="db.rest"))
    desk.table("db.event_a", "db.rest")
    found = desk.write({"events": [*some(1, kind="a"), *some(2, 3)]})
    assert found == {"event_a": [1], "rest": [2, 3]}


def test_numbers_and_paths_name_tables(desk: Desk) -> None:
    desk.routes = (Route(field="payload.kind", to="db.kind_{field}"),)
    desk.table("db.kind_7")
    events = [{"id": 1, "payload": {"kind": 7}}, {"id": 2, "payload": None}, {"id": 3}]
    assert desk.write({"events": events}) == {"kind_7": [1], "q": [2, 3]}


def test_bad_records_and_tombstones_are_aside_once(desk: Desk) -> None:
    desk.table("db.event_a", "db.orders")
    bad = [b"{", None, *some(1, kind="a"), {"id": "x", "type": "a"}]
    written = desk.outcome({"events": bad, "shop.orders": [b"{", None, *some(2)]})
    assert isinstance(written, BatchWritten)
    counts = {
        at.topic: (result.records, result.quarantined, result.bad)
        for at, result in written.partitions.items()
    }
    assert counts == {"events": (1, 3, 2), "shop.orders": (1, 2, 1)}
    assert len(rows_in(written.quarantined)) == 5


@pytest.mark.parametrize("disposal", [Disposal.SKIP, Disposal.FAIL])
def test_unmatched_records_are_skipped_and_counted_or_stop_the_sink(
    desk: Desk, disposal: Disposal
) -> None:
    desk.handling = replace(KEPT, unmatched=disposal)
    outcome = desk.outcome({"other": some(1, 2)})
    if disposal is Disposal.FAIL:
        assert isinstance(outcome, BatchFailed)
        assert isinstance(outcome.fatal, RecordUnmatched)
        assert outcome.fatal.code == "HG-223"
        return
    assert isinstance(outcome, BatchWritten)
    (result,) = outcome.partitions.values()
    assert (result.records, result.skipped, result.bad) == (0, 2, 0)


def test_more_tables_than_may_be_open_are_written_within_bounds(desk: Desk) -> None:
    kinds = [f"k{n}" for n in range(OPEN_FILES_MAX + 8)]
    desk.table(*(f"db.event_{kind}" for kind in kinds))
    events = [some(n, kind=kinds[n % len(kinds)])[0] for n in range(10 * len(kinds))]
    found = desk.write({"events": events})
    assert set(found) == {f"event_{kind}" for kind in kinds}
    assert sorted(one for ids in found.values() for one in ids) == list(range(10 * len(kinds)))


class Lent(LentHeaders):
    """Headers that a fetcher lends, of one message after another."""

    def __init__(self, *headers: Any) -> None:
        self._headers = headers

    def __len__(self) -> int:
        return len(self._headers)

    def __getitem__(self, row: Any) -> Any:
        return self._headers[row]


def test_headers_that_are_kept_count_among_what_waits() -> None:
    """Of a thousand tables half a million records may wait for more, each with its headers."""
    records = [_record("events", offset, b"x" * 10) for offset in range(4)]
    headers = Lent([("a", b"x" * 90), ("b", None)], [], None, [("a", b"x" * 10)])
    table = _Table(MagicMock(), MagicMock())
    table.add_waiting(replace(chunk_of([records]), headers=headers))
    for _ in range(2):
        table.detach_waiting_chunks()
        assert table.waiting_bytes == 4 * (10 + len(b"key")) + 3 * HEADER_BYTES + 90 + 10
    assert table.waiting[0].headers == list(headers)


def test_keys_count_among_what_waits() -> None:
    """A tombstone is nothing but its key."""
    table = _Table(MagicMock(), MagicMock())
    records = [_record("events", offset, None)._replace(key=b"k" * 10_000) for offset in range(200)]
    table.add_waiting(replace(chunk_of([records]), headers=None))
    assert table.waiting_bytes == 200 * 10_000
    assert table.is_worth_decoding


def test_a_failed_batch_leaves_no_file(desk: Desk, tmp_path: Path) -> None:
    desk.handling = replace(KEPT, policy=Disposal.FAIL)
    desk.table("db.orders")
    outcome = desk.outcome({"shop.orders": [*some(1), b"{"]})
    assert isinstance(outcome, BatchFailed)
    assert list(tmp_path.rglob("*.parquet")) == []


# ---------------------------------------------------------------------------- isolation (SUSPEND-1)


def classes(written: BatchOutcome) -> set[str]:
    assert isinstance(written, BatchWritten), written
    return {row["error_class"] for row in rows_in(written.quarantined)}


def test_records_of_a_suspended_table_go_to_the_quarantine_and_are_not_bad(desk: Desk) -> None:
    desk.table("db.orders", "db.event_a")
    desk.suspended = {"db.orders": "HG-102 dropped", "db.event_a": "HG-103 not allowed"}
    written = desk.outcome({"shop.orders": some(1, 2), "events": some(3, kind="a")})
    assert isinstance(written, BatchWritten)
    assert classes(written) == {"table"}
    assert {row["message"] for row in rows_in(written.quarantined)} == {
        "db.orders: HG-102 dropped",
        "db.event_a: HG-103 not allowed",
    }
    meant = {row["table_name"] for row in rows_in(written.quarantined)}
    assert meant == {"db.orders", "db.event_a"}, "so that they can be put again (SUSPEND-6)"
    assert sum(result.bad for result in written.partitions.values()) == 0
    assert sum(result.quarantined for result in written.partitions.values()) == 3
    assert written.troubles == {}, "the coordinator knows"
    assert desk.looked == [""], "nobody loads them"


@pytest.mark.parametrize("topics", [{"shop.orders": some(1)}, {"events": some(1, kind="a")}])
def test_a_table_that_vanishes_is_told_and_its_records_are_kept(
    desk: Desk, topics: dict[str, Any]
) -> None:
    """Whatever tables.unmatched says: it is no route's fault."""
    desk.handling = replace(KEPT, unmatched=Disposal.FAIL)
    desk.table("db.orders", "db.event_a")
    desk.write(topics)
    name = "db.orders" if "shop.orders" in topics else "db.event_a"
    desk.local.catalog.drop_table(name)
    desk.now_s += LISTED_S
    for _ in range(2):
        written = desk.outcome(topics)
        assert classes(written) == {"table"}
        assert isinstance(written, BatchWritten)
        assert written.troubles.keys() == {name}
        assert written.troubles[name].startswith("HG-102")


def test_a_table_that_may_not_be_loaded_is_told(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.table("db.orders", "db.event_a")
    catalog, load = desk.local.catalog, desk.local.catalog.load_table

    def refusing(identifier: Any) -> Any:
        if identifier == "db.orders":
            raise ForbiddenError("not for you")
        return load(identifier)

    monkeypatch.setattr(catalog, "load_table", refusing)
    written = desk.outcome({"shop.orders": some(1), "events": some(3, kind="a")})
    assert isinstance(written, BatchWritten)
    assert classes(written) == {"table"}
    assert written.troubles["db.orders"].startswith("HG-103")
    assert [at.table for at in written.secondary_files] == ["db.event_a"]


def test_what_was_suspended_is_looked_up_afresh(desk: Desk) -> None:
    """Else a table that was resumed would be told as gone, and suspended again."""
    desk.table("db.event_a")
    batch = {"events": some(1, kind="a")}
    desk.write(batch)
    desk.local.catalog.drop_table("db.event_a")
    desk.now_s += LISTED_S
    desk.outcome(batch)
    desk.suspended = {"db.event_a": "HG-102"}
    desk.outcome(batch)
    desk.table("db.event_a")
    desk.suspended = {}
    assert desk.write(batch) == {"event_a": [1]}
    written = desk.outcome(batch)
    assert isinstance(written, BatchWritten)
    assert written.troubles == {}


def test_records_without_a_table_are_told_once_a_minute(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    targets._logged.clear()
    for _ in range(2):
        desk.write({"other": some(1, 2)})
    (line,) = [r for r in caplog.records if r.headgate_event == "records.unmatched"]  # type: ignore[attr-defined]
    assert "2 records of a batch go to no table" in line.getMessage()
