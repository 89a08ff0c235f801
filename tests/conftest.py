"""Provides what every test may ask for: a real broker, topics and names, a local catalog."""

from __future__ import annotations

import gc
import os
import signal
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import HealthCheck, settings
from integration.iceberg.rest_server import rest_server
from support import (
    examples,
    kafka_classes,
    shared_broker,
    spark_classes,
    sqlite_catalogs,
    workers,
)
from support.hive_metastore import HIVE_2, Metastores
from support.local_catalog import LocalCatalog, local_catalog
from support.object_store import ObjectStore
from support.postgres_server import PostgresServer
from support.shared_broker import SharedBroker
from support.topics import delete_topics

from headgate.control_protocol.errors import ConfigurationError
from headgate.native import kernels
from headgate.operations.demo.producer import ensure_topic
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars, require_java

TopicFactory = Callable[..., str]
BROKER = pytest.StashKey[SharedBroker]()

# A JVM of a test lives for seconds: what the second compiler would make faster is never run.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
kafka_classes.share()
sqlite_catalogs.send_as_text()

# The same examples in every run, so that a red run is the change's doing and not the dice's, nor
# that of a busy machine; `make wide` has five times as many (`--hypothesis-profile all`), and
# `make search` draws others (`--hypothesis-profile default`).
SLOW = [HealthCheck.too_slow]
settings.register_profile(
    "all", derandomize=True, deadline=None, max_examples=examples.ALL, suppress_health_check=SLOW
)
settings.register_profile("same", settings.get_profile("all"), max_examples=examples.FEW)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "write tests/durations.json, by which `make test` sorts"
    parser.addoption("--keep-durations", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """A background job of a shell ignores Ctrl-C, and so would every process of the tests."""
    kept = config.getoption("--keep-durations", default=False)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        if kept:
            config.pluginmanager.register(workers.Durations())
        config.stash[BROKER] = SharedBroker()
        config.add_cleanup(config.stash[BROKER].close)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile: what is made here stays, and is looked through for nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # what is deselected is gone by then
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with long tests when several workers share them."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        workers.order(items)
        workers.give_way([item.nodeid for item in items])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> workers.Dealing:
    """Deal the tests out as ``workers`` says, in the order of ``pytest_collection_modifyitems``."""
    config.option.loadscopereorder = False
    return workers.Dealing(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    marks = {mark.name for item in session.items for mark in item.iter_markers()}
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _exit_without_java(needed=bool(marks & {"spark", "integration"}), spark="spark" in marks)


def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Ask here, once, since what a worker says while it ends is lost; ids carry no marks."""
    needed = any("tests/integration/" in nodeid for nodeid in ids)
    spark = any("tests/integration/spark/" in nodeid for nodeid in ids)
    _exit_without_java(needed=needed, spark=spark)
    if needed:
        node.config.stash[BROKER].start()
    if spark and (making := spark_classes.make_beside()):
        node.config.add_cleanup(making.wait)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("integration"):
        spark_classes.share()


def _exit_without_java(*, needed: bool, spark: bool) -> None:
    """Say once that Java is missing, before hundreds of tests say it each in its own way."""
    if spark or (needed and shared_broker.OWN not in os.environ):
        try:
            require_java()
        except ConfigurationError as error:
            pytest.exit(str(error), returncode=error.exit_code)


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker: the one named by the environment, else that which all workers share."""
    if there := os.environ.get(shared_broker.OWN) or shared_broker.address():
        yield there
    else:
        with shared_broker.broker(tmp_path_factory.mktemp("kafka")) as started:
            yield started


@pytest.fixture(params=["C", "Python"])
def either_loops(request: pytest.FixtureRequest) -> Iterator[kernels.Loops]:
    """What is done per message, as it is here and as it is without a C compiler."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "Python":
            patch.setattr(kernels, "_COMPILED", "_there_is_none.so")
        kernels.loops.cache_clear()
        found = kernels.loops()
        if request.param == "C" and isinstance(found, kernels.InPython):
            pytest.skip("was installed without a C compiler")
        yield found
    kernels.loops.cache_clear()


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A broker of the test's own, to be killed and restarted at will."""
    with EmbeddedKafka(tmp_path / "kafka", ensure_broker_jars()) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> str:
    """A name that nothing else on a shared broker has: for groups, sinks and topics."""
    test = request.node.name.removeprefix("test_").split("[")[0].replace("_", "-")
    return f"{test[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic_factory(bootstrap: str, admin: AdminClient, unique_name: str) -> Iterator[TopicFactory]:
    """Makes topics that are deleted when the test ends: ``topic_factory(partitions, config)``."""
    made: list[str] = []

    def make(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"{unique_name}-{len(made)}"
        ensure_topic(bootstrap, name, partitions=partitions, config=config)
        made.append(name)
        return name

    yield make
    delete_topics(admin, *made)


@pytest.fixture
def sqlite_catalog(tmp_path: Path) -> Iterator[LocalCatalog]:
    """A catalog of the test's own, with the namespace ``db``."""
    opened = local_catalog(tmp_path)
    yield opened
    opened.catalog.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """For catalogs with a name of their own; who wants to kill a server starts one."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """S3 and Glue; tests use tables and folders of their own."""
    with ObjectStore() as store:
        yield store


@pytest.fixture(scope="session")
def metastores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metastores]:
    """Hive metastores by their releases."""
    started = Metastores(tmp_path_factory.mktemp("hive"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def hive_uri(metastores: Metastores) -> str:
    """A Hive metastore that compares and sets, and that Spark's own client speaks to."""
    return metastores.uri(HIVE_2)


@pytest.fixture(scope="session")
def rest_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Iceberg's own REST server; tests use namespaces of their own."""
    with rest_server(tmp_path_factory.mktemp("rest")) as port:
        yield port
