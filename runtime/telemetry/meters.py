"""Defines counting and measuring as a port.

Roles and drivers do not know it; assembly wraps ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Gauge:
    """One series' current value."""

    name: str
    value: float
    labels: Labels = field(default_factory=dict)


Gauges = Callable[[], Iterable[Gauge]]
Unregister = Callable[[], None]


class Telemetry(Protocol):
    """Takes names from ``instruments.INSTRUMENTS``; any other name is the caller's bug."""

    def count(self, name: str, amount: float, labels: Labels) -> None:
        """Add to a counter."""

    def observe(self, name: str, value: float, labels: Labels) -> None:
        """Record a value in a histogram."""

    def register_gauges(self, gauges: Gauges) -> Unregister:
        """Ask these gauges at every collection, until the returned function is called."""


class NoTelemetry:
    """Accepts everything and keeps nothing."""

    def count(self, name: str, amount: float, labels: Labels) -> None: ...

    def observe(self, name: str, value: float, labels: Labels) -> None: ...

    def register_gauges(self, gauges: Gauges) -> Unregister:  # noqa: ARG002
        return lambda: None
