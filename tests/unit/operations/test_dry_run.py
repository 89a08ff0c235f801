"""A dry run of many tables, over records that are put where the broker's would be."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from unit.operations.filled_table import catalog_properties, sink_file_text

from headgate.config.load import load, parse
from headgate.control_protocol.commit_record_codec import filled_table_property
from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, TopicState
from headgate.data_plane.write import write_batch
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.kafka.push_source import Record
from headgate.kafka.record_fetch import Chunk
from headgate.operations import dry_run
from headgate.operations.cli.main import main
from headgate.operations.dry_run import dry_run_newest_records
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.dry_run_catalog import DryRunCatalog
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

TOPIC = "trips"

MANY = """
[tables]
ledger = "db.ledger"
[[tables.route]]
field = "zone"
to = "db.{field}"
[[tables.route]]
to = "db.rest"
[tables.create]
schema = "declared"
[[tables.table]]
match = "db.rest"
columns = [{ name = "id", type = "long" }, { name = "zone", type = "string" }]
location = "file:///nowhere/{table}"
[tables.record_columns]
offset = "offset"
"""


@dataclass
class Desk:
    """A sink file, and the values that are in the two partitions of its topic."""

    path: Path
    values: list[Any] = field(default_factory=list)

    def fill(self, rows: Iterable[object]) -> None:
        self.values += [json.dumps(row).encode() for row in rows]

    def files(self) -> Mapping[Path, bytes]:
        return {p: p.read_bytes() for p in self.path.parent.rglob("*") if p.is_file()}

    def describe(self) -> Mapping[str, TopicState]:
        counts = [len(self.values[number::2]) for number in (0, 1)]
        logs = {number: OffsetRange(0, count) for number, count in enumerate(counts)}
        return {TOPIC: TopicState(TopicId(TOPIC), logs)}

    def chunks(self, _: object, batch: Batch) -> Iterator[Chunk]:
        yield chunk_of(
            [
                [
                    Record(TOPIC, at.partition, offset, 1, value, None, [])
                    for offset, value in enumerate(self.values[at.partition :: 2])
                ]
                for at in batch.ranges
            ]
        )


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Of its tables one is there, one would be made, and for others there is nothing."""
    text = sink_file_text(tmp_path)
    begin, end = text.index("[table]"), text.index("[spark]")
    made = Desk(tmp_path / "sink.toml")
    made.path.write_text(text[:begin] + MANY.lstrip() + text[end:])
    catalog = load_catalog("default", catalog_properties(tmp_path))
    columns = {"id": "long not null", "zone": "string", "offset": "long"}
    create_table_if_missing(catalog, "db.here", TableDeclaration(columns, partition_by=("zone",)))
    catalog.close()
    monkeypatch.setattr(dry_run, "open_reachable_source_topics", lambda _: nullcontext(made))
    monkeypatch.setattr(write_batch, "read_source_in_chunks", made.chunks)
    return made


