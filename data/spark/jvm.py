"""Opens the JVM next to this process, with Spark's class path, with or without a session."""

from __future__ import annotations

from headgate.control_protocol.errors import ConfigurationError
from headgate.data.spark.session import (
    SparkOptions,
    interrupt_handler_kept,
    launching,
    translated,
)
from headgate.tables.iceberg.jvm import Jvm
from headgate.tables.jvm_start import start_jvm


def open_jvm(options: SparkOptions) -> Jvm:
    """Return the JVM of this process's session, open or not; it ends with this process.

    A session that is opened later finds it. Raises ``ConfigurationError`` if it cannot start.
    """
    try:
        from pyspark import SparkContext
    except ImportError as error:
        raise ConfigurationError(
            f"catalog.backend is java, and Spark is not installed: {error}",
            'pip install "headgate[spark]"',
        ) from error
    conf = launching(options)
    try:
        with interrupt_handler_kept():
            start_jvm(SparkContext, conf)  # a context would take a master's resources
            gateway = SparkContext._gateway  # noqa: SLF001 - PySpark gives no other way
            spark = gateway.jvm.org.apache.spark
            log4j = gateway.jvm.org.apache.logging.log4j
            log4j.core.config.Configurator.setRootLevel(log4j.Level.ERROR)
            told = spark.SparkConf()
            for key, value in conf.items():
                told.set(key, value)
            return Jvm(gateway, spark.deploy.SparkHadoopUtil.get().newConfiguration(told))
    except Exception as error:
        raise translated(options, error) from error
