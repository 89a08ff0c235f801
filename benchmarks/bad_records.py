"""Measures what bad records cost: ranges of a topic into data files, with and without some.

    python benchmarks/bad_records.py [--bootstrap HOST:PORT] [--workload avro] [--records 400000]

The whole path in one process: fetch, decode, write, and the quarantine's files. Per kind a topic of
records of ten columns (JSON of 200 bytes, or Avro of 73) is made and deleted again; without a
broker they come from memory. Printed are records per CPU-second (of all threads), the best of the
rounds, which go round the kinds in turn so that a busy machine disturbs all alike. ``fail`` is the
same without a quarantine: no keys, no headers.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.catalog import Catalog

from comparison.workloads import WORKLOADS, Workload
from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.quarantine_policy import BadRecordLimits, Disposal
from headgate.data_plane.batch.writer_task_plan import Handling, Plans, SourcePlan
from headgate.data_plane.write.write_batch import write_chunks, write_ranges
from headgate.kafka.record_fetch import Chunk
from headgate.native.byte_arrays import Packed
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

SEED = 7
ROUNDS = 4
CHUNK = 32_768
"""Records that are fetched at once, at most."""

Spoil = Callable[[bytes], bytes]
JSON: dict[str, Spoil] = {
    "no JSON": lambda _: b"this is not JSON",
    "cut off": lambda value: value[: len(value) // 2],
    "no UTF-8": lambda value: value.replace(b'"payment":"', b'"payment":"\xe9'),
    "colon missing": lambda value: value.replace(b'"fare":', b'"fare" '),
    "text for a number": lambda value: value.replace(b'"fare":', b'"fare":"dear","was":'),
    "a fraction for an int": lambda value: value.replace(b'"passengers":', b'"passengers":0.'),
    "no time": lambda value: value.replace(b'"pickup_at":"', b'"pickup_at":"about '),
}
AVRO: dict[str, Spoil] = {
    "nothing at all": lambda _: b"",
    "cut off": lambda value: value[: len(value) // 2],
    "one byte too many": lambda value: value + b"\x00",
    "a number without end": lambda value: b"\xff" * 11 + value,
}
KINDS: dict[str, dict[str, Spoil]] = {"taxi": JSON, "avro": AVRO}
"""By workload, what may be wrong with a record."""


def chunk_of(values: list[bytes], begin: int) -> Chunk:
    """Return the values as they come from one partition, from this offset on."""
    count = len(values)
    return Chunk(
        Packed.from_values(values),
        np.array([len(value) for value in values], np.int64),
        np.zeros(count, np.int64),
        np.arange(begin, begin + count),
        np.full(count, 1_785_585_600_000),
        Packed.from_values([b"k"] * count),
        [()] * count,
    )


def records(workload: Workload, count: int, bad: int, spoil: Spoil | None) -> Iterator[bytes]:
    """Yield records, ``bad`` of a thousand spoilt at places that the seed decides."""
    dice = random.Random(SEED)
    for value in workload.records(count, SEED):
        yield spoil(value) if spoil and dice.random() * 1000 < bad else value


@dataclass(frozen=True, slots=True)
class Bench:
    """A catalog with table and quarantine, and a broker, or the chunks of each topic."""

    catalog: Catalog
    bootstrap: str
    workload: Workload
    count: int
    chunks: dict[str, list[Chunk]] = field(default_factory=dict)

    def fill(self, topic: str, bad: int, spoil: Spoil | None) -> None:
        if not self.bootstrap:
            values = list(records(self.workload, self.count, bad, spoil))
            begins = range(0, self.count, CHUNK)
            self.chunks[topic] = [chunk_of(values[at : at + CHUNK], at) for at in begins]
            return
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20})
        for number, value in enumerate(records(self.workload, self.count, bad, spoil)):
            producer.produce(topic, value, key=b"k")
            if number % 1000 == 0:
                producer.poll(0)
            while len(producer) > 90_000:
                producer.poll(0.1)
        if producer.flush(120):
            raise SystemExit("the broker did not take all records")

    def write(self, topic: str, policy: Disposal) -> tuple[float, int]:
        """Return the CPU-seconds, and the records that were put aside."""
        plans = Plans(self.catalog)
        handling = Handling(policy, limits=BadRecordLimits(1_000), tag="headgate-bench")
        source = SourcePlan(
            {"bootstrap.servers": self.bootstrap},
            format_name=self.workload.format,
            format_options=self.workload.options,
            handling=handling,
            sink="bench",
        )
        aside = self._start("db.aside") if policy is Disposal.QUARANTINE else None
        transaction = TransactionId(Epoch(1), TransactionNumber(1))
        ranges = {TopicPartition(topic, 0): OffsetRange(0, self.count)}
        batch = Batch(1, transaction, self._start("db.rows"), ranges, 1 << 27, quarantine=aside)
        plan = plans.load_plan(batch, source)
        before_s = time.process_time()
        chunks = self.chunks.get(topic)
        written = write_chunks(plan, batch, chunks) if chunks else write_ranges(plan, batch)
        return time.process_time() - before_s, sum(r.bad for r in written.partitions.values())

    def _start(self, name: str) -> TableStart:
        table = self.catalog.load_table(name)
        prefix = f"{table.location()}/data/{uuid.uuid4()}"
        uid = str(table.metadata.table_uuid)
        return TableStart(name, uid, table.schema().schema_id, table.spec().spec_id, prefix)


@contextmanager
def topics(bootstrap: str, names: list[str]) -> Iterator[None]:
    if not bootstrap:
        yield
        return
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result()
    try:
        yield
    finally:
        for future in admin.delete_topics(names).values():
            future.result()


def measure(bench: Bench, bad: int) -> None:
    kinds: dict[str, Spoil | None] = {"none": None, **KINDS[bench.workload.name]}
    names = {kind: f"bad-records-{uuid.uuid4().hex[:8]}" for kind in kinds}
    with topics(bench.bootstrap, list(names.values())):
        for kind, topic in names.items():
            bench.fill(topic, bad, kinds[kind])
        runs = [("none, fail", names["none"], Disposal.FAIL)]
        runs += [(kind, topic, Disposal.QUARANTINE) for kind, topic in names.items()]
        best: dict[str, float] = {}
        found: dict[str, int] = {}
        for _ in range(ROUNDS):
            for what, topic, policy in runs:
                taken_s, found[what] = bench.write(topic, policy)
                best[what] = min(taken_s, best.get(what, taken_s))
    print(f"{'bad records':<24}{'bad':>8}{'records/CPU-s':>16}{'of none':>9}")
    for what, taken_s in best.items():
        share = best["none"] / taken_s
        print(f"{what:<24}{found[what]:>8}{bench.count / taken_s:>16,.0f}{share:>9.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", default="", help="of a broker to fetch from")
    parser.add_argument("--workload", choices=KINDS, default="taxi")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--bad", type=int, default=10, help="of a thousand")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "warehouse").mkdir()
        catalog = load_catalog(
            "bench",
            {
                "type": "sql",
                "uri": f"sqlite:///{folder}/catalog.sqlite",
                "warehouse": (Path(folder) / "warehouse").as_uri(),
            },
        )
        workload = WORKLOADS[chosen.workload]
        create_table_if_missing(catalog, "db.rows", TableDeclaration(workload.columns))
        create_table_if_missing(catalog, "db.aside", quarantine_declaration())
        measure(Bench(catalog, chosen.bootstrap, workload, chosen.records), chosen.bad)
        catalog.close()


if __name__ == "__main__":
    main()
