"""``headgate delete``: what matches goes, of tables and quarantine, beside a sink that goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from integration.readers import read_with_duckdb
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError, ServiceUnavailableError
from pyiceberg.expressions import parser
from pyroaring import BitMap64
from support.delete_files import delete_first_row
from support.local_catalog import LocalCatalog
from support.maintained import COLUMNS, Maintained, settings, text
from support.quarantine_rows import IDENTIFIER, QuarantineRows

from headgate.control_protocol.errors import (
    CatalogRefused,
    DeletionRefused,
    DeletionUnsettled,
    MissingRights,
    PredicateUnfit,
)
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import TopicState
from headgate.operations.audit import audit as auditing
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import AuditReport, Verdict
from headgate.operations.cli.main import main
from headgate.operations.control import delete_rows
from headgate.operations.control.delete_rows import (
    Deleted,
    RowDeletion,
    carry_out_deletion,
    plan_deletion,
)
from headgate.operations.control.maintain import maintain
from headgate.operations.control.operator_claim import acting_as_operator
from headgate.operations.control.rollback import find_removed_snapshots
from headgate.tables.iceberg import row_deletion
from headgate.tables.iceberg.maintenance import maintenance_commit
from headgate.tables.iceberg.maintenance.maintenance_commit import Settled
from headgate.tables.iceberg.rollback import IcebergSnapshots
from headgate.tables.iceberg.row_deletion import MatchingRows, parse_predicate
from headgate.tables.iceberg.tag_lineage import summary_properties_of

VERSIONS = ["2", "3"]
ASIDE = f'dead_per_thousand = 1\n[quarantine]\npolicy = "quarantine"\ntable = "{IDENTIFIER}"\n'

Make = Callable[..., Maintained]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """On the control topic; and nobody waits for a good moment."""
    told: list[str] = []
    monkeypatch.setattr(delete_rows, "try_announce_command", lambda _, what: told.append(what))
    monkeypatch.setattr(delete_rows, "waiter_for_calm_after_commit", lambda *_: lambda: None)
    return told


@pytest.fixture
def make(sqlite_catalog: LocalCatalog, tmp_path: Path, said: list[str]) -> Make:
    assert not said

    def made(version: str = "3", **more: Any) -> Maintained:
        wanted = settings(tmp_path, more.pop("wanted", ""))
        return Maintained(
            sqlite_catalog.catalog, wanted, properties={"format-version": version}, **more
        )

    return made


def deleted(sink: Maintained, *asked: Any, **more: Any) -> list[Deleted]:
    return list(carry_out_deletion(sink.settings, RowDeletion(*asked, **more)))


def seen(sink: Maintained) -> list[int]:
    """By a reader that knows delete files of its own."""
    return sorted(read_with_duckdb(sink.table.metadata_location)["offset"].to_pylist())


def before_the_next_call(catalog: Catalog, act: Callable[[], object]) -> None:
    real = catalog.__class__.commit_table

    def commit_table(self: Catalog, *call: Any) -> Any:
        catalog.__class__.commit_table = real  # type: ignore[method-assign]
        act()
        return real(self, *call)

    catalog.__class__.commit_table = commit_table  # type: ignore[method-assign]


# ------------------------------------------------------------------------------------- what goes


@pytest.mark.parametrize("version", VERSIONS)
def test_what_matches_goes_and_the_sink_goes_on(make: Make, version: str) -> None:
    sink = make(version)
    sink.commits(3)
    asked = "offset in (1, 7) or offset >= 13"

    with acting_as_operator("alice"):
        assert deleted(sink, asked) == [Deleted("db.trips", 4, 3)]

    left = [offset for offset in range(15) if offset not in (1, 7, 13, 14)]
    assert seen(sink) == left
    assert sink.offsets() == left
    head = sink.table.current_snapshot()
    assert head is not None
    summary = summary_properties_of(head)
    assert summary["headgate.trips.deleted-rows"] == "4"
    assert summary["headgate.trips.deleted-rows-by"] == "alice"
    assert asked not in json.dumps(dict(summary)), "it may name whom it was to forget"
    sink.commits(2)
    assert seen(sink) == [*left, *range(15, 25)]
    assert deleted(sink, asked) == [Deleted("db.trips", 10, 2)], "later rows match too"
    assert deleted(sink, asked) == [Deleted("db.trips", 0, 0)]
    assert sink.table.properties["headgate.trips.deleted-rows"] == "14"
    assert seen(sink) == left


def test_a_plan_changes_nothing(make: Make) -> None:
    sink = make()
    sink.commits(2)
    before = (sink.table.metadata_location, sink.stored_files())

    assert plan_deletion(sink.settings, RowDeletion("offset < 7")) == [Deleted("db.trips", 7, 2)]
    assert (sink.table.metadata_location, sink.stored_files()) == before


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_that_others_deleted_do_not_count_twice(make: Make, version: str) -> None:
    sink = make("2")
    sink.commits(2)
    delete_first_row(sink.table, sink.paths()[0], named=version == "3")

    (found,) = deleted(sink, "offset >= 0")

    assert found == Deleted("db.trips", 9, 2)
    assert seen(sink) == []


def test_compaction_takes_the_bytes_too(make: Make) -> None:
    sink = make(wanted="dead_per_thousand = 1\n")
    sink.commits(2)
    deleted(sink, "offset = 3")

    (done,) = maintain(sink.settings, (), ("compact",), dry_run=False, on_progress=lambda *_: None)

    assert done.compacted_files == 1
    assert all(row["offset"] != 3 for path in sink.live() for row in sink.rows_in(path))
    assert seen(sink) == [0, 1, 2, *range(4, 10)]


def test_nulls_match_as_in_sql(make: Make) -> None:
    sink = make()
    sink.commit(3, day=None)
    sink.commit(3, day=2)

    assert deleted(sink, "day not in (1, 5)")[0].rows == 3
    assert deleted(sink, "not (day = 2) or day != 9")[0].rows == 0
    assert deleted(sink, "day is null")[0].rows == 3


def test_fields_of_structs_and_columns_that_came_later(make: Make) -> None:
    from pyiceberg.types import StringType

    sink = make(columns={**COLUMNS, "who": "struct<name: string>"})
    sink.commit(3, who=[{"name": "a"}, {"name": "b"}, None])
    with sink.table.update_schema() as update:
        update.add_column("mail", StringType())
        update.rename_column("day", "weekday")
    sink.view = sink.sink.read()
    sink.commit(2, who=[None, None], mail=["x", "y"], weekday=[1, 1])

    assert deleted(sink, "who.name = 'a'")[0].rows == 1
    assert deleted(sink, "mail = 'y' or weekday = 7")[0].rows == 1
    assert seen(sink) == [1, 2, 3]


def test_files_whose_statistics_rule_it_out_are_not_read(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make()
    sink.commits(4)
    read: list[str] = []
    real = row_deletion.live_batches_of_file
    monkeypatch.setattr(
        row_deletion,
        "live_batches_of_file",
        lambda *call: read.append(call[1].file.file_path) or real(*call),
    )

    plan_deletion(sink.settings, RowDeletion("offset = 7"))

    assert len(read) == 1


# ------------------------------------------------------------------------------------ is refused


@pytest.mark.parametrize(
    ("predicate", "told"),
    [
        ("offset = = 3", "is no predicate at or behind character"),
        ("", "is no predicate"),
        ("nope = 3", "does not fit db.trips: Could not find field with name nope"),
        ("offset = 'x'", "does not fit db.trips: Could not convert x into a long"),
        ("who = 1", "does not fit db.trips"),
    ],
)
def test_a_predicate_that_cannot_be_meant_is_told(make: Make, predicate: str, told: str) -> None:
    sink = make()
    sink.commit()
    with pytest.raises(PredicateUnfit, match=told):
        deleted(sink, predicate)


def test_copy_on_write_keyed_and_strange_tables_are_refused_by_name(
    make: Make, tmp_path: Path
) -> None:
    sink = make("2")
    sink.commit()
    with pytest.raises(DeletionRefused, match="has no quarantine"):
        deleted(sink, None, "offset = 1")
    with pytest.raises(DeletionRefused, match=r"db\.other is not a table of sink trips"):
        deleted(sink, "offset = 1", tables=("db.other",))
    with sink.table.transaction() as transaction:
        transaction.set_properties({"write.delete.mode": "copy-on-write"})
    with pytest.raises(DeletionRefused, match="copy-on-write"):
        deleted(sink, "offset = 1")
    assert len(seen(sink)) == 5


# ----------------------------------------------------------------------------------------- races


@pytest.mark.parametrize("version", VERSIONS)
def test_a_commit_that_was_faster_is_looked_through_too(make: Make, version: str) -> None:
    sink = make(version)
    sink.commits(2)
    before_the_next_call(sink.catalog, lambda: sink.commit(day=9))
    before = sink.stored_files()

    assert deleted(sink, "offset in (3, 12)") == [Deleted("db.trips", 2, 2)]

    assert seen(sink) == [offset for offset in range(15) if offset not in (3, 12)]
    new = len(sink.stored_files() - before)
    assert new == 1 + (2 if version == "2" else 0), "the refused call's files were taken back"


def test_a_compaction_meanwhile_does_not_bring_rows_back(make: Make) -> None:
    sink = make()
    sink.commits(4)
    before_the_next_call(sink.catalog, lambda: sink.round().compact())

    assert deleted(sink, "offset = 3") == [Deleted("db.trips", 1, 1)]

    assert len(sink.live()) == 1
    assert seen(sink) == [0, 1, 2, *range(4, 20)]


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_that_others_rewrite_meanwhile_are_found_in_their_new_files(
    make: Make, version: str
) -> None:
    """As Spark's DELETE does it with copy-on-write, and pyiceberg's: beneath and in between."""
    sink = make("2")
    sink.commits(3)
    sink.table.delete("offset = 2")
    deleted(sink, "offset = 3")
    before_the_next_call(sink.catalog, lambda: sink.table.delete(f"offset = {4 + int(version)}"))

    assert deleted(sink, "offset in (1, 8, 2)") == [Deleted("db.trips", 2, 2)]

    gone = {1, 2, 3, 4 + int(version), 8}
    left = [offset for offset in range(15) if offset not in gone]
    assert seen(sink) == left
    sink.commit()
    assert seen(sink) == [*left, *range(15, 20)]


@pytest.mark.parametrize("tries", [1, 6])
def test_what_landed_without_an_answer_is_seen_and_not_done_twice(
    make: Make, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """Also of the last call."""
    sink = make()
    sink.commit()
    real = sink.catalog.__class__.commit_table

    def lost(self: Catalog, *call: Any) -> Any:
        real(self, *call)
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(maintenance_commit, "_TRIES", tries)
    monkeypatch.setattr(maintenance_commit, "_PAUSE_S", 0)
    monkeypatch.setattr(sink.catalog.__class__, "commit_table", lost)

    assert deleted(sink, "offset = 3") == [Deleted("db.trips", 1, 1)]
    assert sink.table.properties["headgate.trips.deleted-rows"] == "1"


def calls_that_end_in(sink: Maintained, monkeypatch: pytest.MonkeyPatch, error: Exception) -> Any:
    """The catalog's calls, each of which ends so; no try waits for the next."""
    calls = Mock(side_effect=error)
    monkeypatch.setattr(maintenance_commit, "_PAUSE_S", 0)
    monkeypatch.setattr(sink.catalog.__class__, "commit_table", lambda *_: calls())
    return calls


