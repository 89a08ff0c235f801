"""Detects a fork: a commit that landed although its writer had lost the lock (H9)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from headgate.control_protocol.errors import HudiForked, KeyChanged, TableUnfit
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import Lineage, TableView
from headgate.tables.hudi.file_slices import Slice
from headgate.tables.hudi.record_keys import BUCKET, require_supported_index_type
from headgate.tables.hudi.table_properties import HudiLocation

_LATE = "a coordinator that was stopped for long has landed after all"
_HINT = "its files are gone, and so may be rows: see docs/table-formats/hudi.md, 'A fork'"


def previous_completion_time_key(sink: SinkName) -> str:
    """Return the key under which a commit notes when the one before it was completed.

    It is not a key of the commit record, which would refuse it.
    """
    return f"headgate-hudi.{sink}.follows"


def previous_completion_time(sink: SinkName, metadata: Mapping[str, str]) -> int | None:
    """Return when the commit was completed that this one continues: 0 for none, if it says so."""
    before = metadata.get(previous_completion_time_key(sink))
    return None if before is None else int(before or 0)


@dataclass(frozen=True, slots=True)
class Link:
    """A completed commit of the sink in its chain. ``follows`` as ``previous_completion_time``."""

    instant: str
    completed: int
    follows: int | None


def require_unforked(table: str, sink: SinkName, landed: Iterable[Link]) -> None:
    """Raise ``HudiForked`` if the two commits that were completed last are not a chain.

    Completion times tell. Instants are archived by their request times, so the former one may be
    gone from the timeline while an older one is still there. ``landed``: what the timeline and the
    sink's own copies know, since one branch of a fork may be archived at once.
    """
    chain = sorted({each.instant: each for each in landed}.values(), key=lambda it: -it.completed)
    if len(chain) < 2:
        return
    newest, former = chain[:2]
    if newest.follows is not None and former.completed > newest.follows:
        raise HudiForked(
            f"Hudi table {table}: commit {newest.instant} of sink {sink} continues the one that "
            f"was completed at {newest.follows or 'no time'}, and not {former.instant}, which came "
            f"between: {_LATE}",
            _HINT,
        )


def require_no_resurrected_instants(
    table: str, sink: SinkName, condemned: Collection[str], is_complete: Callable[[str], bool]
) -> None:
    """Raise ``HudiForked`` if a commit is complete that was rolled back."""
    for instant in sorted(condemned):
        if is_complete(instant):
            raise HudiForked(
                f"Hudi table {table}: commit {instant} of sink {sink} was rolled back, and is "
                f"complete: {_LATE}",
                _HINT,
            )


def why_clock_is_behind(head: int | None) -> str | None:
    """Return, in Hudi's lock, why a commit would count as older than the one it continues."""
    now = int(f"{datetime.now(UTC):%Y%m%d%H%M%S%f}"[:17])
    if now > (head or 0):
        return None
    return f"the newest commit was completed at {head}, and this machine's clock says {now}"


# Refuses a table that was filled before in a way that this sink does not use.


_RINGS = ".hoodie/.bucket_index"
"""Where Hudi describes buckets whose number changes, or differs between partitions."""

_NUMBERED = re.compile(r"[0-9]{8}-")
_LOW = "0000"
"""A bucket below 10,000. A UUID begins like this once in 65,536 times, and is all digits besides
in 15 of a hundred of these."""


def require_same_keying_and_buckets(
    view: TableView,
    place: HudiLocation,
    sink: SinkName,
    list_live_slices: Callable[[], Sequence[Slice]],
) -> None:
    """KEY-1: refuse a table filled without the key, which may hold duplicates, and the reverse.

    Raises ``TableUnfit`` for buckets that the sink does not fill.
    """
    keyed = place.key is not None
    if view.record and (view.record.keys is not None) != keyed:
        raise KeyChanged(
            f"Hudi table {view.table} was filled by sink {sink} "
            f"{'without a key' if keyed else 'by key'}",
            f"{'remove' if keyed else 'name'} table.key, or fill another table",
        )
    if view.lineage is Lineage.FRESH:
        _require_no_foreign_buckets(view, place, list_live_slices)


def _require_no_foreign_buckets(
    view: TableView, place: HudiLocation, list_live_slices: Callable[[], Sequence[Slice]]
) -> None:
    """Refuse a table that others have split into buckets; only its files show that.

    Everybody's next write fails at a file that has no bucket's number.
    """
    if place.folder.files_below(_RINGS):
        raise TableUnfit(
            f"Hudi table {view.table} is cut into buckets whose number varies ({_RINGS} is there)",
            "fill a table with another index, or with one number of buckets "
            "(docs/table-formats/hudi.md)",
        )
    if place.key and require_supported_index_type(view.table, place.settings) == BUCKET:
        return  # which compares the files with its own number of buckets
    if view.head is not None and has_bucket_numbers(list_live_slices()):
        raise TableUnfit(
            f"Hudi table {view.table} is cut into buckets, as the names of its files show: writes "
            "of others would fail at files of no bucket",
            "fill it by table.key with hoodie.index.type = BUCKET and its number of buckets, or "
            "fill another table (docs/table-formats/hudi.md)",
        )


def has_bucket_numbers(slices: Sequence[Slice]) -> bool:
    names = [each.group for each in slices]
    return all(map(_NUMBERED.match, names)) and any(name.startswith(_LOW) for name in names)
