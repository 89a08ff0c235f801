"""Measures telemetry and HTTP on a working sink: the same topic with and without, in pairs.

    python benchmarks/telemetry_cost.py [--records 2000000] [--pairs 5]

An embedded broker in a temporary folder, SQLite catalog, the in-process writer, commits each
second. With them: meters, a server, and a scrape of ``/metrics`` each second from a thread of this
process, whose own cost counts too. Each run is a sink of another name that reads the whole topic.
Printed are rows per CPU-second of each pair, whose order alternates, and the ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import headgate
from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.operations.demo.producer import ensure_topic, produce
from headgate.operations.http.app import serving_with_meters_if_configured
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars, find_free_port
from headgate.participant.state import State
from headgate.runtime.telemetry.sink_metrics import SinkMeters

TOPIC, PARTITIONS = "trips", 6
FILE = """
name = "{name}"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "{bootstrap}"
[catalog.properties]
type = "sql"
uri = "sqlite:///{home}/{name}.db"
warehouse = "file://{home}/{name}"
[table]
identifier = "db.trips"
create = true
columns = [
  {{ name = "id", type = "long" }},
  {{ name = "fare", type = "double" }},
  {{ name = "zone", type = "string" }},
]
[coordinator]
commit_interval_ms = 1000
[telemetry]
interval_ms = 1000
[http]
listen = "127.0.0.1:{port}"
[spark]
writer = "in-process"
"""


def records(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield json.dumps({"id": number, "fare": number / 7, "zone": f"z{number % 50}"}).encode()


@contextmanager
def watched(settings: SinkSettings, scrapes: list[int]) -> Iterator[SinkMeters | None]:
    """Run meters and a server, scraped each second."""
    ending = threading.Event()
    with serving_with_meters_if_configured(settings) as meters:
        url = f"http://{settings.http.listen}/metrics"

        def scrape() -> None:
            while not ending.wait(1):
                with urllib.request.urlopen(url, timeout=30) as answer:
                    scrapes.append(len(answer.read()))

        thread = threading.Thread(target=scrape)
        thread.start()
        try:
            yield meters
        finally:
            ending.set()
            thread.join()


@contextmanager
def bare(_: SinkSettings, __: list[int]) -> Iterator[None]:
    yield None


def run(home: Path, bootstrap: str, name: str, count: int, *, measured: bool) -> tuple[float, int]:
    """Return rows per CPU-second from the first turn until all is committed; and the scrapes."""
    port = find_free_port()
    settings = parse(FILE.format(name=name, home=home, bootstrap=bootstrap, port=port))
    scrapes: list[int] = []
    around = watched if measured else bare
    with around(settings, scrapes) as meters, headgate.Sink(settings, meters) as sink:
        began_s = time.process_time()
        while not settled(sink.state, count):
            sink.turn()
        return count / (time.process_time() - began_s), len(scrapes)


def settled(state: State, count: int) -> bool:
    """Return whether the whole topic was read, announced and settled."""
    positions = state.positions
    waits = state.said.pending or state.work.has_unannounced_ranges or len(positions) < PARTITIONS
    return not waits and sum(positions.values()) == count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--pairs", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with EmbeddedKafka(home / "kafka", ensure_broker_jars()) as broker:
            ensure_topic(broker.bootstrap, TOPIC, partitions=PARTITIONS)
            produce(broker.bootstrap, TOPIC, records(asked.records), partitions=PARTITIONS)
            run(home, broker.bootstrap, "warm", asked.records, measured=True)
            ratios = []
            for number in range(asked.pairs):
                found = {
                    measured: run(
                        home,
                        broker.bootstrap,
                        f"s{number}{'m' if measured else 'b'}",
                        asked.records,
                        measured=measured,
                    )
                    for measured in ((True, False) if number % 2 else (False, True))
                }
                (with_it, scrapes), (without, _) = found[True], found[False]
                ratios.append(with_it / without)
                print(
                    f"{without:12,.0f} rows/CPU-s without, {with_it:12,.0f} with telemetry, HTTP "
                    f"and {scrapes} scrapes: {ratios[-1]:.4f}",
                    flush=True,
                )
        print(f"median ratio {statistics.median(ratios):.4f} of {asked.pairs} pairs")


if __name__ == "__main__":
    main()
