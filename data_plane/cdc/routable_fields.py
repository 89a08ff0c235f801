"""Decides what routes may look at in a record that changes a row: what each event has.

A record that creates a row has no row before, one that deletes none after; and what a flattened
record that deletes has in its columns beyond the key may be anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.data_plane.cdc.policy import Envelope

_INSTEAD: Mapping[Envelope, str] = {
    Envelope.DEBEZIUM: "source.table or source.schema",
    Envelope.FLATTENED: "__table or __schema, which add.fields = table,schema of "
    "ExtractNewRecordState adds",
    Envelope.DMS: "metadata.table-name or metadata.schema-name",
}
_OF_ONE_EVENT = frozenset(
    {
        *(("op",), ("__op",), ("__deleted",), ("Op",)),
        *(("metadata", "operation"), ("metadata", "record-type")),
    }
)


def field_to_use_instead(envelope: Envelope, path: Sequence[str]) -> str:
    """Return the fields to look at instead; empty where this one is alike in each event."""
    if envelope is Envelope.PLAIN:
        return ""
    if envelope is Envelope.DEBEZIUM:
        is_constant = path[0] not in ("before", "after")
    else:
        is_constant = path[0].startswith("__") or (
            envelope is Envelope.DMS and path[0] == "metadata"
        )
    return "" if is_constant and tuple(path) not in _OF_ONE_EVENT else _INSTEAD[envelope]
