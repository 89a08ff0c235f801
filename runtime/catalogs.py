"""Opens a sink's catalog with the library that the sink file names."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog

from headgate.config.catalog_checks import require_usable_catalog, sqlite_file
from headgate.config.catalog_settings import Backend, CatalogSettings
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_format_registry import spark_conf_for_format_commits
from headgate.control_protocol.errors import TableMissing
from headgate.tables.iceberg.catalog import TIMEOUT_S, load_catalog, require_sql_installed

if TYPE_CHECKING:
    from headgate.data_plane.spark.session import SparkOptions
    from headgate.tables.iceberg.table_format import IcebergFormat

ANSWER_S_MAX = 5.0
"""How long a command that only looks waits for a catalog's answer."""


def open_catalog(
    settings: SinkSettings,
    timeout_s: float = TIMEOUT_S,
    *,
    catalog_settings: CatalogSettings | None = None,
    read_only: bool = False,
) -> Catalog:
    """Return the catalog, which the caller closes.

    With ``read_only`` pyiceberg makes no tables in a database; Java's catalogs may make theirs.
    ``catalog_settings``: those of another catalog than the table's. Raises what ``load_catalog``
    raises, and ``ConfigurationError`` if Spark's JVM is needed and does not start.
    """
    catalog = catalog_settings or settings.catalog
    if catalog.backend is Backend.PYICEBERG:
        return load_catalog(catalog.name, catalog.properties, timeout_s, read_only=read_only)
    from headgate.data_plane.spark.session import open_jvm

    jvm = open_jvm(spark_options(settings))
    return load_catalog(catalog.name, catalog.properties, timeout_s, jvm)


def open_iceberg_format(
    settings: SinkSettings,
    catalog_settings: CatalogSettings,
    opening: ExitStack,
    *,
    read_only: bool,
) -> IcebergFormat:
    """Open a catalog's tables; ``opening`` closes it. Raises what ``open_catalog`` raises.

    With ``read_only`` it is left as it is: raises ``TableMissing`` if its file does not exist.
    """
    from headgate.runtime.dropped_table_detection import (
        PATIENCE_S,
        require_table_never_filled_before,
    )
    from headgate.tables.iceberg.table_format import IcebergFormat

    require_usable_catalog(catalog_settings)
    database = sqlite_file(catalog_settings)
    if database and not database.exists():  # connecting to SQLite would create it
        require_sql_installed()
        if read_only:
            raise TableMissing(
                f"catalog {catalog_settings.name!r}: the database {database} does not exist yet",
                "the first start creates it, or correct catalog.properties.uri",
            )
        if catalog_settings is settings.catalog:
            require_table_never_filled_before(settings, PATIENCE_S)
    timeout_s = ANSWER_S_MAX if read_only else TIMEOUT_S
    catalog = open_catalog(
        settings, timeout_s, catalog_settings=catalog_settings, read_only=read_only
    )
    opening.callback(catalog.close)
    return IcebergFormat(catalog)


def spark_options(settings: SinkSettings) -> SparkOptions:
    """Return the Spark options of the sink file, with what the table's kind needs."""
    from headgate.data_plane.spark.session import SparkOptions

    spark = settings.spark
    conf = {**(spark_conf_for_format_commits(settings) or {}), **spark.conf}
    secret = spark.conf.secret_names | settings.catalog.properties.secret_names
    return SparkOptions(
        spark.master,
        spark.remote,
        spark.app_name,
        spark.parallelism,
        conf,
        secret & conf.keys(),
    )
