"""Others work on the table too: appends, compaction, expiry, and a second sink."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.readers import IcebergSpark
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

pytestmark = pytest.mark.integration

FOREIGN = pa.table({"id": pa.array([-1, -2, -3], pa.int64())})


def foreign(sink: Deployment, change: Callable[[Table], object]) -> None:
    """Somebody else's change of the table, tried until it wins its race against the sink."""
    while True:
        with sink.table() as table:
            try:
                change(table)
            except CommitFailedException:
                continue
            return


def test_hc40_f72_foreign_appends_between_the_commits(deploy: Deploy) -> None:
    sink = deploy()
    sink.start(2)
    with sink.load():
        for _ in range(3):
            sink.wait_for_commits()
            foreign(sink, lambda table: table.append(FOREIGN))
        sink.wait_for_commits()
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge(unproven=["9 rows of others"])
    assert sink.rows().num_rows == sink.own_rows().num_rows + 9


@pytest.mark.wide
@pytest.mark.spark
def test_f72_compaction_and_expiry_by_spark_while_the_sink_commits(
    deploy: Deploy, iceberg_spark: IcebergSpark
) -> None:
    sink = deploy()
    sink.start(2)
    with sink.load():
        sink.wait_for_commits(3)
        sink.call(iceberg_spark, "rewrite_data_files", "options => map('rewrite-all', 'true')")
        sink.wait_for_commits(2)
        everything = "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1"
        sink.call(iceberg_spark, "expire_snapshots", everything)
        sink.wait_for_commits(2)
        sink.kill(sink.leader())  # the next one goes by what expiry has left
        sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    report = sink.judge()
    expired = "older snapshots have expired: their commits cannot be examined"
    assert expired in report.remarks, "something did expire, and every record was compared"


@pytest.mark.wide
def test_hc37_two_sinks_into_one_table(deploy: Deploy) -> None:
    sinks = [deploy(), deploy({"name": "other"})]
    for sink in sinks:
        sink.start(2)
    with sinks[0].load(), sinks[1].load():
        for sink in sinks:
            sink.wait_for_commits(3)
    for sink in sinks:
        sink.wait_until_lag_zero()
    for sink in sinks:
        sink.stop()
        sink.judge()
    assert sinks[0].rows().num_rows == sum(sink.own_rows().num_rows for sink in sinks)


def test_one_name_belongs_to_one_group(deploy: Deploy) -> None:
    sink = deploy()
    sink.produce()
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    group = sink.settings.source.group_id
    sink.change({"source": {"group_id": f"not-{group}"}})
    sink.start()
    assert group in sink.stopped_by_itself("HG-101")
    sink.judge()
