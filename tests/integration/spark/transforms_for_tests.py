"""Provides transforms as a user's package would: processes of the tests find them by name."""

from __future__ import annotations

import os
from typing import Any


def cheap(records: Any) -> Any:
    return records.where("fare < 100").withColumn("zone", records["zone"].substr(1, 1))


def doubled(records: Any) -> Any:
    return records.union(records)


def renumbered(records: Any) -> Any:
    return records.withColumn("_headgate_record", records["_headgate_record"] + 1_000_000)


def without_number(records: Any) -> Any:
    return records.select("vendor", "fare", "zone")


def raising(records: Any) -> Any:
    return records.select("vendor")[7:]


def failing_in_a_task(records: Any) -> Any:
    from pyspark.sql.functions import udf

    return records.withColumn("fare", udf(lambda fare: fare / 0, "double")(records["fare"]))


def killing_its_worker(records: Any) -> Any:
    from pyspark.sql.functions import udf

    return records.withColumn("fare", udf(lambda _: os._exit(9), "double")(records["fare"]))


def of_one_row(records: Any) -> Any:
    return records.agg({"fare": "max"})
