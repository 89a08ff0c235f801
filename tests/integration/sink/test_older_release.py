"""A sink beside its older release: a mixed fleet, and what one left undone for the other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from integration.conftest import Deploy
from integration.deployment import HEADGATE, Deployment, Participant
from integration.sink_file import KEPT
from integration.tables.routed_sink import judge, routed, rows_of, table_of, with_zones

pytestmark = [pytest.mark.integration, pytest.mark.wide]

OLDER = "e9bce398"
"""The commit of the release before: other names throughout, the same messages and records."""

ROOT = Path(__file__).parents[3]
DEADLY = Path(__file__).with_name("dies_before_delivery.py")
ROWS = 300

Command = Sequence[str | Path]


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The older release's package, built from its commit; skips where that cannot be done."""
    home = tmp_path_factory.mktemp("older")
    tree, package = home / "tree", home / "package"
    tree.mkdir()
    packed = subprocess.run(["git", "-C", ROOT, "archive", OLDER], capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"this clone does not have the commit {OLDER}")
    subprocess.run(["tar", "-x", "-C", tree], input=packed.stdout, check=True)
    pip = [sys.executable, "-m", "pip"]
    wheel = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", home, tree]
    built = subprocess.run(wheel, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"the older release cannot be built here: {built.stderr[-300:]}")
    (made,) = home.glob("*.whl")
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", package, made], check=True)
    return package


def python(package: Path | None) -> Command:
    """The interpreter, in which ``headgate`` is the older release, or (``None``) this one."""
    return ("env", *([f"PYTHONPATH={package}"] if package else []), sys.executable, "-P")


def run_of(package: Path) -> Command:
    """``headgate run`` of the older release."""
    said = "import sys; from headgate.operations.cli import main; sys.exit(main())"
    return (*python(package), "-c", said, "run")


RUN: Command = (HEADGATE, "run")


def started(sink: Deployment, command: Command) -> Participant:
    (participant,) = sink.start(1, command)
    return participant


def test_two_releases_share_a_sink_and_lead_each_other_through_kills(
    deploy: Deploy, older: Path
) -> None:
    """Until each has led the other: which one gets the election partition is up to the group."""
    sink = deploy(KEPT, partitions=4)
    sink.bad_every = 7
    releases = {"older": run_of(older), "newer": RUN}
    before = started(sink, releases["older"])
    is_of = {before: "older"}
    have_led: list[str] = []
    with sink.load():
        sink.wait_for_commits(2)
        while len(have_led) < 3 or len(set(have_led)) < 2:
            assert len(have_led) < 12, have_led
            release = "newer" if is_of[before] == "older" else "older"
            heir = started(sink, releases[release])
            is_of[heir] = release
            sink.wait_until(sink.all_share, "partitions with both releases")
            sink.wait_for_commits(3)
            have_led.append(is_of[sink.leader()])
            sink.kill(before)
            sink.wait_until(lambda one=heir: sink.leader() is one, "the other release in the lead")
            sink.wait_for_commits(2)
            before = heir
    sink.wait_until_lag_zero()
    sink.kill(before)
    assert len(sink.judge().epochs) >= 4


@pytest.mark.parametrize("dies", ["older", "newer"])
def test_rows_that_one_release_decided_reach_the_quarantine_by_the_other(
    deploy: Deploy, older: Path, dies: str
) -> None:
    sink = deploy(KEPT)
    sink.bad_every = 3
    sink.produce(ROWS)
    dead(sink, older, dies)
    assert sum(each.rows for each in sink.pending()) == ROWS // 3
    assert sink.quarantined()[0].num_rows == 0
    finishes(sink, older, dies)
    assert sink.quarantined()[0].num_rows == ROWS // 3
    sink.judge()


@pytest.mark.parametrize("dies", ["older", "newer"])
def test_rows_that_one_release_decided_reach_many_tables_by_the_other(
    deploy: Deploy, older: Path, dies: str
) -> None:
    sink = routed(deploy)
    with_zones(sink)
    for topic in sink.topics:
        sink.produce(ROWS, topic)
    dead(sink, older, dies)
    assert {each.table for each in sink.pending()} > {"db.zone_a", "db.rejected"}
    assert rows_of(sink, "db.zone_a").num_rows == 0
    finishes(sink, older, dies)
    by_name = table_of(sink, sink.topics[1])
    counts = judge(sink, ["db.orders", by_name, "db.zone_a", "db.zone_b"])
    assert sum(counts.values()) == 3 * ROWS


def dead(sink: Deployment, older: Path, dies: str) -> None:
    """Let the release run until it has decided rows, and dies before it delivers any."""
    killed = started(sink, (*python(older if dies == "older" else None), DEADLY))
    assert killed.ended() < 0, str(killed)
    sink.participants.remove(killed)


def finishes(sink: Deployment, older: Path, dies: str) -> None:
    heir = started(sink, RUN if dies == "older" else run_of(older))
    sink.wait_until_lag_zero()
    sink.kill(heir)
    assert sink.pending() == ()
