"""Logs which records go to no table, without repeating it for every batch (rule R2)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from headgate.control_protocol.log_events import LogEvent, about
from headgate.control_protocol.redacted_log import redacted_logger

AGAIN_S = 60.0
REASONS_MAX = 5
"""The number of reasons logged in a minute: an arbitrary field has a reason per value."""

_log = redacted_logger(__name__)
_told: dict[str, float] = {}


def tell(reasons: Counter[str], monotonic_s: Callable[[], float] = time.monotonic) -> None:
    """Log the reasons of a batch that the last minute has not seen, the commonest first."""
    now_s = monotonic_s()
    for reason in [reason for reason, at_s in _told.items() if now_s - at_s >= AGAIN_S]:
        del _told[reason]
    for reason, count in reasons.most_common(REASONS_MAX):
        if reason not in _told and len(_told) < REASONS_MAX:
            _told[reason] = now_s
            event = about(LogEvent.RECORDS_UNMATCHED, records=count)
            _log.warning("%d records of a batch go to no table: %s", count, reason, extra=event)
