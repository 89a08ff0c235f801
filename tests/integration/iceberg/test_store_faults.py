"""Our S3 client when requests fail before or after the store has done what they ask.

botocore's pauses are taken by a clock of the test's own; what hangs, hangs for as long as the
client is told to wait.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import botocore.endpoint
import pyarrow as pa
import pytest
from contract.iceberg_table_world import IcebergWorld
from contract.test_sink_table import own_table
from support.object_store import BUCKET, ObjectStore
from support.store_proxy import (
    CUTS,
    HANGS,
    RESETS,
    STOPS,
    TRICKLES,
    Answer,
    Request,
    StoreProxy,
    s3_error,
)

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.events import TableStart, WrittenFile
from headgate.control_protocol.ports import (
    Batch,
    BatchFailed,
    BatchOutcome,
    CommitOutcome,
    PrimaryTable,
    TableView,
    Unknown,
)
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.data_plane.batch.failure_classification import failed_outcome_of
from headgate.data_plane.batch.writer_task_plan import Plans, SourcePlan
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.data_plane.write.in_process_writer import RenewingWriter
from headgate.tables.storage import s3_client
from headgate.tables.storage.s3_client import TRIES, S3Store, UploadUnknown, Waiting
from headgate.tables.storage.s3_file_io import S3_PART_BYTES, S3Files
from headgate.tables.storage.s3_upload import S3Upload

pytestmark = pytest.mark.integration

PART_BYTES = 1_000
PATIENT_S, HURRIED_S, NO_TIME_S = "20", "0.5", "0.05"
DATA = bytes(range(256)) * 10
BOUND_S = 30.0

PUT = ("PUT", r"^[^?]*$")
CREATE = ("POST", r"\?uploads")
PART = ("PUT", r"partNumber=")
COMPLETE = ("POST", r"[?&]uploadId=")

ANSWERS = {
    "SlowDown": s3_error(503, "SlowDown"),
    "500": s3_error(500, "InternalError"),
    "200, and an error": s3_error(200, "InternalError"),
    "reset": RESETS,
    "hangs": HANGS,
}


class Clock:
    """Time for our client and botocore's: it goes on by what is waited, and by looking at it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.look_s = 0.0
        self.pauses: list[float] = []
        self.by_thread: defaultdict[int, float] = defaultdict(float)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.by_thread[threading.get_ident()] += seconds
        self.now_s += seconds

    def monotonic(self) -> float:
        self.now_s += self.look_s
        return self.now_s

    @property
    def longest_s(self) -> float:
        """How long all that could have taken with the client's own wait for each answer."""
        return sum(self.pauses) + (len(self.pauses) + 1) * s3_client.TIMEOUT_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(botocore.endpoint, "time", clock)
    return clock


@pytest.fixture(scope="module")
def one_proxy(object_store: ObjectStore) -> Iterator[StoreProxy]:
    with StoreProxy(object_store.port) as proxy:
        yield proxy


@pytest.fixture
def proxy(one_proxy: StoreProxy) -> Iterator[StoreProxy]:
    one_proxy.pass_on()
    yield one_proxy
    one_proxy.pass_on()


@pytest.fixture
def properties(object_store: ObjectStore, proxy: StoreProxy) -> dict[str, str]:
    """The client waits for each answer for longer than this machine may be busy."""
    told = {"s3.request-timeout": PATIENT_S, S3_PART_BYTES: str(PART_BYTES)}
    return {**object_store.s3(proxy.uri), **told}


@pytest.fixture
def store(properties: dict[str, str], clock: Clock) -> S3Store:
    return store_of(properties, clock)


def store_of(properties: dict[str, str], clock: Clock, wait_s: str = PATIENT_S) -> S3Store:
    store = S3Files({**properties, "s3.request-timeout": wait_s}).open_store(BUCKET)
    return S3Store(store._place, store._keys, Waiting(clock.monotonic, clock.sleep))


@pytest.fixture
def world(tmp_path: Path, properties: dict[str, str]) -> Iterator[IcebergWorld]:
    world = IcebergWorld(tmp_path, properties, table=own_table())
    yield world
    world.close()


def uploading(store: S3Store, key: str, data: bytes = DATA) -> None:
    with S3Upload(store, BUCKET, key, part_bytes=PART_BYTES) as stream:
        stream.write(data)


