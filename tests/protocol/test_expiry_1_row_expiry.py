"""EXPIRY-1 to EXPIRY-3: rows that have reached their age go, and no others, whoever is faster.

Two readers look at the table; the limits are those of the rule, computed here.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from click.testing import CliRunner
from integration.readers import read_with_duckdb
from pyiceberg.manifest import DataFile
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType
from support.keyed_world import NAME, Event, KeyedWorld, rows_of
from support.keyed_world import SINK as KEYED_SINK
from support.local_catalog import LocalCatalog
from support.maintained import COLUMNS, SINK, Maintained, settings, text

from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.errors import RowExpiryUnfit
from headgate.operations.audit.audit import audit
from headgate.operations.audit.files import check_row_count
from headgate.operations.check.table import describe_row_expiry
from headgate.operations.cli.main import main
from headgate.operations.control.rollback import find_removed_snapshots
from headgate.runtime.maintenance.table_maintenance import Done
from headgate.runtime.start_checks import require_expirable_rows_if_expiring
from headgate.tables.iceberg.history import read_history
from headgate.tables.iceberg.maintenance import row_expiry
from headgate.tables.iceberg.maintenance.maintenance_commit import Settled
from headgate.tables.iceberg.maintenance.row_expiry import (
    DAY_MS,
    HOUR_MS,
    RowExpiry,
    expiry_limit_ms,
    require_expiry_time_column,
)
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.rollback import IcebergSnapshots
from headgate.tables.iceberg.tag_lineage import summary_properties_of

NOW_MS = time.time_ns() // 1_000_000
AGE_MS = 10 * DAY_MS
LIMIT_MS = (NOW_MS - AGE_MS) // HOUR_MS * HOUR_MS
MORE = f'rows_after_ms = {AGE_MS}\nrows_by = "at"\n'
TIMED = {**COLUMNS, "at": "timestamptz"}

Make = Callable[..., Maintained]


@pytest.fixture
def make(tmp_path: Path, sqlite_catalog: LocalCatalog) -> Make:
    def create(more: str = MORE, kind: str = "timestamptz", **table: Any) -> Maintained:
        columns = {**COLUMNS, "at": kind}
        return Maintained(
            sqlite_catalog.catalog, settings(tmp_path, more), columns=columns, **table
        )

    return create


@pytest.fixture(params=["2", "3"])
def sink(make: Make, request: pytest.FixtureRequest) -> Maintained:
    return make(properties={"format-version": request.param})


def at(*ms: int | None) -> list[dt.datetime | None]:
    return [None if each is None else dt.datetime.fromtimestamp(each / 1000, dt.UTC) for each in ms]


def commit(sink: Maintained, *ms: int | None) -> None:
    """A file with a row for each of these times."""
    sink.commit(len(ms), at=at(*ms))


def expire(sink: Maintained, now_ms: int = NOW_MS, **more: Any) -> Done:
    one = sink.round(clock_ms=lambda: now_ms, **more)
    one.expire_rows()
    return one.done


def assert_left(sink: Maintained, *offsets: int) -> None:
    assert sink.offsets() == sorted(offsets)
    found = read_with_duckdb(sink.table.metadata_location)["offset"].to_pylist()
    assert sorted(found) == sorted(offsets)


def properties(sink: Maintained) -> tuple[str | None, str | None]:
    known = sink.table.properties
    return tuple(known.get(f"headgate.{SINK}.expired-{name}") for name in ("before", "rows"))  # type: ignore[return-value]


def test_expiry_2_a_file_of_due_rows_goes_by_its_metadata_and_is_not_read(
    sink: Maintained,
) -> None:
    commit(sink, LIMIT_MS - 1, LIMIT_MS - 5 * DAY_MS)
    commit(sink, LIMIT_MS, LIMIT_MS + 1)
    due, _ = sorted(sink.live(), key=lambda path: path.stat().st_mtime_ns)
    due.rename(hidden := due.with_suffix(".hidden"))

    done = expire(sink)

    hidden.rename(due)
    assert (done.expired_rows, done.left) == (2, [])
    assert_left(sink, 2, 3)
    assert properties(sink) == (str(LIMIT_MS), "2")
    head = sink.table.current_snapshot()
    assert head is not None
    assert summary_properties_of(head)[f"headgate.{SINK}.expired-rows"] == "2"
    assert summary_properties_of(head)[f"headgate.{SINK}.expired-before"] == str(LIMIT_MS)
    assert (
        summary_properties_of(head)["deleted-records"],
        summary_properties_of(head)["total-records"],
    ) == ("2", "2")
    assert expire(sink).expired_rows == 0
    sink.commit(1, at=at(NOW_MS))
    assert_left(sink, 2, 3, 4)
    history = read_history(sink.table, SINK, "main")
    assert (history.expired_rows, history.expired_before_ms) == (2, LIMIT_MS)
    assert check_row_count(history, IcebergReader(sink.table, SINK, "main").live_files()) == (
        [],
        [],
    )


def test_expiry_2_of_a_file_with_younger_rows_many_due_ones_are_marked_and_few_wait_a_day(
    sink: Maintained,
) -> None:
    young = [LIMIT_MS + 2 * DAY_MS] * 7
    commit(sink, *young, *[LIMIT_MS - 1] * 3)
    commit(sink, *young, LIMIT_MS - 1)
    done = expire(sink)
    assert done.expired_rows == 3
    assert done.left == ["1 due row waits for more in their files"]
    assert_left(sink, *range(7), *range(10, 18))

    later = NOW_MS + DAY_MS
    sink.round(clock_ms=lambda: later)
    limit = row_expiry.expiry_limit_ms(later, later, AGE_MS)
    expiry = RowExpiry(
        *(sink.catalog, "db.trips", (SINK, "main")),
        column="at",
        limit_ms=limit,
        dead_per_thousand=200,
    )
    assert expiry.try_commit() is Settled.LANDED
    assert expiry.done is not None
    assert (expiry.done.rows, expiry.done.waiting) == (1, 0)
    assert_left(sink, *range(7), *range(10, 17))
    assert properties(sink) == (str(limit), "4")
    sink.commits(2, rows=1, at=at(NOW_MS))
    assert len(sink.offsets()) == 16


def test_expiry_1_rows_without_a_time_and_of_a_far_future_stay_and_keep_no_other(
    sink: Maintained,
) -> None:
    future = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)
    sink.commit(4, at=[*at(0, LIMIT_MS - 1), None, future])
    commit(sink, None, None)
    done = expire(sink)
    assert (done.expired_rows, done.left) == (2, ["3 rows without a value in at will never expire"])
    assert_left(sink, 2, 3, 4, 5)
    assert expire(sink).expired_rows == 0


@pytest.mark.parametrize(
    ("kind", "due", "kept"),
    [
        ("timestamp", dt.datetime(1969, 1, 1), dt.datetime(2999, 1, 1)),  # noqa: DTZ001
        ("date", dt.date(1969, 1, 1), dt.date(2999, 1, 1)),
    ],
)
def test_expiry_1_dates_and_times_without_a_zone_expire_in_utc(
    make: Make, kind: str, due: Any, kept: Any
) -> None:
    sink = make(kind=kind)
    limit = dt.datetime.fromtimestamp(LIMIT_MS / 1000, dt.UTC)
    edge = limit.replace(tzinfo=None) if kind == "timestamp" else limit.date()
    sink.commit(3, at=[due, edge, kept])
    sink.commit(2, at=[due, due])
    assert expire(sink).expired_rows == 3
    assert_left(sink, 1, 2)


def test_expiry_1_the_earlier_clock_counts_and_none_goes_back(sink: Maintained) -> None:
    # A run of the tests may cross an hour, and the table has the clock of now.
    commit(sink, *(LIMIT_MS - number * DAY_MS + 6 * HOUR_MS for number in range(-3, 4)))
    ahead = expire(sink, NOW_MS + 1_000 * DAY_MS)
    assert ahead.expired_rows == 3, "the table says that no time has passed"
    stored, _ = properties(sink)
    assert expire(sink, NOW_MS - 100 * DAY_MS).expired_rows == 0
    commit(sink, LIMIT_MS - 7 * DAY_MS)
    back = expire(sink, NOW_MS - 5 * DAY_MS)
    assert (back.expired_rows, properties(sink)) == (1, (stored, "4"))
    assert expiry_limit_ms(HOUR_MS * 5 + 7, HOUR_MS * 4 + 9, HOUR_MS) == HOUR_MS * 3
    assert expiry_limit_ms(HOUR_MS * 3, HOUR_MS * 4, 2 * HOUR_MS + 1) == 0


def test_expiry_1_a_late_row_goes_with_a_later_limit_and_a_round_for_nothing_is_none(
    sink: Maintained,
) -> None:
    commit(sink, LIMIT_MS - 1)
    known: dict[str, int] = {}
    assert expire(sink, limits_ms=known).expired_rows == 1
    commit(sink, LIMIT_MS - DAY_MS)
    assert expire(sink, limits_ms=known).expired_rows == 0
    known["db.trips"] -= HOUR_MS
    assert expire(sink, limits_ms=known).expired_rows == 1
    assert_left(sink)


def test_a_dry_run_says_what_is_due_and_changes_nothing(sink: Maintained) -> None:
    commit(sink, LIMIT_MS - 1, LIMIT_MS - 1, NOW_MS)
    before = sink.table.metadata_location
    assert expire(sink, dry_run=True).expired_rows == 2
    assert sink.table.metadata_location == before


def test_expiry_2_bounds_without_a_number_of_nulls_prove_nothing(sink: Maintained) -> None:
    """Other writers may leave it out."""
    commit(sink, LIMIT_MS - 1)
    (task,) = sink.table.scan().plan_files()
    field = sink.table.schema().find_field("at")
    one = RowExpiry(
        *(sink.catalog, "db.trips", (SINK, "main")),
        column="at",
        limit_ms=LIMIT_MS,
        dead_per_thousand=200,
    )
    assert one._is_due_as_a_whole(task.file, field)
    known = {name: getattr(task.file, name) for name in ("null_value_counts", "upper_bounds")}
    for lacking in known:
        without = SimpleNamespace(**known | {lacking: None})
        assert not one._is_due_as_a_whole(cast("DataFile", without), field), lacking


def test_expiry_1_rows_that_others_wrote_or_rewrote_expire_too(make: Make) -> None:
    sink = make(properties={"format-version": "2"})
    commit(sink, LIMIT_MS - 1, NOW_MS)
    rows = sink.table.scan().to_arrow()
    sink.table.overwrite(rows)  # one file, which is not in the sink's folder
    assert not any(f"headgate/{SINK}" in path for path in sink.paths())
    assert expire(sink).expired_rows == 1
    assert_left(sink, 1)
    sink.commit(1, at=at(NOW_MS))
    assert_left(sink, 1, 2)


def test_expiry_2_a_copy_on_write_table_loses_whole_files_only(make: Make) -> None:
    sink = make(properties={"write.delete.mode": "copy-on-write"})
    commit(sink, LIMIT_MS - 1)
    commit(sink, LIMIT_MS - 1, NOW_MS)
    done = expire(sink)
    assert done.expired_rows == 1
    assert "the table is copy-on-write" in done.left[0]
    assert_left(sink, 1, 2)


# ------------------------------------------------------------------------------------------- races


class Before:
    """A catalog before whose calls something happens, and whose answer may be lost."""

    def __init__(self, catalog: Any, *events: Callable[[], Any], lost: bool = False) -> None:
        self._catalog, self._events, self._lost = catalog, list(events), lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *call: Any) -> Any:
        if self._events:
            self._events.pop(0)()
        answer = self._catalog.commit_table(*call)
        if self._lost:
            self._lost = False
            raise TimeoutError("no answer")
        return answer


def expiry(sink: Maintained, catalog: Any) -> RowExpiry:
    return RowExpiry(
        *(catalog, "db.trips", (SINK, "main")),
        column="at",
        limit_ms=LIMIT_MS,
        dead_per_thousand=200,
    )


def test_expiry_3_a_commit_that_is_faster_wins_and_what_is_due_is_searched_again(
    sink: Maintained,
) -> None:
    commit(sink, LIMIT_MS - 1, LIMIT_MS - 1)
    one = expiry(sink, Before(sink.catalog, lambda: commit(sink, LIMIT_MS - 1, NOW_MS)))
    assert one.try_commit() is Settled.REFUSED
    assert_left(sink, 0, 1, 2, 3)
    assert one.try_commit() is Settled.LANDED
    assert one.done is not None
    assert one.done.rows == 3
    assert_left(sink, 3)


def test_expiry_3_an_owner_compacts_at_the_same_moment_and_no_row_comes_back(
    make: Make,
) -> None:
    sink = make()
    for _ in range(5):
        commit(sink, LIMIT_MS - 1, NOW_MS)
    compaction = sink.round()
    one = expiry(sink, Before(sink.catalog, compaction.compact))
    assert one.try_commit() is Settled.REFUSED
    assert compaction.done.compacted_files == 5
    assert one.try_commit() is Settled.LANDED
    assert_left(sink, 1, 3, 5, 7, 9)

    for _ in range(5):
        commit(sink, LIMIT_MS - 1)
    rewriting = sink.round()
    choice = rewriting._choose_files(sink.table)
    written = rewriting._new_rewriting(sink.table).rewrite(choice).written
    assert written is not None
    assert expiry(sink, sink.catalog).try_commit() is Settled.LANDED
    assert not rewriting._try_commit_rewrite(written)
    assert_left(sink, 1, 3, 5, 7, 9)


def test_expiry_3_an_answer_that_is_lost_costs_nothing_twice(sink: Maintained) -> None:
    commit(sink, LIMIT_MS - 1, NOW_MS)
    one = expiry(sink, Before(sink.catalog, lost=True))
    assert one.try_commit() is Settled.UNKNOWN
    assert one.try_commit() is Settled.LANDED
    assert one.done is not None
    assert (one.done.rows, properties(sink)[1]) == (1, "1")
    assert_left(sink, 1)


def test_expiry_3_a_process_that_dies_before_the_call_leaves_orphans_alone(
    sink: Maintained,
) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    commit(sink, LIMIT_MS - 1, NOW_MS)
    with pytest.raises(KeyboardInterrupt):
        expiry(sink, Before(sink.catalog, die)).try_commit()
    assert_left(sink, 0, 1)
    assert expire(sink).expired_rows == 1
    assert_left(sink, 1)


def test_expiry_3_without_the_sinks_tag_nothing_goes(sink: Maintained) -> None:
    commit(sink, LIMIT_MS - 1)
    with sink.table.manage_snapshots() as refs:
        refs.remove_tag(f"headgate-{SINK}")
    done = expire(sink)
    assert (done.expired_rows, done.left) == (
        0,
        ["no rows expired: the table has no tag of this sink"],
    )
    assert expiry(sink, sink.catalog).try_commit() is Settled.GONE


def test_expiry_3_no_rollback_brings_expired_rows_back_unasked(sink: Maintained) -> None:
    commit(sink, LIMIT_MS - 1)
    target = sink.table.current_snapshot()
    assert target is not None
    commit(sink, NOW_MS)
    expire(sink)
    past = IcebergSnapshots(sink.table, SINK, "main")
    removed = find_removed_snapshots(past, past.head, target.snapshot_id)
    assert removed.restored_row_count == 1
    assert past.deleted_and_expired_row_count == 1


# ----------------------------------------------------------------------------------- keyed tables


def test_expiry_3_in_a_keyed_table_the_row_dies_and_the_next_record_of_its_key_inserts(
    sqlite_catalog: LocalCatalog,
) -> None:
    world = KeyedWorld.create(sqlite_catalog.catalog, 2)
    with world.load().update_schema() as update:
        update.add_column("day", DateType())
    world.commit([Event((n,), "a") for n in range(6)])
    table = world.load()
    rows = table.scan().to_arrow()
    days = [dt.date(2020, 1, 1) if n in (1, 2, 3) else None for n in rows["id"].to_pylist()]
    place = rows.schema.get_field_index("day")
    timed = rows.set_column(place, rows.schema.field("day"), pa.array(days, pa.date32()))
    table.overwrite(timed)

    one = RowExpiry(
        *(world.catalog, NAME, (KEYED_SINK, "main")),
        column="day",
        limit_ms=LIMIT_MS,
        dead_per_thousand=200,
    )
    assert one.try_commit() is Settled.LANDED
    for key in (1, 2, 3):
        del world.source.fold[(key,)]
    counts = world.commit([Event((2,), "b"), Event((5,), "b"), Event((3,), None)])
    assert counts == KeyCounts(inserted=1, updated=1, absent=1)
    assert rows_of(world.load().scan().to_arrow()) == world.source.expected_rows()


# ---------------------------------------------------------------------------------------- columns


def test_expiry_1_a_column_that_tells_no_time_is_refused(sink: Maintained) -> None:
    schema = sink.table.schema()
    assert require_expiry_time_column("t", schema, "at").name == "at"
    with pytest.raises(RowExpiryUnfit, match="has no column 'when'"):
        require_expiry_time_column("t", schema, "when")
    with pytest.raises(RowExpiryUnfit, match="is long, and rows expire by a time"):
        require_expiry_time_column("t", schema, "offset")


@pytest.mark.parametrize(
    ("properties", "fits"),
    [
        ({}, True),
        ({"write.metadata.metrics.default": "full"}, True),
        ({"write.metadata.metrics.default": "counts"}, False),
        ({"write.metadata.metrics.default": "None"}, False),
        ({"write.metadata.metrics.default": "a word"}, True),
        ({"write.metadata.metrics.max-inferred-column-defaults": "2"}, False),
        (
            {
                "write.metadata.metrics.default": "none",
                "write.metadata.metrics.column.at": "truncate(16)",
            },
            True,
        ),
        ({"write.metadata.metrics.column.at": "counts"}, False),
    ],
    ids=str,
)
def test_expiry_1_a_column_whose_bounds_files_do_not_keep_is_refused(
    make: Make, properties: dict[str, str], fits: bool
) -> None:
    sink = make(properties=properties)
    raises = nullcontext() if fits else pytest.raises(RowExpiryUnfit, match="no bounds of the col")
    with raises:
        require_expirable_rows_if_expiring(sink.settings, sink.table, sink.table.schema())


def test_expiry_1_a_column_by_which_the_table_is_sorted_has_bounds(make: Make) -> None:
    sink = make(properties={"write.metadata.metrics.default": "none"})
    sink.table.update_sort_order().asc("at", IdentityTransform()).commit()
    require_expirable_rows_if_expiring(sink.settings, sink.table, sink.table.schema())


def test_expiry_3_the_audit_counts_what_expired(sink: Maintained) -> None:
    commit(sink, LIMIT_MS - 1, NOW_MS)
    expire(sink)
    report = audit(sink.settings, with_source=False)
    assert (report.findings, report.expired_rows) == ((), 1)


def test_check_adds_up_by_when_a_row_is_gone(make: Make) -> None:
    def promise(more: str, **known: str) -> str:
        return describe_row_expiry(make(MORE + more).settings, known)

    day, keep = str(DAY_MS), {"history.expire.min-snapshots-to-keep": "7"}
    age = {"history.expire.max-snapshot-age-ms": day}
    shown = "no reader shows a row later than 11 d 7 h 10 min after its at (10 d, up to a day"
    assert promise("").startswith(shown)
    assert promise("").endswith("its bytes stay, because no snapshot ever expires")
    assert "its bytes may stay: set maintenance.compact and orphans" in promise("", **age)
    whole = "compact = true\norphans = true\ndead_per_thousand = 1\n"
    told = promise(whole, **age, **keep)
    assert "no bytes of it later than 15 d 7 h 10 min after it (snapshots stay for 1 d" in told
    assert "the newest 7 for longer; orphans for 3 d)" in told
    assert "snapshots stay for 2 d" in promise(f"{whole}expire_after_ms = {2 * DAY_MS}\n")


def test_expiry_3_maintain_says_what_expired_and_what_did_not(make: Make, tmp_path: Path) -> None:
    sink = make()
    commit(sink, LIMIT_MS - 1, None)
    commit(sink, LIMIT_MS - 1)
    file = tmp_path / "sink.toml"
    file.write_text(text(tmp_path, MORE))
    asked = ["maintain", str(file), "--only", "rows"]
    dry = CliRunner().invoke(main, [*asked, "--dry-run"])
    assert "db.trips: would: 2 rows expired, 0 small files" in dry.output, dry.output
    assert "left alone: 1 row without a value in at will never expire" in dry.output
    said = CliRunner().invoke(main, [*asked, "--json"])
    assert (said.exit_code, json.loads(said.output)[0]["expired_rows"]) == (0, 2)
    assert_left(sink, 1)
    whole = CliRunner().invoke(main, ["maintain", str(file), "--json"])
    assert json.loads(whole.output)[0]["left"][0] == "1 row without a value in at will never expire"
    sink.table.update_schema().delete_column("at").commit()
    failed = CliRunner().invoke(main, asked)
    assert (failed.exit_code, "has no column 'at'" in failed.output) == (3, True), failed.output
