"""Names the tables that follow the lead, and fingerprints what decides where a record goes."""

from __future__ import annotations

from headgate.sink.agreement import agreed, fingerprint
from headgate.sink.settings import SinkSettings


def follower_names(settings: SinkSettings) -> tuple[str, ...]:
    """Return the tables that are paid for what the sink's table decides (rule D1)."""
    return (settings.quarantine.table,) if settings.quarantine.keeps else ()


def routing(settings: SinkSettings) -> str:
    """Fingerprint what decides a row and its table; all members must agree on it (P11, D3)."""
    return fingerprint(agreed(settings))
