"""A process with one Spark session and one batch writer, told what to do line by line.

Classic Spark and Spark Connect cannot live in one process, and neither can two sessions with
different masters: so every kind of session has a process of its own. Run as a program it serves;
imported it is the test's side.
"""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

PATIENCE_S = 400


class SparkProcess:
    """The test's side: ``call`` a command of ``Server`` and get its answer."""

    def __init__(self, options: Mapping[str, Any], catalog: Mapping[str, str], kafka: str) -> None:
        setup = json.dumps({"options": options, "catalog": catalog, "kafka": kafka})
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), setup],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, command: str, **arguments: Any) -> Any:
        """The answer, or a ``RuntimeError`` with what went wrong there."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        stdin.flush()
        watch = threading.Timer(PATIENCE_S, self._process.kill)
        watch.start()
        try:
            line = stdout.readline()
        finally:
            watch.cancel()
        assert line, f"the Spark process ended or hung in {command}: {self._process.poll()}"
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """Ask it to end, as a process that embeds the writer does."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(60) == 0
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()


class Server:
    """The other side: public methods are the commands."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        from pyiceberg.catalog import load_catalog
        from pyspark.serializers import CloudPickleSerializer

        from headgate.data_plane.batch.writer_task_plan import Plans, SourcePlan
        from headgate.data_plane.spark.batch_writer import SparkBatchWriter
        from headgate.data_plane.spark.session import SparkOptions, open_session

        self._payloads: list[bytes] = []
        packed = CloudPickleSerializer.dumps

        def recorded(serializer: Any, function: Any) -> Any:
            self._payloads.append(packed(serializer, function))
            return self._payloads[-1]

        CloudPickleSerializer.dumps = recorded
        self.catalog = load_catalog("local", **setup["catalog"])
        source = SourcePlan(
            kafka={"bootstrap.servers": setup["kafka"]},
            record_columns={name: name for name in ("topic", "partition", "offset")},
        )
        self.plans = Plans(self.catalog)
        self.session = open_session(SparkOptions(**setup["options"]))
        self.writer = SparkBatchWriter(
            self.session, lambda batch, write: write(self.plans.plan_for_start(batch.table, source))
        )

    def shape(self, distribution: str = "table", **transform: str) -> None:
        """What becomes of rows from the next batch on."""
        from headgate.data_plane.batch.transform_and_distribution import Shaping, TransformPlan
        from headgate.data_plane.batch.writer_task_plan import Plans
        from headgate.participant.settings import Distribution

        plan = TransformPlan(**transform) if transform else None
        self.plans = Plans(self.catalog, Shaping(plan, Distribution(distribution)))

    def parallelism(self) -> int:
        return self.session.parallelism

    def shipped(self) -> list[str]:
        """Where the tasks import this package from."""

        def place(batches: Any) -> Any:
            import pyarrow as pa

            import headgate.data_plane.spark.tasks as tasks

            for _ in batches:
                yield pa.RecordBatch.from_pydict({"place": [tasks.__file__]})

        numbers = self.session.spark.range(0, 2, 1, 2)
        return [row["place"] for row in numbers.mapInArrow(place, "place string").collect()]

    def sent(self, texts: list[str]) -> list[str]:
        """Which of the texts stand in what tasks were given so far."""
        return [text for text in texts if any(text.encode() in sent for sent in self._payloads)]

    def submit(self, number: int, table: str, topic: str, ranges: dict[str, list[int]]) -> None:
        from headgate.control_protocol.events import TableStart
        from headgate.control_protocol.identifiers import (
            Epoch,
            TopicPartition,
            TransactionId,
            TransactionNumber,
        )
        from headgate.control_protocol.offsets import OffsetRange
        from headgate.control_protocol.ports import Batch

        loaded = self.catalog.load_table(table)
        self.writer.submit(
            Batch(
                number=number,
                transaction=TransactionId(Epoch(1), TransactionNumber(1)),
                table=TableStart(
                    table=table,
                    uuid=str(loaded.metadata.table_uuid),
                    schema_id=loaded.schema().schema_id,
                    spec_id=loaded.spec().spec_id,
                    file_prefix=f"{loaded.location()}/data/{number}-",
                ),
                ranges={
                    TopicPartition(topic, int(partition)): OffsetRange(*both)
                    for partition, both in ranges.items()
                },
                target_file_bytes=128 * 1024 * 1024,
            )
        )

    def outcome(self, timeout_ms: int = PATIENCE_S * 1000) -> dict[str, Any] | None:
        outcome = self.writer.wait_for_outcome(timeout_ms)
        if outcome is None:
            return None
        found = {"kind": type(outcome).__name__, "number": outcome.number}
        if hasattr(outcome, "reason"):
            fatal = outcome.fatal.code if outcome.fatal else None
            first = getattr(outcome.fatal, "first", {})
            places = {str(at.partition): offset for at, offset in first.items()}
            return {**found, "reason": outcome.reason, "fatal": fatal, "first": places}
        partitions = {
            str(at.partition): asdict(result) for at, result in outcome.partitions.items()
        }
        files = [file.path for file in outcome.files]
        written = base64.b64encode(pickle.dumps(outcome.files)).decode()
        return {**found, "partitions": partitions, "files": files, "written": written}

    def close(self) -> None:
        self.writer.close()
        self.session.close()


def main() -> None:
    server: Server | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            server = server or Server(json.loads(sys.argv[1]))
            value = getattr(server, request.pop("command"))(**request)
            answer = {"value": value}
        except Exception as error:  # noqa: BLE001 - the test's side raises it again
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    if server is not None:
        server.close()


if __name__ == "__main__":
    main()
