"""Kinds of tables by name: Iceberg, ours beside it, and those that other packages register.

A package offers a kind by an entry point of the group ``headgate.tables``: its name is what the
sink file says (``table.type``), its object a callable without arguments that returns a
``TableKind``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, cast

from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.kind_errors import GuaranteeTooWeak, KindLacks, KindUnknown
from headgate.control_protocol.table_kinds import (
    Capability,
    Guarantee,
    RowKey,
    TableKind,
    Traits,
    WantedTable,
)
from headgate.data.formats.options import nearest
from headgate.participant.settings import UnknownFields
from headgate.sink.catalog_settings import Backend
from headgate.sink.declaration import declared
from headgate.sink.table_settings import ICEBERG
from headgate.tables.layouts import declared_columns

if TYPE_CHECKING:
    from headgate.sink.settings import SinkSettings

ENTRY_POINT_GROUP = "headgate.tables"

KindFactory = Callable[[], TableKind]

_OURS = {
    "delta": ("headgate.tables.delta.kind", "DeltaKind"),
    "hudi": ("headgate.tables.hudi.kind", "HudiKind"),
}
"""Module and class: each kind is imported when a sink names it, and not by every command."""

_ICEBERG = Traits(Guarantee.EXACTLY_ONCE, frozenset(Capability))


def other_kind(settings: SinkSettings) -> TableKind | None:
    """Return the kind of the sink's table, unless it is Iceberg. Raises ``KindUnknown``."""
    name = settings.table.type
    return None if name == ICEBERG else _kind(name)


def traits_of(settings: SinkSettings) -> Traits:
    """Return what tables of the sink's kind promise and can do. Raises ``KindUnknown``."""
    kind = other_kind(settings)
    return _ICEBERG if kind is None else Traits(kind.guarantee, kind.capabilities)


def weaker(settings: SinkSettings) -> str | None:
    """Say what tables of the sink's kind promise where that is less than exactly once."""
    guarantee = traits_of(settings).guarantee
    if guarantee is Guarantee.EXACTLY_ONCE:
        return None
    return f"tables of kind {settings.table.type} hold records {guarantee.value}"


def kind_names() -> list[str]:
    """Return all names that ``table.type`` can have, sorted."""
    registered = (point.name for point in entry_points(group=ENTRY_POINT_GROUP))
    return sorted({ICEBERG, *_OURS, *registered})


def _kind(name: str) -> TableKind:
    factory = _own(name) or _registered(name)
    if factory is None:
        known = kind_names()
        raise KindUnknown(
            f"table.type cannot be {name!r}",
            f"known are: {', '.join(known)}{nearest(name, known)}",
        )
    return factory()


def _own(name: str) -> KindFactory | None:
    if name not in _OURS:
        return None
    module, kind = _OURS[name]
    return cast("KindFactory", getattr(import_module(module), kind))


def _registered(name: str) -> KindFactory | None:
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return cast("KindFactory", point.load())
    return None


def wanted_table(settings: SinkSettings) -> WantedTable:
    """Return what the sink file says of its table. Raises ``ConfigurationError``."""
    table = settings.table
    wanted = declared(table)
    try:
        columns = declared_columns(wanted.columns)
    except ConfigurationError as error:
        raise ConfigurationError(f"table.columns: {error.message}", error.hint) from None
    return WantedTable(
        name=table.identifier,
        location=table.location,
        create=table.create,
        columns=columns,
        comments=wanted.comments,
        partition_by=table.partition_by,
        properties=table.properties,
        storage=settings.catalog.properties,
        renewed_ms=settings.coordinator.tag_refresh_interval_ms,
        by_spark=settings.spark.writes,
        key=_row_key(settings),
    )


def _row_key(settings: SinkSettings) -> RowKey | None:
    table, places = settings.table, settings.table.record_columns
    if not table.key:
        return None
    return RowKey(table.key, places.partition, places.offset, places.topic)


def check_kind(settings: SinkSettings) -> None:
    """Raise for what the kind of table does not do, or promises less than the sink file accepts.

    The errors are ``KindUnknown``, ``KindLacks``, ``GuaranteeTooWeak``, ``ConfigurationError``.
    """
    kind = other_kind(settings)
    if kind is None:
        return
    for capability, setting in _asked(settings):
        if capability is None or capability not in kind.capabilities:
            raise KindLacks(
                f"{setting}: tables of kind {settings.table.type} do not have that",
                "leave it out, or fill an Iceberg table",
            )
    if (promised := weaker(settings)) and not settings.table.accept_duplicates:
        raise GuaranteeTooWeak(
            promised,
            "set table.accept_duplicates = true if that will do, or fill another kind of table",
        )
    kind.refuse(wanted_table(settings))


def _asked(settings: SinkSettings) -> list[tuple[Capability | None, str]]:
    """The settings that ask for more than rows appended to one table, and what each needs.

    Without a capability they are Iceberg's own.
    """
    table, catalog = settings.table, settings.catalog
    evolves = table.schema.unknown_fields is UnknownFields.EVOLVE
    upkeep = settings.maintenance or settings.maintenance.expire_after_ms
    asked = {
        "[tables]": (Capability.FOLLOWERS, settings.tables),
        "a quarantine": (Capability.FOLLOWERS, settings.quarantine.keeps),
        "table.branch": (Capability.BRANCHES, table.branch != "main"),
        'table.schema.unknown_fields = "evolve"': (Capability.EVOLUTION, evolves),
        "[maintenance]": (Capability.MAINTENANCE, upkeep),
        "table.sort_by": (None, table.sort_by),
        "table.key": (Capability.KEYS, table.key),
        "catalog.backend": (None, catalog.backend is not Backend.PYICEBERG),
    }
    return [(capability, setting) for setting, (capability, is_set) in asked.items() if is_set]
