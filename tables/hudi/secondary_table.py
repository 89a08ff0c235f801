"""Implements a Hudi secondary table, which adds files that another table's commit has decided on.

They are staged, and carry no instant: each attempt to deliver to them writes base files under an
instant of its own (TOKEN-2), which are the staged rows followed by Hudi's columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.control_protocol.errors import TableChanged, Unreachable
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.ports import CommitAttempt, Refused
from headgate.tables.hudi import append_table
from headgate.tables.hudi.base_files import commit_token_of
from headgate.tables.hudi.commits import HudiCommits
from headgate.tables.hudi.table_properties import TableConfig
from headgate.tables.hudi.upsert_table import HudiKeyedTable
from headgate.tables.hudi.write_client import HudiJava
from headgate.tables.missing_files import find_refusal_for_lost_files
from headgate.tables.neutral_schema import file_statistics_of, schema_id_of_file
from headgate.tables.storage.file_store import Folder, name_relative_to

_CODEC = "zstd"


class _Following(HudiCommits):
    """Implements ``table_format.SupportsDelivery``; the rest is ``HudiCommits``."""

    _delivering: Sequence[str] = ()
    _delivered: Sequence[str] = ()
    _swept = False

    def require_files_fit_and_exist(self, files: Sequence[WrittenFile]) -> None:
        """See ``table_format.SupportsDelivery``; key files only have the key's columns."""
        schema_id = self._place.read_config_ensuring_uuid().schema_id
        for file in files:
            try:
                if file.kind is FileKind.KEYS or schema_id_of_file(file) == schema_id:
                    continue
                why = "was written for other columns than the table has now"
            except ValueError as error:
                why = str(error)
            raise _table_changed_error(self._place.name, f"{file.path} {why}")
        if lost := find_refusal_for_lost_files(self._place.folder, files):
            raise _table_changed_error(self._place.name, lost.reason)

    def _prepare_instant_for(self, attempt: CommitAttempt, java: HudiJava) -> str:
        """Take a new instant: nobody claims a secondary table.

        The deliverer first makes sure that no other delivery can land that has already looked at
        the table.
        """
        if lost := find_refusal_for_lost_files(self._place.folder, attempt.files):
            raise Unreachable(f"{self._place.name} cannot be delivered: {lost.reason}")
        self._roll_back_unfinished_instants(java)
        self._delivering = [file.path for file in attempt.files]
        return self._reserve_instant(java)

    def _remove_obsolete_staged_files(self, attempt: CommitAttempt) -> None:  # noqa: ARG002
        """Remove the staged files of the delivery before this one, which has landed.

        Until now, a table that was rolled back had to receive them again.
        """
        folder = self._place.folder
        folder.remove_quietly([name_relative_to(folder.location, path) for path in self._delivered])
        self._delivered = self._delivering
        if not self._swept:
            append_table.remove_abandoned_staged_files(folder)
            self._swept = True


class HudiSecondary(_Following):
    """A secondary table that rows are appended to."""

    def _write_missing_rows(
        self,
        attempt: CommitAttempt,
        java: HudiJava,  # noqa: ARG002
        instant: str,
    ) -> CommitAttempt | Refused:
        config = self._place.read_config_ensuring_uuid()
        folder = self._place.folder
        files = tuple(
            _copy_staged_into_base_file(file, config, instant, folder) for file in attempt.files
        )
        return replace(attempt, files=files)

    def _find_refusal_for_lost_files(
        self,
        attempt: CommitAttempt,
        java: HudiJava,  # noqa: ARG002
    ) -> Refused | None:
        """Check the base files of this attempt only: the next one writes others."""
        lost = find_refusal_for_lost_files(self._place.folder, attempt.files)
        return replace(lost, for_good=False) if lost else None


class HudiKeyedSecondary(_Following, HudiKeyedTable):
    """A secondary table whose rows have a key: each delivery folds and upserts the
    files that are pending for it."""


def _copy_staged_into_base_file(
    file: WrittenFile, config: TableConfig, instant: str, folder: Folder
) -> WrittenFile:
    """Write a base file with the staged file's rows, which belong to one partition."""

    def name_in_folder(path: str) -> str:
        return name_relative_to(folder.location, path)

    marking = config.marking
    values = file_statistics_of(file, config.columns, marking.partition_by).partition.values()
    path = marking.new_path(commit_token_of(marking.location, instant), tuple(values))
    for announced, content in marking.files_to_write_before(path).items():
        if next(folder.file_sizes([name_in_folder(announced)])) is None:
            folder.put(name_in_folder(announced), content)
    with pq.ParquetFile(folder.arrow_source(name_in_folder(file.path))) as rows:
        schema = rows.schema_arrow
        for column in marking.meta_columns:
            schema = schema.append(column)
        # Arrow's own schema in the footer would mention large lists, which hudi-rs does not know.
        begin = 0
        with folder.open_output(name_in_folder(path)) as stream:
            with pq.ParquetWriter(stream, schema, compression=_CODEC, store_schema=False) as writer:
                for batch in rows.iter_batches():
                    part = marking.with_meta_columns(pa.Table.from_batches([batch]), path, begin)
                    writer.write_table(part.cast(schema))
                    begin += batch.num_rows
            size = stream.tell()
    return WrittenFile(path, begin, size)


def _table_changed_error(table: str, why: str) -> TableChanged:
    return TableChanged(
        f"Hudi table {table}: {why}",
        "nothing of it is in the table; start the sink again, which writes it again",
    )
