"""A fleet over HTTP, on a real broker: specs, what workers tell, and a broker that goes away."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from integration.conftest import Deploy
from support.fleet_records import EXAMPLES
from support.fleet_scene import Fleet
from unit.config.test_load import MINIMAL
from unit.operations.http.conftest import GUARDED, OPERATOR, VIEWER, Client

from headgate.config.setting_types import Properties
from headgate.config.worker_settings import FleetSettings, WorkerSettings
from headgate.kafka.compacted_topics import CompactedProducer, KeyedValue
from headgate.operations.http import app
from headgate.operations.local_kafka.broker import EmbeddedKafka
from headgate.runtime.fleet.fleet_records import (
    ObservedSink,
    ObservedWorker,
    encode_observed,
    state_topic_key_of,
)
from headgate.runtime.fleet.fleet_topics import FleetReader
from headgate.runtime.fleet.sink_life import LifeState

pytestmark = pytest.mark.integration

FLEET = "/api/v1/fleet"
TRIPS = f"{FLEET}/sinks/trips"
PATIENCE_S = 90.0


def settings_of(bootstrap: str, name: str) -> WorkerSettings:
    return WorkerSettings(
        fleet=FleetSettings(name=name, slots=3),
        kafka=Properties({"bootstrap.servers": bootstrap}),
        http=GUARDED,
    )


@contextmanager
def served(settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """The whole server, as the command starts it."""
    url: list[str] = []
    stop, listens = threading.Event(), threading.Event()
    opened = app._serving_http

    @contextmanager
    def noted(*given: object) -> Iterator[str]:
        with opened(*given) as at:  # type: ignore[arg-type]
            url.append(at)
            listens.set()
            yield at

    monkeypatch.setattr(app, "_serving_http", noted)
    thread = threading.Thread(target=app.serve_fleet, args=(settings, "127.0.0.1:0", stop))
    thread.start()
    try:
        assert listens.wait(PATIENCE_S)
        yield Client(url[0])
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def until(seen: Callable[[], bool], what: Callable[[], object]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < until_s, what()
        time.sleep(0.1)


def is_ready(client: Client) -> bool:
    return client.get("/readyz").status == 200


def tell(settings: WorkerSettings, *values: ObservedSink | ObservedWorker) -> None:
    """Say something as a worker does."""
    producer = CompactedProducer(settings.kafka)
    for value in values:
        topic = settings.fleet.state_topic
        assert producer.try_enqueue(
            KeyedValue(topic, 0, state_topic_key_of(value), encode_observed(value))
        )
    producer.flush(30)


def specs(settings: WorkerSettings) -> dict[str, str]:
    reader = FleetReader(settings)
    try:
        return {
            key: f"{record.value.state.value} {record.value.actor}"  # type: ignore[union-attr]
            for (_, key), record in reader.read_to_end().specs.items()
        }
    finally:
        reader.close()


def test_specs_over_http_are_stored_and_seen_at_once(
    bootstrap: str, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(bootstrap, unique_name)
    with served(settings, monkeypatch) as client:
        until(
            lambda: "does not exist" in client.get("/readyz").body,
            lambda: client.get("/readyz").body,
        )
        shown = client.ask("PUT", f"{TRIPS}?dry_run=true", OPERATOR, MINIMAL)
        assert json.loads(shown.body)["lines"] == ["+ trips"]
        put = client.ask("PUT", TRIPS, OPERATOR, MINIMAL)
        assert (put.status, json.loads(put.body)["changes"]) == (200, True), put.body
        until(lambda: is_ready(client), lambda: client.get("/readyz").body)
        before = specs(settings)
        assert before == {"trips": "running http 127.0.0.1"}

        wrong = client.ask("PUT", TRIPS, OPERATOR, MINIMAL.replace("identifier", "identfier"))
        assert (wrong.status, "trips.toml:8:1" in wrong.body) == (400, True), wrong.body
        assert client.ask("PUT", f"{TRIPS}/stop", VIEWER).status == 403
        assert client.ask("PUT", f"{TRIPS}/stop").status == 401
        assert client.ask("PUT", f"{TRIPS}/stop?dry_run=true", OPERATOR).status == 200
        assert client.ask("PUT", f"{FLEET}/sinks/none/stop", OPERATOR).status == 404
        assert specs(settings) == before

        for move, state in (("pause", "paused"), ("stop", "stopped"), ("start", "running")):
            assert client.ask("PUT", f"{TRIPS}/{move}", OPERATOR).status == 200
            assert json.loads(client.get(TRIPS, VIEWER).body)["wanted"] == state
        assert client.ask("DELETE", TRIPS, OPERATOR).status == 200
        assert client.get(TRIPS, VIEWER).status == 404
        assert specs(settings) == {}


def test_what_workers_tell_is_shown_counted_and_moved(
    bootstrap: str, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(bootstrap, unique_name)
    with served(settings, monkeypatch) as client:
        assert client.ask("PUT", TRIPS, OPERATOR, MINIMAL).status == 200
        until(lambda: is_ready(client), lambda: client.get("/readyz").body)
        here, there = EXAMPLES["worker"], EXAMPLES["worker"]
        assert isinstance(here, ObservedWorker)
        here = replace(here, worker="worker-0", slots=(0, 1), leaving=False)
        there = replace(here, worker="worker-1", slots=(2,))
        slot = json.loads(client.get(TRIPS, VIEWER).body)["slot"]
        told = ObservedSink(
            key="trips", slot=slot, worker="worker-0", incarnation="4f1d", state=LifeState.STARTING
        )
        tell(settings, here, there, told)
        until(
            lambda: json.loads(client.get(TRIPS, VIEWER).body)["state"] == "starting",
            lambda: client.get(TRIPS, VIEWER).body,
        )
        failed = replace(
            told, state=LifeState.ERROR, code="HG-108", text="SIGSEGV", restarts=2, next_try_in_ms=1
        )
        tell(settings, failed)
        counted = 'headgate_fleet_restarts_total{code="HG-108",'
        until(
            lambda: counted in client.get("/metrics", VIEWER).body,
            lambda: client.get("/metrics", VIEWER).body,
        )
        line = next(
            line for line in client.get("/metrics", VIEWER).body.splitlines() if counted in line
        )
        assert line.endswith('sink="trips"} 2.0')
        until(
            lambda: "HG-108 SIGSEGV" in client.get("/", VIEWER).body,
            lambda: client.get("/", VIEWER).body,
        )
        moved = client.ask("PUT", f"{TRIPS}/move", OPERATOR, json.dumps({"to": "worker-1"}))
        assert moved.status == 200, moved.body
        assert json.loads(client.get(TRIPS, VIEWER).body)["slot"] == 2
        drained = client.ask("PUT", f"{FLEET}/workers/worker-1/drain?dry_run=1", OPERATOR)
        assert "leaves worker-1" in drained.body


@pytest.mark.wide
def test_a_broker_that_is_away_makes_knowledge_old_and_no_sink_lost(
    own_kafka: EmbeddedKafka, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(own_kafka.bootstrap, unique_name)
    with served(settings, monkeypatch) as client:
        assert client.ask("PUT", TRIPS, OPERATOR, MINIMAL).status == 200
        until(lambda: is_ready(client), lambda: client.get("/readyz").body)
        until(  # what it has written it knows once it has read it back
            lambda: "slot" in json.loads(client.get(TRIPS, VIEWER).body),
            lambda: client.get(TRIPS, VIEWER).body,
        )
        slot = json.loads(client.get(TRIPS, VIEWER).body)["slot"]
        told = ObservedSink(
            key="trips", slot=slot, worker="worker-0", incarnation="a", state=LifeState.RUNNING
        )
        tell(settings, told)
        until(
            lambda: json.loads(client.get(TRIPS, VIEWER).body)["state"] == "running",
            lambda: client.get(TRIPS, VIEWER).body,
        )
        own_kafka.kill()
        until(lambda: not is_ready(client), lambda: "it is ready")
        known = json.loads(client.get(FLEET, VIEWER).body)
        assert known["problem"]
        assert known["sinks"][0]["state"] == "running"
        assert "What stands here is" in client.get("/", VIEWER).body
        assert client.get("/livez").status == 200
        refused = client.ask("PUT", f"{TRIPS}/pause", OPERATOR)
        assert refused.status == 503, refused.body
        own_kafka.start()
        until(lambda: is_ready(client), lambda: client.get("/readyz").body)
        assert json.loads(client.get(FLEET, VIEWER).body)["problem"] == ""


def test_a_topic_that_is_gone_or_made_anew_is_said_and_read_again(
    bootstrap: str, unique_name: str, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(bootstrap, unique_name)
    with served(settings, monkeypatch) as client:
        assert client.ask("PUT", TRIPS, OPERATOR, MINIMAL).status == 200
        until(lambda: is_ready(client), lambda: client.get("/readyz").body)
        for topic in (settings.fleet.name, settings.fleet.state_topic):
            admin.delete_topics([topic])[topic].result()
        until(lambda: not is_ready(client), lambda: "it is ready")
        assert "does not exist" in client.get("/readyz").body
        assert "trips" in client.get("/", VIEWER).body
        zones = MINIMAL.replace('"trips"', '"zones"', 1)
        assert client.ask("PUT", f"{FLEET}/sinks/zones", OPERATOR, zones).status == 200
        until(lambda: is_ready(client), lambda: client.get("/readyz").body)
        shown = json.loads(client.get(FLEET, VIEWER).body)["sinks"]
        assert [each["sink"] for each in shown] == ["zones"]


@pytest.mark.wide
def test_a_worker_s_sink_is_seen_in_each_of_its_states(
    deploy: Deploy,
    tmp_path: Path,
    bootstrap: str,
    unique_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = deploy({"name": "trips"})
    with Fleet(tmp_path, bootstrap, f"{unique_name}-fleet", slots=2) as fleet:
        fleet.start("w0")
        settings = replace(fleet.settings, http=GUARDED)
        with served(settings, monkeypatch) as client:

            def seen() -> dict[str, Any]:
                got = client.get(TRIPS, VIEWER)
                return json.loads(got.body) if got.status == 200 else {}

            def until_seen(state: str) -> dict[str, Any]:
                until(lambda: seen().get("state") == state, lambda: f"{seen()} {fleet.logs()}")
                assert f">{state}<" in client.get("/sinks/trips", VIEWER).body
                return seen()

            put = client.ask("PUT", TRIPS, OPERATOR, sink.sink_file.read_text())
            assert put.status == 200, put.body
            runs = until_seen("running")
            sink.produce(200)
            sink.wait_until_lag_zero()
            until(lambda: seen()["lag_records"] == 0, seen)
            status = client.get("/sinks/trips/status", VIEWER)
            assert (status.status, "Last commits" in status.body) == (200, True)

            os.kill(runs["pid"], signal.SIGSEGV)
            counted = 'restarts_total{code="HG-108"'
            until(lambda: counted in client.get("/metrics", VIEWER).body, seen)
            until(lambda: seen()["pid"] not in (0, runs["pid"]), seen)
            until_seen("running")

            for move, state in (("pause", "paused"), ("stop", "stopped"), ("start", "running")):
                assert client.ask("PUT", f"{TRIPS}/{move}", OPERATOR).status == 200
                until_seen(state)
            fleet.kill("w0")
            until_seen("lost")
            lost = f'headgate_fleet_sinks{{fleet="{settings.fleet.name}",state="lost"}} 1.0'
            until(lambda: lost in client.get("/metrics", VIEWER).body, seen)
    sink.judge()
