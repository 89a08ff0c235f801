"""Batches whose topics go to tables with keys and without: rows, key files, and what goes aside."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import LongType, StringType
from support.local_catalog import local_catalog, lookup_in
from unit.data_plane.write.test_write_batch_multi_table import KEPT, SINK, Desk, rows_in, some

from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.errors import PoisonRecord
from headgate.control_protocol.events import FileKind
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    Batch,
    BatchFailed,
    BatchNeeds,
    BatchOutcome,
    BatchWritten,
)
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.data_plane.batch.transform_and_distribution import Distribution
from headgate.data_plane.batch.writer_task_plan import Plans, SourcePlan, WriterPlan
from headgate.data_plane.cdc.policy import Changes, Tombstones
from headgate.data_plane.routing.routes import Route, Routing
from headgate.data_plane.routing.table_lookup import RoutedPlans
from headgate.data_plane.spark.job import is_one_stage
from headgate.data_plane.write import table_outlets, write_batch
from headgate.kafka.record_fetch import Chunk
from headgate.participant.settings import SchemaPolicy, UnknownFields
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing
from headgate.tables.iceberg.upsert.key_files import OFFSET, PARTITION, TOPIC

BY_TOPIC = (
    Route(topic=r"^shop\.(?P<name>.+)$", to="db.{name}"),
    Route(topic="logs", to="db.logs"),
)
KEYS = (("db.(orders|users)", ("type",)),)
"""Messages of these tests have the key "key"."""
PLACES = {"topic": "kafka_topic", "partition": "kafka_partition", "offset": "kafka_offset"}
COLUMNS = {
    "id": "long not null",
    "type": "string not null",
    "kafka_topic": "string",
    "kafka_partition": "int",
    "kafka_offset": "long",
}


@dataclass
class Keyed:
    """A sink file with keys for some tables."""

    tombstones: Tombstones = Tombstones.DELETE
    unknown: UnknownFields = UnknownFields.IGNORE
    recreates_missing = False

    def source_plan_for_table(self, source: SourcePlan, table: str) -> SourcePlan:
        assert source.routing is not None
        key = source.routing.key_of(table)
        changes = Changes(key, tombstones=self.tombstones) if key else None
        return replace(
            source,
            routing=None,
            record_columns=PLACES,
            changes=changes,
            schema_policy=SchemaPolicy(self.unknown),
        )

    def creation_source_of(self, _source: SourcePlan, _table: str) -> None:
        return None


@dataclass
class KeyedDesk(Desk):
    of_table: Keyed = field(default_factory=Keyed)

    def __post_init__(self) -> None:
        catalog = self.local.catalog
        plans = Plans(catalog, self.shaping)
        self.plans = RoutedPlans(
            lookup_in(catalog),
            plans,
            self.of_table,
            lambda: self.now_s,
        )

    def made(self, *names: str) -> None:
        for name in names:
            key = ("type",) if name != "db.logs" else ()
            create_table_if_missing(self.local.catalog, name, TableDeclaration(COLUMNS, key=key))

    @property
    def source(self) -> SourcePlan:
        return SourcePlan({}, handling=self.handling, sink=SINK, routing=Routing(self.routes, KEYS))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[KeyedDesk]:
    local = local_catalog(tmp_path)
    create_table_if_missing(local.catalog, "db.ledger", TableDeclaration({"note": "string"}))
    create_table_if_missing(local.catalog, "db.q", quarantine_declaration())
    yield KeyedDesk(local, BY_TOPIC)
    local.catalog.close()


class Tasks(KeyedDesk):
    """As Spark's tasks write."""

    def write_planned(self, plan: WriterPlan, batch: Batch, chunk: Chunk) -> BatchOutcome:
        assert plan.shaping.distribution is Distribution.HASH
        assert is_one_stage(plan)
        return super().write_planned(plan, batch, chunk)


