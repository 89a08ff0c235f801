"""What a ledger remembers about the tables that it has filled, beyond one epoch (rule N5).

Each is a property of the ledger, named after the table, with the table's UUID. The commit that
first has pending rows to a table sets it, so that decision and memory are one. Snapshots do not
repeat it, as they would a part of the record, and no catalog has to store one value for a thousand
tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.record import CommitRecord


def filled_property(sink: SinkName, table: str) -> str:
    """Return the name of the ledger's property for a table."""
    return f"{_prefix(sink)}{table}"


def filled_of(sink: SinkName, properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the UUIDs of the tables that the sink has filled, by their names."""
    prefix = _prefix(sink)
    return {
        name.removeprefix(prefix): uuid
        for name, uuid in properties.items()
        if name.startswith(prefix)
    }


def is_filled_property(name: str) -> bool:
    """Return whether this is such a property, of any sink."""
    return name.startswith("headgate.") and name.split(".")[2:3] == ["filled"]


def newly_filled(record: CommitRecord, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the additional properties that a commit of this record sets.

    Secondary tables that the record names by UUID need none.
    """
    pending = {
        filled_property(record.sink, pending_commit.table): pending_commit.secondary
        for pending_commit in record.pending_commits
        if pending_commit.manifest and pending_commit.table not in record.secondaries
    }
    return {name: uuid for name, uuid in pending.items() if properties.get(name) != uuid}


def forgotten(
    sink: SinkName, tables: Collection[str], set_now: Collection[str], properties: Collection[str]
) -> list[str]:
    """Return the properties that a commit removes: of these tables, unless it sets them."""
    names = {filled_property(sink, table) for table in tables}
    return sorted((names & set(properties)) - set(set_now))


def filled_after(
    record: CommitRecord, before: Mapping[str, str], forgets: Collection[str]
) -> Mapping[str, str]:
    """Return the UUIDs of the tables that the sink has filled once a commit of this record landed.

    ``before`` are those until then; for tables that keep all of them together.
    """
    sink = record.sink
    known = {filled_property(sink, name): uuid for name, uuid in before.items()}
    added = newly_filled(record, known)
    gone = forgotten(sink, forgets, added, known)
    kept = {name: uuid for name, uuid in known.items() if name not in gone}
    return filled_of(sink, {**kept, **added})


def _prefix(sink: SinkName) -> str:
    return f"headgate.{sink}.filled."
