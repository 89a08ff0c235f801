"""Measures what the coordinator's commit of an append to a Hudi table costs.

    PYTHONPATH=tests build/hudi/bin/python benchmarks/hudi_commit.py [--rows 1000000] [--files 4]

The rows (eight columns) lie in base files that the participants' writer has written before. Printed
are the CPU-seconds of this process and its JVM for each commit in turn: the claim, the first commit
(Java is cold, and Hudi makes its metadata table), and those after it. No broker takes part.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from hudi_tables.bundle import fetched
from hudi_tables.world import HudiWorld, session
from hudi_tables.zookeeper import zookeeper
from hudi_upserts import COLUMNS, rows, timed

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.tables.hudi.append_table import HudiSinkTable


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rows", type=int, default=1_000_000)
    asked.add_argument("--files", type=int, default=4)
    asked.add_argument("--commits", type=int, default=6)
    asked.add_argument("--type", default="COPY_ON_WRITE")
    given = asked.parse_args()
    each = given.rows // given.files
    with tempfile.TemporaryDirectory() as home, zookeeper(Path(home)) as server:
        spark = session(str(fetched()))
        world = HudiWorld(
            Path(home),
            spark,
            server.lock(60_000),
            columns=COLUMNS,
            properties={"hoodie.table.type": given.type},
        )
        table = world.open()
        view, took = timed(lambda: claim_table(table))
        print(f"claim: {took:.2f} CPU-s", flush=True)
        for number in range(1, given.commits + 1):
            stamp = HudiSinkTable(world.place, SinkName("sink")).new_token()
            files = [
                file
                for part in range(given.files)
                for file in world.write(rows(each, each * part), stamp, 1 << 30)
            ]
            told = record(1, number, number)
            held = view
            view, took = timed(lambda: require_landed(commit(table, held, told, *files)))  # noqa: B023
            print(f"commit {number}: {took:.2f} CPU-s, {len(files)} files", flush=True)
        table.close()
        spark.stop()


if __name__ == "__main__":
    main()
