"""Delta tables that follow: a quarantine whose rows were decided by another Delta table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.kinds.test_delta import delta
from integration.oracle import assert_exactly_once, read_source
from integration.readers import read_delta_with_duckdb
from integration.sink_file import COLUMNS, COORDINATES, KEPT

from headgate.operations.audit.audit import audit
from headgate.operations.cli.main import main
from headgate.operations.status.status import read_status

pytestmark = [pytest.mark.integration, pytest.mark.wide]


def keeping(deploy: Deploy, location: Path) -> Deployment:
    """A sink whose every fifth record is bad."""
    sink = deploy({**delta(location), **KEPT})
    sink.bad_every = 5

    def aside() -> list[pa.Table]:
        rows = read_delta_with_duckdb(f"{location}_quarantine")
        return [rows.select(["topic", "partition", "offset"]).rename_columns(list(COORDINATES))]

    sink.rows = lambda: read_delta_with_duckdb(str(location))  # type: ignore[method-assign]
    sink.quarantined = aside  # type: ignore[method-assign]
    return sink


def blocked(table: str) -> Path:
    """What stands where the table's next version would be put: nobody can deliver to it."""
    following = DeltaTable(table).version() + 1
    place = Path(table) / "_delta_log" / f"{following:020}.json"
    place.mkdir()
    return place


def test_what_a_delta_quarantine_is_pending_is_delivered_by_whoever_comes_next(
    deploy: Deploy, tmp_path: Path
) -> None:
    location = tmp_path / "lake" / "rows"
    sink = keeping(deploy, location)
    sink.produce(100)
    sink.start(2)
    sink.wait_until_lag_zero()
    place = blocked(f"{location}_quarantine")
    sink.produce(100)
    sink.wait_until(lambda: bool(sink.pending()), "a decision that is not delivered")
    sink.kill(sink.leader())
    assert "are pending for the quarantine" in " ".join(audit(sink.settings).remarks)
    assert (
        read_status(sink.settings).pending_rows
        == sum(pending_commit.rows for pending_commit in sink.pending())
        == 20
    )
    place.rmdir()
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    report = sink.judge()
    assert (
        report.sum_over_partitions("in_table"),
        report.sum_over_partitions("in_quarantine"),
    ) == (160, 40)
    shown = read_status(sink.settings)
    assert len(shown.rejected_records) == 5
    for command in ("status", "audit", "check"):
        done = CliRunner().invoke(main, [command, str(sink.sink_file)])
        assert done.exit_code == 0, done.output


COLUMNS_OF_EACH = [{"name": name, "type": kind} for name, kind in COLUMNS.items()]
TABLES = ("orders", "returns", "zone_a")


def routed(
    deploy: Deploy, kind: str, lake: Path, properties: Mapping[str, str] | None = None
) -> Deployment:
    """The first topic goes to orders, the second to returns; of the third zone a has a table."""
    sink = deploy({}, topics=3)
    first, second, third = sink.topics
    sink.change(
        {
            **dict.fromkeys(("table", "table.columns", "table.record_columns")),
            "catalog.properties": {**delta(lake)["catalog.properties"], **(properties or {})},
            "tables": {
                "type": kind,
                "ledger": "db.ledger",
                "valid_through_refresh_ms": 3_600_000,
            },
            "tables.create": {"schema": "declared", "location": f"{lake}/{{table}}"},
            "tables.record_columns": dict(
                zip(("topic", "partition", "offset"), COORDINATES, strict=True)
            ),
            "tables.route": [
                {"topic": first, "to": "db.orders"},
                {"topic": second, "to": "db.returns"},
                {"topic": third, "field": "zone", "to": "db.zone_{field}"},
            ],
            "tables.table": [{"match": f"db.({'|'.join(TABLES)})", "columns": COLUMNS_OF_EACH}],
            "quarantine": {"per_thousand_max": 1_000, "table": "db.rejected"},
        }
    )
    return sink


def everything(sink: Deployment, read: Callable[[str], pa.Table]) -> dict[str, int]:
    """Each record of the source is in one of the tables or rejected, once; how many are where."""
    found = {name: read(name) for name in TABLES}
    places = [rows.select(list(COORDINATES)) for rows in found.values()]
    aside = read("rejected")
    places.append(aside.select(["topic", "partition", "offset"]).rename_columns(list(COORDINATES)))
    together = [rows.cast(places[0].schema) for rows in places]
    assert_exactly_once(together, read_source(sink.bootstrap, *sink.topics), columns=COORDINATES)
    return {name: rows.num_rows for name, rows in found.items()} | {"rejected": aside.num_rows}


@pytest.mark.soak
def test_a_coordinator_dies_between_two_of_three_tables_and_one_is_dropped_meanwhile(
    deploy: Deploy, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    sink = routed(deploy, "delta", lake)
    for topic in sink.topics:
        sink.produce(90, topic)
    sink.start(2)
    sink.wait_until_lag_zero()
    place = blocked(f"{lake}/zone_a")
    for topic in sink.topics:
        sink.produce(90, topic)
    sink.wait_until(
        lambda: {pending_commit.table for pending_commit in sink.pending()} == {"db.zone_a"},
        "one pending commit",
    )
    sink.kill(sink.leader())
    (lake / "returns").rename(tmp_path / "away")
    place.rmdir()
    sink.start()

    def given_back() -> None:
        shutil.rmtree(lake / "returns", ignore_errors=True)
        (tmp_path / "away").rename(lake / "returns")

    suspended_and_resumed(sink, given_back)
    judged(sink, lambda name: read_delta_with_duckdb(f"{lake}/{name}"))


def suspended_and_resumed(sink: Deployment, give_back: Callable[[], None]) -> None:
    """A table is gone, and all others go on; then somebody gives it back."""

    def suspended() -> bool:
        return "db.returns is suspended: HG-102" in " ".join(read_status(sink.settings).notes)

    sink.wait_until(suspended, "a suspended table")
    for topic in sink.topics:
        sink.produce(90, topic)

    def diverted() -> bool:
        behind = sum(partition.lag or 0 for partition in read_status(sink.settings).partitions)
        return not behind and {pending_commit.table for pending_commit in sink.pending()} <= {
            "db.returns"
        }

    sink.wait_until(diverted, "deliveries of all others")
    run, file = CliRunner(), str(sink.sink_file)
    assert run.invoke(main, ["tables", file]).exit_code == 1
    give_back()
    resumed = run.invoke(main, ["tables", file, "resume", "db.returns"])
    assert resumed.exit_code == 0, resumed.output
    sink.wait_until(lambda: not suspended(), "an open table")
    for topic in sink.topics:
        sink.produce(90, topic)
    sink.wait_until_lag_zero()
    sink.stop()


def judged(sink: Deployment, read: Callable[[str], pa.Table]) -> None:
    """Nothing is lost or doubled, and every command says so."""
    counts = everything(sink, read)
    assert (counts["orders"], counts["zone_a"]) == (360, 120)
    assert 270 <= counts["returns"] < 360
    assert sum(counts.values()) == sink.produced
    run, file = CliRunner(), str(sink.sink_file)
    for command in ("tables", "status", "audit", "check"):
        done = run.invoke(main, [command, file])
        assert done.exit_code == 0, done.output
    for words in (["rollback", file, "1.1"], ["tables", file, "resume", "--replay"]):
        assert "HG-151" in run.invoke(main, words).output
