"""Runs the JVM with Spark 3.5 and Hudi's bundle that makes commits; one per process."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headgate.control_protocol.errors import HudiMissing
from headgate.tables.jvm_start_hiding_secrets import start_jvm_unless_running, with_spark_redaction

SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
}
"""What Hudi needs of any session, one that also writes the files among them."""

_CONF = {
    **SESSION,
    "spark.master": "local[1]",
    "spark.app.name": "headgate-hudi",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
}
_HINT = (
    "pip install 'headgate[hudi]', and name the bundle under [catalog.properties]: "
    '"spark.jars" = "/path/to/hudi-spark3.5-bundle_2.12-1.2.0.jar"'
)
_S3_CLASSES = ("org.apache.hadoop.fs.s3a.S3AFileSystem", "com.amazonaws.services.s3.AmazonS3")
_S3_HINT = (
    "name hadoop-aws and its SDK's bundle behind Hudi's bundle, in the versions that "
    'docs/table-formats/hudi.md has: "spark.jars" = "/path/to/hudi-spark3.5-bundle_2.12-1.2.0.jar,'
    '/path/to/hadoop-aws-3.3.4.jar,/path/to/aws-java-sdk-bundle-1.12.262.jar"'
)

_FIRST = "org.apache.hudi.metadata.HoodieMetadataPayload"
"""Hudi 1.2.0 knows the metadata table's schema again only where this class is made before any file
of it is read: else no commit of the process succeeds (ArrayIndexOutOfBoundsException)."""

_INLINE = "org.apache.hudi.hadoop.fs.inline"
_CLOSE = "public void close() throws java.io.IOException { super.close(); outerStream.close(); }"
"""What Hudi's stream over a block of a log file lacks up to 1.2.0 (Hudi's pull request 19936 adds
it): each lookup in the metadata table would keep a connection to S3 for each block that it reads,
and once the pool has no more, every request waits."""

_OPENING = threading.Lock()
"""Deliveries have their own threads: two that find the JVM dead would start one each."""


def open_spark_context(conf: Mapping[str, str], hadoop_settings: Mapping[str, str]) -> Any:
    """Return this process's Spark context, with Hudi in it. Raises ``HudiMissing``.

    ``hadoop_settings``: how Hadoop reaches it.
    """
    with _OPENING:
        context = _open_spark_context(conf)
        if hadoop_settings:
            _configure_store_access(context, hadoop_settings, conf)
        return context


def _open_spark_context(conf: Mapping[str, str]) -> Any:
    try:
        import pyspark
        from pyspark import SparkConf, SparkContext
    except ImportError as error:
        raise HudiMissing(f"a Hudi table is committed to by Spark, and {error}", _HINT) from error
    if not pyspark.__version__.startswith("3.5."):
        raise HudiMissing(
            f"Hudi's bundle is for Spark 3.5, and PySpark here is {pyspark.__version__}", _HINT
        )
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what it logs with a trace is raised, too
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _forget_dead_jvm(SparkContext)
    # Which of them are secrets is not known here: Spark's page and event log show none of them.
    conf_texts = {**_CONF, **with_spark_redaction(conf, conf)}
    spark_conf = SparkConf().setAll(list(conf_texts.items()))
    try:
        # Created in the main thread, it would handle Ctrl-C itself, which prevents an orderly end.
        with ThreadPoolExecutor(1) as aside:
            aside.submit(start_jvm_unless_running, SparkContext, conf_texts).result()
            context = aside.submit(SparkContext.getOrCreate, spark_conf).result()
        context.setLogLevel("OFF")
        _patch_stream_closing(context)
        _require_classes(context, "org.apache.hudi.client.SparkRDDWriteClient", _FIRST)
    except Exception as error:
        raise HudiMissing(f"Spark did not start with Hudi: {error_text(error)}", _HINT) from error
    return context


def session_of_context(context: Any) -> Any:
    """Return the context's session, which has data frames."""
    from pyspark.sql import SparkSession

    return SparkSession(context)


def has_jvm_ended(context: Any) -> bool:
    """Return whether its process is known to have ended."""
    process = getattr(context._gateway, "proc", None)  # noqa: SLF001 - PySpark gives no other way
    return process is not None and process.poll() is not None


def java_callback(context: Any, check: Callable[[], None]) -> Any:
    """Return a Java ``BiConsumer`` that calls the function; what it raises, Java raises too."""
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


def error_text(error: BaseException) -> str:
    """Return the innermost cause of a Java error, or any other error, in one line."""
    cause = getattr(error, "java_exception", None)
    if cause is None:
        return repr(error)[:300]
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.toString()).partition("\n")[0][:300]


def _forget_dead_jvm(spark: Any) -> None:
    """Make PySpark forget a dead JVM: it starts no second one while it considers the first alive.

    Its session is asked for by every data frame, and would be that of the dead one.
    """
    context = spark._active_spark_context  # noqa: SLF001 - PySpark gives no other way
    if context is not None and has_jvm_ended(context):
        from pyspark.sql import SparkSession

        spark._active_spark_context = spark._gateway = spark._jvm = None  # noqa: SLF001
        SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001


def _configure_store_access(
    context: Any, store: Mapping[str, str], conf: Mapping[str, str]
) -> None:
    try:
        _require_classes(context, *_S3_CLASSES)
    except Exception as error:
        raise HudiMissing(f"Spark has no client of S3: {error_text(error)}", _S3_HINT) from error
    hadoop = context._jsc.hadoopConfiguration()  # noqa: SLF001 - PySpark gives no other way
    for key, value in store.items():
        if f"spark.hadoop.{key}" not in conf:
            hadoop.set(key, value)


def _patch_stream_closing(context: Any) -> None:
    """Add ``_CLOSE`` to Hudi's class before that is loaded, with a library that Spark contains.

    Afterwards, and where the class has such a method itself, Java refuses; that changes nothing.
    """
    assist, loader = context._jvm.javassist, _class_loader(context)  # noqa: SLF001 - as above
    pool = assist.ClassPool(True)  # noqa: FBT003 - Java has no names
    pool.appendClassPath(assist.LoaderClassPath(loader))
    try:
        stream = pool.get(f"{_INLINE}.InLineFsDataInputStream")
        stream.addMethod(assist.CtNewMethod.make(_CLOSE, stream))
        stream.toClass(loader.loadClass(f"{_INLINE}.HadoopInLineFSUtils"))
    except Exception as error:
        if not hasattr(error, "java_exception"):
            raise


def _class_loader(context: Any) -> Any:
    return context._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # noqa: SLF001


def _require_classes(context: Any, *classes: str) -> None:
    loader = _class_loader(context)
    for name in classes:
        context._jvm.java.lang.Class.forName(name, True, loader)  # noqa: FBT003, SLF001 - as above