def test_records_of_keyed_topics_that_name_the_sinks_own_tables_are_bad(desk: KeyedDesk) -> None:
    desk.made("db.orders")
    batch = {"shop.orders": some(1, kind="a"), "shop.ledger": some(2, kind="a"), "shop.q": [None]}
    for _ in range(3):
        written = desk.outcome(batch)
        assert isinstance(written, BatchWritten), written
        assert {at.table for at in written.secondary_files} == {"db.orders"}
        classes = {row["error_class"] for row in rows_in(written.quarantined)}
        assert classes == {"own table", "tombstone"}


def test_each_keyed_table_has_a_first_record_that_stops_the_sink(desk: KeyedDesk) -> None:
    """BATCH-2: also one whose records wait until another table's has stopped it."""
    desk.made("db.orders", "db.users", "db.logs")
    desk.handling = replace(KEPT, policy=Disposal.FAIL)
    bad = {"id": "x", "type": "a"}
    topics = ("shop.orders", "shop.users", "logs")
    outcome = desk.outcome({topic: [*some(1, kind="a"), bad] for topic in topics})
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, PoisonRecord)
    assert outcome.fatal.first == Offsets({TopicPartition(topic, 0): 1 for topic in topics})
    assert not list(desk.local.warehouse.rglob("*.parquet"))


def test_key_2_changes_are_written_where_they_are_read_whatever_the_ledger_asks_for(
    desk: KeyedDesk,
) -> None:
    """A catalog may give every new table this property: with it no batch ever came to its end."""
    with desk.local.catalog.load_table("db.ledger").transaction() as transaction:
        transaction.set_properties({"write.distribution-mode": "hash"})
    desk.made("db.orders", "db.logs")
    tasks = Tasks(desk.local, BY_TOPIC)
    outcome = written(tasks, {"shop.orders": [some(1), None], "logs": [some(2)]})
    assert keys_of(outcome, "db.orders") == [("key", "shop.orders", 0, 1)]


def written(desk: KeyedDesk, topics: dict[str, list[Any]]) -> BatchWritten:
    outcome = desk.outcome(topics)
    assert isinstance(outcome, BatchWritten), outcome
    return outcome


def keys_of(outcome: BatchWritten, table: str) -> list[tuple[Any, ...]]:
    files = [f for at, some in outcome.secondary_files.items() if at.table == table for f in some]
    rows = rows_in([file for file in files if file.kind is FileKind.KEYS])
    return [(row["type"], row[TOPIC], row[PARTITION], row[OFFSET]) for row in rows]


def counted(outcome: BatchWritten) -> dict[str, tuple[int, int, int, int]]:
    return {
        at.topic: (found.records, found.deleted, found.quarantined, found.skipped)
        for at, found in outcome.partitions.items()
    }


NO_VALUE = None
TOMBSTONE = None


def test_key_2_tombstones_delete_where_there_is_a_key_and_go_aside_where_there_is_none(
    desk: KeyedDesk,
) -> None:
    desk.made("db.orders", "db.users", "db.logs")
    outcome = written(
        desk,
        {
            "shop.orders": [*some(1, 2, kind="a"), None, *some(3, kind="b")],
            "shop.users": [None],
            "logs": [*some(5, kind="c"), None],
            "other": [None],
        },
    )
    assert counted(outcome) == {
        "shop.orders": (3, 1, 0, 0),
        "shop.users": (0, 1, 0, 0),
        "logs": (1, 0, 1, 0),
        "other": (0, 0, 1, 0),
    }
    assert keys_of(outcome, "db.orders") == [("key", "shop.orders", 0, 2)]
    assert keys_of(outcome, "db.users") == [("key", "shop.users", 0, 0)]
    assert keys_of(outcome, "db.logs") == []
    classes = [row["error_class"] for row in rows_in(outcome.quarantined)]
    assert classes == ["tombstone", "tombstone"]
    folder = "/data/headgate/shop/3-a1/7/"
    paths = [file.path for files in outcome.secondary_files.values() for file in files]
    assert all(folder in path for path in paths)


