"""Lists the tables that a sink's routes fill, what each has received, what is pending, and topics.

The list has the tables that carry the sink's tag, that the ledger remembers (filled, pending now or
before, suspended), and that its topics name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from headgate.config.multi_table_settings import CreateFrom, TablesSettings
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord, KeyCounts, Suspended
from headgate.control_protocol.errors import (
    ConfigurationError,
    MissingRights,
    Unreachable,
)
from headgate.control_protocol.table_history import Newest
from headgate.operations.access.kafka_connection import open_reachable_source_topics
from headgate.operations.access.tables import (
    count_decided_rows_by_table,
    open_routed_tables_one_by_one,
    open_tables_for_reading,
)
from headgate.runtime.sink_tables import Answer, TableAtRest, translate_table_error

EXAMPLES_MAX = 3
_LAST = Newest(1, 2**62)


@dataclass(frozen=True, slots=True)
class FilledTable:
    """One table. ``state``: ``open``, ``suspended``, ``resuming``, ``missing`` or ``unreachable``;
    ``reason`` says why.

    ``transaction``: the last one whose rows it received; ``keys``: what that commit's records did
    to a table with a key. ``valid_through_ms`` is the ledger's if nothing is pending (FRESH-1),
    else as of that delivery.
    """

    table: str
    state: str
    transaction: str | None
    pending_rows: int
    valid_through_ms: int | None
    schema_id: int | None
    snapshot_id: int | None
    reason: str = ""
    keys: KeyCounts | None = None


@dataclass(frozen=True, slots=True)
class TablesReport:
    """All tables by name, and the newest transaction that the ledger decided."""

    ledger: str
    transaction: str | None
    tables: tuple[FilledTable, ...]

    @property
    def exit_code(self) -> int:
        states = {table.state for table in self.tables}
        if states - {"open", "unreachable"}:
            return 1
        return Unreachable.exit_code if states - {"open"} else 0

    def as_json(self) -> Mapping[str, Any]:
        return asdict(self)


def list_tables(settings: SinkSettings) -> TablesReport:
    """Raises what opening the ledger raises, ``ConfigurationError`` for a sink of one table."""
    if not settings.tables:
        raise ConfigurationError(
            "this sink fills one table", "headgate status shows it; [tables] is for many"
        )
    with open_tables_for_reading(settings) as opened:
        history = opened.reader.history()
        record = history.current_record
        pending: dict[str, int] = {}
        for pending_commit in opened.read_undelivered_commits(record):
            pending[pending_commit.table] = (
                pending.get(pending_commit.table, 0) + pending_commit.record_count
            )
        decided = count_decided_rows_by_table(settings.quarantine, history)
        named = _tables_named_by_known_topics(settings.tables, record)
        described = {
            name: _to_filled_table_or_error(name, table, pending.get(name, 0))
            for name, table in open_routed_tables_one_by_one(opened, history, named)
        }
        suspended = {each.table: each for each in (record.suspended if record else ())}
        known = {*described, *pending, *suspended, *decided, *named, *history.filled}
        names = sorted(known - {settings.quarantine.table})
        tables = (
            described.get(name) or _as_missing_table(name, pending.get(name, 0)) for name in names
        )
        return TablesReport(
            settings.tables.ledger,
            str(record.transaction) if record else None,
            tuple(
                _with_state_of_ledger(table, suspended.get(table.table), record) for table in tables
            ),
        )


def _tables_named_by_known_topics(tables: TablesSettings, record: CommitRecord | None) -> set[str]:
    """Return tables of the topics that the ledger knows, if the topic alone decides."""
    topics = sorted(record.topic_ids) if record else []
    return {
        target.table
        for target in tables.routing.tables_of_topics_winning_collisions(topics).values()
    }


def _with_state_of_ledger(
    table: FilledTable, suspended: Suspended | None, record: CommitRecord | None
) -> FilledTable:
    if suspended is not None:
        state = "resuming" if suspended.resuming else "suspended"
        return replace(table, state=state, reason=suspended.why)
    if table.state == "open" and not table.pending_rows and table.transaction and record:
        return replace(table, valid_through_ms=record.valid_through_ms)
    return table


def _as_missing_table(name: str, pending: int) -> FilledTable:
    reason = "there is no such table, or it may not be read: its records are not in it"
    return FilledTable(name, "missing", None, pending, None, None, None, reason)


def _to_filled_table_or_error(name: str, table: Answer, pending: int) -> FilledTable:
    """Return what a table says, or why it says nothing: then the others are asked all the same."""
    if isinstance(table, TableAtRest):
        try:
            return _to_filled_table(name, table, pending)
        except Exception as error:  # noqa: BLE001 - storage fails in the ways of its drivers
            table = translate_table_error(error, f"table {name} cannot be read")
    if isinstance(table, MissingRights):
        return _as_missing_table(name, pending)
    return FilledTable(name, "unreachable", None, pending, None, None, None, str(table))


def _to_filled_table(name: str, table: TableAtRest, pending: int) -> FilledTable:
    history = table.reader.history(_LAST)
    if history.current_record is None:
        history = table.reader.history()
    record = history.current_record
    return FilledTable(
        table=name,
        state="open",
        transaction=str(record.transaction) if record else None,
        pending_rows=pending,
        valid_through_ms=record.valid_through_ms if record else None,
        schema_id=table.schema_id(),
        snapshot_id=history.tag,
        keys=record.keys if record else None,
    )


def describe_routes_and_collisions(settings: SinkSettings) -> str:
    """Return each route with topics that it takes, and colliding names.

    Raises as ``open_reachable_source_topics``.
    """
    with open_reachable_source_topics(settings) as topics:
        known = sorted(topics.describe())
    notes = [
        *_describe_routes(settings.tables, known),
        *_describe_collisions(settings.tables, known),
    ]
    if settings.tables.create.schema is CreateFrom.OFF:
        notes.append(
            "tables.create.schema is off: records for tables that do not exist are unmatched"
        )
    return "; ".join(notes)


def _describe_routes(tables: TablesSettings, topics: list[str]) -> Iterator[str]:
    routing = tables.routing
    takes: dict[int, list[str]] = {number: [] for number in range(len(routing.routes))}
    for topic in topics:
        for route, _ in routing.routes_of_topic(topic):
            takes[routing.routes.index(route)].append(topic)
    for number, route in enumerate(routing.routes):
        some = takes[number][:EXAMPLES_MAX]
        more = len(takes[number]) - len(some)
        named = f"{', '.join(some)}{f' and {more} more' if more else ''}" if some else "no topic"
        yield f"{named} -> {route.to}"
    if alone := [
        topic for topic in topics if not any(True for _ in routing.routes_of_topic(topic))
    ]:
        yield f"no route takes {', '.join(alone[:EXAMPLES_MAX])}"


def _describe_collisions(tables: TablesSettings, topics: list[str]) -> Iterator[str]:
    routing = tables.routing
    winners = routing.tables_of_topics_winning_collisions(topics)
    for topic in topics:
        target = routing.table_of_topic(topic)
        if target and topic not in winners:
            yield f"{topic} would become {target.table}, which another topic takes: unmatched"
