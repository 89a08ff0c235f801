"""A Delta table with everybody who touches it: sinks, foreign writers, operators, accidents."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.table_format import TableSpec
from headgate.data_plane.batch.file_schema_plans import plan_of_file_schema
from headgate.data_plane.batch.writer_task_plan import SourcePlan
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.tables.delta.open_table import DeltaLocation
from headgate.tables.delta.reader import DeltaReader
from headgate.tables.delta.table import DeltaSinkTable
from headgate.tables.delta.table_format import DeltaFormat
from headgate.tables.storage.file_io import is_s3_files, open_file_io

ROWS_PER_FILE = 3
COLUMNS = Struct((Column("number", "long", required=False), Column("row", "long", required=False)))


class DeltaWorld:
    """The contract's world over delta-rs, below a folder; or, with ``storage``, an address."""

    def __init__(
        self,
        folder: Path | str,
        *,
        properties: dict[str, str] | None = None,
        storage: dict[str, str] | None = None,
        partition_by: tuple[str, ...] = (),
    ) -> None:
        self.uri: Any = folder / "a table" if isinstance(folder, Path) else folder
        self.wanted = TableSpec(
            "db.trips",
            str(self.uri),
            create=True,
            columns=COLUMNS,
            properties=properties or {},
            storage=storage or {},
            partition_by=partition_by,
        )
        self.place = DeltaLocation.from_spec(self.wanted)
        self._lies: list[bool] = []
        self._files = 0
        DeltaFormat().create(self.wanted)

    def open(self, sink: str = "sink") -> DeltaSinkTable:
        def write(table: DeltaTable, *arguments: Any, **named: Any) -> None:
            lie = self._lies.pop() if self._lies else None
            if lie is not False:
                table.create_write_transaction(*arguments, **named)
            if lie is not None:
                raise ConnectionError("the answer was lost")

        return DeltaSinkTable(self.place, SinkName(sink), write)

    def write_file(self, number: int) -> WrittenFile:
        """A file of ``ROWS_PER_FILE`` rows that say ``number``, by the sink's own writers."""
        plan = plan_of_file_schema(
            DeltaFormat().file_schema(self.wanted), "db.trips", SourcePlan(kafka={})
        )
        self._files += 1
        prefix = f"{self.place.location}/data/headgate/x/{self._files}"
        shape = file_shape_of(plan)
        files = DataFiles(shape, prefix, 1 << 20)
        for key, part in shape.partitioner.split(rows(number).cast(plan.shape.arrow_schema())):
            files.write(key, part)
        (written,) = files.finish()
        return written

    def reader(self, sink: str = "sink") -> DeltaReader:
        return DeltaReader(self.place, SinkName(sink))

    def write_unfit_file(self) -> WrittenFile:
        return replace(self.write_file(0), detail=b"what no writer says")

    def visible_file_numbers(self) -> list[int]:
        found = self.table().to_pyarrow_table().column("number").to_pylist()
        return sorted(found)[::ROWS_PER_FILE]

    def table(self) -> DeltaTable:
        return DeltaTable(self.uri, storage_options=self.place.storage_options)

    def append_foreign(self, number: int) -> None:
        options = self.place.storage_options
        write_deltalake(self.uri, rows(number), mode="append", storage_options=options)

    def compact(self) -> None:
        self.table().optimize.compact()

    def forget_log_before_head(self) -> None:
        """As a clean-up of the log does once its versions are old."""
        table = self.table()
        table.create_checkpoint()
        for path in (self.uri / "_delta_log").glob("0*.json"):
            if int(path.stem) < table.version():
                path.unlink()

    def roll_back(self, snapshot_id: int) -> None:
        self.table().restore(snapshot_id)

    def recreate(self) -> None:
        self.drop()
        DeltaFormat().create(self.wanted)

    def drop(self) -> None:
        if isinstance(self.uri, Path):
            shutil.rmtree(self.uri)
            return
        files = open_file_io(self.place.storage, self.uri)
        assert is_s3_files(files)
        assert (
            files.delete_many_and_return_refused(
                [location for location, _ in files.list_files(self.uri)]
            )
            == {}
        )

    def lose_next_answer(self, *, landed: bool) -> None:
        self._lies.append(landed)

    def close(self) -> None:
        """Nothing is held."""


def rows(number: int) -> pa.Table:
    row = list(range(ROWS_PER_FILE))
    return pa.table({"number": pa.array([number] * ROWS_PER_FILE, pa.int64()), "row": row})
