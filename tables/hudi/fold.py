"""What a keyed commit changes, found by Spark: of each key its last record (rules U3, U8 to U10).

Data frames are PySpark's, which has no types here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.control_protocol.columns import Column
from headgate.control_protocol.errors import TableChanged
from headgate.control_protocol.key_errors import KeyInTwoPartitions
from headgate.control_protocol.record import KeyCounts
from headgate.control_protocol.table_kinds import RowKey
from headgate.tables.hudi.columns import quoted
from headgate.tables.hudi.keys import DELETES

_TOPIC, _PARTITION, _OFFSET = "_topic", "_partition", "_offset"

_PLACE, _ROW, _RECORDS, _FIRST, _LAST = "place", "row", "records", "first", "last"
_LIVE, _LIVE_FIRST, _LIVE_LAST = "live", "live_first", "live_last"


def coordinates(key: RowKey) -> Sequence[Column]:
    """Return the columns of a key file behind those of the key."""
    topic = (Column(_TOPIC, "string"),) if key.topic else ()
    return (*topic, Column(_PARTITION, "int"), Column(_OFFSET, "long"))


class Fold:
    """The changes of one commit. ``rows`` have the table's columns, ``gone`` those of key files;
    ``live`` is the table as the commit finds it."""

    def __init__(self, key: RowKey, rows: Any, gone: Any, live: Any) -> None:
        self._key = key
        self._columns = rows.schema
        self._folded = self._fold(rows, gone, live).persist()

    def close(self) -> None:
        self._folded.unpersist()

    def counts(self, claimed: int) -> KeyCounts:
        """Count what becomes of the records, of which statuses have claimed so many.

        Raises ``KeyInTwoPartitions``, ``TableChanged``.
        """
        from pyspark.sql import functions as f

        goes, there = f.col(_ROW).isNull(), f.col(_LIVE).isNotNull()

        def number(of: Any) -> Any:
            return f.coalesce(f.sum(of.cast("long")), f.lit(0))

        records, keys, moved, going, deleted, updated = self._folded.agg(
            number(f.col(_RECORDS)),
            f.count(f.lit(1)),
            number(_several_places()),
            number(goes),
            number(goes & there),
            number(~goes & there),
        ).first()
        if records != claimed:
            raise TableChanged(
                f"the files of the transaction have {records} records, their writers wrote "
                f"{claimed}",
                "somebody changed them; start the sink again, which writes them again",
            )
        if moved:
            raise KeyInTwoPartitions(
                f"{moved} keys have records in two partitions, and no order tells which is newer",
                "nothing of them is in the table; produce each key to one partition",
            )
        return KeyCounts(
            inserted=keys - going - updated,
            updated=updated,
            deleted=deleted,
            absent=going - deleted,
            superseded=records - keys,
        )

    def changed(self) -> Any:
        """Return rows of the table's columns, one of each key that changes; those that go say
        ``DELETES`` for their partition."""
        from pyspark.sql import functions as f

        goes = f.col(_ROW).isNull()
        found = self._folded.where(~goes | f.col(_LIVE).isNotNull())
        keys = {name: f.col(_nth(n)) for n, name in enumerate(self._key.key)}

        def going(column: Any) -> Any:
            if column.name == self._key.partition:
                return f.lit(DELETES).cast(column.dataType)
            return keys.get(column.name, _nothing(column.dataType))

        return found.select(
            *(
                f.when(goes, going(column))
                .otherwise(f.col(_ROW).getField(column.name))
                .alias(column.name)
                for column in self._columns
            )
        )

    def _fold(self, rows: Any, gone: Any, live: Any) -> Any:
        from pyspark.sql import functions as f

        key = self._key
        whole = f.struct(*(_column(column.name) for column in self._columns))
        of_rows = rows.select(
            *self._keys(),
            _place(key.topic, key.partition).alias(_PLACE),
            _column(key.offset).cast("long").alias(_OFFSET),
            whole.alias(_ROW),
        )
        of_gone = gone.select(
            *self._keys(),
            _place(_TOPIC if key.topic else "", _PARTITION).alias(_PLACE),
            _column(_OFFSET),
            f.lit(None).cast(of_rows.schema[_ROW].dataType).alias(_ROW),
        )
        nth = [_nth(n) for n in range(len(key.key))]
        newest = (
            of_rows.unionByName(of_gone)
            .groupBy(*nth)
            .agg(
                f.max_by(_ROW, _OFFSET).alias(_ROW),
                f.count(f.lit(1)).alias(_RECORDS),
                f.min(_PLACE).alias(_FIRST),
                f.max(_PLACE).alias(_LAST),
            )
        )
        # Rows of others say nothing of where they come from, and are not asked (U8).
        known = f.when(_column(key.partition).isNotNull(), _place(key.topic, key.partition))
        there = (
            live.select(*self._keys(), known.alias(_PLACE))
            .join(newest.select(*nth), nth)
            .groupBy(*nth)
            .agg(
                f.count(f.lit(1)).alias(_LIVE),
                f.min(_PLACE).alias(_LIVE_FIRST),
                f.max(_PLACE).alias(_LIVE_LAST),
            )
        )
        return newest.join(there, nth, "left")

    def _keys(self) -> list[Any]:
        """The key's columns, by names that none of the table's can be mistaken for."""
        return [_column(name).alias(_nth(n)) for n, name in enumerate(self._key.key)]


def _several_places() -> Any:
    from pyspark.sql import functions as f

    first = f.col(_FIRST)
    others = (f.col(each) != first for each in (_LAST, _LIVE_FIRST, _LIVE_LAST))
    last, one, other = (f.coalesce(each, f.lit(False)) for each in others)  # noqa: FBT003
    return last | one | other


def _place(topic: str, partition: str) -> Any:
    from pyspark.sql import functions as f

    named = _column(topic) if topic else f.lit("")
    return f.struct(named.alias("topic"), _column(partition).cast("long").alias("partition"))


def _nothing(kind: Any) -> Any:
    """A value of the type that nobody reads; a required column takes no null."""
    from pyspark.sql import functions as f

    if kind.typeName() in ("date", "timestamp", "timestamp_ntz"):
        return f.lit("1970-01-01").cast(kind)
    text = kind.typeName() in ("string", "binary")
    return (f.lit("") if text else f.lit(0)).cast(kind)


def _column(name: str) -> Any:
    from pyspark.sql import functions as f

    return f.col(quoted(name))


def _nth(n: int) -> str:
    return f"key_{n}"
