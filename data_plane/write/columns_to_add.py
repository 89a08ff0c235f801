"""Collects what a batch's records need that their table lacks, while they are decoded (SCHEMA-1,
SCHEMA-2)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from headgate.control_protocol.columns import (
    Column,
    Path,
    Struct,
    Type,
    columns_without,
    describe_schema_growth,
    dotted_path,
    named_fields_with_parent_ids,
    struct_from_json,
    unify_columns,
)
from headgate.control_protocol.errors import UnknownField
from headgate.control_protocol.events import Destination
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import BatchNeeds, TableNeed
from headgate.control_protocol.schema_evolution import (
    COLUMNS_MAX,
    FIELDS_MAX,
    Former,
    Refusal,
    collect_former_columns,
    grow_columns,
    wide_structs_as_maps,
)
from headgate.data_plane.batch.record_numbers import first_offsets_of
from headgate.data_plane.formats.unknown_fields import UnknownColumns, UnknownFieldFinder
from headgate.kafka.record_fetch import Chunk
from headgate.participant.settings import SchemaPolicy, UnknownFields

IGNORED_MAX = 1_000
"""The number of fields remembered as becoming no column; others are checked in each record."""

_ENOUGH = COLUMNS_MAX + FIELDS_MAX
"""In fields: more than a table takes, and enough that too large an object becomes a map
(CREATE-2)."""


@dataclass(frozen=True, slots=True)
class Evolution:
    """Says how a table may evolve: ``columns``, their ``past`` names (SCHEMA-6), what is
    ``refused``.

    ``identifying``: the ids of columns that identify rows, which stay required, and of structs
    around them.
    """

    policy: SchemaPolicy
    columns: Struct
    past: Former = field(default_factory=Former)
    refused: tuple[Refusal, ...] = ()
    identifying: frozenset[int] = frozenset()

    @property
    def ignored_paths(self) -> Iterable[Path]:
        """Yield the paths that are known in advance to become no columns."""
        for refusal in self.refused:
            if refusal.path:
                yield refusal.path
        if not self.policy.readd_dropped:
            for name in self.past.dropped.get(0, ()):
                yield (name,)

    @property
    def has_refused_every_new_column(self) -> bool:
        return any(not refusal.path for refusal in self.refused)

    def with_key(self, key: Collection[str]) -> Evolution:
        """Return the same for a table with this key, whose columns identify rows."""
        ids = (column.field_id for column in self.columns.fields if column.name in key)
        return replace(self, identifying=self.identifying.union(ids))

    def with_identifiers_kept_required(self, wanted: Struct) -> Struct:
        """Return the columns, of which those that identify rows are required (SCHEMA-5).

        No table makes them optional: a proposal of that would be answered, and made, for ever.
        """
        return self._with_identifiers_required(wanted, self.columns) if self.identifying else wanted

    def _with_identifiers_required(self, wanted: Struct, there: Struct) -> Struct:
        known = {c.name: c.type for c in there.fields if c.field_id in self.identifying}
        return Struct(
            tuple(
                self._required(column, known[column.name]) if column.name in known else column
                for column in wanted.fields
            )
        )

    def _required(self, wanted: Column, there: Type) -> Column:
        kind = wanted.type
        if isinstance(kind, Struct) and isinstance(there, Struct):
            kind = self._with_identifiers_required(kind, there)
        return replace(wanted, type=kind, required=True)


def evolution_of(
    current_schema_json: str,
    older_schemas_json: Sequence[str],
    policy: SchemaPolicy,
    refused: tuple[Refusal, ...] = (),
) -> Evolution:
    """Build it from the table's schemas as JSON, the oldest first."""
    now = struct_from_json(current_schema_json)
    past = collect_former_columns(now, map(struct_from_json, older_schemas_json))
    own = json.loads(current_schema_json).get("identifier-field-ids") or ()
    return Evolution(policy, now, past, refused, _with_structs_around(now, own))


def _with_structs_around(columns: Struct, ids: Collection[int]) -> frozenset[int]:
    result: set[int] = set()
    for column in columns.fields:
        kind = column.type
        inside = _with_structs_around(kind, ids) if isinstance(kind, Struct) else ()
        if inside or column.field_id in ids:
            result |= {column.field_id, *inside}
    return frozenset(result)


