"""What two workers tell of a sink whose slot goes from one to the other (FLEET-1)."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from integration.conftest import Deploy
from support.fleet_scene import Fleet, running, worker_of

from headgate.kafka.compacted_topics import CompactedReader
from headgate.runtime.fleet.fleet_records import ObservedSink, decode_observed

pytestmark = pytest.mark.integration


@pytest.fixture
def fleet(tmp_path: Path, bootstrap: str, unique_name: str) -> Iterator[Fleet]:
    with Fleet(tmp_path, bootstrap, f"{unique_name}-fleet", slots=2) as fleet:
        yield fleet


def told(fleet: Fleet) -> dict[str, list[str]]:
    """Who told of each sink, in order; ``-``: somebody took it back."""
    settings = fleet.settings
    reader = CompactedReader(settings.kafka, "reader", {settings.fleet.state_topic: 1})
    found: dict[str, list[str]] = {}
    for record in reader.read_to_end(60):
        value = decode_observed(record.key, record.value) if record.value else None
        if record.key.startswith("sink/"):
            who = value.worker if isinstance(value, ObservedSink) else "-"
            found.setdefault(record.key, []).append(who)
    reader.close()
    return found


@pytest.mark.wide
def test_fleet_1_who_has_given_a_slot_away_says_nothing_of_it_any_more(
    deploy: Deploy, fleet: Fleet
) -> None:
    for name in ("a", "b"):
        sink = deploy({"name": name, "table": {"identifier": f"db.{name}"}})
        shutil.copy(sink.sink_file, fleet.folder / f"{name}.toml")
    fleet.command("apply", fleet.folder)
    fleet.start("w0")
    seen = fleet.wait_until(lambda view: running(view, ["a", "b"]), "running")
    for each in seen.sinks.values():  # neither leaves in order: each is killed after 30 s
        assert each.observed is not None
        os.kill(each.observed.pid, signal.SIGSTOP)
    fleet.start("w1")
    seen = fleet.wait_until(
        lambda view: {worker_of(sink) for sink in view.sinks.values()} == {"w0", "w1"}, "shared"
    )
    (key,) = [
        f"sink/{sink.slot}/{name}" for name, sink in seen.sinks.items() if worker_of(sink) == "w1"
    ]
    kept = next(sink for sink in seen.sinks.values() if worker_of(sink) == "w0")
    assert kept.observed is not None
    with suppress(ProcessLookupError):
        os.kill(kept.observed.pid, signal.SIGCONT)
    fleet.wait_until(lambda view: view.workers["w0"].observed.processes == 1, "killed")
    who = told(fleet)[key]
    assert {*who[who.index("w1") :]} == {"w1"}, who