def test_key_2_a_policy_for_records_without_a_value_holds_for_tables_with_a_key_alone(
    desk: KeyedDesk,
) -> None:
    desk.made("db.orders", "db.logs")
    values = {"shop.orders": [*some(1, kind="a"), None], "logs": [None]}
    desk.of_table.tombstones = Tombstones.SKIP
    assert counted(written(desk, values)) == {"shop.orders": (1, 0, 0, 1), "logs": (0, 0, 1, 0)}
    desk.of_table.tombstones = Tombstones.FAIL
    desk.plans.drop_plans_with_temporary_credentials()
    failed = desk.outcome(values)
    assert isinstance(failed, BatchFailed)
    assert "shop.orders partition 0 offset 1: has no value" in failed.reason


def test_suspend_1_records_of_a_suspended_table_are_diverted_those_that_delete_too(
    desk: KeyedDesk,
) -> None:
    desk.made("db.orders")
    desk.suspended = {"db.orders": "HG-241 a key is in two partitions"}
    outcome = written(desk, {"shop.orders": [*some(1, kind="a"), None]})
    assert counted(outcome) == {"shop.orders": (0, 0, 2, 0)}
    rows = rows_in(outcome.quarantined)
    assert [row["error_class"] for row in rows] == ["table", "table"]
    assert rows[1]["value"] is None
    assert rows[1]["key"] == b"key"


def test_route_2_a_table_with_a_key_that_is_not_there_has_no_match_for_any_record(
    desk: KeyedDesk,
) -> None:
    outcome = written(desk, {"shop.orders": [*some(1, kind="a"), None]})
    assert counted(outcome) == {"shop.orders": (0, 0, 2, 0)}
    assert {row["error_class"] for row in rows_in(outcome.quarantined)} == {"route"}


def test_key_1_a_table_without_such_a_key_has_no_match_and_says_why(desk: KeyedDesk) -> None:
    for columns, properties, why in (
        ({**COLUMNS, "type": "string"}, {}, "not required"),
        (COLUMNS, {"write.format.default": "orc"}, "wants its files in orc"),
    ):
        name = f"db.{'orders' if properties else 'users'}"
        create_table_if_missing(
            desk.local.catalog, name, TableDeclaration(columns, properties=properties)
        )
        topic = f"shop.{name.removeprefix('db.')}"
        (message,) = desk.messages({topic: some(1, kind="a")})
        assert why in message


