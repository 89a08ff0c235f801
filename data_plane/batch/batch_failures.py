"""Decides which failures of a batch end the sink, and which are worth another try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    MissingRights,
    OffsetOutOfRange,
    StopSink,
    TopicRecreated,
    Unforeseen,
    WriteFailed,
)
from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome
from headgate.control_protocol.redaction import REASON_CHARACTERS_MAX
from headgate.tables.storage.object_stores import refused_operation

_FOR_THE_COORDINATOR = (OffsetOutOfRange, TopicRecreated)
"""Sources that contradict the stored offsets: the coordinator's policies decide (C4)."""

_OTHERS = frozenset(
    (
        *("adlfs", "aiohttp", "azure", "boto3", "botocore", "cimpl", "confluent_kafka", "fsspec"),
        *("gcsfs", "google", "grpc", "http", "httpx", "ossfs", "psycopg", "psycopg2", "py4j"),
        *("pyiceberg", "pyspark", "requests", "s3fs", "socket", "sqlalchemy", "sqlite3", "ssl"),
        "urllib3",
    )
)
"""Packages whose own exceptions come from other systems."""

_CAUSES_MAX = 10


class Abandoned(HeadgateError):
    """Nobody waits for the batch any more."""


class TablesWanted(HeadgateError):
    """Routes name tables that the plan lacks; the batch is written again with them."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(f"tables were not known: {', '.join(sorted(names))}")
        self.names = names

    def __reduce__(self) -> tuple[type[TablesWanted], tuple[frozenset[str]]]:
        return TablesWanted, (self.names,)


@dataclass(frozen=True, slots=True)
class Wanting(BatchFailed):
    """A batch that failed because it lacked plans for these tables."""

    names: frozenset[str] = frozenset()


def go_on(batch: Batch, abandoned: Callable[[], bool]) -> None:
    """Raise ``Abandoned`` when nobody waits for the batch any more."""
    if abandoned():
        raise Abandoned(f"batch {batch.number} is not wanted any more")


def foreign(error: BaseException) -> bool:
    """Return whether another system (disk, network, memory, broker, storage, Spark) is to blame."""
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if cause is None:
            return False
        if isinstance(cause, (OSError, MemoryError)) or any(
            kind.__module__.split(".")[0] in _OTHERS for kind in type(cause).__mro__
        ):
            return True
        cause = cause.__cause__
    return False


def narrowable(error: BaseException) -> bool:
    """Return whether the error was unforeseen, so that one record may have raised it."""
    if isinstance(error, HeadgateError) or not isinstance(error, Exception):
        return isinstance(error, Unforeseen)
    return not foreign(error)


def write_failed(error: Exception, batch: Batch) -> HeadgateError:
    """Translate somebody else's error into ours."""
    kind = Unforeseen if narrowable(error) else WriteFailed
    return kind(f"batch {batch.number} of {batch.table.table}: {_said(error)}")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]


def attempted(number: int, write: Callable[[], BatchOutcome]) -> BatchOutcome:
    """Return the outcome of writing as a value. Raises only ``Abandoned``."""
    try:
        return write()
    except Abandoned:
        raise
    except Exception as error:  # noqa: BLE001 - it goes on as a value
        return failed(number, error)


def failed(number: int, error: Exception) -> BatchFailed:
    """Return the outcome of a batch that ended in ``error``."""
    if isinstance(error, TablesWanted):
        return Wanting(number, str(error), names=error.names)
    if isinstance(error, OSError) and (operation := refused_operation(error)):
        error = MissingRights(
            f"the table's files may not be written: {operation} is refused: {error}",
            "grant write access to its location; executors of Spark have neither the environment "
            "nor the files of the driver (headgate check asks them)",
        )
    if not isinstance(error, HeadgateError):
        return BatchFailed(number, _said(error), unforeseen=narrowable(error))
    hopeless = isinstance(error, (StopSink, ConfigurationError))
    fatal = error if hopeless and not isinstance(error, _FOR_THE_COORDINATOR) else None
    return BatchFailed(number, str(error), fatal, unforeseen=isinstance(error, Unforeseen))
