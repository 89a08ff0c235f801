"""A participant whose catalog Java speaks to, in the JVM of the Spark that writes its files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hive_metastore import iceberg_jars

from headgate.operations.check import State, check

if TYPE_CHECKING:
    from integration.conftest import Deploy

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.soak]


def test_point_7_a_sink_on_hive_runs_in_java_and_is_checked(
    deploy: Deploy, hive_uri: str, tmp_path: Path, unique_name: str
) -> None:
    database = unique_name.replace("-", "_")
    sink = deploy(
        {
            "catalog": {"name": "hive", "backend": "java"},
            "catalog.properties": {
                "type": "hive",
                "uri": hive_uri,
                "warehouse": f"file://{tmp_path}/warehouse",
            },
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
    assert "its metastore compares and sets" in asked["catalog rights"].detail
    assert {answer.what for answer in asked.values() if answer.state is State.WRONG} == set()
    sink.stop()
    sink.judge()
    assert "thrift" not in participant.log_text()
