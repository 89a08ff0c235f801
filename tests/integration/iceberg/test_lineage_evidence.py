"""An idle sink continues after maintenance by Spark and an expiry (rule TABLE-4)."""

from __future__ import annotations

import pytest
from integration.iceberg.sink_commits import SinkOnTable
from integration.iceberg.test_expiry import COLUMNS, Spark, rows
from integration.readers import IcebergSpark
from support.local_catalog import LocalCatalog

from headgate.control_protocol.ports import Lineage

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def forgotten(sink: SinkOnTable) -> None:
    """Old versions of the table's metadata are deleted."""
    table = sink.load()
    for entry in table.metadata.metadata_log:
        table.io.delete(entry.metadata_file)


@pytest.mark.parametrize("version", [pytest.param("2", marks=pytest.mark.wide), "3"])
@pytest.mark.parametrize(
    "log", [pytest.param(True, marks=pytest.mark.wide), False], ids=["log", "no-log"]
)
def test_an_idle_sink_two_maintenance_commits_and_an_expiry(
    sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark, version: str, log: bool
) -> None:
    spark = Spark(iceberg_spark, sqlite_catalog)
    properties = {"format-version": version}
    sink = SinkOnTable.claimed(sqlite_catalog.catalog, COLUMNS, properties=properties)
    for number in range(6):
        view = sink.commit(rows(number))
    spark.call("rewrite_data_files", ", options => map('rewrite-all', 'true')")
    spark.call("rewrite_manifests")
    spark.call("rewrite_data_files", ", options => map('rewrite-all', 'true')")
    spark.call("expire_snapshots", ", older_than => TIMESTAMP '2100-01-01', retain_last => 1")
    assert len(sink.load().snapshots()) == 2
    if not log:
        forgotten(sink)

    after = sink.table.read()

    assert (after.lineage, after.record) == (Lineage.CONTAINS_TAG, view.record)
    sink.view = after
    sink.commit(rows(6))
    assert spark.ids() == list(range(7))


def test_a_rollback_under_the_maintenance_is_not_taken_for_it(
    sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark
) -> None:
    spark = Spark(iceberg_spark, sqlite_catalog)
    sink = SinkOnTable.claimed(sqlite_catalog.catalog, COLUMNS)
    for number in range(6):
        sink.commit(rows(number))
    back = sink.load().snapshots()[3].snapshot_id
    spark.call("rollback_to_snapshot", f", snapshot_id => {back}")
    spark.call("rewrite_data_files", ", options => map('rewrite-all', 'true')")
    spark.call("expire_snapshots", ", older_than => TIMESTAMP '2100-01-01', retain_last => 1")

    assert sink.table.read().lineage is Lineage.ROLLED_BACK
    forgotten(sink)
    assert sink.table.read().lineage is Lineage.UNDECIDABLE
