"""A table of another kind under chaos: Delta's log on S3."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from integration.deployment import Deployment
from integration.faults.catalogs import OUTAGE_S, PAUSED_IN_COMMIT, Fault
from integration.faults.stores import StoreOfChaos
from integration.readers import read_delta_with_duckdb
from integration.sink_file import COORDINATES
from support.object_store import BUCKET
from support.store_proxy import HANGS, RESETS, StoreProxy, s3_error

from headgate.tables.delta.locations import storage_options

PLACES = ("topic", "partition", "offset")
VERSION = r"_delta_log/(\d|_commit_).*json"
DATA = r"\.parquet"
SLOW = s3_error(503, "SlowDown")
NO_CATALOG: Mapping[str, str | None] = {"type": None, "uri": None, "warehouse": None}


class Delta:
    """The log is the lock, and lies beside the data; but they fail one without the other."""

    hanging = frozenset({PAUSED_IN_COMMIT})

    def __init__(self, store: StoreOfChaos) -> None:
        self._proxy = store.proxy
        self._store = store.store
        self._location = f"s3://{BUCKET}/chaos/rows"
        self._options = storage_options(self._location, store.store.s3())
        self.properties = NO_CATALOG
        self.table: Mapping[str, object] = {
            "type": "delta",
            "location": self._location,
            "partition_by": ["zone"],
        }
        self.later: list[threading.Timer] = []

    def stuck(self, sink: Deployment) -> StuckLog:
        return StuckLog(sink, self._proxy)

    def faults(self, sink: Deployment) -> Mapping[str, Fault]:
        return {
            "log refuses, data does not": lambda: self._refuse(VERSION),
            "data is refused, the log is not": lambda: self._refuse(DATA),
            "answers of the log lost": self._lose,
            "compacted, checkpointed, vacuumed": self._maintain,
        }

    def append(self, sink: Deployment) -> bool:
        row = pa.table({"id": pa.array([-1], pa.int64()), "zone": ["a"]})
        options = {"mode": "append", "schema_mode": "merge", "storage_options": self._options}
        write_deltalake(self._location, row, **options)  # type: ignore[call-overload]
        return True

    def rows(self, sink: Deployment) -> pa.Table:
        return read_delta_with_duckdb(self._location, self._store)

    def quarantined(self, sink: Deployment) -> list[pa.Table]:
        if not sink.settings.quarantine.keeps_rejected_records:
            return []
        rows = read_delta_with_duckdb(f"{self._location}_quarantine", self._store)
        return [rows.select(list(PLACES)).rename_columns(list(COORDINATES))]

    def age(self, sink: Deployment) -> None:
        """Let the log forget all that came before the sink's newest commits: damage shows then.

        A checkpoint stands for it. The log keeps nothing for so long as it is cleaned up.
        """
        suffixes = ("", "_quarantine") if sink.settings.quarantine.keeps_rejected_records else ("",)
        for suffix in suffixes:
            self._table(suffix).create_checkpoint()
        sink.start()
        sink.produce(1_000)
        sink.wait_until_lag_zero()
        sink.stop()
        for suffix in suffixes:
            self._keep(suffix, "interval 0 days")
            self._table(suffix).cleanup_metadata()
            self._keep(suffix, "interval 30 days")
            names = self._store.keys()
            first = f"chaos/rows{suffix}/_delta_log/{0:020}.json"
            assert first not in names, "the log was not cleaned up"

    def _keep(self, suffix: str, interval: str) -> None:
        properties = {"delta.logRetentionDuration": interval}
        self._table(suffix).alter.set_table_properties(properties)

    def _table(self, suffix: str = "") -> DeltaTable:
        return DeltaTable(f"{self._location}{suffix}", storage_options=self._options)

    def _refuse(self, path: str) -> float:
        self._proxy.refuse("PUT|POST", SLOW, path=path)
        time.sleep(OUTAGE_S)
        self._proxy.pass_on()
        return time.monotonic()

    def _lose(self) -> float:
        self._proxy.spoils("PUT", RESETS, path=VERSION)
        time.sleep(OUTAGE_S)
        self._proxy.pass_on()
        return time.monotonic()

    def _maintain(self) -> float:
        self._table().optimize.compact()
        self._table().create_checkpoint()
        self._table().vacuum(dry_run=False)
        return time.monotonic()


class StuckLog:
    """A log whose next versions are neither put nor refused, until it is left: they are not."""

    def __init__(self, sink: Deployment, proxy: StoreProxy) -> None:
        self._sink = sink
        self._proxy = proxy

    def __enter__(self) -> Self:
        self._proxy.released = threading.Event()
        self._proxy.refuse("PUT", HANGS, path=VERSION)
        self._seen = len(self._proxy.seen)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._proxy.pass_on()
        self._proxy.let_go()

    def await_commit(self) -> None:
        self._sink.wait_until(self._asked, "stuck commit")

    def _asked(self) -> bool:
        asked = self._proxy.seen[self._seen :]
        return any(r.method == "PUT" and "_delta_log" in r.path for r in asked)
