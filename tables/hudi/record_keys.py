"""Decides which record keys and key indexes of a Hudi table a sink can use
(docs/table-formats/hudi.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import ConfigurationError, HudiUnsafe, KeyChanged, TableUnfit
from headgate.control_protocol.table_format import RowKey
from headgate.tables.hudi.base_files import KEY_TYPES, HudiFileMarking

_WRITE = "hoodie.datasource.write."
HIVE_STYLE = f"{_WRITE}hive_style_partitioning"
URL_ENCODED = f"{_WRITE}partitionpath.urlencode"
GENERATOR = f"{_WRITE}keygenerator.class"
BUCKETS = "hoodie.bucket.index.num.buckets"
HASHED = "hoodie.bucket.index.hash.field"
_ENGINE = "hoodie.index.bucket.engine"
_RECORDS = "hoodie.metadata.global.record.level.index.enable"
INDEX = "hoodie.index.type"

SIMPLE, BLOOM, BUCKET = "SIMPLE", "BLOOM", "BUCKET"
RECORDS = "GLOBAL_RECORD_LEVEL_INDEX"
_INDEXES = {SIMPLE: SIMPLE, BLOOM: BLOOM, BUCKET: BUCKET, RECORDS: RECORDS, "RECORD_INDEX": RECORDS}
"""Hudi's names for its indexes of keys, and what each is."""

DELETES = -1
"""In the partition's column: no record comes from there, and the row with the key is deleted."""

_ORDERED = ("hoodie.table.ordering.fields", "hoodie.table.precombine.field")
_MERGES, _BY_COMMIT = "hoodie.record.merge.mode", "COMMIT_TIME_ORDERING"


@dataclass(frozen=True, slots=True)
class SupportedTexts:
    """Implements ``ValueCheck``: finds texts that Hudi cannot use as a record key or folder."""

    key: tuple[str, ...]
    folders: HudiFileMarking

    def find_unsupported_rows(self, rows: pa.RecordBatch) -> Mapping[int, str]:
        reasons: dict[int, str] = {}
        for name in self.folders.partition_by:
            values = _text_column_or_none(rows, name)
            for text in pc.unique(values).to_pylist() if values is not None else ():
                if text and (why := self.folders.why_value_unsupported(name, text)):
                    reasons |= _reason_by_row(pc.equal(values, text), f"{name}: {why}")
        for name in self.key:
            values = _text_column_or_none(rows, name)
            if values is None:
                continue
            empty = f"{name}: no record key of Hudi is made of an empty text"
            reasons |= _reason_by_row(pc.equal(values, ""), empty)
            for other in self.key if len(self.key) > 1 else ():
                why = f"{name}: Hudi would take the key for another row's, because of ,{other}:"
                reasons |= _reason_by_row(pc.match_substring(values, f",{other}:"), why)
        return reasons


def _text_column_or_none(rows: pa.RecordBatch, name: str) -> Any:
    values = rows.column(name)
    column_type = values.type
    return (
        values if pa.types.is_string(column_type) or pa.types.is_large_string(column_type) else None
    )


def _reason_by_row(unsupported_mask: Any, why: str) -> dict[int, str]:
    return dict.fromkeys(pc.indices_nonzero(unsupported_mask).to_pylist(), why)


def require_supported_key(columns: Struct, key: RowKey, partition_by: Sequence[str]) -> None:
    """Raise ``ConfigurationError`` for a key that is not supported for Hudi tables."""
    by_name = {column.name: column for column in columns.fields}
    for name in key.key:
        column = by_name.get(name)
        if column is None or column.type not in KEY_TYPES or not column.required:
            raise ConfigurationError(
                f"no key of a Hudi table is made of {name!r} here",
                f"name required columns of {', '.join(KEY_TYPES)}",
            )
    if nested := next((c.name for c in columns.fields if not isinstance(c.type, str)), None):
        raise ConfigurationError(
            f"{nested!r} is a nested column, which no Hudi table with a key has here",
            "leave the column out, or table.key",
        )
    if key.partition in key.key:
        raise ConfigurationError(
            f"the key of a Hudi table names {key.partition}, the column of the source's partition",
            "deletes use it internally; leave it out of table.key",
        )
    if other := next((name for name in partition_by if name not in key.key), None):
        raise ConfigurationError(
            f"a Hudi table with the key {', '.join(key.key)} is not partitioned by {other!r} here: "
            "a row would move between folders",
            "partition by columns of table.key",
        )


