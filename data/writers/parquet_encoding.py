"""Rows into Parquet files, with Iceberg's field ids and statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from headgate.data.writers.dictionaries import with_dictionary
from headgate.data.writers.encoding import Encoder
from headgate.data.writers.hidden_nulls import filled, hiding
from headgate.data.writers.metrics import FileMetrics, Leaf
from headgate.data.writers.parquet_options import ParquetOptions


class ParquetEncoding:
    """Makes the files of one table. Raises ``ConfigurationError`` for impossible options.

    ``behind``: columns that the rows have behind the table's, and that have no statistics. Arrow's
    schema is left out of their footers: readers of such files would trust it, and not all know
    large lists.
    """

    name = "parquet"

    def __init__(
        self,
        schema: Schema,
        properties: Mapping[str, str],
        leaves: Sequence[Leaf],
        behind: Sequence[pa.Field] = (),
    ) -> None:
        columns = schema_to_pyarrow(schema)
        self._schema: pa.Schema = pa.schema([*columns, *behind])
        self._hiding = hiding(columns)
        self._leaves = tuple(leaves)
        self._options = ParquetOptions(properties, leaves)
        self._tells_arrow = not behind
        self.bytes_max = self._options.row_group_bytes
        self.rows_max = self._options.row_group_rows

    def holds(self, rows: pa.Table) -> bool:  # noqa: ARG002
        return True

    def encoder(self, stream: OutputStream, rows: pa.Table) -> Encoder:
        options = self._options.of_file(rows.num_rows)
        options["use_dictionary"] = with_dictionary(self._leaves, rows)
        writer = pq.ParquetWriter(stream, self._schema, store_schema=self._tells_arrow, **options)
        return _ParquetFile(writer, self._hiding, FileMetrics(self._leaves))


class _ParquetFile:
    def __init__(
        self, writer: pq.ParquetWriter, places: tuple[int, ...], metrics: FileMetrics
    ) -> None:
        self._writer = writer
        self._hiding = places
        self._metrics = metrics

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(filled(rows, self._hiding), row_group_size=rows.num_rows)
        self._metrics.see(rows)

    def close(self) -> None:
        self._writer.close()

    def described(self) -> tuple[int, dict[str, Any]]:
        footer = self._writer.writer.metadata
        return footer.num_rows, self._metrics.described(footer)
