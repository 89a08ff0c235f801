"""How many requests a commit and a file take on an object store: counted, never timed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from contract.iceberg_table_world import IcebergWorld
from contract.test_sink_table import own_table
from support.counting_proxy import CountingProxy, Exchange, kinds, sequential, waits
from support.object_store import BUCKET, ObjectStore
from support.small_rest_catalog import SmallRestCatalog
from unit.data_plane.write.test_in_process_writer import SOURCE

from headgate.control_protocol.events import TableStart
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.data_plane.batch.writer_task_plan import load_table_and_plan
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.data_plane.files.partitioning import PartitionKey
from headgate.tables.storage.file_io import open_file_io
from headgate.tables.storage.s3_upload import PART_BYTES

pytestmark = pytest.mark.integration

SEQUENTIAL_MAX = {"sql": 3, "rest": 4, "glue": 6}
REQUESTS = {
    "sql": {"PUT list": 1, "PUT manifest": 1, "PUT metadata": 1},
    "rest": {"PUT list": 1, "PUT manifest": 1, "GET catalog": 1, "POST catalog": 1},
    "glue": {
        "PUT list": 1,
        "PUT manifest": 1,
        "PUT metadata": 1,
        "GetTable": 2,
        "UpdateTable": 1,
    },
}


class Lake:
    """A catalog with its files on S3, both behind proxies that count."""

    def __init__(self, world: IcebergWorld, proxies: list[CountingProxy]) -> None:
        self.world = world
        self.proxies = proxies

    def forget(self) -> None:
        for proxy in self.proxies:
            proxy.forget()

    def exchanges(self) -> list[Exchange]:
        return [exchange for proxy in self.proxies for exchange in proxy.exchanges]


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[CountingProxy]:
    with CountingProxy(object_store.port) as proxy:
        yield proxy


def lake_of(
    kind: str, folder: Path, store: ObjectStore, proxy: CountingProxy, **more: str
) -> Iterator[Lake]:
    if kind != "rest":
        files = {**store.s3(proxy.uri), **more}
        own = store.glue(proxy.uri) if kind == "glue" else {}
        world = IcebergWorld(folder, {**own, **files}, table=own_table())
        yield Lake(world, [proxy])
        world.close()
        return
    with (
        SmallRestCatalog(folder, store.s3()) as server,
        CountingProxy(server.server_port) as asked,
    ):
        rest = {"type": "rest", "uri": asked.uri, **store.s3(proxy.uri), **more}
        world = IcebergWorld(folder, rest, table=own_table())
        yield Lake(world, [proxy, asked])
        world.close()


@pytest.fixture(params=["sql", "rest", "glue"])
def catalog(
    request: pytest.FixtureRequest, tmp_path: Path, object_store: ObjectStore, proxy: CountingProxy
) -> Iterator[tuple[str, Lake]]:
    kind = str(request.param)
    for lake in lake_of(kind, tmp_path, object_store, proxy):
        yield kind, lake


def test_a_commit_takes_a_handful_of_requests(catalog: tuple[str, Lake]) -> None:
    kind, lake = catalog
    table = lake.world.open()
    view = require_landed(
        commit(table, claim_table(table), record(1, 1, 3), lake.world.write_file(1))
    )
    for number in (2, 3):
        file = lake.world.write_file(number)
        before = {exchange.connection for exchange in lake.proxies[0].exchanges}
        lake.forget()
        view = require_landed(commit(table, view, record(1, number, 3 * number), file))
        exchanges = lake.exchanges()
        assert kinds(exchanges) == REQUESTS[kind]
        assert waits(exchanges) == 0
        assert sequential(exchanges) <= SEQUENTIAL_MAX[kind]
        used = {exchange.connection for exchange in lake.proxies[0].exchanges}
        assert len(used - before) <= 1  # the manifest and its list are written at once
    assert lake.world.visible_file_numbers() == [1, 2, 3]


def test_vended_keys_that_change_with_each_table_cost_no_connection(
    tmp_path: Path, object_store: ObjectStore, proxy: CountingProxy
) -> None:
    for lake in lake_of("rest", tmp_path, object_store, proxy):
        table = lake.world.open()
        view = claim_table(table)
        connections = []
        for number in (1, 2, 3, 4):
            lake.world.catalog.properties["s3.access-key-id"] = f"key-{number}"
            view = require_landed(commit(table, view, record(1, number, number)))
            connections.append(len({e.connection for e in proxy.exchanges}))
        assert connections[1:] == [connections[1]] * 3


@pytest.fixture
def files(
    tmp_path: Path, object_store: ObjectStore, proxy: CountingProxy
) -> Iterator[tuple[Lake, Any]]:
    for lake in lake_of("sql", tmp_path, object_store, proxy):
        view = lake.world.open().read()
        start = TableStart(lake.world.name, view.uuid, view.schema_id, view.spec_id, view.location)
        shape = file_shape_of(load_table_and_plan(lake.world.catalog, start, SOURCE))
        lake.forget()
        yield lake, DataFiles(shape, f"{view.location}/data/x", 2**30)


def rows(lake: Lake, count: int) -> pa.Table:
    numbers = pa.array(range(count), pa.int64())
    table = pa.table({"number": numbers, "row": numbers})
    return table.cast(lake.world.table().schema().as_arrow())


def test_a_small_file_is_one_request(files: tuple[Lake, DataFiles]) -> None:
    lake, written = files
    written.write(PartitionKey(), rows(lake, 1000))
    (file,) = written.finish()
    exchanges = [e for e in lake.exchanges() if e.kind.endswith("data")]
    assert kinds(exchanges) == {"PUT data": 1}
    assert waits(exchanges) == 0
    assert lake.world.table().io.new_input(file.path).exists()


def test_a_file_that_is_given_up_leaves_nothing(files: tuple[Lake, DataFiles]) -> None:
    lake, written = files
    written.write(PartitionKey(), rows(lake, 1000))
    lake.forget()
    written.discard()
    assert lake.exchanges() == []


def test_a_large_object_goes_in_parts_while_it_is_written(
    tmp_path: Path, object_store: ObjectStore, proxy: CountingProxy
) -> None:
    files = open_file_io(object_store.s3(proxy.uri), "s3://")
    location = f"s3://{BUCKET}/{tmp_path.name}/large.parquet"
    data = bytes(range(256)) * (PART_BYTES // 256)
    with files.new_output(location).create() as stream:
        for _ in range(3):
            stream.write(data)
        stream.write(b"end")
        assert stream.tell() == 3 * PART_BYTES + 3
    counted = kinds(proxy.exchanges)
    assert counted == {"CreateMPU data": 1, "UploadPart data": 4, "CompleteMPU data": 1}
    with files.new_input(location).open() as found:
        assert found.read() == data * 3 + b"end"


def test_a_lost_answer_to_the_last_request_of_a_large_object_is_found_out(
    tmp_path: Path, object_store: ObjectStore, proxy: CountingProxy
) -> None:
    """The client asks again, and the store knows the upload no more: S3's own behaviour."""
    files = open_file_io({**object_store.s3(proxy.uri), "s3.request-timeout": "1"}, "s3://")
    location = f"s3://{BUCKET}/{tmp_path.name}/lost.parquet"
    lost = [1]

    def lose(request: Any, body: bytes) -> bytes:
        if request.method == "POST" and "uploadId" in request.path and lost:
            lost.pop()
            raise ConnectionError("the answer is lost")
        return body

    proxy.after = lose
    with files.new_output(location).create() as stream:
        stream.write(bytes(PART_BYTES + 1))
    assert not lost
    assert len(files.new_input(location)) == PART_BYTES + 1