def test_who_loses_every_race_says_so(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = make()
    sink.commit()
    monkeypatch.setattr(row_deletion, "retry_until_settled", lambda *_: Settled.GONE)

    with pytest.raises(DeletionUnsettled, match=r"not certain that .* db.trips are deleted.*gone"):
        deleted(sink, "offset = 3")


def test_who_gets_no_answer_is_told_the_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = make()
    sink.commit()
    calls = calls_that_end_in(sink, monkeypatch, ServiceUnavailableError("full"))

    with pytest.raises(DeletionUnsettled, match=r"unknown: ServiceUnavailableError: full"):
        deleted(sink, "offset = 3")
    assert calls.call_count == 6


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ForbiddenError("may only read"), MissingRights),
        (CatalogRefused("Hive cannot swap"), CatalogRefused),
    ],
)
def test_a_call_that_no_repetition_helps_is_made_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception]
) -> None:
    sink = make()
    sink.commit()
    calls = calls_that_end_in(sink, monkeypatch, error)

    with pytest.raises(expected, match=str(error)):
        deleted(sink, "offset = 3")
    assert calls.call_count == 1


# ------------------------------------------------------------------------------ quarantine, audit


@pytest.fixture
def aside(make: Make, sqlite_catalog: LocalCatalog) -> Maintained:
    """A sink of which records 100 to 103 are quarantined."""
    sink = make(wanted=ASIDE)
    rows = QuarantineRows(sqlite_catalog)
    rows.claim(1, "trips")
    sink.commits(3)
    rows.commit(1, 3, 100, 101, 102, 103, sink="trips")
    return sink


