"""Opens the catalog of a sink, by whichever library the sink file names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog

from headgate.sink.catalog_place import refuse_catalog
from headgate.sink.catalog_settings import Backend
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.catalog import TIMEOUT_S, load_catalog

if TYPE_CHECKING:
    from headgate.data.spark.session import SparkOptions


def open_catalog(settings: SinkSettings, timeout_s: float = TIMEOUT_S) -> Catalog:
    """The caller closes it. Raises what ``load_catalog`` raises, ``JvmMissing``, and
    ``ConfigurationError`` where the JVM that it needs does not start."""
    catalog = settings.catalog
    refuse_catalog(catalog)
    if catalog.backend is Backend.PYICEBERG:
        # Looking at a catalog does not make its own tables: ``init_catalog_tables``.
        return load_catalog(catalog.name, catalog.properties, timeout_s)
    from headgate.data.spark.jvm import open_jvm

    return load_catalog(
        catalog.name, catalog.properties, timeout_s, open_jvm(spark_options(settings))
    )


def spark_options(settings: SinkSettings) -> SparkOptions:
    """How the sink file wants Spark."""
    from headgate.data.spark.session import SparkOptions

    spark = settings.spark
    return SparkOptions(spark.master, spark.remote, spark.app_name, spark.parallelism, spark.conf)
