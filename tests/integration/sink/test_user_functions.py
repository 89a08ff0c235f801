"""A sink with a function of its own and without Spark: what it leaves out is counted, rows are
exact, whatever is killed, and a wrong one stops the sink."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from integration.conftest import Deploy
from integration.deployment import HEADGATE
from integration.sink.test_transforms import in_source, questions
from integration.sink_file import COLUMNS, KEPT

from headgate.operations.audit.audit import audit

pytestmark = pytest.mark.integration

OWN_PROCESS = (str(HEADGATE), "run")
"""Not a fork of what has imported everything: the function is found by its PYTHONPATH."""


def with_function(name: str) -> dict[str, Any]:
    return {"transform": {"python": f"support.user_functions:{name}"}}


DERIVED = {
    **KEPT,
    **with_function("derive"),
    "table": {"partition_by": ["zone"]},
    "table.columns": {"columns": {"id": "long", "zone": "string", "day": "date", "twice": "long"}},
    "transform.columns": {"columns": COLUMNS},
}


@pytest.fixture(autouse=True)
def _functions_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.mark.wide
def test_filtered_derived_and_bad_records_are_exact_though_a_participant_is_killed(
    deploy: Deploy,
) -> None:
    sink = deploy(DERIVED, partitions=4)
    sink.bad_every = 7
    sink.start(1, OWN_PROCESS)
    sink.produce(2_000)
    sink.wait_for_commits()
    sink.produce(2_000)
    sink.kill(sink.participants[0])
    sink.produce(1_000)
    sink.start(1, OWN_PROCESS)
    sink.wait_until_lag_zero()
    sink.stop()
    rows = sink.rows()
    places = in_source(sink)
    good = [number for number in range(sink.produced) if number % 7]
    assert sorted(rows["id"].to_pylist()) == [number for number in good if number % 8]
    for row in rows.to_pylist():
        assert places[row["id"]] == (row["kafka_partition"], row["kafka_offset"])
        assert row["kafka_topic"] == sink.topics[0]
        assert row["zone"] == "ABC"[row["id"] % 3]
        assert (row["day"].day, row["twice"]) == (1 + row["id"] // 100 % 28, 2 * row["id"])
    report = audit(sink.settings)
    assert report.findings == ()
    assert report.skipped_records == sum(number % 8 == 0 for number in good)
    assert report.sum_over_partitions("in_quarantine") == sink.produced - len(good)
    assert any("as many rows as the source has records" in proven for proven in report.proven)


@pytest.mark.wide
def test_a_function_slower_than_the_time_for_a_commit_delays_and_loses_nothing(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = deploy({**with_function("slow"), "coordinator": {"commit_timeout_ms": 1_000}})
    monkeypatch.setenv("SLOW_FUNCTION_S", "4")
    sink.produce(500)
    sink.start(2, OWN_PROCESS)
    sink.wait_for_commits()
    sink.produce(500)
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()


@pytest.mark.wide
def test_check_and_dry_run_reach_the_function_and_a_wrong_one_stops_the_sink(
    deploy: Deploy,
) -> None:
    sink = deploy({**KEPT, **with_function("raising_for_some")})
    sink.produce(100)
    assert questions(sink)["transform"]["state"] == "unchecked"
    tried = subprocess.run(
        [HEADGATE, "run", "--dry-run", "50", sink.sink_file], capture_output=True, text=True
    )
    assert "raising_for_some): KeyError" in tried.stdout, tried.stdout + tried.stderr
    assert not sink.committed()
    sink.start(1, OWN_PROCESS)
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()
    assert sink.committed() == 90
    assert questions(sink)["transform"]["detail"].endswith(
        "gives id, zone, happened_at, kafka_topic, kafka_partition, kafka_offset"
    )
    sink.change(with_function("column_of_another_type"))
    found = questions(sink)
    assert found["transform"]["state"] == "wrong"
    answer = found["rows"]  # of real records, and asked first
    assert (answer["state"], answer["code"]) == ("wrong", "HG-100")
    sink.start(1, OWN_PROCESS)
    sink.produce(10)
    assert answer["detail"] in sink.stopped_by_itself("HG-100")
    sink.change(with_function("renumber"))
    sink.start(1, OWN_PROCESS)
    assert "rows of records that were not read" in sink.stopped_by_itself("HG-212")
    assert sink.committed() == 90
