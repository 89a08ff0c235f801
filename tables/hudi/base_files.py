"""Names, marks and completes Hudi's base files, which participants write without a JVM.

A file carries its commit's instant in its name and in every row (rule TOKEN-2). Its marker exists
before it does, so that Hudi's own reconciliation and rollback find it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.control_protocol.commit_tokens import ANY

RECORD_KEY = "_hoodie_record_key"
COLUMNS = (
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    RECORD_KEY,
    "_hoodie_partition_path",
    "_hoodie_file_name",
)
PARTITION_TYPES = ("string", "int", "long")
KEY_TYPES = ("string", "int", "long")
NOWHERE = "__HIVE_DEFAULT_PARTITION__"
"""The partition of rows without a value."""

_FOLDER_BYTES_MAX = 240
"""File systems allow 255 bytes in a name."""
MARKERS = ".hoodie/.temp"
NOTED = ".hoodie/.aux/headgate/begun"
"""Holds a note, with its path, of each file that may still appear after its marker is gone."""
NOTE = ".note"

_SUFFIX = ".parquet"
_WRITE_TOKEN = "0-0-0"  # noqa: S105 - of Hudi's names of files
_INSTANT = re.compile(r"[0-9]{17}", re.ASCII)
_ESCAPED = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
"""What Hudi's ``PartitionPathEncodeUtils`` writes as ``%`` and two digits."""


def commit_token_of(location: str, instant: str) -> str:
    return f"{location}/{ANY}_{instant}{_SUFFIX}"


def instant_of_file(path: str) -> str:
    """Return the instant in the name of one of our base files, or in a commit token.

    Raises ``ValueError``.
    """
    instant = instant_of_any_file(path)
    if not _INSTANT.fullmatch(instant):
        raise ValueError(f"{path} names no instant")
    return instant


def instant_of_any_file(path: str) -> str:
    """Return the instant in a base file's name; Hudi's older ones have fewer digits."""
    return path.removesuffix(_SUFFIX).rpartition("_")[2]


def file_group_id_of(path: str) -> str:
    """Return the id of the file group of a base file, or of a log file (``.ID_...``)."""
    return path.rpartition("/")[2].partition("_")[0].removeprefix(".")


def is_base_file(path: str) -> bool:
    return path.endswith(_SUFFIX)


@dataclass(frozen=True, slots=True)
class HudiFileMarking:
    """Implements ``table_format.FileMarking`` for a Hudi table.

    ``key``: the column of its record key; empty if Hudi generates keys. ``partition_by``: its
    partition columns; ``hive_style`` and ``url_encoded`` determine their folders' names.
    """

    location: str
    key: str = ""
    partition_by: tuple[str, ...] = ()
    hive_style: bool = True
    url_encoded: bool = True

    @property
    def meta_columns(self) -> Sequence[pa.Field]:
        return tuple(pa.field(name, pa.string()) for name in COLUMNS)

    def new_path(self, token: str, partition: Sequence[Any]) -> str:
        """Return a new file's path. Raises ``ValueError`` for an invalid commit token."""
        instant = instant_of_file(token)
        if token != commit_token_of(self.location, instant):
            raise ValueError(f"{token} is no commit token of {self.location}")
        name = f"{uuid.uuid4()}-0_{_WRITE_TOKEN}_{instant}{_SUFFIX}"
        return "/".join(filter(None, (self.location, self.partition_path(partition), name)))

    def partition_path(self, values: Sequence[Any]) -> str:
        """Return the folder of a partition, relative to the table's; empty without partitions."""
        return "/".join(map(self._folder_of_value, self.partition_by, values))

    def files_to_write_before(self, path: str) -> Mapping[str, bytes]:
        folder, _, name = path.rpartition("/")
        inside = folder.removeprefix(self.location).strip("/")
        instant, depth = instant_of_file(path), len(inside.split("/")) if inside else 0
        marked = "/".join(filter(None, (inside, name)))
        about = f"#partition metadata\ncommitTime={instant}\npartitionDepth={depth}\n"
        return {
            f"{self.location}/{NOTED}/{name}{NOTE}": marked.encode(),
            f"{self.location}/{MARKERS}/{instant}/{marked}.marker.CREATE": b"",
            f"{folder}/.hoodie_partition_metadata": about.encode(),
        }

    def with_meta_columns(self, rows: pa.Table, path: str, rows_before: int) -> pa.Table:
        """Return the rows followed by Hudi's columns; the file already has ``rows_before`` rows."""
        folder, _, name = path.rpartition("/")
        instant, partition = instant_of_file(path), folder.removeprefix(self.location).strip("/")
        # Unique: the name contains a UUID, and Hudi's own rows have a task's number there.
        numbers = pa.array(range(rows_before, rows_before + rows.num_rows), pa.int64()).cast(
            pa.string()
        )
        numbered = pc.binary_join_element_wise(f"{instant}_{file_group_id_of(path)}", numbers, "_")
        key = rows.column(self.key).cast(pa.string()) if self.key else numbered
        ours = (
            _repeat_text_for_rows(instant, rows),
            numbered,
            key,
            _repeat_text_for_rows(partition, rows),
            _repeat_text_for_rows(name, rows),
        )
        for field, values in zip(self.meta_columns, ours, strict=True):
            rows = rows.append_column(field, values)
        return rows

    def why_value_unsupported(self, column: str, text: str) -> str | None:
        """Say why a row with this value could not be found in its folder again."""
        if text == NOWHERE:
            return f"{NOWHERE} is Hudi's word for no value"
        if len(self._folder_of_value(column, text).encode()) > _FOLDER_BYTES_MAX:
            return f"no folder is called by {len(text)} characters"
        return None

    def _folder_of_value(self, column: str, value: Any) -> str:
        text = NOWHERE if value is None or value == "" else str(value)
        if self.url_encoded:
            text = _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
        return f"{column}={text}" if self.hive_style else text


def _repeat_text_for_rows(text: str, rows: pa.Table) -> pa.Array:
    return pa.repeat(text, rows.num_rows)
