"""Defines where sinks' specs come from, and where a worker tells of them: a folder, or topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headgate.control_protocol.errors import HeadgateError
from headgate.runtime.fleet.sink_life import Life, Wanted


@dataclass(frozen=True, slots=True)
class DesiredSink:
    """Describes a sink that is wanted: its file, the spec, and the memory that it may take, 0 for
    any.

    ``refused``: why it is not started. Without a ``memory_mib`` the worker's own limit counts.
    ``lag_records``: what it had still to read, as was told last; who has most is started first.
    """

    file: Path
    wanted: Wanted
    memory_mib: int | None = None
    refused: HeadgateError | None = None
    lag_records: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Says what a sink's process takes: private memory, processor time, and of a core lately."""

    memory_bytes: int | None = None
    cpu_ms: int | None = None
    cpu_permille: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Says what a sink's process tells of itself with a turn; what it does not know is ``None``."""

    revision: str = ""
    leads: bool | None = None
    partitions: int | None = None
    lag_records: int | None = None


@dataclass(frozen=True, slots=True)
class ToldSink:
    """Says what a worker tells of one sink; without a ``life`` it was refused.

    ``waits_for``: why it has no process yet, though it may be started.
    """

    name: str
    wanted: DesiredSink | None
    life: Life | None
    usage: Usage = Usage()
    report: Report = Report()
    waits_for: str = ""


class SpecSource(Protocol):
    """Yields specs, and is told what became of them. Nothing here waits."""

    def read_desired_sinks(self) -> Mapping[str, DesiredSink]:
        """Return what is wanted here now, by name. What cannot be read now is as before."""
        ...

    def report_sinks(self, told: Sequence[ToldSink], now_ms: int) -> None:
        """Tell what is seen; ``now_ms`` is the clock of the lives. Never raises."""
        ...

    def begin_leaving_and_has_left(self) -> bool:
        """Take no specs any longer, so that others may; return whether that is done."""
        ...

    def close(self) -> None:
        """Tell that nobody is here any more."""
        ...
