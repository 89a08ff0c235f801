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
from headgate.tables.storage.object_stores import refused_operation_of

_FOR_THE_COORDINATOR = (OffsetOutOfRange, TopicRecreated)
"""Sources that contradict the stored offsets: the coordinator's policies decide (COMMIT-1)."""

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


class BatchAbandoned(HeadgateError):
    """Says that nobody waits for the batch any more."""


class TablesNotPlanned(HeadgateError):
    """Says that routes name tables that the plan lacks: the batch is written again with them."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(f"tables were not known: {', '.join(sorted(names))}")
        self.names = names

    def __reduce__(self) -> tuple[type[TablesNotPlanned], tuple[frozenset[str]]]:
        return TablesNotPlanned, (self.names,)


@dataclass(frozen=True, slots=True)
class LacksTablePlans(BatchFailed):
    """Reports a batch that failed because it lacked plans for these tables."""

    names: frozenset[str] = frozenset()


def raise_if_abandoned(batch: Batch, abandoned: Callable[[], bool]) -> None:
    """Raise ``BatchAbandoned`` when nobody waits for the batch any more."""
    if abandoned():
        raise BatchAbandoned(f"batch {batch.number} is not wanted any more")


def is_external_failure(error: BaseException) -> bool:
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


def is_bisectable(error: BaseException) -> bool:
    """Return whether the error was unforeseen, so that one record may have raised it."""
    if isinstance(error, HeadgateError) or not isinstance(error, Exception):
        return isinstance(error, Unforeseen)
    return not is_external_failure(error)


def translate_write_error(
    error: Exception, batch: Batch, *, with_text: bool = True
) -> HeadgateError:
    """Translate somebody else's error into ours; without its text where that may hold content."""
    kind = Unforeseen if is_bisectable(error) else WriteFailed
    shown = with_text or kind is WriteFailed
    text = _error_text(error) if shown else type(error).__name__
    return kind(f"batch {batch.number} of {batch.table.table}: {text}")


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]


def try_write(batch_number: int, write: Callable[[], BatchOutcome]) -> BatchOutcome:
    """Return the outcome of writing as a value. Raises only ``BatchAbandoned``."""
    try:
        return write()
    except BatchAbandoned:
        raise
    except Exception as error:  # noqa: BLE001 - it goes on as a value
        return failed_outcome_of(batch_number, error)


def failed_outcome_of(batch_number: int, error: Exception) -> BatchFailed:
    """Return the outcome of a batch that ended in ``error``."""
    if isinstance(error, TablesNotPlanned):
        return LacksTablePlans(batch_number, str(error), names=error.names)
    if isinstance(error, OSError) and (operation := refused_operation_of(error)):
        error = MissingRights(
            f"the table's files may not be written: {operation} is refused: {error}",
            "grant write access to its location; executors of Spark have neither the environment "
            "nor the files of the driver (headgate check asks them)",
        )
    if not isinstance(error, HeadgateError):
        return BatchFailed(batch_number, _error_text(error), unforeseen=is_bisectable(error))
    hopeless = isinstance(error, (StopSink, ConfigurationError))
    fatal = error if hopeless and not isinstance(error, _FOR_THE_COORDINATOR) else None
    return BatchFailed(batch_number, str(error), fatal, unforeseen=isinstance(error, Unforeseen))
