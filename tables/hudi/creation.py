"""Creates Hudi tables, and sets the clock for instants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.tables.hudi.jvm import open_spark
from headgate.tables.hudi.keys import generator_of
from headgate.tables.hudi.places import HudiPlace
from headgate.tables.hudi.settings import KEY

_TABLE_VERSION = 9


def create(place: HudiPlace, schema: str, partition_by: Sequence[str], kind: str) -> None:
    """Create a table with these columns; others may do so first. Raises what Java raises."""
    spark = open_spark(place.spark, place.hadoop)
    hudi = spark._jvm.org.apache.hudi  # noqa: SLF001 - PySpark gives no other way
    key = ",".join(place.key.key) if place.key else place.settings.get(KEY, "")
    generator = generator_of(key.split(","), partition_by)
    builder = (
        hudi.common.table.HoodieTableMetaClient.newTableBuilder()
        .setTableType(kind)
        .setTableName(place.table)
        .setTableVersion(_TABLE_VERSION)
        .setTableCreateSchema(schema)
        .setKeyGeneratorClassProp(f"org.apache.hudi.keygen.{generator}")
        .setCommitTimezone(hudi.common.model.HoodieTimelineTimeZone.UTC)
    )
    if key:
        builder = builder.setRecordKeyFields(key)
    if partition_by:
        builder = builder.setPartitionFields(",".join(partition_by))
        builder = builder.setHiveStylePartitioningEnable(True)
        builder = builder.setUrlEncodePartitioning(True)
    conf = hudi.hadoop.fs.HadoopFSUtils.getStorageConf(spark._jsc.hadoopConfiguration())  # noqa: SLF001
    tell_time_in_utc(hudi)
    builder.initTable(conf, place.base_path)


def tell_time_in_utc(hudi: Any) -> None:
    """Keep instants growing through clock changes; tables of another time zone are refused."""
    utc = hudi.common.model.HoodieTimelineTimeZone.UTC
    hudi.common.table.timeline.HoodieInstantTimeGenerator.setCommitTimeZone(utc)
