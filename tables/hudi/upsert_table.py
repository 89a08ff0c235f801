"""Implements a keyed Hudi table: staged files are folded, and upserted by Hudi (rules KEY-1 to
KEY-10).

Staged files carry no instant, so that they may come with a later transaction than their own
(POSITION-4): each attempt to commit them writes under an instant of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.control_protocol.columns import Column
from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.errors import HudiUnsafe, Unreachable
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, Refused
from headgate.control_protocol.table_format import (
    NumberedFile,
    RowKey,
    files_with_transaction_ranks,
)
from headgate.tables.hudi import append_table
from headgate.tables.hudi.base_files import RECORD_KEY
from headgate.tables.hudi.columns import quote_column, spark_ddl_of
from headgate.tables.hudi.commits import HudiCommits
from headgate.tables.hudi.file_slices import Slice
from headgate.tables.hudi.last_change_of_each_key import Fold
from headgate.tables.hudi.record_keys import (
    BUCKET,
    BUCKETS,
    DELETES,
    GENERATOR,
    HASHED,
    INDEX,
    key_writer_settings,
    require_supported_index_type,
)
from headgate.tables.hudi.s3_locations import to_hadoop_address
from headgate.tables.hudi.table_properties import STAGED, HudiLocation
from headgate.tables.hudi.write_client import HudiJava
from headgate.tables.missing_files import find_refusal_for_lost_files
from headgate.tables.storage.file_store import name_relative_to

# Upserts staged files with Hudi: one write by this process's Spark, committed like any other.


_LOOKED_AT = 50
"""How many keys of a file are checked to confirm its bucket."""


class HudiKeyedJava(HudiJava):
    """A table with a key.

    ``upsert`` or ``begin_empty_commit`` comes between ``begin_instant`` and ``commit``.
    """

    def __init__(self, place: HudiLocation, schema: str) -> None:
        super().__init__(place, schema)
        self._statuses: list[Any] = []
        self._cut = False

    def begin_instant(self, meta: Any, instant: str) -> None:
        """Request the commit; an upsert begins it by itself."""
        self.start_heartbeat(instant)
        self._create_requested_instant(meta, instant)

    def begin_empty_commit(self, meta: Any, instant: str) -> None:
        """Begin a commit that adds no rows."""
        self._statuses = []
        self._maintain_metadata_table(instant)
        self._transition_to_inflight(meta, instant)

    def upsert(self, meta: Any, instant: str, numbered_files: Sequence[NumberedFile]) -> KeyCounts:
        """Write what the files change into the table's folder, under a requested instant.

        Raises ``KeyInTwoPartitions``, ``TableChanged``, and what Java raises.
        """
        fold = Fold(self._row_key, numbered_files, self._place.folder)
        fold.note_table_rows(
            self._read_live_rows(meta, fold.wanted_columns, [file for file, _ in numbered_files])
        )
        counts = fold.check_and_count_key_changes()
        if not counts.inserted + counts.updated + counts.deleted:
            self.begin_empty_commit(meta, instant)
            return counts
        folder, aside = self._place.folder, f"{STAGED}/{uuid.uuid4()}"
        try:
            self._statuses = self._write_rows(meta, instant, self._build_changed_rows(fold, aside))
        finally:
            folder.remove_quietly([name for name, _ in folder.files_below(aside)])
        return counts

    def upserted_paths(self) -> list[str]:
        """Return the names of the files that the upsert has written."""
        return [str(each.getPath()) for each in self._hudi_statistics_of(())]

    # ------------------------------------------------------------------------------------ of Java

    def _read_live_rows(
        self, meta: Any, columns: Sequence[str], key_source_files: Sequence[WrittenFile]
    ) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the table's rows, perhaps only for keys in the files."""
        slices = self.latest_slices(meta)
        self._require_fitting_buckets_and_store_them(slices)
        if any(each.logged for each in slices):
            yield from self._read_merged_rows_of_keys_in(columns, key_source_files)
            return
        for each in slices:
            with pq.ParquetFile(self._place.folder.arrow_source(each.path)) as file:
                for batch in file.iter_batches(columns=columns):
                    yield batch.select(columns)

    def _require_fitting_buckets_and_store_them(self, slices: Sequence[Slice]) -> None:
        """Raise ``HudiUnsafe`` if keys would be looked for in the wrong files.

        For a table that others created, only its files show how it is divided. What fits them is
        kept before this sink adds a file.
        """
        if self._cut:
            return
        if self._writer_settings()[INDEX] == BUCKET:
            self._require_keys_fit_buckets(slices)
        self._place.store_or_require_same_buckets()
        self._cut = True

    def _require_keys_fit_buckets(self, slices: Sequence[Slice]) -> None:
        buckets = int(self._writer_settings()[BUCKETS])
        known = self._hudi.index.bucket.BucketIdentifier
        hashed = self._writer_settings().get(
            HASHED, ",".join(self._place.read_config_ensuring_uuid().keys)
        )
        for path in (each.path for each in slices if each.path):
            with pq.ParquetFile(self._place.folder.arrow_source(path)) as file:
                keys = next(file.iter_batches(_LOOKED_AT, columns=[RECORD_KEY]), None)
            at = path.rpartition("/")[2][:8]
            for key in keys.column(0).to_pylist() if keys else ():
                if at != f"{known.getBucketId(key, hashed, buckets):08}":
                    raise HudiUnsafe(
                        f"Hudi table {self._place.name} is not cut into {buckets} buckets of "
                        f"{hashed}, as {path} shows: keys would be there twice",
                        "write the index of [table.properties] as those who made the table have it",
                    )

    def _read_merged_rows_of_keys_in(
        self, columns: Sequence[str], files: Sequence[WrittenFile]
    ) -> list[pa.RecordBatch]:
        """Read through Spark, since only Hudi reads its logs; it skips keys that no file has."""
        keys = self._columns_named(self._row_key.key)
        asked = self._data_frame_of_files([file.path for file in files], keys)
        names = [column.name for column in keys]
        rows = (
            self.read_data_frame()
            .select(*map(quote_column, columns))
            .join(asked, names, "left_semi")
        )
        batches: list[pa.RecordBatch] = rows.select(*map(quote_column, columns))._collect_as_arrow()  # noqa: SLF001 - public from Spark 4 on
        return batches

    def _build_changed_rows(self, fold: Fold, output_folder: str) -> Any:
        """Return one row of the table's columns for each key that changes.

        Deleted ones have ``DELETES`` as their partition. Files that Spark needs for it are written
        ``output_folder``.
        """
        rows = self._data_frame_of_files(
            fold.write_or_reuse_new_row_files(output_folder),
            self._place.read_config_ensuring_uuid().columns.fields,
        )
        going = fold.keys_to_delete()
        if not going:
            return rows
        path = f"{output_folder}/going.parquet"
        with self._place.folder.open_output(path) as stream:
            pq.write_table(going, stream)
        keys = self._data_frame_of_files(
            [f"{self._place.location}/{path}"], self._columns_named(self._row_key.key)
        )
        partition = self._row_key.partition
        return rows.union(
            keys.select(*(_column_of_deleted_row(each, keys, partition) for each in rows.schema))
        )

    def _data_frame_of_files(self, paths: Iterable[str], columns: Sequence[Column]) -> Any:
        schema, files = spark_ddl_of(columns), list(paths)
        if not files:
            return self._session.createDataFrame([], schema)
        return self._session.read.schema(schema).parquet(*map(to_hadoop_address, files))

    def _write_rows(self, meta: Any, instant: str, rows: Any) -> list[Any]:
        """Return Hudi's status of each file."""
        writer, hudi = self._open_or_reuse_write_client(), self._hudi
        schema = hudi.common.schema.HoodieSchema.parse(self._schema)
        upsert = hudi.common.model.WriteOperationType.UPSERT
        java_options = self._java.util.HashMap()
        for key, value in self._writer_settings().items():
            java_options.put(key, value)
        options = self._spark._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(java_options)  # noqa: SLF001
        arguments = getattr(hudi, "HoodieCreateRecordUtils$createHoodieRecordRddArgs")(
            rows._jdf,  # noqa: SLF001
            writer.getConfig(),
            options,
            self._place.table_name,
            "hoodie",
            schema,
            schema,
            upsert,
            instant,
            False,  # noqa: FBT003 - Java has no names
            False,  # noqa: FBT003
            False,  # noqa: FBT003
            meta.getTableConfig(),
        )
        making = getattr(getattr(hudi, "HoodieCreateRecordUtils$"), "MODULE$")
        writer.setOperationType(upsert)
        statuses = list(writer.upsert(making.createHoodieRecordRdd(arguments), instant).collect())
        for status in statuses:
            if status.hasErrors():
                why = status.getGlobalError() or status.getErrors()
                raise Unreachable(f"Hudi table {self._place.name} takes no row: {why.toString()}")
        return statuses

    def _operation_type_for(self, files: Sequence[WrittenFile]) -> Any:
        if not files:
            return super()._operation_type_for(files)
        return self._hudi.common.model.WriteOperationType.UPSERT

    def _hudi_statistics_of(self, files: Sequence[WrittenFile]) -> list[Any]:  # noqa: ARG002
        return [status.getStat() for status in self._statuses]

    def _writer_settings(self) -> Mapping[str, str]:
        config, given = self._place.read_config_ensuring_uuid(), self._place.settings
        index = require_supported_index_type(self._place.name, given)
        generator = {GENERATOR: f"org.apache.hudi.keygen.{config.generator}"}
        return {
            **given,
            **key_writer_settings(self._row_key, index, config.keys, config.marking),
            **generator,
        }

    @property
    def _row_key(self) -> RowKey:
        assert self._place.key is not None, "chosen for it"
        return self._place.key

    def _columns_named(self, names: Iterable[str]) -> list[Column]:
        columns = self._place.read_config_ensuring_uuid().columns
        return [columns[name] for name in names]


