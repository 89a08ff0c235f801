"""Provides an Iceberg table and everybody who uses it: sinks, writers, operators, accidents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import (
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
)
from support.iceberg_files import write_files

from headgate.control_protocol.commit_record_codec import claim_marker_property
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import SinkName, tag_name
from headgate.control_protocol.ports import PrimaryTable
from headgate.control_protocol.table_format import TableSpec, Use
from headgate.tables.iceberg.catalog import TIMEOUT_S, load_catalog
from headgate.tables.iceberg.jvm import Jvm
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.table_format import IcebergFormat
from headgate.tables.neutral_schema import parse_declared_columns

NAME = "db.trips"
ROWS_PER_FILE = 3

Lie = Callable[[Callable[[], CommitTableResponse]], CommitTableResponse]


@dataclass
class LyingCatalog:
    """A catalog whose next commit loses its answer, before or after it took effect."""

    real: Catalog
    lies: list[Lie] = field(default_factory=list)

    def commit_table(self, *arguments: Any) -> CommitTableResponse:
        def commit() -> CommitTableResponse:
            return self.real.commit_table(*arguments)

        return self.lies.pop(0)(commit) if self.lies else commit()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class IcebergWorld:
    """The contract's world over pyiceberg and any catalog: SQLite in the folder, or by properties.

    A catalog may hold others' tables: each world's name of it is its folder's, and ``table`` is the
    world's own. ``use``: what its tables are opened for.
    """

    use: Use = Use.OPERATOR

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, str] | None = None,
        *,
        table: str = NAME,
        jvm: Jvm | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        sqlite = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }
        self.name = table
        known = {**sqlite, **(properties or {})}
        self.catalog = load_catalog(str(folder), known, timeout_s, jvm)
        self._create()
        self._lying: list[LyingCatalog] = []

    def open(self, sink: str = "sink", branch: str = "main") -> PrimaryTable:
        lying: Any = LyingCatalog(self.catalog)
        self._lying.append(lying)
        spec = replace(self.spec(), branch=branch)
        return IcebergFormat(lying).open(spec, SinkName(sink), self.use)

    def write_file(self, number: int) -> WrittenFile:
        """A file of ``ROWS_PER_FILE`` rows that say ``number``."""
        (written,) = write_files(self.table(), _rows(number))
        return written

    def close(self) -> None:
        self.catalog.close()

    # ------------------------------------------------------------------------------- what it holds

    def table(self) -> Table:
        return self.catalog.load_table(self.name)

    def spec(self) -> TableSpec:
        columns = parse_declared_columns({"number": "long", "row": "long"})
        return TableSpec(self.name, "", create=True, columns=columns)

    def reader(self, sink: str = "sink") -> IcebergReader:
        return IcebergFormat(self.catalog).reader(self.spec(), SinkName(sink))

    def columns(self) -> list[str]:
        return list(self.table().schema().column_names)

    def visible_file_numbers(self, branch: str = "main") -> list[int]:
        """What the branch holds: each file's number as often as one of its rows is there."""
        table = self.table()
        if branch not in table.metadata.refs:
            return []
        rows = table.scan().use_ref(branch).to_arrow().column("number").to_pylist()
        return sorted(rows)[::ROWS_PER_FILE]

    # ------------------------------------------------------------------------------- what others do

    def keeps(self, branch: str, snapshots: int) -> None:
        """The branch's owner asks for a retention of its own."""
        head = self.table().metadata.refs[branch].snapshot_id
        self._update(
            SetSnapshotRefUpdate(  # type: ignore[call-arg]
                ref_name=branch,
                type="branch",
                snapshot_id=head,
                min_snapshots_to_keep=snapshots,
                max_snapshot_age_ms=1_000,
                max_ref_age_ms=2_000,
            )
        )

    def append_foreign(self, number: int, branch: str = "main") -> None:
        table = self.table()
        head = table.current_snapshot()
        if head and branch not in table.metadata.refs:
            table.manage_snapshots().create_branch(head.snapshot_id, branch).commit()
        table.append(_rows(number), branch=branch)

    def compact(self) -> None:
        """By one snapshot that changes no row, as engines do it."""
        table = self.table()
        live, rows = [task.file for task in table.scan().plan_files()], table.scan().to_arrow()
        with table.transaction() as change:
            merged = list(_dataframe_to_data_files(change.table_metadata, rows, table.io))
            with change.update_snapshot().overwrite() as rewrite:
                for file in live:
                    rewrite.delete_data_file(file)
                for file in merged:
                    rewrite.append_data_file(file)

    def expire_all(self) -> None:
        """Every snapshot that no branch and no tag stands on."""
        table = self.table()
        held = {ref.snapshot_id for ref in table.metadata.refs.values()}
        gone = [s.snapshot_id for s in table.snapshots() if s.snapshot_id not in held]
        table.maintenance.expire_snapshots().by_ids(gone).commit()

    def lose_history(self) -> None:
        """Old versions of the metadata are deleted."""
        table = self.table()
        for entry in table.metadata.metadata_log:
            if table.io.new_input(entry.metadata_file).exists():
                table.io.delete(entry.metadata_file)

    def roll_back(self, snapshot_id: int) -> None:
        self._update(
            SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot_id)  # type: ignore[call-arg]
        )

    def delete_tag(self, sink: str = "sink") -> None:
        self._update(RemoveSnapshotRefUpdate(ref_name=tag_name(SinkName(sink))))

    def delete_claim_marker(self, sink: str = "sink") -> None:
        self._update(RemovePropertiesUpdate(removals=[claim_marker_property(SinkName(sink))]))

    def recreate(self) -> None:
        self.drop()
        self._create()

    def drop(self) -> None:
        self.catalog.drop_table(self.name)

    def lose_next_answer(self, *, landed: bool) -> None:
        """Of whichever opened table commits next."""

        def lie(commit: Callable[[], CommitTableResponse]) -> CommitTableResponse:
            if landed:
                commit()
            raise ConnectionError("the answer was lost")

        self.lie_next(lie)

    def lie_next(self, lie: Lie) -> None:
        """Around the next commit call of each table that is open now."""
        for lying in self._lying:
            lying.lies = [lie]

    def _update(self, *updates: Any) -> None:
        self.catalog.commit_table(self.table(), (), updates)

    def _create(self) -> None:
        IcebergFormat(self.catalog).create(self.spec())


def _rows(number: int) -> pa.Table:
    row = list(range(ROWS_PER_FILE))
    return pa.table({"number": pa.array([number] * ROWS_PER_FILE, pa.int64()), "row": row})
