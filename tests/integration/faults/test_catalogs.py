"""A catalog that loses answers, and one that does not answer, under a whole sink."""

from __future__ import annotations

import pytest
from integration.conftest import Deploy
from integration.iceberg.rest_server import LyingProxy

pytestmark = pytest.mark.integration

LIES = ("drop-after", "503-after", "drop-before", "twice")


def test_f57_f61_hc22_hc23_a_commit_whose_answer_is_lost(
    deploy: Deploy, lying_proxy: LyingProxy, unique_name: str
) -> None:
    namespace = unique_name.replace("-", "_")
    sink = deploy(
        {
            "catalog.properties": {"type": "rest", "uri": lying_proxy.uri, "warehouse": None},
            "table": {"identifier": f"{namespace}.rows"},
        }
    )
    sink.start()
    with sink.load():
        for lie in 2 * LIES:
            sink.wait_for_commits()
            lying_proxy.lie = lie
            sink.wait_until(lambda: lying_proxy.lie is None, "commit to lie about")
        sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    # Every file that the table refers to is read, by the audit and by the independent reader.
    assert len(sink.judge().epochs) == 1
