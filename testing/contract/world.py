"""Says what the contract's tests need of a table format, and the sink files that they run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.identifiers import TopicPartition
from headgate.operations.audit.audit import audit
from headgate.testing.sink_in_process import SinkInProcess, Value

Place = tuple[str, int, int]
"""Of a record: its topic, partition and offset."""

EACH = 20
"""So many records for each topic, time and again."""

ZONES = "abc"


class SinkWorld(Protocol):
    """Where the tables of one format are: ``orders`` and others of the namespace ``db``."""

    @property
    def table_lines(self) -> str:
        """Return the lines of ``[table]`` or ``[tables]`` that choose the format."""

    @property
    def further_sections(self) -> str:
        """Return the sections for the end of the sink file, such as ``[catalog.properties]``."""

    def location_lines(self, name: str) -> str:
        """Return the lines that say where a table is made; the name may be ``{table}``."""

    def rows(self, name: str) -> Sequence[dict[str, Any]]:
        """Return the rows of a table, as a reader finds them that is not headgate's."""


class RoutedSinkWorld(SinkWorld, Protocol):
    @property
    def quarantine_lines(self) -> str:
        """Return more lines for ``[quarantine]``, and sections of it."""


class QuarantineSinkWorld(RoutedSinkWorld, Protocol):
    def lock_table(self, name: str) -> AbstractContextManager[None]:
        """Keep everybody from committing to a table meanwhile."""


class ManyTablesSinkWorld(QuarantineSinkWorld, Protocol):
    def take_table_away(self, name: str) -> None:
        """Let there be no table of this name, as if it was dropped or renamed."""

    def bring_table_back(self, name: str) -> None: ...


class SuspensionSinkWorld(RoutedSinkWorld, Protocol):
    def damage_table(self, name: str) -> AbstractContextManager[None]:
        """Make a table one that no sink can fill meanwhile, although it is there."""


class RollbackSinkWorld(QuarantineSinkWorld, Protocol):
    def version(self, name: str) -> Any: ...

    def restore(self, name: str, version: Any) -> None:
        """Set a table back, as its owner does."""


class TagSinkWorld(SinkWorld, Protocol):
    def delete_tag(self, name: str) -> None:
        """Remove the sink's tag from a table, as its owner might."""


BEGIN = """
name = "shop"
[source]
topics = ["shop.orders", "shop.returns", "events"]
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
[spark]
writer = "in-process"
[coordinator]
commit_interval_ms = 50
commit_timeout_ms = 5000
rebalance_delay_ms = 10
election_timeout_ms = 50000
delivery_timeout_ms = 1000
retry_backoff_ms = 10
retry_backoff_max_ms = 20
[participant]
end_offset_interval_ms = 10
"""
COLUMNS = '[{ name = "id", type = "long" }, { name = "zone", type = "string" }]'
_PARTS = """
[{section}.record_columns]
topic = "topic"
partition = "partition"
offset = "offset"
"""
_DECLARED = f'[[tables.table]]\nmatch = "db.(orders|returns|zone_a)"\ncolumns = {COLUMNS}\n'


def one_table_toml(world: SinkWorld, *, coordinator: str = "", more: str = "") -> str:
    """Return the sink file of the table ``orders``, which takes every record."""
    begin = BEGIN.replace("[coordinator]", f"[coordinator]\n{coordinator}")
    return (
        f"{begin}\n[table]\n{world.table_lines}\n"
        f'identifier = "db.orders"\n{world.location_lines("orders")}\n'
        f"create = true\ncolumns = {COLUMNS}\n"
        f"{_PARTS.format(section='table')}{more}\n{world.further_sections}"
    )


def one_table_toml_with_quarantine(world: QuarantineSinkWorld, *, coordinator: str = "") -> str:
    """Return the same, with ``orders_quarantine`` for bad records."""
    aside = '[quarantine]\npolicy = "quarantine"\nper_thousand_max = 1000\n'
    return one_table_toml(world, coordinator=coordinator, more=aside + world.quarantine_lines)


