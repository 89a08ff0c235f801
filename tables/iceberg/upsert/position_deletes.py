"""Delete files: the dead positions of a data file, in the forms of versions 2 and 3 (rule KEY-6).

Version 3 has deletion vectors, several in one Puffin file; version 2 a Parquet file of positions
for each data file. Both are in Iceberg's specification, sections *Position Deletes* and *Puffin*.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat
from pyroaring import BitMap64

from headgate.tables.iceberg.manifests_v3 import VERSION as NUMBERED
from headgate.tables.storage.file_io import MemoryFile

PATH_ID: Final = 2147483546
POSITION_ID: Final = 2147483545
"""The field ids of the columns in a position delete file."""
_ROW_POSITION = 2147483645
_BLOB = "deletion-vector-v1"
_PUFFIN, _VECTOR = b"PFA1", b"\xd1\xd3\x39\x64"
_FIELDS = [field.field_id for field in DATA_FILE_TYPE[3].fields]
_REFERENCED, _BEGIN, _LENGTH = (_FIELDS.index(field_id) for field_id in (143, 144, 145))
_POSITIONS = pa.schema(
    [
        pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(field_id)})
        for name, kind, field_id in (
            ("file_path", pa.string(), PATH_ID),
            ("pos", pa.int64(), POSITION_ID),
        )
    ]
)

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Target:
    """A data file that delete files may name; ``sequence_number``: that of its rows."""

    path: str
    spec_id: int
    partition: Any
    records: int
    sequence_number: int
    parquet: bool = True

    @classmethod
    def from_data_file(cls, file: DataFile, sequence_number: int) -> Target:
        return cls(
            file.file_path,
            file.spec_id,
            file.partition,
            file.record_count,
            sequence_number,
            file.file_format == FileFormat.PARQUET,
        )


def bitmap_of(positions: npt.NDArray[np.integer[Any]]) -> BitMap64:
    if not len(positions):
        return BitMap64()
    whole = np.sort(positions).astype(np.uint64)  # in order they are added ten times as fast
    return BitMap64(whole.data.cast("B").cast("Q"))


def sorted_positions_of(dead: BitMap64) -> Positions:
    """Return them sorted; ten times as fast as iterating."""
    if not dead:
        return np.empty(0, np.int64)
    return np.frombuffer(dead.to_array(), np.uint64).astype(np.int64)


def sole_referenced_data_file(file: DataFile) -> str | None:
    """Return the only data file that a delete file is about; ``None`` if there may be several."""
    if file.content != DataFileContent.POSITION_DELETES:
        return None
    if file[_REFERENCED]:
        return str(file[_REFERENCED])
    lower = (file.lower_bounds or {}).get(PATH_ID)
    upper = (file.upper_bounds or {}).get(PATH_ID)
    return lower.decode() if lower is not None and lower == upper else None


def path_and_content_offset(file: DataFile) -> tuple[str, int]:
    """Return path and place, for a Puffin file holds many vectors."""
    return file.file_path, file[_BEGIN] or 0


# ------------------------------------------------------------------------------------------ reading


def read_dead_positions(io: FileIO, delete_file: DataFile) -> dict[str, BitMap64]:
    """Return the dead positions in a position delete file or a deletion vector, by data file.

    Raises ``ValueError`` for a damaged vector or file, and what storage raises.
    """
    if delete_file.file_format == FileFormat.PUFFIN:
        return read_vectors_of_puffin_file(io, [delete_file])[path_and_content_offset(delete_file)]
    rows = _read_position_rows(io, delete_file)
    paths = rows.column("file_path").combine_chunks().dictionary_encode()
    codes = paths.indices.to_numpy(zero_copy_only=False)
    positions = rows.column("pos").to_numpy()
    names = paths.dictionary.to_pylist()
    return {name: bitmap_of(positions[codes == code]) for code, name in enumerate(names)}


def _read_position_rows(io: FileIO, delete_file: DataFile) -> pa.Table:
    """Return the columns ``file_path`` and ``pos``, in whatever format an engine wrote them."""
    if delete_file.file_format == FileFormat.AVRO:
        from pyiceberg.io.pyarrow import pyarrow_to_schema
        from pyiceberg.table import FileScanTask

        from headgate.tables.iceberg.avro_data_file_columns import read_avro_columns

        task, schema = FileScanTask(delete_file), pyarrow_to_schema(_POSITIONS)
        batches = list(read_avro_columns(io, task, schema, _POSITIONS.names))
        return pa.Table.from_batches(batches) if batches else _POSITIONS.empty_table()
    with io.new_input(delete_file.file_path).open() as stream:
        if delete_file.file_format == FileFormat.ORC:
            from pyarrow import orc

            return orc.ORCFile(stream).read(columns=_POSITIONS.names)
        import pyarrow.parquet as pq

        return pq.read_table(stream, columns=_POSITIONS.names)


def read_vectors_of_puffin_file(
    io: FileIO, files: Sequence[DataFile]
) -> dict[tuple[str, int], dict[str, BitMap64]]:
    """Return the dead positions of a Puffin file's vectors, by their identity: read at once.

    Raises as ``read_dead_positions``.
    """
    begin = min(file[_BEGIN] for file in files)
    end = max(file[_BEGIN] + file[_LENGTH] for file in files)
    with io.new_input(files[0].file_path).open() as stream:
        stream.seek(begin)
        octets = stream.read(end - begin)
    return {
        path_and_content_offset(file): {
            str(file[_REFERENCED]): _decode_vector(
                file, octets[file[_BEGIN] - begin : file[_BEGIN] - begin + file[_LENGTH]]
            )
        }
        for file in files
    }


def _decode_vector(file: DataFile, blob: bytes) -> BitMap64:
    size = struct.unpack(">I", blob[:4])[0]
    checksum = struct.unpack(">I", blob[4 + size : 8 + size])[0]
    if blob[4:8] != _VECTOR or zlib.crc32(blob[4 : 4 + size]) != checksum:
        raise ValueError(f"{file.file_path}: the deletion vector at {file[_BEGIN]} is damaged")
    return BitMap64.deserialize(blob[8 : 4 + size])


# ------------------------------------------------------------------------------------------ writing


@dataclass(frozen=True, slots=True)
class DeleteFiles:
    """Delete files that are built in memory: their manifest entries, and their bytes."""

    listed: tuple[DataFile, ...] = ()
    bytes_of: Mapping[str, bytes] = field(default_factory=dict)


def build_delete_files(
    format_version: int, folder: str, dead_positions: Sequence[tuple[Target, BitMap64]]
) -> DeleteFiles:
    """Build one delete file per data file, with all its dead positions.

    ``format_version`` decides between deletion vectors and position delete files.
    """
    if not dead_positions:
        return DeleteFiles()
    if format_version >= NUMBERED:
        return _build_deletion_vectors(f"{folder}/{uuid.uuid4()}-deletes.puffin", dead_positions)
    made = [
        _build_position_delete_file(f"{folder}/{uuid.uuid4()}-deletes.parquet", *each)
        for each in dead_positions
    ]
    return DeleteFiles(
        tuple(file for file, _ in made), {file.file_path: whole for file, whole in made}
    )


def _build_deletion_vectors(path: str, dead: Iterable[tuple[Target, BitMap64]]) -> DeleteFiles:
    body, blobs, places = bytearray(_PUFFIN), [], []
    for target, bits in dead:
        inner = _VECTOR + bits.serialize()
        blob = struct.pack(">I", len(inner)) + inner + struct.pack(">I", zlib.crc32(inner))
        places.append((target, len(body), len(blob), len(bits)))
        blobs.append(
            {
                "type": _BLOB,
                "fields": [_ROW_POSITION],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(body),
                "length": len(blob),
                "properties": {"referenced-data-file": target.path, "cardinality": str(len(bits))},
            }
        )
        body += blob
    footer = json.dumps({"blobs": blobs, "properties": {"created-by": "headgate"}}).encode()
    body += _PUFFIN + footer + struct.pack("<i", len(footer)) + bytes(4) + _PUFFIN
    listed = (
        _build_delete_file_entry(
            target,
            path,
            FileFormat.PUFFIN,
            size_bytes=len(body),
            count=count,
            offset_and_size=(begin, length),
        )
        for target, begin, length, count in places
    )
    return DeleteFiles(tuple(listed), {path: bytes(body)})


def _build_position_delete_file(
    path: str, target: Target, bits: BitMap64
) -> tuple[DataFile, bytes]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    positions = sorted_positions_of(bits)
    names = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(len(positions), np.int32)), pa.array([target.path])
    )
    rows = pa.table([pc.cast(names, pa.string()), pa.array(positions)], schema=_POSITIONS)
    file = MemoryFile(path)
    with file.create() as stream, pq.ParquetWriter(stream, _POSITIONS, compression="zstd") as out:
        out.write_table(rows)
    # Whole paths, not truncated ones: readers see by them that the file is about one data file.
    bounds = [
        {PATH_ID: target.path.encode(), POSITION_ID: struct.pack("<q", int(at))}
        for at in (positions[0], positions[-1])
    ]
    listed = _build_delete_file_entry(
        target,
        path,
        FileFormat.PARQUET,
        size_bytes=len(file),
        count=len(positions),
        bounds=(bounds[0], bounds[1]),
    )
    return listed, file.whole


def _build_delete_file_entry(
    target: Target,
    path: str,
    file_format: FileFormat,
    *,
    size_bytes: int,
    count: int,
    offset_and_size: tuple[int, int] | tuple[None, None] = (None, None),
    bounds: tuple[dict[int, bytes], dict[int, bytes]] | tuple[None, None] = (None, None),
) -> DataFile:
    """Build the entry with version 3's fields, in any version, and the data file's partition."""
    made = DataFile.from_args(
        _table_format_version=NUMBERED,
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=file_format,
        partition=target.partition,
        record_count=count,
        file_size_in_bytes=size_bytes,
        lower_bounds=bounds[0],
        upper_bounds=bounds[1],
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
        referenced_data_file=target.path,
        content_offset=offset_and_size[0],
        content_size_in_bytes=offset_and_size[1],
    )
    made.spec_id = target.spec_id
    return made
