"""Writes Arrow tables into data files of the format that their table wants.

A file's place in the sink's folder is by partition, or spread as object stores like it: they
partition objects by the first characters of their names. A table that asks for it
(``write.object-storage.enabled``) has twenty random bits in front of each file's name, as Iceberg's
own writers have it; here they stand behind the sink's folder, so that orphans stay provably ours.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO, OutputStream

from headgate.control_protocol.errors import WriteFailed
from headgate.control_protocol.events import WrittenFile
from headgate.data_plane.batch.writer_task_plan import TableShape, WriterPlan
from headgate.data_plane.files.file_format import Encoder, Encoding
from headgate.data_plane.files.format_choice import (
    FORMAT,
    file_format_encoding_of,
    object_storage_choices,
    target_file_size_bytes,
)
from headgate.data_plane.files.metrics import leaves_of, metrics_modes
from headgate.data_plane.files.parquet import ParquetEncoding
from headgate.data_plane.files.partitioning import Partitioner, PartitionKey
from headgate.data_plane.files.sorting import Sorter
from headgate.tables.iceberg.data_file import FileDetail
from headgate.tables.storage.file_io import Unhurried, delete_quietly, open_file_io, store_files

# ------------------------------------------------------------------------------------------- places


_BITS = 20
_FOLDER_CHARACTERS_MAX = 160
"""File systems take 255 bytes for a folder's name. No reader needs the value in a file's path."""
_CUT_ESCAPE = re.compile(r"%[0-9A-F]?$")
_FOLDERS = (slice(0, 4), slice(4, 8), slice(8, 12), slice(12, _BITS))


@dataclass(frozen=True, slots=True)
class FilePlacement:
    """Decides where below a table's data folder a file goes.

    ``partitioned``: whether the partition is in the path of files that are spread."""

    enabled: bool = False
    partitioned: bool = True

    def new_relative_path(self, partition: str) -> str:
        """Return a new file's path below the sink's folder, without its ending."""
        name = uuid4()
        partition = "/".join(_shorten_folder(folder) for folder in partition.split("/"))
        if not self.enabled:
            return f"{partition}/{name}" if partition else str(name)
        bits = f"{name.int & (1 << _BITS) - 1:0{_BITS}b}"
        spread = "/".join(bits[part] for part in _FOLDERS)
        if not self.partitioned:
            return f"{spread}-{name}"
        return f"{spread}/{partition}/{name}" if partition else f"{spread}/{name}"


def _shorten_folder(folder: str) -> str:
    """Return the escaped name of a partition's folder, cut off if it is too long."""
    return _CUT_ESCAPE.sub("", folder[:_FOLDER_CHARACTERS_MAX])


# --------------------------------------------------------------------------------------- open files


OPEN_FILES_MAX = 32
"""Object stores buffer up to 10 MB of every open file."""


class OpenFiles:
    """Open files, least recently written first; beyond the bound that one is closed."""

    def __init__(self, most: int = OPEN_FILES_MAX) -> None:
        self._most = most
        self._open: OrderedDict[Hashable, Callable[[], None]] = OrderedDict()

    def mark_used(self, file: Hashable) -> None:
        self._open.move_to_end(file)

    def make_room(self) -> None:
        """Close one if needed; called before another one is opened."""
        while len(self._open) >= self._most:
            _, close = self._open.popitem(last=False)
            close()

    def add(self, file: Hashable, close: Callable[[], None]) -> None:
        self._open[file] = close

    def forget(self, file: Hashable) -> None:
        self._open.pop(file, None)


# -------------------------------------------------------------------------------------------- files


_SHRINKAGE_GUESS = 4
_ROWS_MIN = 1024
_GIVEN_UP_S = 30.0
"""By then each request under way has ended, whether the store answers or not."""


