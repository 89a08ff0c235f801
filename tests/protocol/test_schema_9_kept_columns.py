"""SCHEMA-9: no file is committed whose values the table no longer has a column for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from integration.iceberg.sink_commits import SINK, SinkOnTable, record
from protocol.suspension import ORDERS, announces, collecting, reads, table
from pyiceberg.schema import Schema
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import DoubleType
from support.local_catalog import local_catalog

from headgate.control_protocol.errors import TableChanged
from headgate.control_protocol.identifiers import Epoch, Sender, TransactionId, TransactionNumber
from headgate.control_protocol.ports import CommitAttempt, Staging
from headgate.coordinator.inputs_and_actions import ManifestsStaged, StageManifests
from headgate.coordinator.phases import Phase
from headgate.tables.concurrent_secondary_tables import SecondaryTables
from headgate.tables.iceberg.table import IcebergTable

COLUMNS = {"id": "long not null", "pad": "string", "fare": "float"}
ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "pad": pa.array(["x", None], pa.string()),
        "fare": pa.array([None, None], pa.float32()),
    },
    schema=pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("pad", pa.string()),
            pa.field("fare", pa.float32()),
        ]
    ),
)
Change = Callable[[UpdateSchema], object]
LOSES: dict[str, tuple[Change, str]] = {
    "dropped": (lambda update: update.delete_column("pad"), "no column 'pad' any more"),
    "required": (
        lambda update: update.update_column("pad", required=True),
        "requires a value of column 'pad' now",
    ),
}
KEEPS: dict[str, Change] = {
    "added": lambda update: update.add_column("more", DoubleType()),
    "renamed": lambda update: update.rename_column("pad", "filling"),
    "widened": lambda update: update.update_column("fare", DoubleType()),
    "made optional": lambda update: update.make_column_optional("id"),
    "dropped without a value": lambda update: update.delete_column("fare"),
}


@pytest.fixture
def sink(tmp_path: Path) -> SinkOnTable:
    made = SinkOnTable.claimed(local_catalog(tmp_path).catalog, COLUMNS)
    made.table = IcebergTable(
        made.catalog, made.identifier, SINK, threads=False, keeps_columns=True
    )
    return made


def change(sink: SinkOnTable, how: Change) -> None:
    with sink.load().update_schema(allow_incompatible_changes=True) as update:
        how(update)


@pytest.mark.parametrize("how", LOSES)
def test_schema_9_files_with_values_that_would_be_lost_are_not_committed(
    sink: SinkOnTable, how: str
) -> None:
    attempt = sink.attempt(ROWS)
    change(sink, LOSES[how][0])
    before = sink.load().metadata.current_snapshot_id
    with pytest.raises(TableChanged, match=LOSES[how][1]):
        sink.table.commit(attempt)
    assert sink.load().metadata.current_snapshot_id == before


@pytest.mark.parametrize("how", KEEPS)
def test_schema_9_files_that_lose_nothing_are_committed_under_their_own_schema(
    sink: SinkOnTable, how: str
) -> None:
    attempt = sink.attempt(ROWS)
    change(sink, KEEPS[how])
    sink.land(sink.table.commit(attempt))
    assert sink.load().scan().to_arrow().num_rows == 2


def test_schema_9_files_late_by_a_schema_are_compared_with_what_the_table_has_now(
    sink: SinkOnTable,
) -> None:
    late = sink.attempt(ROWS)
    change(sink, LOSES["dropped"][0])
    sink.commit(None)
    attempt = CommitAttempt(sink.view, record(1, sink.number, 9), late.files)
    with pytest.raises(TableChanged, match="no column 'pad' any more"):
        sink.table.commit(attempt)


def test_schema_9_a_claim_and_each_later_schema_meet_what_a_start_asks(sink: SinkOnTable) -> None:
    met: list[int] = []

    def start_asks(schema: Schema) -> None:
        met.append(schema.schema_id)
        if "pad" not in schema.column_names:
            raise TableChanged("db.t has no column 'pad'", "add it")

    sink.table = IcebergTable(sink.catalog, sink.identifier, SINK, threads=False)
    sink.table.set_column_check(start_asks)
    for _ in range(3):
        sink.commit(None)
    assert len(met) == 1
    change(sink, LOSES["dropped"][0])
    with pytest.raises(TableChanged):
        sink.commit(None)
    with pytest.raises(TableChanged):  # whoever tries it again
        sink.commit(None)


def test_schema_9_a_routed_table_is_drafted_nothing_and_names_its_trouble(
    sink: SinkOnTable,
) -> None:
    files = sink.attempt(ROWS).files
    change(sink, LOSES["dropped"][0])
    transaction = TransactionId(Epoch(1), TransactionNumber(1))
    draft = Staging(sink.view, transaction, Sender("member", "life"), files, 0)
    secondaries = SecondaryTables(lambda _: sink.table, threads=False, required=())
    answer = secondaries.stage([draft])[sink.identifier]
    assert isinstance(answer, TableChanged)
    assert "no column 'pad' any more" in answer.message


@pytest.mark.parametrize("how", LOSES)
def test_schema_9_a_pending_commit_with_values_that_would_be_lost_is_not_delivered(
    sink: SinkOnTable, how: str
) -> None:
    """Decided while the table had the column; where pending commits gather (LINGER-1), that is long
    ago."""
    transaction = TransactionId(Epoch(1), TransactionNumber(1))
    files = sink.attempt(ROWS).files
    pending_commits = sink.table.stage(
        Staging(sink.view, transaction, Sender("member", "life"), files, 0)
    )
    change(sink, LOSES[how][0])
    pending = CommitAttempt(sink.view, record(1, 1, 9), pending_commits=pending_commits)
    with pytest.raises(TableChanged, match=LOSES[how][1]):
        sink.table.commit(pending)
    secondaries = SecondaryTables(lambda _: sink.table, threads=False, required=())
    answer = secondaries.deliver([pending], 1_000)[sink.identifier]
    assert isinstance(answer, TableChanged)


@pytest.mark.parametrize("how", KEEPS)
def test_schema_9_a_pending_commit_that_loses_nothing_is_delivered(
    sink: SinkOnTable, how: str
) -> None:
    transaction = TransactionId(Epoch(1), TransactionNumber(1))
    files = sink.attempt(ROWS).files
    pending_commits = sink.table.stage(
        Staging(sink.view, transaction, Sender("member", "life"), files, 0)
    )
    change(sink, KEEPS[how])
    sink.land(
        sink.table.commit(
            CommitAttempt(sink.view, record(1, 1, 9), pending_commits=pending_commits)
        )
    )
    assert sink.load().scan().to_arrow().num_rows == 2


def test_schema_9_a_routed_table_whose_columns_were_dropped_is_suspended() -> None:
    made = collecting()
    announces(made)
    reads(made, table())
    assert made.wants(StageManifests)
    changed = TableChanged("lake.orders has no column 'pad' any more", "undo the change")
    made.given(ManifestsStaged((), {ORDERS: changed}))
    made.until(Phase.OPEN)
    assert made.term.suspensions.suspended[ORDERS].why == f"HG-208 {changed.message}"
