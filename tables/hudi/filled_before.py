"""Refuses a table that was filled before in a way that this sink does not use."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.key_errors import KeyChanged
from headgate.control_protocol.kind_errors import TableUnfit
from headgate.control_protocol.ports import Lineage, TableView
from headgate.tables.hudi.keys import BUCKET, index_of
from headgate.tables.hudi.places import HudiPlace
from headgate.tables.hudi.slices import Slice

_RINGS = ".hoodie/.bucket_index"
"""Where Hudi describes buckets whose number changes, or differs between partitions."""

_NUMBERED = re.compile(r"[0-9]{8}-")
_LOW = "0000"
"""A bucket below 10,000. A UUID begins like this once in 65,536 times, and is all digits besides
in 15 of a hundred of these."""


def refuse(
    view: TableView, place: HudiPlace, sink: SinkName, live: Callable[[], Sequence[Slice]]
) -> None:
    """U1: refuse a table filled without the key, which may hold duplicates, and the reverse.

    ``live`` lists its files. Raises ``TableUnfit`` for buckets that the sink does not fill.
    """
    keyed = place.key is not None
    if view.record and (view.record.keys is not None) != keyed:
        raise KeyChanged(
            f"Hudi table {view.table} was filled by sink {sink} "
            f"{'without a key' if keyed else 'by key'}",
            f"{'remove' if keyed else 'name'} table.key, or fill another table",
        )
    if view.lineage is Lineage.FRESH:
        _refuse_buckets(view, place, live)


def _refuse_buckets(view: TableView, place: HudiPlace, live: Callable[[], Sequence[Slice]]) -> None:
    """Refuse a table that others have split into buckets; only its files show that.

    Everybody's next write fails at a file that has no bucket's number.
    """
    if place.folder.below(_RINGS):
        raise TableUnfit(
            f"Hudi table {view.table} is cut into buckets whose number varies ({_RINGS} is there)",
            "fill a table with another index, or with one number of buckets (docs/hudi.md)",
        )
    if place.key and index_of(view.table, place.settings) == BUCKET:
        return  # which compares the files with its own number of buckets
    if view.head is not None and _numbered(live()):
        raise TableUnfit(
            f"Hudi table {view.table} is cut into buckets, as the names of its files show: writes "
            "of others would fail at files of no bucket",
            "fill it by table.key with hoodie.index.type = BUCKET and its number of buckets, or "
            "fill another table (docs/hudi.md)",
        )


def _numbered(slices: Sequence[Slice]) -> bool:
    names = [each.group for each in slices]
    return all(map(_NUMBERED.match, names)) and any(name.startswith(_LOW) for name in names)
