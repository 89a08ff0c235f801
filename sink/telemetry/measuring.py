"""Decides whether a sink is measured, and puts the meters between a coordinator and its ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from headgate.control_protocol.followers import Followers
from headgate.control_protocol.ports import ControlLog, Lead
from headgate.sink.settings import SinkSettings
from headgate.sink.telemetry.lookout import LagLookout
from headgate.sink.telemetry.meters import CoordinatorMeters, SinkMeters
from headgate.sink.telemetry.open_telemetry import OpenTelemetry


@dataclass(frozen=True, slots=True)
class Ports:
    """Those of a coordinator's ports that are measured."""

    log: ControlLog
    table: Lead
    followers: Followers
    on_trouble: Callable[[str], None]


@contextmanager
def measured(settings: SinkSettings) -> Iterator[SinkMeters | None]:
    """Meters that send over OTLP, where the sink file says whereto. Nobody else takes numbers."""
    if not settings.telemetry.otlp_endpoint:
        yield None
        return
    telemetry = OpenTelemetry(settings.telemetry)
    try:
        meters = SinkMeters(telemetry, settings)
        try:
            yield meters
        finally:
            meters.close()
    finally:
        telemetry.close()


def metered(
    ports: Ports, settings: SinkSettings, life: CoordinatorMeters, closing: ExitStack
) -> Ports:
    """The same ports, measured; and the sources looked at, until the coordinator's life ends."""
    closing.callback(life.close)
    closing.callback(LagLookout(settings, life).close)

    def complain(text: str) -> None:
        life.trouble(text)
        ports.on_trouble(text)

    return Ports(
        life.log(ports.log), life.table(ports.table), life.followers(ports.followers), complain
    )