def many_tables_toml(world: RoutedSinkWorld, *, inferred: bool = False) -> str:
    """Return the sink file of ``orders``, ``returns``, ``zone_a`` and the quarantine
    ``rejected``.

    ``inferred``: no columns are declared, and there are ``zone_b`` and ``zone_c`` as well.
    """
    return (
        f"{BEGIN}\n[tables]\n{world.table_lines}\n"
        'ledger = "db.ledger"\nvalid_through_refresh_ms = 3600000\n[tables.create]\n'
        f'schema = "{"infer" if inferred else "declared"}"\n{world.location_lines("{table}")}\n'
        '[[tables.route]]\ntopic = "^shop\\\\.(?P<name>.+)$"\nto = "db.{name}"\n'
        '[[tables.route]]\ntopic = "events"\nfield = "zone"\nto = "db.zone_{field}"\n'
        f"{'' if inferred else _DECLARED}{_PARTS.format(section='tables')}"
        '[quarantine]\npolicy = "quarantine"\ntable = "db.rejected"\nper_thousand_max = 1000\n'
        f"{world.quarantine_lines}\n{world.further_sections}"
    )


def keyed_tables_toml(world: RoutedSinkWorld) -> str:
    """Return the sink file of ``orders``, whose key is ``id``, and of ``returns`` without one."""
    columns = COLUMNS.replace('"long" }', '"long", required = true }')
    own = f'[[tables.table]]\nmatch = "db.orders"\nkey = ["id"]\ncolumns = {columns}\n'
    return many_tables_toml(world).replace(', "events"', "").replace(_DECLARED, f"{own}{_DECLARED}")


def good_value(_at: TopicPartition, offset: int) -> bytes:
    return json.dumps({"id": offset, "zone": ZONES[offset % 3]}).encode()


def sometimes_bad_value(at: TopicPartition, offset: int) -> bytes:
    return b"{broken" if offset % 10 == 7 else good_value(at, offset)


KEYS = 20


def recurring_key(_at: TopicPartition, offset: int) -> bytes:
    return b"%d" % (offset % KEYS)


def upsert_or_delete_value(at: TopicPartition, offset: int) -> bytes | None:
    """Of orders, keys come again and again, and some of their rows go; returns are only added."""
    if at.topic == "shop.orders" and offset % 7 == 3:
        return None
    return json.dumps({"id": offset % KEYS, "zone": f"{offset}"}).encode()


def expected_zone_by_key(count: int) -> dict[int, str]:
    """Return what so many records of orders come to: the zone of each key."""
    rows: dict[int, str] = {}
    at = TopicPartition("shop.orders", 0)
    for offset in range(count):
        rows.pop(offset % KEYS, None)
        if (value := upsert_or_delete_value(at, offset)) is not None:
            rows[offset % KEYS] = json.loads(value)["zone"]
    return rows


@contextmanager
def open_sink(text: str, value: Value = good_value) -> Iterator[SinkInProcess]:
    """Yield a sink in its first life, which has done nothing yet."""
    sink = SinkInProcess(parse(text), value, recurring_key)
    try:
        sink.begin_life()
        yield sink
    finally:
        sink.end_lives()


@contextmanager
def open_filled_sink(text: str, value: Value = good_value) -> Iterator[SinkInProcess]:
    """Yield a sink whose first life has filled its tables once."""
    with open_sink(text, value) as sink:
        produce_and_deliver(sink)
        yield sink


def produce_and_deliver(sink: SinkInProcess, *except_tables: str) -> None:
    """Let records come, until they are delivered to all tables but these."""
    sink.produce(EACH)
    sink.run_until_settled(*except_tables)


def restart_produce_and_deliver(sink: SinkInProcess, settings: SinkSettings | None = None) -> None:
    """Let a new life find what the last one left, and go on."""
    sink.settings = settings or sink.settings
    sink.begin_life()
    produce_and_deliver(sink)


def row_coordinates(world: SinkWorld, *names: str) -> list[Place]:
    """Return where the rows of these tables are from, sorted."""
    found = (row for name in names for row in world.rows(name))
    return sorted((row["topic"], row["partition"], row["offset"]) for row in found)


def source_coordinates(sink: SinkInProcess) -> list[Place]:
    """Return the place of each record, sorted."""
    logs = sink.source.partitions.items()
    return sorted(
        (at.topic, at.partition, offset) for at, log in logs for offset in log.timestamps_ms
    )


def assert_each_record_once(sink: SinkInProcess, world: SinkWorld, *names: str) -> None:
    """Assert it, by somebody else's reader, and that audit finds nothing."""
    assert row_coordinates(world, *names) == source_coordinates(sink)
    assert not audit(sink.settings, with_source=False).findings