def test_what_is_given_up_halfway_leaves_no_upload(
    tmp_path: Path, object_store: ObjectStore, proxy: CountingProxy
) -> None:
    files = open_file_io(object_store.s3(proxy.uri), "s3://")
    stream: Any = files.new_output(f"s3://{BUCKET}/{tmp_path.name}/none.parquet").create()
    stream.write(bytes(2 * PART_BYTES))
    stream.abort()
    stream.close()
    stream.abort_in_background().result(60)  # nobody else waits for longer than a moment
    assert object_store.keys(tmp_path.name) == []
    assert object_store.uploads(tmp_path.name) == []


def test_a_thousand_files_are_deleted_by_one_request(
    tmp_path: Path, object_store: ObjectStore, proxy: CountingProxy
) -> None:
    files: Any = open_file_io(object_store.s3(proxy.uri), "s3://")
    folder = f"s3://{BUCKET}/{tmp_path.name}"
    for number in range(5):
        with files.new_output(f"{folder}/{number}").create() as stream:
            stream.write(b"x")
    proxy.forget()
    assert sorted(path for path, _ in files.list_files(folder)) == [
        f"{folder}/{number}" for number in range(5)
    ]
    assert (
        files.delete_many_and_return_refused([f"{folder}/{number}" for number in range(1000)]) == {}
    )
    assert kinds(proxy.exchanges) == {"LIST": 1, "DELETE many": 1}
    assert object_store.keys(tmp_path.name) == []
