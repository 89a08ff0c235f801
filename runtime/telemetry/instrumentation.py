"""Decides whether a sink is measured, and puts meters between a coordinator and its ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.ports import AllSecondaryTables, ControlLog, PrimaryTable
from headgate.runtime.telemetry.opentelemetry import OpenTelemetry
from headgate.runtime.telemetry.sink_metrics import CoordinatorMeters, SinkMeters
from headgate.runtime.telemetry.source_lag import LagLookout


@dataclass(frozen=True, slots=True)
class Ports:
    """The coordinator's ports that are measured."""

    log: ControlLog
    table: PrimaryTable
    secondaries: AllSecondaryTables | None
    on_trouble: Callable[[str, int | None], None]


@contextmanager
def open_otlp_meters(settings: SinkSettings) -> Iterator[SinkMeters | None]:
    """Yield meters that send over OTLP, if the sink file has a target; otherwise ``None``."""
    if not settings.telemetry.otlp_endpoint:
        yield None
        return
    with open_meters(settings) as (_, meters):
        yield meters


@contextmanager
def open_meters(settings: SinkSettings) -> Iterator[tuple[OpenTelemetry, SinkMeters]]:
    """Yield a participant's meters, with what exports them."""
    with ExitStack() as closing:
        telemetry = OpenTelemetry(settings.telemetry)
        closing.callback(telemetry.close)
        meters = SinkMeters(telemetry, settings)
        closing.callback(meters.close)
        yield telemetry, meters


def with_meters_and_lag_lookout(
    ports: Ports, settings: SinkSettings, life: CoordinatorMeters, closing: ExitStack
) -> Ports:
    """Return the same ports, measured; and watch the sources until the coordinator's life ends."""
    closing.callback(life.close)
    closing.callback(LagLookout(settings, life).close)

    def on_trouble(text: str, next_try_in_ms: int | None) -> None:
        life.note_failure(text, next_try_in_ms)
        ports.on_trouble(text, next_try_in_ms)

    secondaries = life.metered_secondaries(ports.secondaries) if ports.secondaries else None
    return Ports(
        life.metered_log(ports.log), life.metered_table(ports.table), secondaries, on_trouble
    )
