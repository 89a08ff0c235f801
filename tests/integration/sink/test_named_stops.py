"""What a sink cannot decide by itself ends it, with a code, a reason, and what to do."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from click.testing import CliRunner
from integration.conftest import Deploy
from integration.deployment import Deployment

from headgate.operations.cli.main import main

pytestmark = pytest.mark.integration


def roll_back(sink: Deployment) -> None:
    """By what was produced last, in as many commits as that came."""
    commits, lost = list(sink.history().commits), 0
    while lost < 1_000:
        lost += commits.pop().record.records
    with sink.table() as table:
        table.manage_snapshots().rollback_to_snapshot(commits[-1].snapshot_id).commit()


def delete_tag(sink: Deployment) -> None:
    with sink.table() as table:
        table.manage_snapshots().remove_tag(sink.tag).commit()


def drop(sink: Deployment) -> None:
    """And nobody creates it again: the sink is told not to, as in production."""
    drop_and_recreate(sink)
    sink.change({"table": {"create": False}})


def drop_and_recreate(sink: Deployment) -> None:
    """The next start creates it again, empty, under the same name."""
    with sink.catalog() as catalog:
        catalog.drop_table(sink.settings.table.identifier)


def expire_behind_two_appends(sink: Deployment) -> None:
    """What stood between the sink's tag and the branch's head is gone."""
    row = pa.table({"id": pa.array([-1], pa.int64())})
    with sink.table() as table:
        table.append(row)
        between = table.current_snapshot().snapshot_id
        table.append(row)
        table.maintenance.expire_snapshots().by_id(between).commit()


@pytest.mark.wide
@pytest.mark.parametrize(
    ("happens", "code", "remedy"),
    [
        (roll_back, "HG-201", "coordinator.on_rollback"),
        (drop, "HG-102", "create it"),
        (drop_and_recreate, "HG-202", "coordinator.on_table_recreated"),
        (delete_tag, "HG-203", "coordinator.on_tag_missing"),
    ],
)
def test_f67_f68_f69_a_table_that_contradicts_what_the_sink_knows(
    deploy: Deploy, happens: Callable[[Deployment], None], code: str, remedy: str
) -> None:
    sink = deploy()
    sink.start()
    for _ in range(2):
        sink.produce()
        sink.wait_until_lag_zero()
    sink.stop()
    happens(sink)
    sink.produce()
    sink.start()
    line = sink.stopped_by_itself(code)
    assert sink.settings.table.identifier in line
    assert remedy in line
    record = sink.record()
    assert record is None or record.transaction.epoch == 1, "nothing is claimed over it"


@pytest.mark.wide
def test_two_commits_of_others_and_an_expiry_stop_nobody(deploy: Deploy) -> None:
    sink = deploy()
    sink.start()
    sink.produce()
    sink.wait_until_lag_zero()
    sink.stop()
    rows = sink.rows().num_rows
    expire_behind_two_appends(sink)
    sink.produce()
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert sink.rows().num_rows == 2 * rows + 2


def test_what_stopped_the_sink_is_accepted_once_by_a_command(deploy: Deploy) -> None:
    sink = deploy()
    sink.start()
    for _ in range(2):
        sink.produce()
        sink.wait_until_lag_zero()
    sink.stop()
    before = sink.sink_file.read_text()
    roll_back(sink)
    sink.start()
    sink.stopped_by_itself("HG-201")
    command = ["resume", str(sink.sink_file), "--accept"]
    wrong = CliRunner().invoke(main, [*command, "HG-204=keep-offsets"])
    assert (wrong.exit_code, "HG-201" in wrong.output) == (1, True)
    done = CliRunner().invoke(main, [*command, "HG-201=follow-table"])
    assert done.exit_code == 0, done.output
    sink.start()
    sink.produce()
    sink.wait_until_lag_zero()
    sink.stop()
    ids = sink.rows()["id"].to_pylist()
    assert len(ids) == len(set(ids)) == 3_000
    assert sink.sink_file.read_text() == before
    roll_back(sink)
    sink.start()
    sink.stopped_by_itself("HG-201")


@pytest.mark.parametrize(
    ("happens", "code"),
    [(roll_back, "HG-201"), pytest.param(drop, "HG-102", marks=pytest.mark.wide)],
)
def test_the_same_happens_to_a_running_sink(
    deploy: Deploy, happens: Callable[[Deployment], None], code: str
) -> None:
    sink = deploy()
    sink.start()
    for _ in range(2):
        sink.produce()
        sink.wait_until_lag_zero()
    happens(sink)
    sink.produce()
    assert sink.settings.table.identifier in sink.stopped_by_itself(code)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("happens", "policy", "rows"),
    [
        (roll_back, {"on_rollback": "follow-table"}, 3_000),
        (roll_back, {"on_rollback": "keep-offsets"}, 2_000),
        (drop_and_recreate, {"on_table_recreated": "restart"}, 3_000),
        (delete_tag, {"on_tag_missing": "follow-table"}, 3_000),
    ],
)
def test_what_a_person_decided_is_done(
    deploy: Deploy, happens: Callable[[Deployment], None], policy: dict[str, str], rows: int
) -> None:
    sink = deploy({"coordinator": policy})
    sink.start()
    for _ in range(2):
        sink.produce()
        sink.wait_until_lag_zero()
    sink.stop()
    happens(sink)
    sink.produce()
    sink.start()
    sink.wait_until(lambda: sink.record() is not None and sink.rows().num_rows >= rows, "rows")
    sink.wait_until_lag_zero()
    sink.stop()
    ids = sink.rows()["id"].to_pylist()
    assert len(ids) == len(set(ids)) == rows
