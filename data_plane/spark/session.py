"""Opens a Spark session of any sort: local, a cluster, Spark Connect, or spark-submit's.

It also opens just the JVM next to this process, with Spark's class path.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from headgate.control_protocol.errors import ConfigurationError, HeadgateError, Unreachable
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.tables.iceberg.jvm import Jvm
from headgate.tables.jvm_start_hiding_secrets import start_jvm_unless_running, with_spark_redaction

log = redacted_logger(__name__)

_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_SAME_EVERYWHERE = {
    # A transform's result must not depend on where it runs, and never turn into a silent null.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Packets of rows are large values: the default limit of 10,000 of them at a time is no limit.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024 * 1024),
}
_WORKERS = {"spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system"}  # see decision 0010
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "headgate.data_plane.spark.pyspark_daemon",
}

_SHIPPED = (
    *("headgate", "headgate.control_protocol", "headgate.participant", "headgate.schemas"),
    *("headgate.data_plane", "headgate.kafka", "headgate.native", "headgate.tables"),
)
"""The packages that a task may import; executors need nothing else of ours."""

_CORES_MAX = 4096
_STOP_S = 30
_FRAMES = ("at ", "File ", "Traceback", "An error occurred while calling")


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """``master``: empty for spark-submit's, else ``local[*]``. ``remote``: Spark Connect.

    ``parallelism``: tasks of a batch, 0 for one per core. ``conf``: Spark's own keys; ``secret``:
    those whose values Spark shows nobody.
    """

    master: str = ""
    remote: str = ""
    app_name: str = "headgate"
    parallelism: int = 0
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret: frozenset[str] = frozenset()


class OpenSession:
    """Runs tagged jobs in a Spark session.

    A session that was found, not created, is left running.
    """

    def __init__(self, spark: Any, parallelism: int, *, made: bool, scratch: Path) -> None:
        self.spark = spark
        self.parallelism = parallelism
        self._is_own = made
        self._scratch = scratch
        self._connect = _is_spark_connect(spark)

    @contextmanager
    def tagging_jobs(self, tag: str) -> Iterator[None]:
        """Tag the jobs that this thread starts inside, so that they can be cancelled."""
        jobs = self.spark if self._connect else self.spark.sparkContext
        add, remove = ("addTag", "removeTag") if self._connect else ("addJobTag", "removeJobTag")
        getattr(jobs, add)(tag)
        try:
            yield
        finally:
            getattr(jobs, remove)(tag)

    def cancel_tagged(self, tag: str) -> None:
        """Cancel what runs under the tag now; a job that begins later is not affected."""
        if self._connect:
            self.spark.interruptTag(tag)
        else:
            self.spark.sparkContext.cancelJobsWithTag(tag)

    def is_alive(self) -> bool:
        """Return whether a trivial job still runs, however the last one failed."""
        try:
            self.spark.range(1).collect()
        except Exception:  # noqa: BLE001 - a dead JVM answers in many ways, none of them of use
            return False
        return True

    def close(self) -> None:
        if self._is_own:
            # In a thread of its own: one that hangs would never let this process end.
            stopping = threading.Thread(target=self._stop, daemon=True)
            stopping.start()
            stopping.join(_STOP_S)
            if stopping.is_alive():
                log.error("Spark did not stop within %d s; it is left behind", _STOP_S)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _stop(self) -> None:
        try:
            self.spark.stop()
        except Exception as error:  # noqa: BLE001 - it may have died long ago
            log.warning("Spark did not stop in order: %s", error_text(error))


def open_session(options: SparkOptions) -> OpenSession:
    """Raises ``ConfigurationError`` if Spark cannot start here, ``Unreachable`` for a server."""
    session_class = _require_session_class()
    result = None if options.remote else session_class.getActiveSession()
    scratch = Path(tempfile.mkdtemp(prefix="headgate-spark-"))
    spark = None
    try:
        with keeping_interrupt_handler():
            spark = result or _get_or_create_session(session_class, options)
        local = options.remote.startswith("local") if options.remote else is_local(spark)
        if not local:
            ship_package(spark, scratch)
        parallelism = options.parallelism or _measure_default_parallelism(spark, local=local)
    except BaseException as error:
        if spark is not None and result is None:
            spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(error, HeadgateError) or not isinstance(error, Exception):
            raise
        raise translate_start_error(options, error) from error
    return OpenSession(spark, parallelism, made=result is None, scratch=scratch)


@contextmanager
def keeping_interrupt_handler() -> Iterator[None]:
    """Keep the interrupt handler:

    PySpark's cancels all jobs and raises, which ends nothing in order.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # it sets its handler in the main thread only
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _require_session_class() -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            f"Spark is not installed: {error}",
            'pip install "headgate[spark]", or write without Spark: writer = "in-process"',
        ) from error
    return SparkSession