def test_many_tables_are_rehearsed_table_by_table(desk: Desk) -> None:
    zones = ["here", None, "gone", "HERE"]
    desk.fill([{"id": n, "zone": zones[n // 2 % 4]} for n in range(40)] + [{"id": "x"}])
    files = desk.files()
    seen = dry_run_newest_records(load(desk.path), 1_000)
    assert [(t.table, t.exists, t.records, t.files) for t in seen.tables] == [
        ("db.here", True, 10, 1),
        ("db.rest", False, 10, 1),
    ]
    assert (seen.bad_record_count, seen.unmatched, seen.needs_attention) == (1, 20, True)
    reasons = {misfit.reason.split(",")[0] for misfit in seen.misfits}
    assert "route: there is no table db.gone" in reasons
    assert any("db.HERE would go to db.here" in reason for reason in reasons)
    result = CliRunner().invoke(main, ["run", str(desk.path), "--dry-run"])
    assert result.exit_code == 1
    assert "20 rows in 2 files" in result.stdout
    assert "1 bad, 20 unmatched, for 2 tables; nothing was written there" in result.stdout
    assert 'db.here {"id": 0, "zone": "here", "offset": 0}' in result.stdout
    assert desk.files() == files


@pytest.mark.parametrize(("policy", "exit_code"), [("fail", 1), ("skip", 0), ("quarantine", 0)])
def test_a_record_without_a_value_needs_attention_where_the_sink_would_stop_there(
    desk: Desk, policy: str, exit_code: int
) -> None:
    with desk.path.open("a") as file:
        file.write(f'[quarantine]\ntable = "db.q"\ntombstones = "{policy}"\n')
    desk.fill({"id": n, "zone": "here"} for n in range(4))
    desk.values.append(None)
    result = CliRunner().invoke(main, ["run", str(desk.path), "--dry-run"])
    assert result.exit_code == exit_code, result.stdout
    assert "0 bad, 1 without a value" in result.stdout
    assert ("the sink would stop there" in result.stdout) is (policy == "fail")


def test_tables_that_would_be_made_are_shown_as_they_would_be(desk: Desk) -> None:
    """Of what the records show; a table that is there gets the column that it lacks."""
    text = desk.path.read_text().replace('schema = "declared"', 'schema = "infer"')
    desk.path.write_text(text + '[tables.schema]\nunknown_fields = "evolve"\n')
    zones = ["here", "gone"]
    desk.fill([{"id": n, "zone": zones[n // 2 % 2], "tip": n} for n in range(20)])
    files = desk.files()
    seen = dry_run_newest_records(load(desk.path), 1_000)
    assert [(t.table, t.exists, t.records) for t in seen.tables] == [
        ("db.gone", False, 10),
        ("db.here", True, 10),
    ]
    assert all(row["tip"] == row["id"] for table in seen.tables for row in table.rows)
    assert (seen.bad_record_count, seen.unmatched, seen.needs_attention) == (0, 0, False)
    assert desk.files() == files


def test_ledger_2_what_was_filled_and_is_gone_would_not_be_made(desk: Desk) -> None:
    desk.fill([{"id": n, "zone": None} for n in range(10)])
    settings = load(desk.path)
    properties = {filled_table_property(settings.name, "db.rest"): "uuid-before"}
    catalog = load_catalog("default", settings.catalog.properties)
    create_table_if_missing(
        catalog, "db.ledger", TableDeclaration({"note": "string"}, properties=properties)
    )
    catalog.close()
    seen = dry_run_newest_records(settings, 1_000)
    assert seen.tables == ()
    assert any("HG-102 table db.rest no longer exists" in misfit.reason for misfit in seen.misfits)
    assert (seen.bad_record_count, seen.unmatched, seen.diverted, seen.needs_attention) == (
        0,
        0,
        10,
        True,
    )


def test_a_dry_run_with_records_of_a_dropped_table_does_not_end_well(desk: Desk) -> None:
    desk.fill([{"id": n, "zone": None} for n in range(10)])
    settings = load(desk.path)
    properties = {filled_table_property(settings.name, "db.rest"): "uuid-before"}
    catalog = load_catalog("default", settings.catalog.properties)
    create_table_if_missing(
        catalog, "db.ledger", TableDeclaration({"note": "string"}, properties=properties)
    )
    catalog.close()
    result = CliRunner().invoke(main, ["run", str(desk.path), "--dry-run"])
    assert result.exit_code == 1
    assert "10 for tables that are gone" in result.stdout


def test_tables_that_are_delivered_together_are_rehearsed_one_by_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = desk.path.read_text().replace('schema = "declared"', 'schema = "infer"')
    desk.path.write_text(text + '[tables.schema]\nunknown_fields = "evolve"\n')
    desk.fill([{"id": n, "zone": "here", "tip": n} for n in range(20)])
    settings = load(desk.path)
    monkeypatch.setattr("headgate.config.sink_settings.require_valid_sink", lambda *_: None)
    together = replace(settings, tables=replace(settings.tables, atomic=True))
    assert not dry_run_newest_records(together, 1_000).needs_attention


KEYED = """
[table]
identifier = "db.keyed"
create = true
key = ["id"]
columns = [{ name = "id", type = "long", required = true }, { name = "zone", type = "string" }]
record_columns = { partition = "kafka_partition", offset = "kafka_offset" }
[changes]
envelope = "debezium"
"""


def test_changes_are_rehearsed_as_rows_and_deletes(desk: Desk) -> None:
    text = desk.path.read_text()
    begin, end = text.index("[tables]"), text.index("[spark]")
    desk.path.write_text(text[:begin] + KEYED + text[end:])
    row = {"id": 1, "zone": "a"}
    desk.fill([{"op": "c", "after": row}, {"op": "d", "before": row}, {"op": "?", "after": row}])
    seen = dry_run_newest_records(load(desk.path), 1_000)
    (table,) = seen.tables
    assert (table.records, table.deletes, seen.bad_record_count) == (1, 1, 1)
    assert [row["zone"] for row in table.rows] == ["a"]
    result = CliRunner().invoke(main, ["run", str(desk.path), "--dry-run"])
    assert "1 row in 1 file" in result.stdout
    assert "1 bad, 1 delete, for db.keyed" in result.stdout


def test_tables_of_version_3_are_rehearsed(tmp_path: Path) -> None:
    """pyiceberg refuses to write their metadata; the catalog of a sink writes it."""
    catalog = DryRunCatalog(tmp_path, None)
    declared = TableDeclaration({"id": "long"}, properties={"format-version": "3"})
    create_table_if_missing(catalog, "db.trips", declared)
    assert catalog.load_table("db.trips").metadata.format_version == 3
    catalog.close()


def test_with_a_catalog_in_java_the_jvm_of_spark_writes() -> None:
    """In process there is none, and the settings would be refused (HG-160)."""
    text = """
name = "trips"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[table]
identifier = "db.rows"
[spark]
writer = "spark"
[catalog]
name = "lake"
backend = "BACKEND"
[catalog.properties]
type = "rest"
uri = "http://127.0.0.1:1"
"""
    writers = {
        backend: dry_run._settings_for_dry_run(parse(text.replace("BACKEND", backend))).spark.writer
        for backend in ("java", "pyiceberg")
    }
    assert writers == {"java": "spark", "pyiceberg": "in-process"}