class FileShape:
    """Holds what all files of one table share."""

    def __init__(self, table: TableShape, io_properties: Mapping[str, str]) -> None:
        schema, spec, order = table.schema(), table.spec(), table.sort_order()
        properties = table.table_properties
        self.arrow_schema: pa.Schema = table.arrow_schema()
        self.name_mapping = table.name_mapping()
        self.spec_id = spec.spec_id
        self.io: FileIO = open_file_io(io_properties, table.data_location)
        leaves = leaves_of(schema, metrics_modes(schema, properties, order))
        self.encoding = file_format_encoding_of(schema, properties, leaves)
        self._parquet = file_format_encoding_of(schema, {**properties, FORMAT: "parquet"}, leaves)
        self.target_bytes = target_file_size_bytes(properties)
        self.placement = FilePlacement(*object_storage_choices(properties))
        self.sorter = Sorter(order, schema)
        self.partitioner = Partitioner(spec, schema)
        self._marking = table.marking
        if table.marking is not None:
            self.encoding = ParquetEncoding(schema, properties, leaves, table.marking.meta_columns)
        self._partition: list[Any] = [f.field_type for f in spec.partition_type(schema).fields]

    def encoding_for(self, rows: pa.Table) -> Encoding:
        """Return the table's own, or Parquet for rows with values that its own cannot hold."""
        return self.encoding if self.encoding.can_hold_rows(rows) else self._parquet

    def prepare_new_path(self, prefix: str, key: PartitionKey, encoding: Encoding) -> str:
        """Return where a new file goes, after writing what has to be there before it.

        Raises ``WriteFailed`` where START names no stamp of this table (TOKEN-2).
        """
        if self._marking is None:
            return f"{prefix}/{self.placement.new_relative_path(key.folder)}.{encoding.name}"
        values = [
            None if held is None else from_bytes(kind, held)
            for kind, held in zip(self._partition, key.values, strict=True)
        ]
        try:
            path = self._marking.new_path(prefix, values)
        except ValueError as error:
            raise WriteFailed(
                f"a START on the control topic names no place of the table: {error}",
                "no coordinator says so: look who may write to the control topic "
                "(docs/guides/security.md)",
            ) from error
        announced = self._marking.files_to_write_before(path).items()
        store_files(self.io, {n: text for n, text in announced if not self._file_exists(n)})
        return path

    def _file_exists(self, path: str) -> bool:
        return bool(self.io.new_output(path).exists())

    def with_meta_columns(self, rows: pa.Table, path: str, rows_before: int) -> pa.Table:
        """Return the rows as the file holds them, which already has ``rows_before`` of them."""
        return (
            rows
            if self._marking is None
            else self._marking.with_meta_columns(rows, path, rows_before)
        )


def file_shape_of(plan: WriterPlan) -> FileShape:
    """Return the shape of the plan's files, cached with its client of the object store: to rebuild
    it for every batch would cost more than a small batch does."""
    return _cached_file_shape(plan.shape, tuple(sorted(plan.io_properties.items())))


@lru_cache(maxsize=256)
def _cached_file_shape(table: TableShape, io_properties: tuple[tuple[str, str], ...]) -> FileShape:
    return FileShape(table, dict(io_properties))  # renewed keys make a client anew


@dataclass(slots=True)
class _OpenFile:
    path: str
    format: str
    stream: OutputStream
    encoder: Encoder
    rows: int = 0


