"""What servers show of real participants, through a kill, against what the brokers say."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment, Participant
from prometheus_client.parser import text_string_to_metric_families

from headgate.runtime.telemetry import metric_catalog as names

pytestmark = pytest.mark.integration

OPERATOR = "operator-of-this-test"


def asked(
    participant: Participant, path: str, method: str = "GET", token: str = ""
) -> tuple[int, str]:
    url = re.search(r"serves its state at (http://[0-9.:]+)", participant.log_text())
    assert url, participant.log_text()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url[1] + path, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def series(participant: Participant) -> dict[tuple[str, str], float]:
    """By name and the value of its last label besides the sink's."""
    status, text = asked(participant, "/metrics")
    assert status == 200
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            others = [v for k, v in sorted(sample.labels.items()) if k not in ("sink", "le")]
            found[sample.name, others[-1] if others else ""] = sample.value
    return found


def told(sink: Deployment, name: str) -> list[float]:
    """What all running participants say of it."""
    running = [p for p in sink.participants if p.running]
    return [value for p in running for (n, _), value in series(p).items() if n == name]


def test_metrics_page_and_moves_through_a_kill(deploy: Deploy, tmp_path: Path) -> None:
    token = tmp_path / "operator-token"
    token.write_text(OPERATOR)
    http: dict[str, Any] = {"listen": "127.0.0.1:0", "operator_token": f"${{file:{token}}}"}
    sink = deploy(change={"http": http, "telemetry": {"interval_ms": 1_000}})
    sink.start(2)
    sink.wait_until(sink.all_share, "a partition each: who leads does not change any more")
    sink.produce()
    sink.wait_until_lag_zero()
    sink.wait_until(lambda: told(sink, names.LAG_RECORDS) == [0.0], "metrics say: no lag")
    sink.wait_until(lambda: told(sink, names.LAG_SECONDS) == [0.0], "and nothing that waits")
    assert sum(told(sink, names.COMMITTED_ROWS)) == sink.produced
    assert sum(told(sink, names.READ_RECORDS)) >= sink.produced
    assert sum(told(sink, names.OWNED_PARTITIONS)) == sink.partitions
    (epoch,) = told(sink, names.EPOCH)

    (leader,) = [p for p in sink.participants if (names.EPOCH, "") in series(p)]
    sink.wait_until(lambda: asked(leader, "/readyz") == (200, "ok\n"), "the leader is ready")
    page = asked(leader, "/")[1]
    assert "Rows per commit" in page
    assert 'class="state">' in page

    path = f"/api/v1/sinks/{sink.name}"
    assert asked(leader, f"{path}/pause", "PUT")[0] == 403
    rehearsed = json.loads(asked(leader, f"{path}/pause?dry_run=true", "PUT", OPERATOR)[1])
    assert (rehearsed["changes"], rehearsed["paused"]) == (True, False)
    paused = json.loads(asked(leader, f"{path}/pause", "PUT", OPERATOR)[1])
    assert (paused["paused"], sum(paused["positions"].values())) == (True, sink.produced)
    sink.produce()
    sink.wait_until(lambda: told(sink, names.LAG_SECONDS) > [0.0], "an age of what waits")
    resumed = asked(leader, f"{path}/resume", "PUT", OPERATOR)
    assert resumed[0] == 200

    sink.kill(leader)
    sink.wait_until(lambda: told(sink, names.EPOCH) == [epoch + 1], "another one tells of the sink")
    sink.wait_until_lag_zero()
    sink.wait_until(lambda: told(sink, names.LAG_RECORDS) == [0.0], "metrics say: no lag")
    survivor = next(p for p in sink.participants if p.running)
    sink.wait_until(lambda: json.loads(asked(survivor, path)[1])["lag"] == 0, "a report: no lag")
    sink.judge()


def test_a_stopped_sink_stays_stopped_until_it_is_started(deploy: Deploy, tmp_path: Path) -> None:
    """Over processes that end and begin; each of them leaves the group, and waits."""
    token = tmp_path / "operator-token"
    token.write_text(OPERATOR)
    sink = deploy(
        change={"http": {"listen": "127.0.0.1:0", "operator_token": f"${{file:{token}}}"}}
    )
    sink.start(2)
    sink.wait_until(sink.all_share, "a partition each")
    sink.produce()
    sink.wait_until_lag_zero()
    path = f"/api/v1/sinks/{sink.name}"
    first = sink.participants[0]
    status, text = asked(first, f"{path}/stop", "PUT", OPERATOR)
    assert status == 200, text
    done = json.loads(text)
    assert (done["stopped"], done["still_there"]) == (True, [])
    assert done["by"].startswith("http 127.0.0.1")
    report = json.loads(asked(first, path)[1])
    assert (report["condition"], report["stopped_by"]) == ("stopped", done["by"])
    assert asked(first, "/livez") == (200, "ok\n")
    assert asked(first, "/readyz")[0] == 503

    sink.stop(first)
    (anew,) = sink.start()
    sink.produce()
    sink.wait_until(
        lambda: anew.said("waiting for headgate start"), "the new process waits as well"
    )
    record = sink.record()
    assert record is not None
    assert sum(record.offsets.values()) == sink.produced - 1_000
    status, text = asked(anew, f"{path}/start", "PUT", OPERATOR)
    assert (status, json.loads(text)["stopped"]) == (200, False)
    sink.wait_until_lag_zero()
    sink.judge()
