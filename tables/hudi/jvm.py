"""The JVM with Spark 3.5 and Hudi's bundle in which commits are made; one of a process."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headgate.control_protocol.kind_errors import HudiMissing

_CONF = {
    "spark.master": "local[1]",
    "spark.app.name": "headgate-hudi",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
}
_HINT = (
    "pip install 'headgate[hudi]', and name the bundle under [catalog.properties]: "
    '"spark.jars" = "/path/to/hudi-spark3.5-bundle_2.12-1.2.0.jar"'
)


_OPENING = threading.Lock()
"""Payments have threads of their own: two that find the JVM dead would start one each."""


def open_spark(conf: Mapping[str, str]) -> Any:
    """Return this process's Spark context, with Hudi in it. Raises ``HudiMissing``."""
    with _OPENING:
        return _open_spark(conf)


def _open_spark(conf: Mapping[str, str]) -> Any:
    try:
        import pyspark
        from pyspark import SparkConf, SparkContext
    except ImportError as error:
        raise HudiMissing(f"a Hudi table is committed to by Spark, and {error}", _HINT) from error
    if not pyspark.__version__.startswith("3.5."):
        raise HudiMissing(
            f"Hudi's bundle is for Spark 3.5, and PySpark here is {pyspark.__version__}", _HINT
        )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _forget_dead(SparkContext)
    wanted = SparkConf().setAll(list({**_CONF, **conf}.items()))
    try:
        # Made in the main thread, it would answer Ctrl-C itself: no orderly end is left then.
        with ThreadPoolExecutor(1) as aside:
            context = aside.submit(SparkContext.getOrCreate, wanted).result()
        context.setLogLevel("OFF")
        _loaded(context)
    except Exception as error:
        raise HudiMissing(f"Spark did not start with Hudi: {said(error)}", _HINT) from error
    return context


def session_of(context: Any) -> Any:
    """Return the context's session, which knows data frames."""
    from pyspark.sql import SparkSession

    return SparkSession(context)


def ended(context: Any) -> bool:
    """Return whether its process is known to be gone."""
    process = getattr(context._gateway, "proc", None)  # noqa: SLF001 - PySpark gives no other way
    return process is not None and process.poll() is not None


def hook(context: Any, check: Callable[[], None]) -> Any:
    """Return a ``BiConsumer`` of Java that calls the function; what it raises, Java raises too."""
    from pyspark.java_gateway import ensure_callback_server_started

    with _OPENING:
        ensure_callback_server_started(context._gateway)  # noqa: SLF001 - PySpark gives no other way
    return _Hook(check)


class _Hook:
    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def accept(self, _meta: Any, _metadata: Any) -> None:
        self._check()

    class Java:
        implements = ("java.util.function.BiConsumer",)


def said(error: BaseException) -> str:
    """The innermost cause of what Java raised, in one line; of anything else itself."""
    cause = getattr(error, "java_exception", None)
    if cause is None:
        return repr(error)[:300]
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.toString()).partition("\n")[0][:300]


def _forget_dead(spark: Any) -> None:
    """PySpark starts no second JVM while it believes in the first."""
    found = spark._active_spark_context  # noqa: SLF001 - PySpark gives no other way
    if found is not None and ended(found):
        spark._active_spark_context = spark._gateway = spark._jvm = None  # noqa: SLF001


def _loaded(context: Any) -> None:
    loader = context._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # noqa: SLF001
    loader.loadClass("org.apache.hudi.client.SparkRDDWriteClient")
