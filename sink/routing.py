"""Which tables follow the sink's own, and the fingerprint of what decides where a record goes."""

from __future__ import annotations

from headgate.sink.agreement import agreed, fingerprint
from headgate.sink.settings import SinkSettings


def follower_names(settings: SinkSettings) -> tuple[str, ...]:
    """The tables that are paid for what the sink's table decides (rule D1)."""
    return (settings.quarantine.table,) if settings.quarantine.keeps else ()


def routing(settings: SinkSettings) -> str:
    """A fingerprint of what decides where and what a row is: what members agree on (P11, D3)."""
    return fingerprint(agreed(settings))
