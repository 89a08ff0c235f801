"""Random faults on a loaded sink for as long as you like: ``make chaos ARGS='--minutes 30'``.

After each fault the time is taken until the table holds records of every partition that came after
it, and so all that came before; it is judged by the bound of ``catalogs.bound_s``. Whatever
happened, the run ends with the audit and an independent reader. The exit code is 1 when they find
anything, when the sink did not recover, or when a recovery exceeded its bound.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from integration.deployment import Deployment
from integration.faults.catalogs import CatalogOfChaos, catalog_of
from integration.faults.other_kinds import Delta
from integration.faults.postgres_table import postgres_tables
from integration.faults.stores import StoreOfChaos, store_of
from integration.faults.strikes import Strikes
from integration.faults.vending import VendedKeys
from integration.sink_file import KEPT
from rich.console import Console
from rich.table import Table

from headgate.control_protocol.counted_nouns import count_of
from headgate.operations.audit.report import AuditReport
from headgate.operations.demo.producer import ensure_topic
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars

PARTITIONS = 4
ICEBERG = "iceberg"
START_S_MAX = 300.0
POLL_MS_MAX = 12_000
"""Kafka's bound on a member that does not poll; below the long pauses, above the session's."""

WITH_SPARK: Mapping[str, Mapping[str, Any]] = {
    "spark": {"writer": "spark", "master": "local[1]"},
    "coordinator": {"commit_interval_ms": 2_000, "commit_timeout_ms": 15_000},
    "participant": {"release_timeout_ms": 10_000},
}


def run(options: argparse.Namespace, home: Path, console: Console) -> Mapping[str, Any]:
    """What was seen, as a document; raises ``AssertionError`` for rows, not for time."""
    jars = ensure_broker_jars()
    with (
        EmbeddedKafka(home / "kafka", jars) as broker,
        store_of(options.store, keys_of(options.catalog)) as store,
        table_of_kind(options, home, store) as catalog,
    ):
        ensure_topic(broker.bootstrap, "rows", partitions=PARTITIONS)
        change = {
            **(WITH_SPARK if options.writer == "spark" else {}),
            "kafka": {"max.poll.interval.ms": POLL_MS_MAX},
            "catalog.properties": {
                **(store.properties if store is not None else {}),
                **catalog.properties,
            },
            "table": catalog.table,
            **(KEPT if options.bad_every else {}),
        }
        own: dict[str, Any] = {"group": "rows", "partitions": PARTITIONS, "change": change}
        own["store"] = store.store if store is not None else None
        with Deployment(home, broker.bootstrap, ["rows"], **own) as sink:
            if options.table != ICEBERG:
                sink.rows = lambda: catalog.rows(sink)  # type: ignore[method-assign]
                sink.quarantined = lambda: catalog.quarantined(sink)  # type: ignore[method-assign]
                sink.restarts = True  # a start reads the log, from the store that may just fail
            sink.bad_every = options.bad_every
            sink.start(options.participants)
            strikes = Strikes(sink, broker, catalog, random.Random(options.seed), store=store)
            with sink.load(options.rate):
                sink.wait_until(sink.all_share, "share for everybody", START_S_MAX)
                sink.wait_for_commits(2)
                deadline = time.monotonic() + 60 * options.minutes
                while options.calm and time.monotonic() < deadline:
                    sink.wait_for_commits()
                while time.monotonic() < deadline:
                    kind, took = strikes.strike()
                    late = "  over its bound" if took > strikes.bound_s(kind) else ""
                    console.print(f"{took:6.1f} s  {kind}{late}")
            sink.wait_until_lag_zero()
            sink.stop()
            unproven = [count_of(strikes.foreign_rows, "row")]
            judged = sink.judge(unproven=unproven)
            if isinstance(catalog, Delta):
                catalog.age(sink)
                sink.judge(unproven=unproven)
            return {**document(options, strikes, judged), **gaps(sink, store)}


def keys_of(catalog: str) -> VendedKeys | None:
    return VendedKeys() if catalog == "vending" else None


def gaps(sink: Deployment, store: StoreOfChaos | None) -> Mapping[str, Any]:
    """The longest time between two commits with rows, and how often old keys were refused."""
    history = sink.history()
    assert history is not None
    at_ms = [each.committed_ms for each in history.commits if each.record.records]
    longest_ms = max((after - before for before, after in pairwise(at_ms)), default=0)
    keys = store.keys if store is not None else None
    return {"gap_s": longest_ms / 1000, "refused_keys": keys.refused if keys else 0}


@contextmanager
def table_of_kind(
    options: argparse.Namespace, home: Path, store: StoreOfChaos | None
) -> Iterator[CatalogOfChaos]:
    """What stands where Iceberg has its catalog."""
    if options.table == "delta":
        assert store is not None, "there alone data and log fail one without the other"
        yield Delta(store)
        return
    if options.table == "postgres":
        with postgres_tables(home) as tables:
            yield tables
        return
    with catalog_of(options.catalog, home, store) as catalog:
        yield catalog


def document(
    options: argparse.Namespace, strikes: Strikes, judged: AuditReport
) -> Mapping[str, Any]:
    return {
        "options": vars(options),
        "rows": judged.live_rows,
        "quarantined": judged.sum_over_partitions("in_quarantine"),
        "commits": judged.commits,
        "epochs": len(judged.epochs),
        "faults": {
            kind: figures(times, strikes.bound_s(kind.removesuffix(", at its end")))
            for kind, times in sorted(strikes.recoveries.items())
        },
        "all": figures([took for times in strikes.recoveries.values() for took in times], None),
    }


def figures(times: Sequence[float], bound_s: float | None) -> Mapping[str, Any]:
    """Of recoveries, in seconds; p99 by the nearest rank."""
    if not times:
        return {"injected": 0}
    ordered = sorted(times)
    return {
        "injected": len(ordered),
        "p50_s": round(median(ordered), 1),
        "p99_s": round(ordered[math.ceil(len(ordered) * 0.99) - 1], 1),
        "bound_s": bound_s,
        "over": sum(took > bound_s for took in ordered) if bound_s is not None else None,
    }


def table_of(seen: Mapping[str, Any]) -> Table:
    table = Table("fault", "injected", "p50 s", "p99 s", "bound s", "over")
    for kind, of_kind in [*seen["faults"].items(), ("all", seen["all"])]:
        table.add_row(kind, *("" if value is None else str(value) for value in of_kind.values()))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--participants", type=int, default=3)
    parser.add_argument("--rate", type=int, default=1_000, help="records per second")
    parser.add_argument("--bad-every", type=int, default=0, help="one record in so many is bad")
    parser.add_argument("--writer", choices=["in-process", "spark"], default="in-process")
    parser.add_argument("--table", choices=[ICEBERG, "delta", "postgres"], default=ICEBERG)
    parser.add_argument(
        "--catalog",
        choices=["sqlite", "postgres", "rest", "vending"],
        default="sqlite",
        help="Iceberg's; tables in PostgreSQL are --table postgres",
    )
    parser.add_argument("--store", choices=["local", "s3"], default="local")
    parser.add_argument("--calm", action="store_true", help="no faults but the catalog's own")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    if options.table == "delta":
        options.store = "s3"
    if options.table != ICEBERG and options.writer == "spark":
        parser.error(f"--table {options.table} is filled in process")
    if options.table == "postgres" and options.store == "s3":
        parser.error("--table postgres has its files on this machine until they are committed")
    if options.store == "s3" and options.catalog == "rest":
        parser.error("Iceberg's server has no S3 here: --store s3 is for the other catalogs")
    if options.catalog == "vending" and options.store != "s3":
        parser.error("what the catalog vends are keys for --store s3")
    console = Console(width=100)
    home = Path(tempfile.mkdtemp(prefix="headgate-chaos-"))
    console.print(f"seed {options.seed}; logs and table in {home}", soft_wrap=True)
    try:
        seen = run(options, home, console)
    except AssertionError as error:
        console.print(str(error), soft_wrap=True, markup=False)
        sys.exit(1)
    console.print(table_of(seen))
    held = f"{seen['rows']} rows, {seen['quarantined']} in the quarantine"
    console.print(f"{held}, {seen['epochs']} epochs: audit clean, oracle agrees")
    console.print(f"longest time between commits {seen['gap_s']} s", soft_wrap=True)
    if options.catalog == "vending":
        console.print(f"keys that had expired were refused {seen['refused_keys']} times")
    if options.json:
        Path(options.json).write_text(json.dumps(seen, indent=2) + "\n")
    if any(of_kind["over"] for of_kind in seen["faults"].values()):
        console.print("a recovery exceeded its bound")
        sys.exit(1)


if __name__ == "__main__":
    main()
