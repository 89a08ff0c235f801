"""What lineage tells of a real table's commits, and of which moment (REPORT-2)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from unit.operations.filled_table import FilledTable, catalog_properties, sink_file_text

from headgate.config.load import parse
from headgate.control_protocol.identifiers import Sender
from headgate.runtime.reports import lineage
from headgate.runtime.reports.lineage import Lineage
from headgate.runtime.wall_clock import wall_ms


class Note:
    """A note of a group, without its brokers."""

    def __init__(self, *_: object) -> None:
        self._text: str | None = None

    def read(self) -> str | None:
        return self._text

    def store(self, text: str) -> None:
        self._text = text


def test_events_name_the_snapshot_of_their_own_commit_and_the_moment_of_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = load_catalog("default", **catalog_properties(tmp_path))
    filled = FilledTable(catalog)
    filled.commit(filled.record(1, 0, {0: 0}))
    snapshots = {
        "ABORT": filled.write(1, 1, {0: 1}, [(0, 0)]),
        "START": filled.commit(filled.record(2, 0, {0: 1})),
        "RUNNING": filled.write(2, 1, {0: 2}, [(0, 1)]),
    }
    catalog.close()
    events = tmp_path / "events.json"
    text = f'{sink_file_text(tmp_path)}[lineage]\nfile = "{events}"\nevery_ms = 1000\n'
    monkeypatch.setattr(lineage, "GroupNote", Note)
    teller = Lineage(parse(text), Sender("member-2", "life-2"), lambda *_: None)

    def told() -> dict[str, Any]:
        lines = events.read_text().splitlines() if events.exists() else []
        return {event["eventType"]: event for event in map(json.loads, lines)}

    teller._thread.wake()
    until_s = time.monotonic() + 20
    while "RUNNING" not in told():
        assert time.monotonic() < until_s
        time.sleep(0.01)
    monkeypatch.setattr(lineage, "wall_ms", lambda: wall_ms() + 6 * 3_600_000)
    teller.close()
    assert {
        kind: int(event["outputs"][0]["facets"]["version"]["datasetVersion"])
        for kind, event in told().items()
    } == {**snapshots, "COMPLETE": snapshots["RUNNING"]}
    assert told()["COMPLETE"]["eventTime"] > told()["RUNNING"]["eventTime"]