class MissingColumns:
    """Collects what one batch needs and its table lacks."""

    def __init__(
        self,
        evolution: Evolution,
        finder: UnknownFieldFinder,
        partitions: Sequence[TopicPartition],
    ) -> None:
        self._evolution = evolution
        self._finder = finder
        self._partitions = partitions
        past = evolution.past
        self._past = Former(past.renamed) if evolution.policy.readd_dropped else past
        self._columns: Struct | None = None
        self._enough = False
        self._first: dict[int, int] = {}
        self._records = 0

    def __bool__(self) -> bool:
        return self._columns is not None

    def note_needs_and_find_bad(
        self, chunk: Chunk, unknown: Iterable[UnknownColumns]
    ) -> Mapping[int, str]:
        """Note what rows of the chunk need; return which are bad for it, and why.

        Raises ``UnknownField`` for such a record if the settings say to stop.
        """
        bad: dict[int, str] = {}
        for rows, wanted in unknown:
            missing = self._possible_columns_noting_ignored(wanted)
            if missing is None:
                continue
            if self._evolution.policy.unknown_fields is UnknownFields.EVOLVE:
                self._note_needs_of_rows(chunk, rows.tolist(), missing)
                continue
            words = ", ".join(self._describe_new_fields(missing))
            if not words:
                continue
            reason = f"has fields that the table lacks: {words}"
            if self._evolution.policy.unknown_fields is UnknownFields.FAIL:
                at = self._partitions[int(chunk.places[rows[0]])]
                raise UnknownField(
                    f"{at} offset {chunk.offsets[rows[0]]} {reason}",
                    'add the columns, or set unknown_fields = "evolve" or "ignore"',
                    first_offsets_of(self._partitions, chunk.places[rows], chunk.offsets[rows]),
                )
            bad |= dict.fromkeys(rows.tolist(), reason)
        return bad

    def _possible_columns_noting_ignored(self, wanted: Struct) -> Struct | None:
        """Ignore what becomes no column, and return the rest; ``None`` when that was all."""
        wanted = self._evolution.with_identifiers_kept_required(wanted)
        growth = grow_columns(self._evolution.columns, wanted, self._past)
        if growth.refused:
            self._ignore_paths(refusal.path for refusal in growth.refused)
            wanted = columns_without(wanted, [refusal.path for refusal in growth.refused])
        if self._evolution.has_refused_every_new_column:
            added = _new_top_level_paths(self._evolution.columns, wanted)
            self._ignore_paths(added)
            wanted = columns_without(wanted, added)
        changed = describe_schema_growth(
            self._evolution.columns, grow_columns(self._evolution.columns, wanted).columns
        )
        return wanted if changed else None

    def _ignore_paths(self, paths: Iterable[Path]) -> None:
        room = IGNORED_MAX - len(self._finder.ignored)
        if room > 0:
            self._finder.ignore(islice(paths, room))

    def _describe_new_fields(self, wanted: Struct) -> list[str]:
        """Leave out what asks only for a wider column: that is a value which does not fit."""
        grown = grow_columns(self._evolution.columns, wanted, self._past).columns
        changes = describe_schema_growth(self._evolution.columns, grown)
        return [change for change in changes if change.startswith("+")]

    def _note_needs_of_rows(self, chunk: Chunk, rows: list[int], wanted: Struct) -> None:
        self._columns = self._merged_with_noted(wanted)
        self._records += len(rows)
        for row in rows:
            place, offset = int(chunk.places[row]), int(chunk.offsets[row])
            self._first[place] = min(offset, self._first.get(place, offset))

    def _merged_with_noted(self, wanted: Struct) -> Struct:
        """Add it, up to what any table may have: the rest is asked for with the next proposal."""
        if self._columns is None:
            return wanted
        if self._enough:
            return self._columns
        both = unify_columns(self._columns, wanted)
        self._enough = sum(1 for _ in named_fields_with_parent_ids(both)) >= _ENOUGH
        return both

    def to_batch_needs(self, batch_number: int) -> BatchNeeds:
        need = self.to_table_need(Destination(""))
        return BatchNeeds(batch_number, need.columns, need.first, need.records)

    def to_table_need(self, at: Destination, raw_name: str = "") -> TableNeed:
        """Return what was noted, for a table that a route names."""
        assert self._columns is not None, "nothing is needed"
        first = Offsets({self._partitions[place]: at for place, at in self._first.items()})
        return TableNeed(at, self._proposed_columns(), first, self._records, raw_name)

    def _proposed_columns(self) -> Struct:
        """Return what fits into the table, so that it fits into a message as well."""
        assert self._columns is not None, "nothing is needed"
        there = self._evolution.columns
        wanted = wide_structs_as_maps(self._columns, there)
        refused = grow_columns(there, wanted, self._past).refused
        return columns_without(wanted, [refusal.path for refusal in refused])

    def note_first_record_per_partition(self, chunk: Chunk) -> None:
        """Note the first record of each partition, as one that needs something."""
        places, rows = np.unique(chunk.places, return_index=True)
        if len(places):
            self._note_needs_of_rows(chunk, rows.tolist(), Struct())

    def label_count_with_ignored_fields(self, record_count: int) -> Mapping[str, int]:
        """Return the count under one text, which joins all fields that become no column."""
        paths = ", ".join(sorted(map(dotted_path, self._finder.ignored)))
        return {paths: record_count} if record_count and paths else {}


def _new_top_level_paths(table: Struct, wanted: Struct) -> list[Path]:
    known = {column.name for column in table.fields}
    return [(column.name,) for column in wanted.fields if column.name not in known]
