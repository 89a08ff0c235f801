"""Tries store and token servers from Spark's executors, with what a task of the sink gets."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    MissingRights,
    TokenServerRefused,
    TokenUnfit,
    Unreachable,
)
from headgate.data_plane.spark.session import OpenSession, error_text
from headgate.kafka.authentication import token_keeper_for
from headgate.kafka.token_keeper import keeper_of
from headgate.tables.storage.object_stores import has_long_lived_credentials
from headgate.tables.storage.store_write_check import require_writable_store

_COLUMNS = "host string, code string, message string, hint string"
_SCHEMA = pa.schema([(name, pa.string()) for name in ("host", "code", "message", "hint")])
_AS_THE_DRIVER = (
    "executors have neither the environment nor the files of the driver: give them the role, or "
    "the keys as catalog.properties, or as spark.executorEnv.* in spark.conf"
)
_LONG_LIVED = (
    "they get the sink file's own keys, which stay valid: a role of the machines, or keys that a "
    "REST catalog vends, would spare them"
)


def check_store_by_executors_and_describe(
    session: OpenSession, properties: Mapping[str, str], location: str
) -> str:
    """Let as many tasks as a batch has try the store; return a sentence that says how many did.

    Raises as ``require_writable_store``.
    """
    own = dict(properties)

    def require_store() -> None:
        require_writable_store(own, location)

    count, hosts = _run_in_each_task(session, require_store)
    done = f"{count} tasks on {hosts} wrote, read and removed a file of a line each"
    return f"{done}; {_LONG_LIVED}" if has_long_lived_credentials(own) else done


def check_tokens_by_executors_and_describe(
    session: OpenSession, kafka: Mapping[str, str], registry_auth: str
) -> str:
    """Let as many tasks as a batch has ask for their tokens; say how many did.

    Raises as ``require_token``. ``registry_auth`` is the description of ``[format.auth]``, or
    empty.
    """
    own = dict(kafka)

    def require_tokens() -> None:
        for keeper in (
            token_keeper_for(own),
            keeper_of(registry_auth, "") if registry_auth else None,
        ):
            if keeper is not None:
                keeper.require_token()

    count, hosts = _run_in_each_task(session, require_tokens)
    return f"{count} tasks on {hosts} got their tokens by themselves"


class _TasksRun(NamedTuple):
    """How many tasks did what was asked, and the names of the hosts that they ran on."""

    task_count: int
    hosts: str


def _run_in_each_task(session: OpenSession, attempt: Callable[[], object]) -> _TasksRun:
    """Return how many tasks did it, and on which hosts. Raises what the attempt raised."""
    tasks = session.spark.range(0, session.parallelism, 1, session.parallelism)
    try:
        rows = tasks.mapInArrow(_as_task_function(attempt), _COLUMNS).collect()
    except Exception as error:
        raise Unreachable(f"the Spark job for it failed: {error_text(error)}") from error
    for row in rows:
        if row["code"]:
            kinds = (MissingRights, TokenServerRefused, TokenUnfit, ConfigurationError)
            kind = next((each for each in kinds if each.code == row["code"]), Unreachable)
            hint = f"{row['hint']}; {_AS_THE_DRIVER}" if kind is MissingRights else row["hint"]
            raise kind(f"on executor {row['host']}: {row['message']}", hint)
    return _TasksRun(len(rows), ", ".join(sorted({row["host"] for row in rows})))


def _as_task_function(
    attempt: Callable[[], object],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def attempt_for_each_row(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for _ in range(batch.num_rows):
                code = message = hint = ""
                try:
                    attempt()
                except HeadgateError as error:
                    code, message, hint = error.code, error.message, error.hint
                row = [[socket.gethostname()], [code], [message], [hint]]
                yield pa.RecordBatch.from_arrays(
                    [pa.array(c, pa.string()) for c in row], schema=_SCHEMA
                )

    return attempt_for_each_row
