"""Docs/reference/log-events.md explains every event of the log, and no other."""

from __future__ import annotations

import re

from repository.tree import ROOT, modules

from headgate.control_protocol.log_event_names import LogEvent

PAGE = (ROOT / "docs/reference/log-events.md").read_text()


def test_every_log_event_is_explained_once_and_in_order() -> None:
    rows = re.findall(r"^\| `([a-z.-]+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", PAGE, re.MULTILINE)
    assert rows == [event.value for event in LogEvent]


def test_every_log_event_is_logged_somewhere() -> None:
    texts = [
        path.read_text() for name, path in modules().items() if not name.endswith("log_event_names")
    ]
    unused = [e.name for e in LogEvent if not any(f"LogEvent.{e.name}" in text for text in texts)]
    assert unused == []
