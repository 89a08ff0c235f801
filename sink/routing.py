"""Which tables follow the sink's own, and the fingerprint of what decides where a record goes."""

from __future__ import annotations

import hashlib
import json

from headgate.sink.agreement import agreed
from headgate.sink.settings import SinkSettings

_CHARACTERS = 16


def follower_names(settings: SinkSettings) -> tuple[str, ...]:
    """The tables that are paid for what the sink's table decides (rule D1)."""
    return (settings.quarantine.table,) if settings.quarantine.keeps else ()


def routing(settings: SinkSettings) -> str:
    """A fingerprint of what decides where and what a row is: what members agree on (P11, D3)."""
    text = json.dumps(agreed(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_CHARACTERS]
