"""A rolling upgrade under load: one worker after the other is replaced by one of another release.

The other release is this one with another version text; what a release with further fields would
write stands on both topics from the beginning. With five workers and fifty sinks:
``pytest -m soak -s tests/integration/operations/test_fleet_upgrade.py``.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import fastavro
import pytest
from confluent_kafka import Producer
from fastavro.schema import fingerprint, to_parsing_canonical_form
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.sink_file import record
from support import newer_worker
from support.fleet_records import EXAMPLES
from support.fleet_scene import (
    Fleet,
    process_ids,
    produce_raw,
    running,
    sinks_of_worker,
    worker_of,
)

from headgate.config.worker_settings import WorkerSettings
from headgate.control_protocol.event_codec import dataclass_codec
from headgate.runtime.fleet.fleet_records import ObservedWorker, SinkSpec
from headgate.runtime.fleet.fleet_view import FleetView
from headgate.schemas import fleet_schemas

pytestmark = pytest.mark.integration

NEWER = (sys.executable, newer_worker.__file__)
PROMISED_S = 30.0
"""Longer no sink may be without a commit, on a machine that has time for it."""
BUSY = 4
"""So many times as long it may take where other tests have the cores."""


@pytest.mark.parametrize(
    ("workers", "sinks", "bound_s"),
    [
        pytest.param(3, 9, BUSY * PROMISED_S, marks=pytest.mark.wide, id="three workers"),
        pytest.param(
            *(5, 50, PROMISED_S),
            marks=[pytest.mark.soak, pytest.mark.timeout(3_600)],
            id="five workers",
        ),
    ],
)
def test_fleet_10_workers_are_replaced_one_after_the_other(
    deploy: Deploy,
    tmp_path: Path,
    bootstrap: str,
    unique_name: str,
    workers: int,
    sinks: int,
    bound_s: float,
) -> None:
    with Fleet(tmp_path, bootstrap, f"{unique_name}-fleet", slots=8 * workers) as fleet:
        deployed = {}
        for number in range(sinks):
            name = f"s{number:02}"
            change = {"name": name, "table": {"identifier": f"db.{name}"}}
            change |= {"coordinator": {"commit_interval_ms": 2_000}}
            uri = f"sqlite:///{tmp_path}/catalog-{name}.sqlite"
            deployed[name] = deploy(change | {"catalog.properties": {"uri": uri}})
            shutil.copy(deployed[name].sink_file, fleet.folder / f"{name}.toml")
        fleet.command("apply", fleet.folder)
        say_what_no_release_can_read_yet(fleet.settings)
        names = [f"w{number}" for number in range(workers)]
        fleet.start(*names)
        keys = [*deployed]

        def is_whole(view: FleetView) -> bool:
            owning = [worker.observed for worker in view.workers.values() if not worker.lost]
            slots = [slot for worker in owning for slot in worker.slots if not worker.leaving]
            return (
                running(view, keys)
                and sorted(slots) == [*range(8 * workers)]
                and all(
                    view.slot_owners[s.slot] == worker_of(s) for s in map(view.sinks.get, keys) if s
                )
                and not any(sink.elsewhere for sink in view.sinks.values())
            )

        def is_whole_with(*those: str) -> FleetView:
            return fleet.wait_until(
                lambda view: is_whole(view) and {*view.slot_owners.values()} == {*those},
                f"shared by {those}",
            )

        seen = is_whole_with(*names)
        with loading(bootstrap, deployed):
            began_ms = time.time() * 1_000
            for turn, name in enumerate(names):
                whole, had = seen, sinks_of_worker(seen, name)
                if turn % 2:
                    fleet.command("drain", name)
                assert fleet.ask_to_end(name) == 0
                seen = is_whole_with(*(other for other in names if other != name))
                went = changed(whole, seen)
                assert went - moved_by_balance(whole, seen) == had, "nobody else's move"
                without = seen
                fleet.start(name, command=NEWER)
                seen = is_whole_with(*names)
                came = changed(without, seen)
                others = came - sinks_of_worker(seen, name)
                assert not others - moved_by_balance(without, seen), "others stay where they are"
                assert seen.workers[name].observed.release == newer_worker.RELEASE
                print(f"{name}: {len(had)} sinks went, {len(came)} came")
            ended_ms = time.time() * 1_000
        fleet.wait_until(
            lambda view: sum(worker.observed.refused for worker in view.workers.values()) == 1,
            "refused a spec of a newer form",
        )
        assert "it needs a newer worker" in fleet.command("list", code=1)
        for sink in deployed.values():
            sink.wait_until_lag_zero()
        pauses = {k: longest_pause_s(sink, began_ms, ended_ms) for k, sink in deployed.items()}
        print("seconds without a commit:", json.dumps(pauses))
        for sink in deployed.values():
            sink.judge()
        assert max(pauses.values()) <= bound_s, pauses


def changed(before: FleetView, after: FleetView) -> set[str]:
    """The sinks that another process runs now."""
    then, now = process_ids(before), process_ids(after)
    return {key for key in then if then[key] != now[key]}


def moved_by_balance(before: FleetView, after: FleetView) -> set[str]:
    """The sinks that the balancer has moved meanwhile: it rests for a minute only."""
    times = [{k: s.spec.moved_ms for k, s in v.sinks.items() if s.spec} for v in (before, after)]
    return {key for key, moved_ms in times[1].items() if times[0].get(key) != moved_ms}


@contextmanager
def loading(bootstrap: str, sinks: Mapping[str, Deployment]) -> Iterator[None]:
    """Records for all sinks, some each second, until the body ends."""
    ends = threading.Event()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})

    def run() -> None:
        number = 0
        while not ends.wait(1.0):
            for sink in sinks.values():
                for _ in range(10):
                    number += 1
                    producer.produce(sink.topics[0], record(number))
            producer.poll(0)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        assert producer.flush(60) == 0


def longest_pause_s(sink: Deployment, began_ms: float, ended_ms: float) -> float:
    """The longest time between two commits, as the table tells it."""
    with sink.table() as table:
        times = [snapshot.timestamp_ms for snapshot in table.metadata.snapshots]
    inside = [began_ms, *(each for each in sorted(times) if began_ms < each < ended_ms), ended_ms]
    return round(max(later - earlier for earlier, later in pairwise(inside)) / 1_000, 1)


def say_what_no_release_can_read_yet(settings: WorkerSettings) -> None:
    """A spec and a worker's sign of life with a field more, as a release with such a form would."""
    spec, worker = EXAMPLES["wish"], EXAMPLES["worker"]
    assert isinstance(spec, SinkSpec)
    assert isinstance(worker, ObservedWorker)
    produce_raw(settings, spec.slot % 2, "later", with_a_field_more("wish", spec))
    produce_raw(
        settings,
        0,
        "worker/later",
        with_a_field_more("worker", worker),
        topic=settings.fleet.state_topic,
    )


def with_a_field_more(name: str, value: SinkSpec | ObservedWorker) -> bytes:
    definition = next(each.definition for each in fleet_schemas() if each.name == name)
    fields = [*definition["fields"], {"name": "further", "type": "string"}]
    wider = {**definition, "fields": fields}
    print_ = bytes.fromhex(fingerprint(to_parsing_canonical_form(wider), "CRC-64-AVRO"))
    body = io.BytesIO()
    codec = dataclass_codec(type(value))
    fastavro.schemaless_writer(
        body, fastavro.parse_schema(wider), {**codec.write(value), "further": "x"}
    )
    return b"\xc3\x01" + print_ + body.getvalue()