def test_a_crash_between_table_and_quarantine_is_mended_by_the_same_command(
    aside: Maintained, sqlite_catalog: LocalCatalog
) -> None:
    asked = RowDeletion("offset = 3", "topic = 'trips' and offset = 101")
    with closing(carry_out_deletion(aside.settings, asked)) as under_way:
        assert next(under_way) == Deleted("db.trips", 1, 1)  # the process is killed here

    assert list(carry_out_deletion(aside.settings, asked)) == [
        Deleted("db.trips", 0, 0),
        Deleted(IDENTIFIER, 1, 1),
    ]

    kept = sqlite_catalog.catalog.load_table(IDENTIFIER).scan().to_arrow()["offset"].to_pylist()
    assert sorted(kept) == [100, 102, 103]
    assert 3 not in seen(aside)


def test_the_quarantine_of_a_keyed_table_is_searched_and_the_table_is_not(
    aside: Maintained, sqlite_catalog: LocalCatalog
) -> None:
    keyed = replace(aside.settings, table=replace(aside.settings.table, key=("offset",)))
    where = "topic = 'trips' and offset = 101"
    with pytest.raises(DeletionRefused, match=r"db\.trips has a key"):
        list(carry_out_deletion(keyed, RowDeletion("offset = 3", where)))
    assert list(carry_out_deletion(keyed, RowDeletion(None, where))) == [Deleted(IDENTIFIER, 1, 1)]
    kept = sqlite_catalog.catalog.load_table(IDENTIFIER).scan().to_arrow()["offset"].to_pylist()
    assert sorted(kept) == [100, 102, 103]


