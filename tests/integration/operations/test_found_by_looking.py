"""Failures are found from page, status, metrics and log alone; each gives the code."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from confluent_kafka.admin import AdminClient
from integration.conftest import Deploy
from integration.deployment import Deployment, Participant
from integration.operations.test_served_sinks import asked
from integration.sink_file import COLUMNS
from support.small_rest_catalog import SmallRestCatalog, _Handler
from support.topics import delete_topics

from headgate.control_protocol.errors import HeadgateError
from headgate.operations.demo.producer import ensure_topic
from headgate.operations.http.sink_status_cache import ServedSink, gauges_of_sinks
from headgate.operations.http.status_page import sink_page
from headgate.operations.status.status import read_status

pytestmark = [pytest.mark.integration, pytest.mark.soak]

FACE: dict[str, Any] = {"http": {"listen": "127.0.0.1:0"}, "telemetry": {"interval_ms": 1_000}}


@dataclass
class Looked:
    """What each of the four says of one error; ``text`` is what status tells."""

    status: str = ""
    text: str = ""
    page: str = ""
    metrics: str = ""
    log: str = ""


def look(sink: Deployment, *participants: Participant) -> Looked:
    """Look once: at the page and metrics of who lives, and of a server beside them."""
    found = Looked(log="".join(each.log_text() for each in participants))
    try:
        report = read_status(sink.settings)
    except HeadgateError as error:
        found.status = found.text = str(error)
    else:
        told = report.last_error
        found.status = told.code if told else ""
        found.text = told.text if told else ""
        found.page = sink_page(report, 0)
    found.metrics = repr(gauges_of_sinks([ServedSink(sink.settings)]))
    for each in participants:
        if each.running and each.said("serves its state at"):
            with suppress(URLError, ConnectionError):  # it may end just now
                found.metrics += asked(each, "/metrics")[1]
                found.page += asked(each, "/")[1]
    return found


def finds(
    sink: Deployment, code: str, *participants: Participant, where: str = "", logs: str = ""
) -> None:
    """Wait until each of the four names the code, and what names things where they are.

    ``logs``: the code in the log, where it is another one.
    """
    seen = Looked()

    def known() -> bool:
        nonlocal seen
        seen = look(sink, *participants)
        return (
            code in seen.status
            and code in seen.page
            and code in seen.metrics
            and logged(seen.log, logs or code, where)
            and all(where in text for text in (seen.text, seen.page))
        )

    running = sink.participants
    sink.participants = []  # some are meant to end
    try:
        sink.wait_until(known, f"{code} in all four", bound_s=240)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{seen}") from None
    finally:
        sink.participants = [each for each in running if each.running]


def logged(log: str, code: str, where: str) -> bool:
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return any(said.get("code") == code and where in said["message"] for said in lines)


def at_work(deploy: Deploy, **change: Any) -> tuple[Deployment, Participant]:
    sink = deploy(change={**FACE, **change})
    (participant,) = sink.start()
    sink.produce()
    sink.wait_until_lag_zero()
    return sink, participant


def test_a_column_of_another_type(deploy: Deploy) -> None:
    sink, first = at_work(deploy)
    sink.stop(first)
    sink.change({"table.columns": {"columns": {**COLUMNS, "zone": "long"}}})
    (second,) = sink.start()
    finds(sink, "HG-208", second, where="zone")


def test_a_full_disk(deploy: Deploy) -> None:
    sink, participant = at_work(deploy)
    participant.pause()  # it shall see all of them at once, as one file that is too large
    resource.prlimit(participant.pid, resource.RLIMIT_FSIZE, (64 * 1024, -1))
    sink.produce(40_000)
    participant.resume()
    finds(sink, "HG-403", participant)


def test_a_record_that_does_not_fit(deploy: Deploy) -> None:
    sink, participant = at_work(deploy, quarantine={"policy": "fail"})
    sink.bad_every = 1
    sink.produce(1)
    finds(sink, "HG-207", participant, where=f"{sink.topics[0]} partition 0 offset 500")


def test_a_topic_that_was_dropped(deploy: Deploy, admin: AdminClient) -> None:
    sink, participant = at_work(deploy)
    delete_topics(admin, *sink.topics)
    # For a minute it may be the brokers' metadata that lags: who works says that it asks again.
    finds(sink, "HG-100", participant, where=sink.topics[0], logs="HG-401")
    ensure_topic(sink.bootstrap, sink.topics[0], partitions=sink.partitions)  # for who tidies up


class Forbidding(SmallRestCatalog):
    """A server that takes no more commits from us, once it was told so."""

    forbids = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {"warehouse": f"file://{folder}/warehouse"})
        self.RequestHandlerClass = _Forbidding


class _Forbidding(_Handler):
    server: Forbidding

    def do_POST(self) -> None:  # noqa: N802 - http.server's
        if not self.server.forbids:
            super().do_POST()
            return
        self.rfile.read(int(self.headers["Content-Length"]))
        error = {"message": "not allowed", "type": "ForbiddenException", "code": 403}
        self._say(403, {"error": error})


@contextmanager
def forbidding(folder: Path) -> Iterator[Forbidding]:
    with Forbidding(folder) as server:
        yield server


def test_rights_that_were_taken(deploy: Deploy, tmp_path: Path) -> None:
    with forbidding(tmp_path) as server:
        rest = {"type": "rest", "uri": server.uri}
        sink, participant = at_work(deploy, **{"catalog.properties": rest})
        server.forbids = True
        sink.produce()
        finds(sink, "HG-103", participant)


def test_two_files_for_one_sink(deploy: Deploy) -> None:
    sink, first = at_work(deploy)
    sink.change({"quarantine": {"policy": "skip"}})
    (second,) = sink.start()
    sink.change({"quarantine": {"policy": "fail"}})
    with sink.load(100):
        finds(sink, "HG-114", first, second, where="quarantine.policy")