def test_route_6_keys_that_wait_are_bounded_with_the_rows(
    desk: KeyedDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.made("db.orders", "db.users")
    monkeypatch.setattr(table_outlets, "BUFFER_BYTES", 1)
    monkeypatch.setattr(write_batch, "_PORTION", (1, 1))
    outcome = written(desk, {"shop.orders": [None, None], "shop.users": [None]})
    assert len(keys_of(outcome, "db.orders")) == 2
    assert counted(outcome)["shop.users"] == (0, 1, 0, 0)


def test_token_1_a_batch_that_fails_leaves_no_key_file(desk: KeyedDesk) -> None:
    desk.made("db.orders", "db.logs")
    desk.handling = replace(desk.handling, policy=Disposal.FAIL)
    failed = desk.outcome({"shop.orders": [None], "logs": [b"no json"]})
    assert isinstance(failed, BatchFailed)
    assert files_of(desk, "db.orders") == set()


def files_of(desk: KeyedDesk, table: str) -> set[Path]:
    location = desk.local.catalog.load_table(table).location()
    return set(Path(location.removeprefix("file://")).rglob("*.parquet"))


def test_schema_2_a_keyed_table_of_many_asks_for_the_columns_that_its_rows_lack(
    desk: KeyedDesk,
) -> None:
    """Each table of the batch in one question; what is said of rows that go asks for nothing."""
    desk.made("db.orders", "db.users", "db.logs")
    desk.of_table.unknown = UnknownFields.EVOLVE
    topics = {
        "shop.orders": [*some(1, kind="a"), {"id": 2, "type": "b", "note": "x"}, None],
        "shop.users": [{"id": 3, "type": "c", "age": 7}],
        "logs": [{"id": 4, "type": "d", "level": "low"}],
    }
    needs = desk.outcome(topics)
    assert isinstance(needs, BatchNeeds)
    wanted = {need.at.table: need.columns.fields[0] for need in needs.tables}
    assert {table: column.name for table, column in wanted.items()} == {
        "db.logs": "level",
        "db.orders": "note",
        "db.users": "age",
    }
    assert needs.first[TopicPartition("shop.orders", 0)] == 1
    tables = ("db.orders", "db.users", "db.logs")
    assert [files_of(desk, table) for table in tables] == [set()] * 3

    for table in tables:
        with desk.local.catalog.load_table(table).update_schema() as update:
            kind = LongType() if table == "db.users" else StringType()
            update.add_column(wanted[table].name, kind)
    desk.now_s += 60
    outcome = written(desk, topics)
    files = {at.table: some for at, some in outcome.secondary_files.items()}
    rows = rows_in([file for file in files["db.orders"] if file.kind is FileKind.ROWS])
    assert [row["note"] for row in rows] == [None, "x"]
    assert [key[-1] for key in keys_of(outcome, "db.orders")] == [2]


def test_schema_2_where_they_are_quarantined_the_rows_of_the_others_stay(desk: KeyedDesk) -> None:
    desk.made("db.orders")
    desk.of_table.unknown = UnknownFields.QUARANTINE
    rows = [*some(1, kind="a"), {"id": 2, "type": "b", "note": "x"}]
    assert counted(written(desk, {"shop.orders": rows}))["shop.orders"] == (1, 0, 1, 0)


BY_PLACE = (
    Route(topic="events", header="table", to="db.{header}"),
    Route(topic="events", field="table", value="^users|orders$", to="db.{field}"),
    Route(topic="events", to="db.orders"),
)


def at(table: str, number: int, kind: str) -> dict[str, Any]:
    return {"id": number, "type": kind, "table": table}


def ids_of(outcome: BatchWritten, table: str) -> list[int]:
    files = [f for at, some in outcome.secondary_files.items() if at.table == table for f in some]
    rows = rows_in([file for file in files if file.kind is FileKind.ROWS])
    return [row["id"] for row in rows]


@pytest.mark.parametrize("tombstones", [Tombstones.SKIP, Tombstones.FAIL])
def test_key_2_what_has_no_value_goes_to_no_table_where_values_tell_which(
    desk: KeyedDesk, tombstones: Tombstones
) -> None:
    """Neither to the table of another record nor to the one that takes what is left."""
    desk.routes = BY_PLACE[1:]
    desk.made("db.orders", "db.users")
    desk.of_table.tombstones = tombstones
    desk.handling = replace(desk.handling, unrouted_tombstones=tombstones.disposal)
    values = [at("users", 1, "a"), None, at("orders", 2, "b"), at("else", 3, "c")]
    if tombstones is Tombstones.FAIL:
        failed = desk.outcome({"events": values})
        assert isinstance(failed, BatchFailed)
        assert "events partition 0 offset 1: has no value" in failed.reason
        return
    outcome = written(desk, {"events": values})
    assert counted(outcome) == {"events": (3, 0, 0, 1)}
    assert (ids_of(outcome, "db.users"), ids_of(outcome, "db.orders")) == ([1], [2, 3])
    assert counted(written(desk, {"events": [None, None]})) == {"events": (0, 0, 0, 2)}


def test_key_2_a_header_tells_of_which_table_a_record_without_a_value_is(desk: KeyedDesk) -> None:
    """One that it does not tell of is as unmatched as any other record."""
    desk.routes = BY_PLACE[:1]
    desk.made("db.orders", "db.users", "db.logs")
    headed = [(None, [("table", name)]) for name in (b"users", b"orders", b"logs")]
    row = (at("users", 7, "x"), [("table", b"users")])
    outcome = written(desk, {"events": [*headed, None, row]})
    assert counted(outcome) == {"events": (1, 2, 2, 0)}
    assert keys_of(outcome, "db.users") == [("key", "events", 0, 0)]
    assert keys_of(outcome, "db.orders") == [("key", "events", 0, 1)]
    classes = {row["offset"]: row["error_class"] for row in rows_in(outcome.quarantined)}
    assert classes == {2: "tombstone", 3: "route"}


def test_key_2_records_of_a_key_come_to_one_table_by_several_routes(desk: KeyedDesk) -> None:
    """Whatever order they are written in, each says which record it is: the highest offset wins."""
    desk.routes = BY_PLACE
    desk.made("db.orders", "db.users")
    rows = [at(("orders", "else")[number % 2], number, "a") for number in range(6)]
    headed = [(row, [("table", b"orders")] if row["id"] % 3 == 0 else []) for row in rows]
    outcome = written(desk, {"events": headed})
    assert sorted(ids_of(outcome, "db.orders")) == list(range(6))
    files = [f for some in outcome.secondary_files.values() for f in some]
    assert all(row["id"] == row["kafka_offset"] for row in rows_in(files))


def test_route_2_what_a_route_looks_at_may_be_missing_in_a_record_of_a_key(desk: KeyedDesk) -> None:
    desk.routes = BY_PLACE[1:2]
    desk.made("db.orders")
    values = [at("orders", 1, "a"), {"id": 2, "type": "a"}, at("none", 3, "a"), b"no json"]
    outcome = written(desk, {"events": values})
    assert counted(outcome) == {"events": (1, 0, 3, 0)}
    classes = {row["offset"]: row["error_class"] for row in rows_in(outcome.quarantined)}
    assert classes == {1: "route", 2: "route", 3: "value"}


@pytest.mark.parametrize("seed", range(4))
def test_key_2_what_is_written_of_shared_topics_is_the_fold_of_each_table(
    desk: KeyedDesk, seed: int
) -> None:
    """By headers, then by fields, then by what is left; the oracle knows nothing of columns."""
    dice = random.Random(seed)
    desk.routes = (
        Route(topic="^event", header="table", value="^(users|orders|logs)$", to="db.{header}"),
        Route(topic="events", field="table", value="^(users|orders|logs)$", to="db.{field}"),
        Route(topic="events", to="db.orders"),
    )
    desk.made("db.orders", "db.users", "db.logs")
    skips = dice.random() < 0.5
    desk.of_table.tombstones = Tombstones.SKIP if skips else Tombstones.DELETE
    desk.handling = replace(desk.handling, unrouted_tombstones=desk.of_table.tombstones.disposal)
    topics: dict[str, list[Any]] = {"events": [], "eventual": []}
    expected: dict[str, dict[Any, tuple[int, str] | None]] = {"db.orders": {}, "db.users": {}}
    logs, aside, let_go = 0, 0, 0
    for number in range(300):
        topic, table = dice.choice([*topics]), dice.choice(("orders", "users", "logs", "", ""))
        named, value = dice.choice(("orders", "users", "logs", "x", None)), dice.random() < 0.7
        row = {"id": number, "type": f"{topic}{dice.randrange(20)}", "table": named}
        offset = len(topics[topic])
        topics[topic].append((row if value else None, [("table", table.encode())] * bool(table)))
        goes = table
        if not goes and topic == "events" and value:
            goes = named if named in ("orders", "users", "logs") else "orders"
        key = (topic, row["type"] if value else "key")
        if goes in ("orders", "users") and (value or not skips):
            expected[f"db.{goes}"][key] = (offset, row["id"]) if value else None
        elif goes == "logs" and value:
            logs += 1
        elif value or goes == "logs" or not skips:
            aside += 1
        else:
            let_go += 1
    outcome = written(desk, topics)
    for table, fold in expected.items():
        files = [
            f for at, some in outcome.secondary_files.items() if at.table == table for f in some
        ]
        changes = [
            (row[OFFSET], (row[TOPIC], row["type"]), None)
            for row in rows_in([file for file in files if file.kind is FileKind.KEYS])
        ]
        changes += [
            (row["kafka_offset"], (row["kafka_topic"], row["type"]), row["id"])
            for row in rows_in([file for file in files if file.kind is FileKind.ROWS])
        ]
        changes.sort(key=lambda change: change[0])
        found = {key: None if id_ is None else (at, id_) for at, key, id_ in changes}
        assert found == fold
    assert len(ids_of(outcome, "db.logs")) == logs
    counts = counted(outcome).values()
    assert (sum(each[2] for each in counts), sum(each[3] for each in counts)) == (aside, let_go)