def audited(sink: Maintained, monkeypatch: pytest.MonkeyPatch) -> AuditReport:
    """Beside a source that holds every record."""
    at, end = TopicPartition("trips", 0), sink.next_offset
    topics = {"trips": TopicState(TopicId("id"), {0: OffsetRange(0, end)})}

    @contextmanager
    def source(_: object) -> Iterator[Any]:
        yield SimpleNamespace(describe=lambda: topics)

    monkeypatch.setattr(auditing, "open_reachable_source_topics", source)
    held = {at: BitMap64(range(end))}
    monkeypatch.setattr(auditing, "find_offsets_with_records", lambda *_: held)
    return audit(sink.settings)


def test_the_audit_knows_what_persons_deleted(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = make(wanted="dead_per_thousand = 1\n")
    sink.commits(4)
    deleted(sink, "offset in (3, 4, 11)")

    report = audited(sink, monkeypatch)

    assert (report.verdict, report.deleted_rows, report.live_rows) == (Verdict.WELL, 3, 17)
    assert any("except 3 that people deleted" in text for text in report.proven)
    sink.round().compact()
    sink.commit()
    assert audited(sink, monkeypatch).verdict is Verdict.WELL, "after they were rewritten too"


def test_a_loss_beside_what_was_deleted_is_a_loss(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make()
    sink.commits(2)
    sink.next_offset += 1  # a record that came into no file
    sink.commit()
    deleted(sink, "offset in (3, 4)")

    report = audited(sink, monkeypatch)

    assert report.verdict is Verdict.WRONG
    assert {finding.what for finding in report.findings} == {"record-lost"}


def test_a_rollback_says_which_deleted_rows_it_would_bring_back(make: Make) -> None:
    sink = make()
    sink.commits(2)
    target = sink.table.current_snapshot()
    assert target is not None
    deleted(sink, "offset = 3")
    sink.commit()
    table = sink.table
    head = table.current_snapshot()
    assert head is not None

    past = IcebergSnapshots(table, sink.settings.name, sink.settings.table.branch)

    removed = find_removed_snapshots(past, head.snapshot_id, target.snapshot_id)

    assert [text.partition(" (")[2] for text in removed.foreign_snapshot_texts] == [
        "1 deleted row would be back)"
    ]


# -------------------------------------------------------------------------------------- command


def test_the_command_asks_first_and_says_what_went(
    aside: Maintained, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sink.toml"
    path.write_text(text(tmp_path, ASIDE))
    asked = ["delete", str(path), "--where", "offset = 3"]
    run = CliRunner().invoke

    assert run(main, ["delete", str(path)]).exit_code == 2
    dry = run(main, [*asked, "--dry-run"])
    assert dry.output == "db.trips: 1 row in 1 file would be deleted\n"
    assert run(main, asked, input="n\n").exit_code == 1
    refused = run(main, [*asked, "--json"], input="n\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "row in 1 file would be deleted" in refused.stderr
    nothing = run(main, [*asked[:3], "offset = 99", "--json"])
    assert [each["rows"] for each in json.loads(nothing.stdout)] == [0]
    assert (len(seen(aside)), said) == (15, [])
    done = run(main, [*asked, "--quarantine-where", "offset = 100", "--yes", "--json"])
    assert [each["rows"] for each in json.loads(done.output)] == [1, 1]
    assert (len(seen(aside)), said) == (14, ["delete"])

    def fails_at_the_second_table(*_: object) -> Iterator[Deleted]:
        yield Deleted("db.trips", 1, 1)
        raise DeletionUnsettled("of db.q it is not certain", "run it again")

    with monkeypatch.context() as patched:
        patched.setattr(delete_rows, "carry_out_deletion", fails_at_the_second_table)
        broken = run(main, [*asked[:3], "offset = 4", "--yes", "--json"])
    assert (broken.exit_code, [each["rows"] for each in json.loads(broken.stdout)]) == (3, [1])
    bad = run(main, [*asked[:3], "nope = 1", "--yes"])
    assert "HG-158" in bad.output
    assert bad.exit_code == 2


def test_predicates_say_what_their_parser_says() -> None:
    assert parse_predicate("a = 1 and b = 2") == parser.parse("a = 1 and b = 2")
    assert MatchingRows(parse_predicate("not (a = 1)")).predicate == parser.parse("a != 1")
