"""Which tables follow the sink's own, and the fingerprint of what decides where a record goes."""

from __future__ import annotations

import hashlib

from headgate.sink.settings import SinkSettings

_CHARACTERS = 16


def follower_names(settings: SinkSettings) -> tuple[str, ...]:
    """The tables that are paid for what the sink's table decides (rule D1)."""
    return (settings.quarantine.table,) if settings.quarantine.keeps else ()


def routing(settings: SinkSettings) -> str:
    """A fingerprint of the settings that decide where and what a row is (rule D3).

    Secrets are masked before: the fingerprint is stored in the table.
    """
    deciding = (
        settings.format,
        settings.transform,
        settings.quarantine.policy,
        settings.quarantine.tombstones,
        settings.quarantine.table,
        settings.table.record_columns,
    )
    text = settings.redacted(repr(deciding))
    return hashlib.sha256(text.encode()).hexdigest()[:_CHARACTERS]
