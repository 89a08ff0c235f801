"""Detects a fork: a commit that landed although its writer had lost the lock (H9)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.kind_errors import HudiForked
from headgate.tables.hudi.java import Instant

_LATE = "a coordinator that was stopped for long has landed after all"
_HINT = "its files are gone, and so may be rows: see docs/hudi.md, 'A fork'"


def follows(sink: SinkName) -> str:
    """Return the key under which a commit notes when the one before it was completed.

    It is not a key of the commit record, which would refuse it.
    """
    return f"headgate-hudi.{sink}.follows"


def refuse_fork(table: str, sink: SinkName, ours: Sequence[Instant]) -> None:
    """Raise ``HudiForked`` if the sink's two newest commits, newest first, are not a chain.

    Completion times tell. Instants are archived by their request times, so the former one may be
    gone from the timeline while an older one is still there.
    """
    before = ours[0].said.get(follows(sink)) if len(ours) == 2 else None
    if before is not None and ours[1].completed > int(before or 0):
        raise HudiForked(
            f"Hudi table {table}: commit {ours[0].requested} of sink {sink} continues the one that "
            f"was completed at {before}, and not {ours[1].requested}, which came between: {_LATE}",
            _HINT,
        )


def refuse_risen(
    table: str, sink: SinkName, condemned: Collection[str], complete: Callable[[str], bool]
) -> None:
    """Raise ``HudiForked`` if a commit is complete that was rolled back."""
    for instant in sorted(condemned):
        if complete(instant):
            raise HudiForked(
                f"Hudi table {table}: commit {instant} of sink {sink} was rolled back, and is "
                f"complete: {_LATE}",
                _HINT,
            )


def behind(head: int | None) -> str | None:
    """Return, in Hudi's lock, why a commit would count as older than the one it continues."""
    now = int(f"{datetime.now(UTC):%Y%m%d%H%M%S%f}"[:17])
    if now > (head or 0):
        return None
    return f"the newest commit was completed at {head}, and this machine's clock says {now}"
