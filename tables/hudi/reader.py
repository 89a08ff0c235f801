"""``TableReader`` over a Hudi table: its timeline, its live files, and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.record import CommitRecord
from headgate.control_protocol.record_codec import sink_of, topics_of
from headgate.control_protocol.table_history import (
    FileRows,
    ForeignSnapshot,
    History,
    LiveFile,
    Newest,
    SinkCommit,
    Told,
    history_of,
)
from headgate.tables.hudi.base_files import instant_of
from headgate.tables.hudi.java import HudiJava, Instant, Slice
from headgate.tables.hudi.places import HudiPlace
from headgate.tables.hudi.table import HudiSinkTable
from headgate.tables.layouts import with_absent

_COMPACTION = "COMPACT"


class HudiReader:
    """The table as it was when this was made."""

    def __init__(self, place: HudiPlace, sink: SinkName) -> None:
        self._place = place
        self._sink = sink
        self._config = place.config()
        self._java = HudiJava(place, self._config.schema)
        self._view = HudiSinkTable(place, sink).read()
        self._meta = self._java.meta()

    def view(self) -> TableView:
        return self._view

    def moved(self) -> bool:
        return HudiSinkTable(self._place, self._sink).read().head != self._view.head

    def columns(self) -> Sequence[str]:
        return [column.name for column in self._config.columns.fields]

    def history(self, newest: Newest | None = None) -> History:
        line = self._line
        shown = line[-newest.count([_ms(each) for each in line]) :] if newest else line
        complete = not self._java.any_archived(self._meta) and len(shown) == len(line)
        return history_of(self._view, self._sink, map(self._told, shown), complete=complete)

    def live_files(self) -> list[LiveFile]:
        brought = {each.requested: each.completed for each in self._line}
        return [
            LiveFile(
                path=each.path,
                records=pq.read_metadata(each.path).num_rows if Path(each.path).exists() else 0,
                size_bytes=each.size,
                parquet=True,
                deletes=False,
                added_by=brought.get(instant_of(each.path), 0),
            )
            for each in self._slices
            if each.path
        ]

    def added(self, commit: SinkCommit) -> list[tuple[str, int]] | None:
        found = next((each for each in self._line if each.completed == commit.snapshot_id), None)
        if found is None:
            return None
        folder = self._place.folder
        return [(f"{folder}/{path}", rows) for path, rows in self._brought(found)]

    def size_and_rows(self, file: LiveFile) -> tuple[int, int]:
        size = Path(file.path).stat().st_size
        if size != file.size_bytes:
            return size, file.records
        return size, int(pq.read_metadata(file.path).num_rows)

    def scan(self, columns: Sequence[str]) -> tuple[int, Iterator[FileRows]]:
        if any(each.logged for each in self._slices):
            raise NotImplementedError("the table has log files, whose updates are not read here")
        return len(self._slices), (self._rows(each, columns) for each in self._slices)

    def close(self) -> None:
        """Nothing is held."""

    def _rows(self, live: Slice, columns: Sequence[str]) -> FileRows:
        def batches() -> Iterator[Any]:
            with pq.ParquetFile(live.path) as file:
                for batch in file.iter_batches(columns=list(columns)):
                    yield with_absent(batch, columns, self._config.columns, {})

        return FileRows(live.path, live.size, batches, batches)

    # ---------------------------------------------------------------------------------- timeline

    @cached_property
    def _line(self) -> list[Instant]:
        """Oldest first."""
        return list(reversed(list(self._java.commits(self._meta))))

    @cached_property
    def _slices(self) -> list[Slice]:
        return self._java.latest_slices(self._meta)

    def _brought(self, instant: Instant) -> list[tuple[str, int]]:
        return [
            (each.path, each.rows) for each in self._java.statistics(self._meta, instant.requested)
        ]

    def _told(self, instant: Instant) -> Told:
        return Told(
            f"instant {instant.requested}",
            instant.said,
            lambda record: self._commit(instant, record),
            lambda: self._foreign(instant),
        )

    def _commit(self, instant: Instant, record: CommitRecord) -> SinkCommit:
        brought = self._brought(instant)
        return SinkCommit(
            snapshot_id=instant.completed,
            committed_ms=_ms(instant),
            record=record,
            added_records=sum(rows for _, rows in brought),
            added_files=len(brought),
        )

    def _foreign(self, instant: Instant) -> ForeignSnapshot:
        sink = sink_of(instant.said)
        moves = instant.replaces or instant.operation == _COMPACTION
        statistics = () if moves else self._java.statistics(self._meta, instant.requested)
        return ForeignSnapshot(
            snapshot_id=instant.completed,
            operation="replace" if moves else instant.operation.lower(),
            added_records=sum(each.inserted for each in statistics),
            deleted_records=0,
            row_deletes=sum(each.deleted for each in statistics),
            sink=sink,
            topic_ids=topics_of(sink, instant.said) if sink else {},
        )


def _ms(instant: Instant) -> int:
    """When it was completed; tables whose instants are of another zone than UTC are refused."""
    at = datetime.strptime(f"{instant.completed}000", "%Y%m%d%H%M%S%f").replace(tzinfo=UTC)
    return int(at.timestamp() * 1000)