def open_uploads(object_store: ObjectStore, prefix: str) -> int:
    """Uploads that were begun, and neither completed nor ended."""
    return len(object_store.uploads(prefix))


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_request_that_goes_wrong_once_is_made_good(
    properties: dict[str, str],
    clock: Clock,
    object_store: ObjectStore,
    proxy: StoreProxy,
    answer: Answer,
    done: bool,
) -> None:
    store = store_of(properties, clock, HURRIED_S if answer is HANGS else PATIENT_S)
    # What a body would say to the other requests nobody reads.
    for kind in (CREATE, COMPLETE) if answer.status == 200 else (PUT, CREATE, PART, COMPLETE):
        key, data = own_table(), DATA[:100] if kind == PUT else DATA
        methods, path = kind
        (proxy.spoils if done else proxy.refuse)(methods, answer, 1, path)
        uploading(store, key, data)
        assert store.get(BUCKET, key) == data
        assert object_store.keys(key) == [key]
        begun_twice = kind == CREATE and done  # whose id nobody heard: its lifecycle ends it
        assert open_uploads(object_store, key) == begun_twice


@pytest.mark.parametrize("answer", [RESETS, ANSWERS["SlowDown"]])
def test_a_store_that_is_gone_is_given_up_in_time(
    store: S3Store, clock: Clock, proxy: StoreProxy, answer: Answer
) -> None:
    proxy.refuse(".*", answer)
    for call in (lambda: store.put(BUCKET, "gone", b"data"), lambda: store.get(BUCKET, "gone")):
        clock.pauses.clear()
        proxy.seen.clear()
        with pytest.raises(OSError, match="s3://lake/gone"):
            call()
        assert len(proxy.seen) == TRIES
        assert clock.longest_s <= BOUND_S


