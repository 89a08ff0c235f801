"""Makes the package's loggers, whose lines hold no secret of a sink that runs in this process.

They serve programs that embed a sink, too: what a program does with log records is its own matter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headgate.control_protocol.redaction import to_printable_line

LINE_CHARACTERS_MAX = 8_000
"""Names, values and reasons in a message may be as long as a record."""
Redact = Callable[[str], str]


class _Redacting(logging.Filter):
    """Redacts each record for all sinks that run now, and keeps it on one line.

    Names and reasons that others write on the control topic are logged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.redactions: tuple[Redact, ...] = ()

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        text = to_printable_line(redact_for_running_sinks(said))
        if len(text) > LINE_CHARACTERS_MAX:
            text = f"{text[:LINE_CHARACTERS_MAX]} ... {len(text) - LINE_CHARACTERS_MAX:,} more"
        if text != said:
            record.msg, record.args = text, ()
        return True


_REDACTING = _Redacting()
_CHANGING = threading.Lock()
"""Sinks of one process open and close in their own threads."""


def redacted_logger(name: str) -> logging.Logger:
    """Return the logger of this name. Every module of the package takes its logger from here."""
    logger = logging.getLogger(name)
    logger.addFilter(_REDACTING)
    return logger


def redact_for_running_sinks(text: str) -> str:
    """Return the text without the secrets that are in use now, as their files say by now."""
    for redact in _REDACTING.redactions:
        text = redact(text)
    return text


@contextmanager
def redacting(redaction: Redact) -> Iterator[None]:
    """Redact what the package logs meanwhile, and all that a process of ours shows of its log."""
    with _CHANGING:
        _REDACTING.redactions = (*_REDACTING.redactions, redaction)
    try:
        yield
    finally:
        with _CHANGING:
            left = list(_REDACTING.redactions)
            left.remove(redaction)
            _REDACTING.redactions = tuple(left)