class DataFiles:
    """The files of one batch under one prefix; rolled at ``target_bytes`` on disk, unless the table
    has a target of its own.

    Either ``finish`` or ``discard`` ends it. At most ``open_max`` files are open at a time, in a
    ``pool`` that several tables may share: beyond that the least recently written one is closed,
    which makes files smaller but needs no memory. Where the table has a sort order every file holds
    one sorted run: rows of two writes never share a file.
    """

    def __init__(
        self,
        shape: FileShape,
        prefix: str,
        target_bytes: int,
        *,
        open_max: int = OPEN_FILES_MAX,
        pool: OpenFiles | None = None,
    ) -> None:
        self._shape = shape
        self._prefix = prefix
        self._target_bytes = shape.target_bytes or target_bytes
        self._pool = pool or OpenFiles(open_max)
        self._open: dict[PartitionKey, _OpenFile] = {}
        self._paths: list[str] = []
        self._ending: list[Unhurried] = []
        self._finished: list[WrittenFile] = []
        self._written_rows = 0
        self._written_bytes = 0

    def write(self, key: PartitionKey, table: pa.Table) -> None:
        """Append the rows, of the table's Arrow schema, to the partition's file(s)."""
        if self._shape.sorter:
            table = self._shape.sorter.sort(table)
        encoding = self._shape.encoding_for(table)
        if key in self._open and self._open[key].format != encoding.name:
            self._close(key)
        begin = 0
        while begin < table.num_rows:
            group = table.slice(begin, self._rows_per_group(table, key, encoding))
            file = self._open_or_reuse_file(key, group, encoding)
            size_before = file.stream.tell()
            file.encoder.write(self._shape.with_meta_columns(group, file.path, file.rows))
            file.rows += group.num_rows
            self._written_rows += group.num_rows
            self._written_bytes += file.stream.tell() - size_before
            begin += group.num_rows
            if file.stream.tell() >= self._target_bytes:
                self._close(key)
        if self._shape.sorter and key in self._open:
            self._close(key)

    def finish(self) -> tuple[WrittenFile, ...]:
        """Close and describe all files, in the order in which they were completed."""
        for key in list(self._open):
            self._close(key)
        for stream in self._ending:
            stream.close_in_background().result()
        return tuple(self._finished)

    def discard(self) -> None:
        """Remove every file of this batch. Only while none was announced.

        It does not wait for a store that hangs: what is still under way then stays as an orphan.
        """
        # Aborts begin first, all at once; files are deleted last: an upload that completes after
        # the deletion would leave its file.
        given_up = [stream.abort_in_background() for stream in self._ending]
        begun = {file.path for file in self._open.values() if isinstance(file.stream, Unhurried)}
        for key, file in self._open.items():
            self._pool.forget((id(self), key))
            if isinstance(file.stream, Unhurried):
                given_up.append(file.stream.abort_in_background())
            _run_ignoring_errors(file.encoder.close)
            _run_ignoring_errors(file.stream.close)
        self._open.clear()
        wait(given_up, _GIVEN_UP_S)
        delete_quietly(self._shape.io, [path for path in self._paths if path not in begun])

    def _rows_per_group(self, table: pa.Table, key: PartitionKey, encoding: Encoding) -> int:
        memory_per_row = max(1.0, table.nbytes / table.num_rows)
        if self._written_bytes:
            disk_per_row = max(1.0, self._written_bytes / self._written_rows)
        else:
            disk_per_row = max(1.0, memory_per_row / _SHRINKAGE_GUESS)
        begun_bytes = self._open[key].stream.tell() if key in self._open else 0
        room = (self._target_bytes - begun_bytes) / disk_per_row
        by_memory = encoding.write_bytes_max / memory_per_row
        return max(1, int(min(encoding.write_rows_max, by_memory, max(room, _ROWS_MIN))))

    def _open_or_reuse_file(
        self, key: PartitionKey, rows: pa.Table, encoding: Encoding
    ) -> _OpenFile:
        if key in self._open:
            self._pool.mark_used((id(self), key))
            return self._open[key]
        self._pool.make_room()
        path = self._shape.prepare_new_path(self._prefix, key, encoding)
        self._paths.append(path)  # before it exists: ``discard`` must know of half a file, too
        stream = self._shape.io.new_output(path).create()
        try:
            encoder = encoding.begin_file(stream, rows)
        except BaseException:
            stream.close()
            raise
        self._open[key] = _OpenFile(path, encoding.name, stream, encoder)
        self._pool.add((id(self), key), lambda: self._close(key))
        return self._open[key]

    def _close(self, key: PartitionKey) -> None:
        file = self._open.pop(key)
        self._pool.forget((id(self), key))
        try:
            file.encoder.close()
            size = file.stream.tell()
        finally:
            if isinstance(file.stream, Unhurried):  # others are decoded and written meanwhile
                file.stream.close_in_background()
                self._ending.append(file.stream)
            else:
                file.stream.close()
        self._finished.append(_to_written_file(self._shape, key, file, size))


def _to_written_file(
    shape: FileShape, key: PartitionKey, file: _OpenFile, size: int
) -> WrittenFile:
    records, statistics = file.encoder.row_count_and_statistics()
    detail = FileDetail(
        spec_id=shape.spec_id,
        partition=key.values,
        file_format=file.format,
        sort_order_id=shape.sorter.order_id,
        **statistics,
    )
    return detail.to_written_file(file.path, records, size)


def _run_ignoring_errors(action: Any) -> None:
    """Run the action and ignore its errors: what cannot be removed is a harmless orphan."""
    try:
        action()
    except Exception:  # noqa: BLE001 - see above
        return
