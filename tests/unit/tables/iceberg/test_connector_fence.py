"""A takeover's snapshot carries the connector's mark, and so does each commit behind it, a week."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from support.local_catalog import local_catalog

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt
from headgate.control_protocol.table_history import FencedConnector
from headgate.control_protocol.testing.contract.world import commit, record, require_landed
from headgate.tables.iceberg import connector_fence
from headgate.tables.iceberg.connector_commits import BranchFiles, read_connector_branch_history
from headgate.tables.iceberg.connector_fence import (
    PASSED,
    connector_position_property,
    fence_properties_to_repeat,
    mark_property_for_ends,
    properties_of_fence,
)
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.table import IcebergTable

SINK = SinkName("sink")
MARK = connector_position_property("control", "connect-trips")
ENDS = {0: 7, 2: 5}


def test_every_commit_behind_a_takeover_carries_the_connector_s_mark(tmp_path: Path) -> None:
    local = local_catalog(tmp_path)
    made = local.catalog.create_table("db.rows", schema=_schema())
    table = IcebergTable(local.catalog, "db.rows", SINK, threads=False)
    fence = properties_of_fence(SINK, "control", "connect-trips", ENDS)
    view = require_landed(table.commit(CommitAttempt(table.read(), record(1, 0), fence=fence)))
    for number in (1, 2):
        view = require_landed(commit(table, view, record(1, number)))
        made.refresh()
        summary = made.current_snapshot().summary
        assert json.loads(summary[MARK]) == dict.fromkeys("02", PASSED)
    local.catalog.close()


def test_a_fence_is_known_by_its_sink_until_the_way_back(tmp_path: Path) -> None:
    """TAKEOVER-13: what the connector itself has committed up to is known all the time."""
    local = local_catalog(tmp_path)
    made = local.catalog.create_table("db.rows", schema=_schema())
    table = IcebergTable(local.catalog, "db.rows", SINK, threads=False)
    own = mark_property_for_ends("control", "connect-trips", {0: 3, 2: 1})
    view = require_landed(table.commit(CommitAttempt(table.read(), record(1, 0), fence=own)))
    assert _read(made) == ({0: 3, 2: 1}, frozenset())
    fence = properties_of_fence(SINK, "control", "connect-trips", ENDS)
    view = require_landed(table.commit(CommitAttempt(view, record(2, 0), fence=fence)))
    view = require_landed(commit(table, view, record(2, 1)))
    assert _read(made) == ({0: 3, 2: 1}, frozenset({SINK}))
    back = mark_property_for_ends("control", "connect-trips", ENDS)
    require_landed(table.commit(CommitAttempt(view, record(3, 0), fence=back)))
    assert _read(made) == (ENDS, frozenset())
    local.catalog.close()


def _read(made: Table) -> tuple[Mapping[int, int], frozenset[str]]:
    files: BranchFiles = read_connector_branch_history(made.refresh(), "main", MARK)
    return files.mark, files.fenced_by


def test_what_the_connector_commits_beside_the_sink_is_counted(tmp_path: Path) -> None:
    """TAKEOVER-14."""
    local = local_catalog(tmp_path)
    made = local.catalog.create_table("db.rows", schema=_schema())
    made.append(pa.table({"n": [1]}), snapshot_properties={MARK: '{"0":3}'})
    table = IcebergTable(local.catalog, "db.rows", SINK, threads=False)
    assert _connector(made) is None
    fence = properties_of_fence(SINK, "control", "connect-trips", ENDS)
    view = require_landed(table.commit(CommitAttempt(table.read(), record(1, 0), fence=fence)))
    assert _connector(made) == FencedConnector("connect-trips")
    foreign = []
    for _ in range(2):  # below the sink's newest snapshot, and above it
        made.refresh().append(pa.table({"n": [2]}), snapshot_properties={MARK: '{"0":9}'})
        foreign.append(made.refresh().current_snapshot().snapshot_id)
        assert _connector(made) == FencedConnector("connect-trips", tuple(reversed(foreign)))
        view = require_landed(commit(table, table.read(), record(1, len(foreign))))
    back = mark_property_for_ends("control", "connect-trips", ENDS)
    require_landed(table.commit(CommitAttempt(view, record(2, 0), fence=back)))
    assert _connector(made) is None
    local.catalog.close()


def _connector(made: Table) -> FencedConnector | None:
    return IcebergReader(made.refresh(), SINK, "main").fenced_connector()


def test_a_table_that_nobody_took_over_carries_none(tmp_path: Path) -> None:
    local = local_catalog(tmp_path)
    made = local.catalog.create_table("db.rows", schema=_schema())
    table = IcebergTable(local.catalog, "db.rows", SINK, threads=False)
    require_landed(
        commit(table, require_landed(commit(table, table.read(), record(1, 0))), record(1, 1))
    )
    assert MARK not in made.refresh().current_snapshot().summary.additional_properties
    local.catalog.close()


def test_the_mark_is_repeated_for_a_week(monkeypatch: pytest.MonkeyPatch) -> None:
    fence = properties_of_fence(SINK, "control", "connect-trips", ENDS)
    assert fence_properties_to_repeat(SINK, {**fence, "other": "x"}) == fence
    assert fence_properties_to_repeat(SinkName("another"), fence) == {}
    monkeypatch.setattr(connector_fence, "_KEPT_MS", -1)
    assert (
        fence_properties_to_repeat(
            SINK, properties_of_fence(SINK, "control", "connect-trips", ENDS)
        )
        == {}
    )


def _schema():  # type: ignore[no-untyped-def]
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    return Schema(NestedField(1, "n", LongType()))
