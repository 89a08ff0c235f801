"""A participant whose catalog Java speaks to, in the JVM of the Spark that writes its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.hive_metastore import iceberg_jars

from headgate.operations.check.check import State, check

if TYPE_CHECKING:
    from integration.conftest import Deploy

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.soak]


@pytest.fixture(params=["hive", "rest"])
def properties(request: pytest.FixtureRequest, tmp_path: Path) -> Mapping[str, str | None]:
    """Of a catalog that Java speaks to."""
    if request.param == "rest":
        port = request.getfixturevalue("rest_port")
        return {"type": "rest", "uri": f"http://127.0.0.1:{port}", "warehouse": None}
    hive_uri = request.getfixturevalue("hive_uri")
    return {"type": "hive", "uri": hive_uri, "warehouse": f"file://{tmp_path}/warehouse"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # py4j's sockets
def test_a_sink_runs_in_java_and_is_checked(
    deploy: Deploy, properties: Mapping[str, str | None], unique_name: str
) -> None:
    database = unique_name.replace("-", "_")
    sink = deploy(
        {
            "catalog": {"name": "lake", "backend": "java"},
            "catalog.properties": properties,
            "table": {"identifier": f"{database}.rows", "create": True},
            "spark": {"writer": "spark", "master": "local[1]"},
            "spark.conf": {"spark.jars": iceberg_jars()},
        }
    )
    sink.produce(1_000)
    (participant,) = sink.start()
    sink.wait_until_lag_zero(180)
    asked = {answer.what: answer for answer in check(sink.settings)}
    assert asked["catalog"].detail.endswith("in Java")
    if properties["type"] == "hive":
        assert "its metastore compares and sets" in asked["catalog rights"].detail
    assert [answer for answer in asked.values() if answer.state is State.WRONG] == []
    sink.stop()
    sink.judge()
    assert str(properties["uri"]) not in participant.log_text()
