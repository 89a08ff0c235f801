"""Defines the settings of a sink: the sections of its file, once they are known to go together."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.config.sink_sections import SinkSections
from headgate.config.validation import require_valid_sink


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings(SinkSections):
    """One sink: its topics, and the table or tables they fill.

    Building one checks it as a whole, and so does ``replace``. Raises ``ConfigurationError``.
    """

    def __post_init__(self) -> None:
        SinkSections.__post_init__(self)  # with slots, Python 3.11 has no super() here
        require_valid_sink(self)