def _column_of_deleted_row(column: Any, key_frame: Any, partition_column: str) -> Any:
    """Return a column's value for a deleted row: only the key columns are read."""
    from pyspark.sql import functions as f

    if column.name in key_frame.columns:
        return f.col(quote_column(column.name))
    value = DELETES if column.name == partition_column else _non_null_placeholder(column.dataType)
    return f.lit(value).cast(column.dataType).alias(column.name)


def _non_null_placeholder(column_type: Any) -> Any:
    """Return an empty value, because a required column takes no null."""
    if column_type.typeName() in ("date", "timestamp", "timestamp_ntz"):
        return "1970-01-01"
    return "" if column_type.typeName() in ("string", "binary") else 0


class HudiKeyedTable(HudiCommits):
    """Implements ``SinkTable`` over a Hudi table with a key; the rest is ``HudiCommits``."""

    def __init__(
        self,
        place: HudiLocation,
        sink: SinkName,
        answer: Callable[[Callable[[], None]], None] = lambda call: call(),
        java: Callable[[HudiLocation, str], HudiKeyedJava] = HudiKeyedJava,
    ) -> None:
        super().__init__(place, sink, answer, java)

    def _on_table_config_changed(self) -> None:
        self._place.require_same_buckets()

    def _prepare_instant_for(self, attempt: CommitAttempt, java: HudiJava) -> str:  # noqa: ARG002
        """Take a new instant after removing what earlier attempts left, so it cannot land."""
        for begun in sorted(self._begun):
            self._remove_unfinished_instant(java, begun)
            self._begun.discard(begun)
        return self._reserve_instant(java)

    def _write_missing_rows(
        self, attempt: CommitAttempt, java: HudiJava, instant: str
    ) -> CommitAttempt | Refused:
        assert isinstance(java, HudiKeyedJava), "made for it"
        if lost := find_refusal_for_lost_files(self._place.folder, attempt.files):
            return lost
        keys, meta = KeyCounts(), java.load_meta_client()
        if attempt.files:
            keys = java.upsert(meta, instant, files_with_transaction_ranks(attempt))
        else:
            java.begin_empty_commit(meta, instant)
        return replace(attempt, record=attempt.record.with_key_counts(keys))

    def _find_refusal_for_lost_files(
        self,
        attempt: CommitAttempt,  # noqa: ARG002
        java: HudiJava,
    ) -> Refused | None:
        """Check what Hudi has written; the staged files were read."""
        assert isinstance(java, HudiKeyedJava), "made for it"
        brought = java.upserted_paths()
        for path, size in zip(brought, self._place.folder.file_sizes(brought), strict=True):
            if size is None:
                return Refused(f"others have removed {path}")
        return None

    def _check_before_commit(
        self, attempt: CommitAttempt, java: HudiJava, instant: str
    ) -> Refused | None:
        """Check as for any table; after a refusal for good, remove the files that were written.

        On S3, a file may appear only after its instant was rolled back.
        """
        assert isinstance(java, HudiKeyedJava), "made for it"
        refusal = super()._check_before_commit(attempt, java, instant)
        if refusal and refusal.for_good:
            self._place.folder.remove_quietly(java.upserted_paths())
        return refusal

    def _remove_obsolete_staged_files(self, attempt: CommitAttempt) -> None:
        folder = self._place.folder
        folder.remove_quietly(
            [name_relative_to(folder.location, file.path) for file in attempt.files]
        )
        if attempt.record.is_claim:
            append_table.remove_abandoned_staged_files(folder)
