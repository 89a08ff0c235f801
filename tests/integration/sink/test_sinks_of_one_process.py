"""Two sinks in one process, in one thread or by the command; one's fate spares the other."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import replace
from typing import Any

import pytest
from integration.conftest import Deploy
from integration.deployment import HEADGATE, Deployment, Participant
from integration.sink_file import COORDINATES

import headgate
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import PoisonRecord
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.operations.status.status import read_status

pytestmark = pytest.mark.integration

ZONES = "db.zones"


def beside(sink: Deployment) -> SinkSettings:
    """Another sink of the same topic, with a table of its own, which keeps what is bad."""
    known = sink.settings
    aside = replace(known.quarantine, policy=Disposal.QUARANTINE, table=f"{ZONES}_rejected")
    return replace(
        known,
        name=SinkName("zones"),
        source=replace(known.source, group_id=f"{known.source.group_id}-zones"),
        table=replace(known.table, identifier=ZONES),
        quarantine=aside,
    )


def offsets_of(sink: Deployment, table: str) -> int:
    """How many records the table holds; each is there once."""
    with sink.catalog() as catalog:
        if not catalog.table_exists(table):
            return 0
        rows = catalog.load_table(table).scan().to_arrow()
    held = list(zip(*(rows[name].to_pylist() for name in COORDINATES), strict=True))
    assert len(held) == len(set(held))
    return len(held)


@pytest.mark.wide
def test_two_sinks_of_one_process_and_one_that_ends(deploy: Deploy) -> None:
    sink = deploy(change={"quarantine": {"policy": "fail"}})

    def turned(*sinks: headgate.Sink) -> None:
        for _ in range(10):
            for each in sinks:
                each.turn()

    def both(count: int) -> bool:
        turned(trips, zones)
        return offsets_of(sink, "db.rows") == offsets_of(sink, ZONES) == count

    def second(count: int) -> bool:
        turned(zones)
        return offsets_of(sink, ZONES) == count

    with headgate.Sink(beside(sink)) as zones:
        with headgate.Sink(sink.settings) as trips:
            sink.produce(500)
            sink.wait_until(lambda: both(500), "all rows in both tables")
            sink.bad_every = 1
            sink.produce(1)
            sink.bad_every = 0
            with pytest.raises(PoisonRecord):
                sink.wait_until(lambda: both(0), "the end of one")
        sink.produce(500)
        sink.wait_until(lambda: second(1_000), "what came behind the bad record in one table")
    assert offsets_of(sink, "db.rows") == 500


def lines_of(participant: Participant) -> list[dict[str, Any]]:
    texts = participant.log_text().splitlines()
    return [json.loads(text) for text in texts if text.startswith("{")]


def test_one_command_runs_two_sinks_and_the_end_of_one_is_that_ones(
    deploy: Deploy,
) -> None:
    http = {"listen": "127.0.0.1:0"}
    trips = deploy(change={"name": "trips", "http": http, "quarantine": {"policy": "fail"}})
    zones = deploy(change={"name": "zones", "http": http, "table": {"identifier": ZONES}})
    (both,) = trips.start(command=(HEADGATE, "run", zones.sink_file))
    for sink in (trips, zones):
        sink.produce(500)
        sink.wait_until_lag_zero()

    trips.bad_every = 1
    trips.produce(1)
    trips.bad_every = 0

    def failed() -> list[dict[str, Any]]:
        return [said for said in lines_of(both) if said["event"] == "sink.failed"]

    trips.wait_until(lambda: bool(failed()), "the end of one")
    assert {(said["sink"], said["code"]) for said in failed()} == {("trips", "HG-207")}
    assert read_status(trips.settings).condition == "failed"
    zones.produce(500)
    zones.wait_until_lag_zero()
    (page,) = [said for said in lines_of(both) if "sink zones: serves" in said["message"]]
    with urllib.request.urlopen(page["message"].split()[-1] + "/metrics", timeout=60) as answer:
        counted = answer.read().decode()
    assert "headgate_committed_rows_total{" in counted
    assert 'code="HG-207"' not in counted

    own = next(trips.sink_file.parent.glob("trips-*.toml"))
    own.write_text(own.read_text().replace('policy" = "fail"', 'policy" = "quarantine"'))
    trips.wait_until(lambda: trips.lag() == 0, "the other begins again when its file is written")
    trips.stop()  # with 0: all work again
    ended = [(said["sink"], said["event"]) for said in lines_of(both)]
    for name in ("trips", "zones"):
        assert ended.count((name, "sink.draining")) >= 1
        assert (name, "sink.stopped") in ended
        assert (name, "transaction.settled") in ended
    assert {who for who, event in ended if event != "note"} == {"trips", "zones"}
    zones.judge()
