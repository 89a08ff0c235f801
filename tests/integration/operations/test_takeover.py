"""Iceberg's real Kafka Connect sink, ended where it hurts, and a sink that goes on there.

Each record has its own partition and number in it; in the end DuckDB counts each of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient
from integration.operations.connector_scene import PARTITIONS, TYPED, TYPED_CONFIG, Scene
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable
from support.connect_worker import RELEASES

from headgate.config.load import load
from headgate.control_protocol.ports import CommitAttempt
from headgate.operations.audit.audit import audit
from headgate.operations.cli.main import main
from headgate.operations.kafka_connect import takeover
from headgate.operations.status.status import read_status
from headgate.runtime.sink_tables import SinkTables

pytestmark = [pytest.mark.integration, pytest.mark.wide]

OLDER = [pytest.param(release, marks=pytest.mark.soak) for release in RELEASES[:-1]]
OLDER_REREAD = [pytest.param(r, "reread", marks=pytest.mark.soak) for r in RELEASES[:-1]]
NEWEST = pytest.mark.parametrize("scene", RELEASES[-1:], indirect=True)


NEWEST_TYPED = pytest.mark.parametrize("scene", [(RELEASES[-1], "typed")], indirect=True)
NEWEST_ROUTED = pytest.mark.parametrize("scene", [(RELEASES[-1], "a", "b")], indirect=True)


@pytest.fixture(params=[*OLDER, RELEASES[-1]])
def scene(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    bootstrap: str,
    admin: AdminClient,
    topic_factory: Callable[..., str],
) -> Iterator[Scene]:
    asked = (request.param,) if isinstance(request.param, str) else request.param
    release, *tables = asked
    config = TYPED_CONFIG if "typed" in tables else {}
    if "dynamic" in tables:
        tables.remove("dynamic")
        config = {"iceberg.tables.dynamic-enabled": "true"}
    topics = topic_factory(PARTITIONS), topic_factory(2)
    made = Scene(tmp_path, bootstrap, *topics, release, *tables, **config)
    yield made
    made.worker.kill()


@pytest.mark.parametrize(
    ("scene", "way"),
    [*OLDER_REREAD, (RELEASES[-1], "reread"), (RELEASES[-1], "adopt")],
    indirect=["scene"],
)
def test_a_connector_that_is_killed_in_a_commit_leaves_each_record_once(
    scene: Scene, way: str
) -> None:
    """TAKEOVER-1, TAKEOVER-8 and TAKEOVER-10."""
    scene.fill()
    scene.stop_in_a_commit(scene.worker.kill)
    before = scene.tables()
    options = ["--adopt"] if way == "adopt" else []
    shown = scene.take_over(*options)
    assert shown.exit_code == 0, shown.output
    assert "nothing was changed" in shown.output
    assert scene.tables() == before
    done = scene.take_over(*options, "--yes")
    assert done.exit_code == 0, done.output
    scene.produce(90)
    scene.run_to_the_end()
    scene.require_each_once()
    assert audit(load(scene.sink)).findings == ()


def test_a_connector_that_wakes_in_a_commit_is_fenced_by_its_own_mark(scene: Scene) -> None:
    """TAKEOVER-11 and TAKEOVER-14."""
    scene.fill()
    scene.stop_in_a_commit(scene.worker.pause_process)
    done = scene.take_over("--yes")
    assert done.exit_code == 0, done.output
    before = len(scene.worker.read_log())
    scene.worker.wake_process()
    scene.wait_until(lambda: "stale offsets" in scene.worker.read_log()[before:], "its refusal")
    # That ended its task, which leaves the group at once: a new one is a member for some seconds.
    scene.worker.kill()
    scene.worker.start()
    scene.wait_until(lambda: last_error_code(scene) == "HG-291", "its members")
    scene.worker.kill()
    scene.run_to_the_end()
    scene.require_each_once()


def last_error_code(scene: Scene) -> str | None:
    error = read_status(load(scene.sink)).last_error
    return error.code if error else None


@NEWEST
def test_the_connector_goes_on_where_the_sink_stopped(scene: Scene) -> None:
    """TAKEOVER-13."""
    scene.fill()
    scene.stop_in_a_commit(scene.worker.kill)
    assert scene.take_over("--yes").exit_code == 0
    scene.produce(90)
    scene.run_to_the_end()
    back = scene.take_over("--back", "--yes")
    assert back.exit_code == 0, back.output
    scene.produce(90)
    scene.worker.start()
    scene.wait_until(lambda: scene.rows() >= sum(scene.sent), "its rows")
    scene.worker.kill()
    scene.require_each_once()


@NEWEST_ROUTED
@pytest.mark.soak
def test_tables_of_which_only_one_was_committed_to_are_adopted_together(scene: Scene) -> None:
    """TAKEOVER-9 and TAKEOVER-10; and back again (TAKEOVER-13)."""
    scene.fill()
    scene.stop_between_tables()
    before = scene.tables()
    refused = scene.take_over("--yes")
    assert "HG-288" in refused.output
    assert "another table ends at" in refused.output
    assert scene.tables() == before
    done = scene.take_over("--adopt", "--yes")
    assert done.exit_code == 0, done.output
    assert "HG-289" in scene.take_over("--adopt", "--yes").output
    scene.produce(90)
    scene.run_to_the_end()
    scene.require_each_once()
    assert audit(load(scene.sink)).findings == ()
    back = scene.take_over("--back", "--yes")
    assert back.exit_code == 0, back.output
    assert audit(load(scene.sink)).findings == ()
    scene.produce(90)
    scene.worker.start()
    scene.wait_until(lambda: scene.rows() >= sum(scene.sent), "its rows")
    scene.worker.kill()
    scene.require_each_once()


@NEWEST
def test_what_the_connector_lost_comes_by_healing(scene: Scene) -> None:
    """TAKEOVER-4 and TAKEOVER-8."""
    scene.fill()
    scene.lose_a_commit()
    for options in ((), ("--adopt",)):
        refused = scene.take_over("--yes", *options)
        assert "HG-288" in refused.output
        assert "--heal" in refused.output
    done = scene.take_over("--adopt", "--heal", "--yes")
    assert done.exit_code == 0, done.output
    assert "lost by the connector: 30 rows" in done.output
    scene.produce(90)
    scene.run_to_the_end()
    scene.require_each_once()
    assert audit(load(scene.sink)).findings == ()


@NEWEST_TYPED
def test_adopted_files_keep_partitions_of_every_type(scene: Scene) -> None:
    """TAKEOVER-8: who prunes files by their partitions finds each row."""
    scene.fill()
    scene.stop_in_a_commit(scene.worker.kill)
    done = scene.take_over("--adopt", "--yes")
    assert done.exit_code == 0, done.output
    assert "adopt: 0 rows" not in done.output
    scene.produce(30)
    scene.run_to_the_end()
    scene.require_each_once()
    table = StaticTable.from_metadata(scene.tables()["typed"])
    rows = table.scan().to_arrow().to_pylist()
    for name in TYPED:
        value = rows[0][name]
        found = table.scan(row_filter=EqualTo(name, value=value)).to_arrow()
        assert found.num_rows == sum(row[name] == value for row in rows), name
    assert audit(load(scene.sink)).findings == ()


@pytest.mark.parametrize("scene", [(RELEASES[-1], "a", "b", "dynamic")], indirect=True)
def test_tables_that_a_field_names_are_taken_over_and_those_of_others_left_alone(
    scene: Scene,
) -> None:
    """TAKEOVER-9."""
    scene.fill()
    before = scene.stranger().metadata_location
    scene.stop_in_a_commit(scene.worker.kill)
    done = scene.take_over("--adopt", "--yes")
    assert done.exit_code == 0, done.output
    assert "lake.stranger" not in done.output
    scene.produce(90)
    scene.run_to_the_end()
    scene.require_each_once()
    assert audit(load(scene.sink)).findings == ()
    assert scene.stranger().metadata_location == before


@NEWEST_ROUTED
def test_an_interrupted_takeover_of_several_tables_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TAKEOVER-10: the connector, started in between, adds nothing to the table that is done, and
    all that it has to the other one."""
    scene.fill()
    scene.stop_in_a_commit(scene.worker.kill)

    done: list[str] = []

    def commit_once(tables: SinkTables, attempt: CommitAttempt) -> None:
        if done:
            raise KeyboardInterrupt
        commit_to(tables, attempt)
        done.append(attempt.base.table)

    commit_to = takeover._commit_to_table_or_raise
    with monkeypatch.context() as patched:
        patched.setattr(takeover, "_commit_to_table_or_raise", commit_once)
        assert scene.take_over("--adopt", "--yes").exit_code != 0
    assert done == ["lake.a"]
    before = len(scene.worker.read_log())
    scene.worker.start()
    scene.produce(90)
    scene.wait_until(
        lambda: "nothing to commit to table lake.a" in scene.worker.read_log()[before:],
        "what it leaves out",
    )
    scene.worker.kill()
    finished = scene.take_over("--adopt", "--yes")
    assert finished.exit_code == 0, finished.output
    scene.produce(90)
    scene.run_to_the_end()
    scene.require_each_once()
    assert audit(load(scene.sink)).findings == ()


@NEWEST
def test_a_connector_that_was_stopped_in_order_leaves_nothing_to_do(scene: Scene) -> None:
    scene.fill()
    scene.worker.stop_connector()
    done = scene.take_over("--yes")
    assert done.exit_code == 0, done.output
    assert "outstanding: 0 rows" in done.output
    again = scene.take_over("--yes")
    assert "HG-289" in again.output
    scene.produce(90)
    scene.run_to_the_end()
    scene.require_each_once()


@NEWEST
def test_a_connector_at_work_is_refused(scene: Scene) -> None:
    """TAKEOVER-2."""
    scene.fill()
    sink = scene.import_sink()
    result = CliRunner().invoke(
        main, ["takeover", str(sink), "--from", str(scene.connector_file), "--yes"]
    )
    assert result.exit_code == 2
    assert "HG-286" in result.output