def require_same_key(table: str, key: RowKey, properties: Mapping[str, str]) -> None:
    """Raise ``KeyChanged`` for another key, ``TableUnfit`` if Hudi would order rows itself."""
    keys = columns_in_property(properties, "hoodie.table.recordkey.fields")
    if set(keys) != set(key.key):
        raise KeyChanged(
            f"Hudi table {table} has the record key {', '.join(keys) or '(none)'}, and table.key "
            f"is {', '.join(key.key)}",
            "correct table.key, or fill another table",
        )
    ordered = next(
        (columns_in_property(properties, each) for each in _ORDERED if properties.get(each)), ()
    )
    if ordered or properties.get(_MERGES, _BY_COMMIT) != _BY_COMMIT:
        raise TableUnfit(
            f"Hudi table {table} keeps the row that is greatest by {', '.join(ordered) or 'others'}"
            f" ({_MERGES} = {properties.get(_MERGES)}), where a sink puts the last record's",
            f"a table with a key is one of {_BY_COMMIT}, without ordering fields",
        )


def require_supported_index_type(table: str, properties: Mapping[str, str]) -> str:
    """Return the index that finds keys. Raises ``HudiUnsafe`` for unsupported ones."""
    name = properties.get(INDEX, SIMPLE)
    index = _INDEXES.get(name.upper())
    if index is None:
        raise HudiUnsafe(
            f"{table}: {INDEX} is {name}, by which no key is found here",
            f"known are {', '.join(_INDEXES)}",
        )
    if index == BUCKET and (
        not properties.get(BUCKETS, "").isdigit() or properties.get(_ENGINE, SIMPLE) != SIMPLE
    ):
        raise HudiUnsafe(
            f"{table}: {INDEX} is {BUCKET}, and {BUCKETS} does not say into how many",
            f"set {BUCKETS}, which stays as it is; {_ENGINE} is {SIMPLE}",
        )
    return index


def describe_buckets(table: str, properties: Mapping[str, str]) -> str:
    """Describe how the table's files are divided, which never changes; empty for other indexes."""
    if require_supported_index_type(table, properties) != BUCKET:
        return ""
    return f"{properties[BUCKETS]} buckets of {properties.get(HASHED, 'the record key')}"


def key_writer_settings(
    key: RowKey, index: str, keys: Sequence[str], folders: HudiFileMarking
) -> dict[str, str]:
    """Return Hudi's write configuration for a table with a key, beyond what all have."""
    return {
        f"{_WRITE}recordkey.field": ",".join(keys),
        f"{_WRITE}partitionpath.field": ",".join(folders.partition_by),
        HIVE_STYLE: str(folders.hive_style).lower(),
        URL_ENCODED: str(folders.url_encoded).lower(),
        "hoodie.payload.delete.field": key.partition,
        "hoodie.payload.delete.marker": str(DELETES),
        "hoodie.combine.before.upsert": "false",  # there is one record per key
        INDEX: index,
        **({_RECORDS: "true"} if index == RECORDS else {}),
    }


def key_generator_for(keys: Sequence[str], partition_by: Sequence[str]) -> str:
    """Return which of Hudi's key generators a new table has."""
    if not partition_by:
        return "NonpartitionedKeyGenerator"
    single = len(partition_by) == 1 and len(keys) <= 1
    return "SimpleKeyGenerator" if single else "ComplexKeyGenerator"


def columns_in_property(properties: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Return the columns that a property lists."""
    return tuple(filter(None, properties.get(key, "").split(",")))
