"""Tries the store from Spark's executors, with what a task of the sink gets."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    MissingRights,
    Unreachable,
)
from headgate.data_plane.files.store_write_check import try_store
from headgate.data_plane.spark.session import OpenSession, error_text

_COLUMNS = "host string, code string, message string, hint string"
_SCHEMA = pa.schema([(name, pa.string()) for name in ("host", "code", "message", "hint")])
_AS_THE_DRIVER = (
    "executors have neither the environment nor the files of the driver: give them the role, or "
    "the keys as catalog.properties, or as spark.executorEnv.* in spark.conf"
)


def try_from_executors(session: OpenSession, properties: Mapping[str, str], location: str) -> str:
    """Let as many tasks as a batch has try the store. Raises as ``try_store``."""
    tasks = session.spark.range(0, session.parallelism, 1, session.parallelism)
    try:
        rows = tasks.mapInArrow(_trial(dict(properties), location), _COLUMNS).collect()
    except Exception as error:
        raise Unreachable(f"the Spark job for it failed: {error_text(error)}") from error
    for row in rows:
        if row["code"]:
            kinds = (MissingRights, ConfigurationError)
            kind = next((each for each in kinds if each.code == row["code"]), Unreachable)
            hint = f"{row['hint']}; {_AS_THE_DRIVER}" if kind is MissingRights else row["hint"]
            raise kind(f"on executor {row['host']}: {row['message']}", hint)
    hosts = sorted({row["host"] for row in rows})
    return f"{len(rows)} tasks on {', '.join(hosts)} wrote, read and removed a file of a line each"


def _trial(
    properties: dict[str, str], location: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def trial(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for _ in range(batch.num_rows):
                code = message = hint = ""
                try:
                    try_store(properties, location)
                except HeadgateError as error:
                    code, message, hint = error.code, error.message, error.hint
                row = [[socket.gethostname()], [code], [message], [hint]]
                yield pa.RecordBatch.from_arrays(
                    [pa.array(c, pa.string()) for c in row], schema=_SCHEMA
                )

    return trial
