"""Participants of one sink that were started with different sink files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from integration.conftest import Deploy
from integration.deployment import Deployment, Participant
from integration.sink_file import Sections

from headgate.operations.cli.main import main

pytestmark = pytest.mark.integration


def ended_beside(sink: Deployment, change: Sections) -> tuple[Participant, str]:
    """A sink at work, one more participant whose file says something else; who ends, and why.

    Where the other one hears the first, it ends itself; else that depends on who leads.
    """
    (first,) = sink.start()
    sink.produce()
    sink.wait_until_lag_zero()
    sink.change(change)
    (other,) = sink.start()
    sink.participants.clear()  # one of them is meant to end
    try:
        with sink.load():
            sink.wait_until(lambda: not (first.running and other.running), "end")
    finally:
        sink.participants += [p for p in (first, other) if p.running]
    gone = other if first.running else first
    (line,) = [line for line in gone.log_text().splitlines() if line.startswith("headgate: ")]
    return gone, line


def all_is_there(sink: Deployment, right: Sections) -> None:
    """With the file as it was, nothing is lost or twice."""
    for left in tuple(sink.participants):
        sink.kill(left)
    sink.change(right)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()


def test_another_table_ends_by_name(deploy: Deploy) -> None:
    sink = deploy()
    right = sink.settings.table.identifier
    _, line = ended_beside(sink, {"table": {"identifier": "db.other"}})
    assert re.search("HG-114|HG-202", line), line
    assert "db.other" in line
    all_is_there(sink, {"table": {"identifier": right}})


@pytest.mark.wide
def test_another_control_topic_ends_by_name(deploy: Deploy) -> None:
    sink = deploy()
    own = sink.settings.control.topic
    _, line = ended_beside(sink, {"control": {"topic": f"{own}-other"}})
    assert "HG-114" in line
    assert f"{own}-other" in line
    all_is_there(sink, {"control": {"topic": own}})


@pytest.mark.wide
def test_other_rows_than_the_coordinators_end_by_name(deploy: Deploy) -> None:
    sink = deploy()
    gone, line = ended_beside(sink, {"quarantine": {"policy": "skip"}})
    assert "HG-114" in line
    assert "quarantine.policy" in line
    (healthy,) = sink.participants
    assert healthy is not gone, "who came last ends, whoever would have led"
    checked = CliRunner().invoke(main, ["check", str(sink.sink_file)])
    assert "HG-114" in checked.stdout
    assert checked.exit_code == 2
    assert re.search(r"clock +within \d+ s of the brokers", checked.stdout), checked.stdout
    all_is_there(sink, {"quarantine": {"policy": "fail"}})


@pytest.mark.wide
def test_another_name_in_the_group_ends_by_name(deploy: Deploy) -> None:
    sink = deploy()
    name, table, topic = sink.name, sink.settings.table.identifier, sink.settings.control.topic
    other = {
        "name": "another",
        "table": {"identifier": "db.other"},
        "control": {"topic": f"{topic}-other"},
    }
    _, line = ended_beside(sink, other)
    assert "HG-115" in line
    assert f"that of sink {name!r}" in line
    all_is_there(sink, {"name": name, "table": {"identifier": table}, "control": {"topic": topic}})


@pytest.mark.wide
def test_another_key_ends_by_name(deploy: Deploy, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).write_text(name * 16)
    right = {"control": {"key": f"${{file:{tmp_path / 'one'}}}"}}
    sink = deploy(right)
    _, line = ended_beside(sink, {"control": {"key": f"${{file:{tmp_path / 'other'}}}"}})
    assert "HG-114" in line
    assert "control.key" in line
    all_is_there(sink, right)
