"""Calls to S3 and Glue end in time, and a store that asks to slow down is waited out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from contract.iceberg_table_world import IcebergWorld
from contract.test_sink_table import own_table
from support.object_store import BUCKET, ObjectStore
from support.store_proxy import HANGS, StoreProxy, s3_error
from unit.data_plane.write.test_in_process_writer import SOURCE

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.ports import Unknown
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.data_plane.batch.writer_task_plan import load_table_and_plan
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.storage import s3_file_io
from headgate.tables.storage.s3_file_io import KeptFiles
from headgate.tables.storage.store_write_check import require_writable_store

pytestmark = pytest.mark.integration

SLOW_DOWN = s3_error(503, "SlowDown")
ENDS_S = 45  # 30 s are asked for; this machine may be busy


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[StoreProxy]:
    with StoreProxy(object_store.port) as proxy:
        yield proxy


@pytest.fixture
def world(tmp_path: Path, object_store: ObjectStore, proxy: StoreProxy) -> Iterator[IcebergWorld]:
    """A table of a SQL catalog with its files on S3, behind the proxy."""
    world = IcebergWorld(tmp_path, object_store.s3(proxy.uri), table=own_table())
    yield world
    world.close()


def seconds(call: Callable[[], object]) -> float:
    begun_s = time.monotonic()
    call()
    return time.monotonic() - begun_s


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.wide)])
def test_a_commit_waits_out_a_store_that_asks_to_slow_down(
    world: IcebergWorld, proxy: StoreProxy, times: int
) -> None:
    table = world.open()
    view = claim_table(table)
    file = world.write_file(1)
    proxy.refuse("POST|PUT", SLOW_DOWN, times)
    require_landed(commit(table, view, record(1, 1, 3), file))
    assert world.visible_file_numbers() == [1]


def test_so_does_what_writes_the_files_wherever_it_runs(
    world: IcebergWorld, proxy: StoreProxy
) -> None:
    view = world.open().read()
    start = TableStart(world.name, view.uuid, view.schema_id, view.spec_id, view.location)
    plan = load_table_and_plan(world.catalog, start, SOURCE)
    proxy.refuse("POST|PUT", SLOW_DOWN, 3)
    proxy.seen.clear()
    require_writable_store(plan.io_properties, f"s3://{BUCKET}/{world.name}")
    assert sum(request.method in ("POST", "PUT") for request in proxy.seen) > 3


def test_a_commit_that_was_not_written_in_time_is_tried_again_with_the_same_files(
    world: IcebergWorld, proxy: StoreProxy
) -> None:
    table = world.open()
    view = claim_table(table)
    file = world.write_file(1)
    proxy.refuse("POST|PUT", SLOW_DOWN)
    assert isinstance(commit(table, view, record(1, 1, 3), file), Unknown)
    proxy.pass_on()
    require_landed(commit(table, table.read(), record(1, 1, 3), file))
    assert world.visible_file_numbers() == [1]


def test_glues_client_has_bounds_of_its_own(object_store: ObjectStore) -> None:
    with load_catalog("lake", {**object_store.glue(), "glue.max-retries": "1"}) as catalog:
        config = catalog.glue.meta.config  # type: ignore[attr-defined]
    assert (config.connect_timeout, config.read_timeout) == (5, 8)
    assert config.retries["total_max_attempts"] == 2


@pytest.mark.soak
def test_a_store_that_never_answers_is_given_up_in_time(
    world: IcebergWorld, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = world.open()
    view = claim_table(table)
    file = world.write_file(1)
    proxy.refuse("POST|PUT", HANGS)
    outcomes = []
    assert seconds(lambda: outcomes.append(commit(table, view, record(1, 1, 3), file))) < ENDS_S
    assert isinstance(outcomes[0], Unknown)
    proxy.refuse(".*", HANGS)
    monkeypatch.setattr(s3_file_io, "KEPT", KeptFiles())  # a process that has read nothing yet
    with pytest.raises(Unreachable):
        table.read()


@pytest.mark.soak
def test_a_glue_that_never_answers_is_given_up_in_time(
    object_store: ObjectStore, proxy: StoreProxy, tmp_path: Path
) -> None:
    world = IcebergWorld(tmp_path, object_store.glue(proxy.uri), table=own_table())
    table = world.open()
    proxy.refuse(".*", HANGS)

    def read() -> None:
        with pytest.raises(Unreachable):
            table.read()

    assert seconds(read) < ENDS_S
