"""Lets reports hear of what a coordinator's table has taken (rule REPORT-1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.columns import Struct
from headgate.control_protocol.identifiers import Sender
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    EvolvedTable,
    Landed,
    PrimaryTable,
    TableView,
)
from headgate.runtime.telemetry.instrumented_ports import Count

OnLanded = Callable[[TableView], None]


def _count_nothing(_name: str, _amount: float, _labels: Mapping[str, str]) -> None:
    """Do nothing: this sink is not measured."""


def with_reported_commits(
    table: PrimaryTable,
    settings: SinkSettings,
    life: Sender,
    closing: ExitStack,
    *,
    count: Count | None = None,
    failure: Callable[[], BaseException | None] = lambda: None,
) -> PrimaryTable:
    """Return the same table, whose commits are reported until ``closing`` ends the life.

    ``failure`` returns what ends it, if it does not end in order.
    """
    heard: list[OnLanded] = []
    if settings.lineage:
        from headgate.runtime.reports.lineage import Lineage

        lineage = Lineage(settings, life, count or _count_nothing, failure)
        closing.callback(lineage.close)
        heard.append(lineage.on_landed)
    if settings.signal:
        from headgate.runtime.reports.completeness_signal import Signals

        signals = Signals(settings, count or _count_nothing)
        closing.callback(signals.close)
        heard.append(signals.on_landed)
    return ReportedPrimary(table, heard) if heard else table


class ReportedPrimary:
    """Implements ``PrimaryTable``, and says which commits have landed."""

    def __init__(self, table: PrimaryTable, on_landed: Sequence[OnLanded]) -> None:
        self._table = table
        self._on_landed = on_landed

    def read(self) -> TableView:
        return self._table.read()

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        outcome = self._table.commit(attempt)
        if isinstance(outcome, Landed):
            for hear in self._on_landed:
                hear(outcome.view)
        return outcome

    def evolve(self, base: TableView, columns: Struct) -> EvolvedTable:
        return self._table.evolve(base, columns)

    def close(self) -> None:
        self._table.close()