def _get_or_create_session(session_class: Any, options: SparkOptions) -> Any:
    builder = session_class.builder
    if options.remote:
        builder = builder.remote(options.remote)
    conf = build_conf_and_prepare_process(options)
    if not options.remote.startswith("sc://"):
        from pyspark import SparkContext

        start_jvm_unless_running(SparkContext, conf)
    for key, value in conf.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # Connect warns about keys that its server has fixed already; the server's value stands.
        warnings.filterwarnings("ignore", message="Failed to set", category=UserWarning)
        return builder.getOrCreate()


def build_conf_and_prepare_process(options: SparkOptions) -> dict[str, str]:
    """Return the configuration that Spark is started with, and prepare this process for it.

    Raises ``ConfigurationError`` if Java is needed here but missing.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    far = options.remote.startswith("sc://")
    if not submitted and not far:
        _require_java()
    # It logs each connection that closes, some of them after a run's last word.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # Executors must run the interpreter that has this package installed, not any "python3".
    python = options.conf.get("spark.pyspark.python", sys.executable)
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    own = _SAME_EVERYWHERE if far else {**_QUIET, **_SAME_EVERYWHERE, **_WORKERS}
    from_user = with_spark_redaction(options.conf, options.secret)
    conf = {"spark.app.name": options.app_name, **own, **from_user}
    if options.remote or (submitted and not options.master):
        return conf
    master = options.master or "local[*]"
    return {**(_LOCAL if master.startswith("local") else {}), **conf, "spark.master": master}


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        where = f"JAVA_HOME ({home}) has none" if home else "none is on the PATH"
        raise ConfigurationError(
            f"Spark needs Java, and {where}", "install Java 17 or 21, or set JAVA_HOME to it"
        )


def translate_start_error(options: SparkOptions, error: Exception) -> HeadgateError:
    reason = error_text(error)
    if options.remote.startswith("sc://"):
        return Unreachable(f"the Spark Connect server {options.remote} does not serve: {reason}")
    return ConfigurationError(
        f"Spark did not start: {reason}",
        "see Spark's own messages above: Spark 4 needs Java 17 or 21, and the jars that the sink "
        "file names have to exist",
    )


def error_text(error: Exception) -> str:
    """Return the one line that tells what happened, without the stack traces of two languages."""
    lines = [line.strip(" :\t") for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(_FRAMES)]
    return f"{type(error).__name__}: {(kept or lines or ['no reason given'])[0]}"


def _is_spark_connect(spark: Any) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_local(spark: Any) -> bool:
    """Return whether tasks run in processes of this machine, which see this package already."""
    return not _is_spark_connect(spark) and str(spark.sparkContext.master).startswith("local")


def _measure_default_parallelism(spark: Any, *, local: bool) -> int:
    """Return how many partitions Spark gives to data by default: its default parallelism.

    A cluster's executors come only with the first job, so there the second answer counts.
    """
    from pyspark.sql.functions import spark_partition_id

    for _ in range(1 if local else 2):
        rows = spark.range(_CORES_MAX).select(spark_partition_id().alias("place")).collect()
    return len({row["place"] for row in rows})


def ship_package(spark: Any, scratch: Path) -> None:
    """Send this package to the executors; its dependencies must be installed there."""
    archive = write_package_archive(scratch / "headgate.zip")
    if _is_spark_connect(spark):
        spark.addArtifacts(str(archive), pyfile=True)
    else:
        spark.sparkContext.addPyFile(str(archive))


def ship_package_once(spark: Any) -> None:
    """Send this package to the executors of a session of somebody else's, if it has any.

    The archive stays until this process ends: an executor that comes later fetches it.
    """
    if is_local(spark):
        return
    found = spark.session_id if _is_spark_connect(spark) else spark.sparkContext.applicationId
    if found in _shipped_to:
        return
    scratch = tempfile.mkdtemp(prefix="headgate-spark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    ship_package(spark, Path(scratch))
    _shipped_to.add(found)


_shipped_to: set[str] = set()


def write_package_archive(archive: Path) -> Path:
    """Write the shipped packages as they are imported here, from an editable install or not."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for name in _SHIPPED:
            root = Path(import_module(name).__path__[0])
            inside = Path(*name.split("."))
            for path in sorted(root.glob("*") if name == "headgate" else root.rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    target.write(path, inside / path.relative_to(root))
    return archive


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
    conf = build_conf_and_prepare_process(options)
    try:
        with keeping_interrupt_handler():
            start_jvm_unless_running(
                SparkContext, conf
            )  # a context would take a master's resources
            gateway = SparkContext._gateway  # noqa: SLF001 - PySpark gives no other way
            spark = gateway.jvm.org.apache.spark
            log4j = gateway.jvm.org.apache.logging.log4j
            log4j.core.config.Configurator.setRootLevel(log4j.Level.ERROR)
            hadoop_conf = spark.SparkConf()
            for key, value in conf.items():
                hadoop_conf.set(key, value)
            return Jvm(gateway, spark.deploy.SparkHadoopUtil.get().newConfiguration(hadoop_conf))
    except Exception as error:
        raise translate_start_error(options, error) from error
