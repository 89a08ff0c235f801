"""What counts and measures, as a port: roles and drivers do not know it, assembly wraps ports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Gauge:
    """One series' value now."""

    name: str
    value: float
    labels: Labels = field(default_factory=dict)


Gauges = Callable[[], Iterable[Gauge]]


class Telemetry(Protocol):
    """Names are those of ``instruments.INSTRUMENTS``; another one is a mistake of the caller."""

    def count(self, name: str, amount: float, labels: Labels) -> None:
        """Add to a counter."""

    def observe(self, name: str, value: float, labels: Labels) -> None:
        """Put a value into a histogram."""

    def show(self, gauges: Gauges) -> Callable[[], None]:
        """Ask these gauges at every collection, until the returned function is called."""


class NoTelemetry:
    """Takes everything and keeps nothing."""

    def count(self, name: str, amount: float, labels: Labels) -> None: ...

    def observe(self, name: str, value: float, labels: Labels) -> None: ...

    def show(self, gauges: Gauges) -> Callable[[], None]:  # noqa: ARG002
        return lambda: None
