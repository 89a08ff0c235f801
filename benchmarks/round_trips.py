"""Measures what a commit waits for on an object store: sequential requests, by kind, and time.

    python benchmarks/round_trips.py [--catalogs sql rest glue] [--delay-ms 50] [--commits 12]

S3 and Glue are moto's, the REST catalog is a small one (its own requests to the store, one for each
commit, are not delayed); a proxy before each of them adds the delay and counts. Each catalog twice:
with headgate's files, and with pyiceberg's (``py-io-impl``). It needs what tests need.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import pyarrow as pa
from pyiceberg.catalog import Catalog
from support.counting_proxy import CountingProxy, Exchange, kinds, sequential, waits
from support.iceberg_files import write_files
from support.object_store import ObjectStore
from support.small_rest_catalog import SmallRestCatalog

from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, Landed
from headgate.control_protocol.testing.contract.world import record
from headgate.data_plane.batch.writer_task_plan import SourcePlan, load_table_and_plan
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

ARROW = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
OURS = {"py-io-impl": "headgate.tables.storage.s3_file_io.S3Files"}
COLUMNS = {"number": "long", "row": "long"}


class Watched:
    """One catalog with its store, behind counting proxies."""

    def __init__(self, catalog: Catalog, proxies: list[CountingProxy], delay_s: float) -> None:
        self.catalog = catalog
        self._proxies = proxies
        self._delay_s = delay_s

    @contextmanager
    def timed(self) -> Iterator[list[Exchange]]:
        """Delay requests meanwhile; the list is filled when it is over."""
        for proxy in self._proxies:
            proxy.forget()
            proxy.delay_s = self._delay_s
        exchanges: list[Exchange] = []
        yield exchanges
        for number, proxy in enumerate(self._proxies):
            proxy.delay_s = 0.0
            exchanges += (
                Exchange(e.kind, e.begun_s, e.ended_s, e.connection * 10 + number, e.expected)
                for e in proxy.exchanges
            )


def watched(kind: str, io: dict[str, str], stack: ExitStack, delay_s: float) -> Watched:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    store = stack.enter_context(ObjectStore())
    before_store = stack.enter_context(CountingProxy(store.port))
    proxies = [before_store]
    properties = {**store.s3(before_store.uri), **io}
    if kind == "sql":
        properties |= {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
    elif kind == "glue":
        properties = {**store.glue(before_store.uri), **store.s3(before_store.uri), **io}
    else:
        server = stack.enter_context(SmallRestCatalog(folder, {**store.s3(), **OURS}))
        before_catalog = stack.enter_context(CountingProxy(server.server_port))
        proxies.append(before_catalog)
        properties |= {"type": "rest", "uri": before_catalog.uri}
    return Watched(load_catalog("lake", properties), proxies, delay_s)


def told(title: str, exchanges: list[Exchange]) -> None:
    found = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds(exchanges).items()))
    print(f"    {title}: {found or 'nothing'}")


def commits(lake: Watched, count: int, name: str) -> None:
    create_table_if_missing(lake.catalog, "db.trips", TableDeclaration(COLUMNS))
    table = IcebergTable(lake.catalog, "db.trips", SinkName("sink"))
    claim = table.commit(CommitAttempt(table.read(), record(1, 0), ()))
    assert isinstance(claim, Landed), claim
    view, taken_ms, chains, expects, seen, fresh = claim.view, [], [], [], set[int](), []
    for number in range(1, count + 1):
        rows = pa.table({"number": [number], "row": [0]})
        files = tuple(write_files(lake.catalog.load_table("db.trips"), rows))
        with lake.timed() as exchanges:
            begun_s = time.perf_counter()
            landed = table.commit(CommitAttempt(view, record(1, number, number), files))
            taken_ms.append((time.perf_counter() - begun_s) * 1000)
        assert isinstance(landed, Landed), landed
        view = landed.view
        chains.append(sequential(exchanges))
        expects.append(waits(exchanges))
        used = {exchange.connection for exchange in exchanges}
        fresh.append(len(used - seen) if number > 1 else 0)
        seen |= used
    print(
        f"{name:>14} | {statistics.median(chains):>10g} | {len(exchanges):>8} | "
        f"{statistics.median(expects):>7g} | {sum(fresh) / max(1, count - 1):>11.1f} | "
        f"{statistics.median(taken_ms):>7.0f} | {max(taken_ms):>6.0f}"
    )
    told("the last commit", exchanges)
    a_file(lake, TableStart("db.trips", view.uuid, view.schema_id, view.spec_id, view.location))


def a_file(lake: Watched, start: TableStart) -> None:
    shape = file_shape_of(load_table_and_plan(lake.catalog, start, SourcePlan({})))
    for rows in (1000, 1000, 2_000_000):
        numbers = pa.array(range(rows), pa.int64())
        written = pa.table({"number": numbers, "row": numbers}).cast(shape.arrow_schema)
        with lake.timed() as exchanges:
            begun_s = time.perf_counter()
            files = DataFiles(shape, f"{start.file_prefix}/data/x", 2**27)
            for part in written.to_batches(max_chunksize=100_000):
                files.write(next(iter(shape.partitioner.split(part)))[0], pa.table(part))
            files.finish()
            taken_ms = (time.perf_counter() - begun_s) * 1000
    told(f"a file of {rows} rows, {taken_ms:.0f} ms", exchanges)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--catalogs", nargs="+", default=["sql", "rest", "glue"])
    asked.add_argument("--delay-ms", type=float, default=50)
    asked.add_argument("--commits", type=int, default=12)
    given = asked.parse_args()
    print(
        "       catalog | sequential | requests | Expects | connections | p50 ms | max ms\n"
        "                                                  new, each"
    )
    for kind in given.catalogs:
        for io in ({}, ARROW):
            with ExitStack() as stack:
                lake = watched(kind, io, stack, given.delay_ms / 1000)
                stack.callback(lake.catalog.close)
                commits(lake, given.commits, f"{kind}, {'theirs' if io else 'ours'}")


if __name__ == "__main__":
    main()