CALLS: Mapping[str, Callable[[S3Store], object]] = {
    "put": lambda store: store.put(BUCKET, "gone", b"data"),
    "put if absent": lambda store: store.put_if_absent(BUCKET, "gone", b"data"),
    "get": lambda store: store.get(BUCKET, "gone"),
    "tail": lambda store: store.read_tail(BUCKET, "gone", 8),
    "size": lambda store: store.object_size(BUCKET, "gone"),
    "delete": lambda store: store.delete(BUCKET, "gone"),
    "delete many": lambda store: store.delete_many_and_return_refused(BUCKET, ["gone", "too"]),
    "list": lambda store: list(store.list_objects(BUCKET, "gone")),
    "begin": lambda store: store.begin_upload(BUCKET, "gone"),
    "part": lambda store: store.upload_part(BUCKET, "gone", "upload", (1, b"data")),
    "complete": lambda store: store.complete_upload(BUCKET, "gone", "upload", ["tag"]),
    "abort": lambda store: store.abort_upload(BUCKET, "gone", "upload"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_to_a_store_that_never_answers_ends_in_time(
    properties: dict[str, str], clock: Clock, proxy: StoreProxy, call: Callable[[S3Store], object]
) -> None:
    proxy.refuse(".*", HANGS)
    with pytest.raises(OSError, match="s3://lake/gone"):
        call(store_of(properties, clock, NO_TIME_S))
    assert len(clock.pauses) == TRIES - 1
    assert clock.longest_s <= BOUND_S


def test_a_role_that_nobody_gives_is_given_up_in_time(
    properties: dict[str, str], clock: Clock, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore's own client of STS waits for five minutes."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", proxy.uri)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", properties.pop("s3.access-key-id"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", properties.pop("s3.secret-access-key"))
    times = {"s3.request-timeout": NO_TIME_S, "s3.role-arn": "arn:aws:iam::123456789012:role/x"}
    proxy.refuse("POST", HANGS, path="^/$")
    with pytest.raises(OSError, match="s3://lake/gone"):
        store_of({**properties, **times}, clock, NO_TIME_S).put(BUCKET, "gone", b"data")
    assert len(clock.pauses) == TRIES - 1
    assert clock.longest_s <= BOUND_S


@pytest.mark.parametrize("times", [1, TRIES - 1])
def test_a_body_that_breaks_off_is_asked_for_again(
    store: S3Store, clock: Clock, proxy: StoreProxy, times: int
) -> None:
    uploading(store, "cut")
    proxy.spoils("GET", CUTS, times)
    assert store.get(BUCKET, "cut") == DATA
    proxy.spoils("GET", CUTS, times)
    assert store.read_tail(BUCKET, "cut", 100) == (DATA[-100:], len(DATA))
    assert len(clock.pauses) == 2 * times
    proxy.spoils("GET", CUTS)
    with pytest.raises(OSError, match=f"of {len(DATA)} bytes"):
        store.get(BUCKET, "cut")


def test_the_last_bytes_of_an_empty_object_are_none(store: S3Store, proxy: StoreProxy) -> None:
    """Amazon refuses the range, where others answer with nothing."""
    uploading(store, "empty", b"")
    proxy.refuse("GET", s3_error(416, "InvalidRange"))
    assert store.read_tail(BUCKET, "empty", 100) == (b"", 0)


def test_a_body_that_trickles_is_given_up_in_time(
    store: S3Store, clock: Clock, proxy: StoreProxy
) -> None:
    uploading(store, "slow")
    proxy.spoils("GET", TRICKLES)
    proxy.seen.clear()
    clock.look_s = 1.0
    with pytest.raises(OSError, match="time was over"):
        store.get(BUCKET, "slow")
    assert clock.now_s <= BOUND_S
    assert len(proxy.seen) == 1, "what took so long is not begun anew"


def test_a_body_that_hangs_is_asked_for_again(
    properties: dict[str, str], store: S3Store, clock: Clock, proxy: StoreProxy
) -> None:
    uploading(store, "hung")
    proxy.spoils("GET", STOPS, 1)
    assert store_of(properties, clock, HURRIED_S).get(BUCKET, "hung") == DATA
    assert len(clock.pauses) == 1


def test_an_upload_that_is_not_there_and_not_known_is_not_taken_for_done(
    store: S3Store, object_store: ObjectStore, proxy: StoreProxy
) -> None:
    """Somebody's lifecycle ended it: the name is free, and nothing of the batch is announced."""
    proxy.refuse(*COMPLETE[:1], s3_error(404, "NoSuchUpload"), path=COMPLETE[1])
    with pytest.raises((UploadUnknown, FileNotFoundError)):
        uploading(store, "unknown")
    assert object_store.keys("unknown") == []
    assert open_uploads(object_store, "unknown") == 0


# ------------------------------------------------------------------------------------ batches


class Sink:
    """One that writes a batch until it is written, and commits it, as participants do."""

    def __init__(self, world: IcebergWorld) -> None:
        self.world = world
        self.table: PrimaryTable = world.open()
        self.view: TableView = claim_table(self.table)
        self.plans = Plans(world.catalog)
        self.failures: list[BatchFailed] = []
        self.number = 0

    def commits(self, number: int, on_failure: Any = lambda: None) -> None:
        while not (files := self.batch(number)):
            on_failure()
        (written,) = files
        self.view = require_landed(commit(self.table, self.view, record(1, number, 1000), written))

    def batch(self, number: int) -> tuple[WrittenFile, ...]:
        self.number += 1
        try:
            return self._written(number)
        except Exception as error:  # noqa: BLE001 - as an outcome it is judged
            self._failed(failed_outcome_of(self.number, error))
            return ()

    def _written(self, number: int) -> tuple[WrittenFile, ...]:
        view = self.view
        start = TableStart(
            self.world.name, view.uuid, view.schema_id, view.spec_id, f"{view.location}/data/x"
        )
        shape = file_shape_of(self.plans.plan_for_start(start, SourcePlan({})))
        rows = pa.table({"number": [number] * 1000, "row": range(1000)}).cast(shape.arrow_schema)
        files = DataFiles(shape, f"{start.file_prefix}/{self.number}", 2**27)
        try:
            files.write(next(iter(shape.partitioner.split(rows)))[0], rows)
            return files.finish()
        except Exception:
            files.discard()
            raise

    def _failed(self, outcome: BatchFailed) -> None:
        heard = RenewingWriter(_Said(outcome), self.plans).wait_for_outcome(0)
        assert isinstance(heard, BatchFailed)
        assert heard.fatal is None, heard
        self.failures.append(heard)

    def is_whole(self, object_store: ObjectStore, numbers: list[int]) -> None:
        """Each row once, each data file is one that the table refers to, no part is left."""
        table = self.world.table()
        rows = table.scan().to_arrow()
        assert sorted(rows["number"].to_pylist()) == sorted(numbers * 1000)
        files = table.inspect.files()["file_path"].to_pylist()
        prefix = table.location().removeprefix(f"s3://{BUCKET}/")
        there = [key for key in object_store.keys(prefix) if key.endswith(".parquet")]
        assert sorted(there) == sorted(file.removeprefix(f"s3://{BUCKET}/") for file in files)
        assert open_uploads(object_store, prefix) == 0


class _Said:
    def __init__(self, outcome: BatchOutcome) -> None:
        self._outcome = outcome

    def submit(self, batch: Batch) -> None: ...
    def wait_for_outcome(self, timeout_ms: int) -> BatchOutcome | None:
        return self._outcome

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("kind", "answer", "done"),
    [
        pytest.param(PART, ANSWERS["SlowDown"], False, id="part, before"),
        pytest.param(COMPLETE, RESETS, True, id="end, after"),
        pytest.param(COMPLETE, ANSWERS["200, and an error"], True, id="end, after, 200"),
        *(
            pytest.param(kind, answer, done, marks=pytest.mark.soak)
            for kind, answer, done in (
                (PART, RESETS, True),
                (PART, ANSWERS["SlowDown"], True),
                (COMPLETE, ANSWERS["SlowDown"], False),
                (COMPLETE, ANSWERS["SlowDown"], True),
            )
        ),
    ],
)
def test_a_batch_whose_every_try_went_wrong_is_done_again_and_nothing_is_doubled(
    world: IcebergWorld,
    object_store: ObjectStore,
    proxy: StoreProxy,
    clock: Clock,
    kind: tuple[str, str],
    answer: Answer,
    done: bool,
) -> None:
    sink = Sink(world)
    methods, path = kind
    (proxy.spoils if done else proxy.refuse)(methods, answer, path=path)
    sink.commits(1, proxy.pass_on)
    sink.commits(2)
    assert len(sink.failures) == 1
    sink.is_whole(object_store, [1, 2])
    assert max(clock.by_thread.values(), default=0) <= BOUND_S


def test_keys_that_expire_in_mid_upload_cost_one_batch_and_no_row(
    world: IcebergWorld, object_store: ObjectStore, proxy: StoreProxy, clock: Clock
) -> None:
    sink = Sink(world)
    catalog_properties = world.catalog.properties
    catalog_properties["s3.session-token"] = "old"
    sink.plans.drop_plans_with_temporary_credentials()

    def judge(request: Request) -> Answer | None:
        old = request.headers.get("x-amz-security-token") == "old"
        late = "partNumber=" in request.path and "partNumber=1&" not in f"{request.path}&"
        expired[0] |= old and late
        return s3_error(400, "ExpiredToken") if old and expired[0] else None

    expired = [False]
    proxy.judge = judge

    def renewed() -> None:
        catalog_properties["s3.session-token"] = "new"

    sink.commits(1, renewed)
    (failure,) = sink.failures
    assert failure.reason.startswith("HG-103")
    assert "UploadPart is refused" in failure.reason
    assert clock.pauses == [], "nobody tries again with keys that are refused"
    # What had been sent could not be taken back with the old keys: the bucket's lifecycle does.
    prefix = world.table().location().removeprefix(f"s3://{BUCKET}/")
    object_store.end_uploads(prefix)
    sink.is_whole(object_store, [1])


def test_a_minute_in_which_the_store_asks_to_slow_down_is_waited_out(
    world: IcebergWorld, object_store: ObjectStore, proxy: StoreProxy, clock: Clock
) -> None:
    """One minute for a batch, one for its commit; a participant pauses between its tries, too."""
    sink = Sink(world)

    def slow_for_a_minute() -> None:
        until_s = clock.now_s + 60.0
        proxy.judge = lambda _: ANSWERS["SlowDown"] if clock.now_s < until_s else None

    def failed_once() -> None:
        assert max(clock.by_thread.values(), default=0) <= BOUND_S
        clock.by_thread.clear()
        clock.sleep(1.0)

    slow_for_a_minute()
    sink.commits(1, failed_once)
    assert len(sink.failures) >= 2
    (file,) = sink.batch(2)
    slow_for_a_minute()
    outcomes: list[CommitOutcome] = [Unknown("not tried yet")]
    while isinstance(outcomes[-1], Unknown):
        with suppress(Unreachable):
            view = sink.table.read()
            outcomes.append(commit(sink.table, view, record(1, 2, 1000), file))
        failed_once()
    require_landed(outcomes[-1])
    sink.is_whole(object_store, [1, 2])
