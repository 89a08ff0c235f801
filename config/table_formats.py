"""Finds kinds of tables by name: Iceberg, headgate's other kinds, and kinds of other packages.

A package offers a kind through an entry point in the group ``headgate.tables``. The entry point's
name is the value of ``table.type`` in the sink file; its object is a callable without arguments
that returns a ``TableFormat``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from headgate.config.catalog_settings import Backend, CatalogSettings
from headgate.config.multi_table_settings import CreateFrom, TablesSettings
from headgate.config.route_checks import one_table, policy_of, section_of
from headgate.config.table_declaration import declared, quarantine_declaration
from headgate.config.table_settings import ICEBERG, RecordColumns, TableSettings
from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import (
    ConfigurationError,
    GuaranteeTooWeak,
    KindLacks,
    KindUnknown,
    TablesUnfit,
)
from headgate.control_protocol.table_format import (
    Capability,
    Guarantee,
    RowKey,
    SupportsSparkSession,
    TableFormat,
    TableSpec,
    Traits,
)
from headgate.data_plane.batch.routes import RAW_NAME_PROPERTY
from headgate.data_plane.formats.format_registry import nearest
from headgate.participant.settings import UnknownFields

if TYPE_CHECKING:
    from headgate.config.sections import SinkSections

ENTRY_POINT_GROUP = "headgate.tables"

KindFactory = Callable[[], TableFormat]

_ICEBERG = Traits(Guarantee.EXACTLY_ONCE, frozenset(Capability))


def other_kind(settings: SinkSections) -> TableFormat | None:
    """Return the kind of the sink's own table, unless it is Iceberg. Raises ``KindUnknown``."""
    return kind_of(settings, settings.table.identifier)


def kind_of(settings: SinkSections, table: str) -> TableFormat | None:
    """Return the kind of a table of the sink, unless it is Iceberg. Raises ``KindUnknown``."""
    name = settings.type_of(table)
    return None if name == ICEBERG else _kind(name, "table.type")


def traits_of(settings: SinkSections) -> Traits:
    """Return what tables of the sink's kind guarantee and support. Raises ``KindUnknown``."""
    kind = other_kind(settings)
    return _ICEBERG if kind is None else Traits(kind.guarantee, kind.capabilities)


def weaker(settings: SinkSections) -> str | None:
    """Describe the guarantee of the sink's kind if it is less than exactly once."""
    guarantee = traits_of(settings).guarantee
    if guarantee is Guarantee.EXACTLY_ONCE:
        return None
    return f"tables of kind {settings.table.type} hold records {guarantee.value}"


def session_conf(settings: SinkSections) -> Mapping[str, str] | None:
    """Return what the Spark session that writes the files needs for commits of the sink's kind.

    ``None``: they need no session of Spark, or files are written without one.
    """
    kind = other_kind(settings)
    if kind is None or not settings.spark.writes:
        return None
    if not isinstance(kind, SupportsSparkSession):
        return None
    return kind.spark_conf(wanted_table(settings))


def kind_names() -> list[str]:
    """Return all values that ``table.type`` accepts, sorted."""
    from importlib.metadata import entry_points

    registered = (point.name for point in entry_points(group=ENTRY_POINT_GROUP))
    return sorted({ICEBERG, *registered})


def _kind(name: str, said_by: str) -> TableFormat:
    factory = _registered(name)
    if factory is None:
        known = kind_names()
        raise KindUnknown(
            f"{said_by} cannot be {name!r}",
            f"known kinds: {', '.join(known)}{nearest(name, known)}",
        )
    return factory()


def _registered(name: str) -> KindFactory | None:
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return cast("KindFactory", point.load())
    return None


def wanted_table(settings: SinkSections) -> TableSpec:
    """Return what the sink file declares about its table. Raises ``ConfigurationError``."""
    try:
        wanted = _declared(settings, settings.table)
    except ConfigurationError as error:
        raise ConfigurationError(f"table.columns: {error.message}", error.hint) from None
    evolves = settings.table.schema.unknown_fields is UnknownFields.EVOLVE
    wanted = replace(wanted, keeps_columns=not evolves)
    if settings.tables:
        return replace(wanted, primary=_primary_properties(settings), ledger=True)
    return replace(wanted, key=_row_key(settings.table.key, settings.table.record_columns))


def spec_of(settings: SinkSections, name: str) -> TableSpec:
    """Return what the sink file says of a table of the sink. Raises ``ConfigurationError``."""
    primary = name == settings.table.identifier
    return wanted_table(settings) if primary else wanted_secondary(settings, name)


def wanted_secondary(settings: SinkSections, name: str) -> TableSpec:
    """Return the quarantine's declaration, or that of a routed table that must not be created."""
    if name == settings.quarantine.table:
        return wanted_quarantine(settings)
    tables = settings.tables
    if not tables:  # a quarantine that the sink file does not name any more
        return _wanted(settings, name, "")
    section = section_of(tables, name)
    unknown_fields = policy_of(tables, section).unknown_fields
    return replace(
        _wanted(settings, name, tables.location_of(name)),
        properties=tables.create.properties,
        renewed_ms=tables.valid_through_refresh_ms,
        key=_row_key(tables.routing.key_of(name), tables.record_columns),
        primary=_primary_properties(settings),
        keeps_columns=unknown_fields is not UnknownFields.EVOLVE,
    )


def wanted_made(
    settings: SinkSections, table: TableSettings, raw: str, inferred: Struct
) -> TableSpec:
    """Return a routed table to create; ``inferred`` are the columns that records have shown.

    ``raw`` is the name before the route turned it into a table name. Raises ``ConfigurationError``.
    """
    wanted = _declared(settings, table)
    taken = {column.name.lower() for column in wanted.columns.fields}
    own = tuple(column for column in inferred.fields if column.name.lower() not in taken)
    return replace(
        wanted,
        columns=Struct((*own, *wanted.columns.fields)),
        inferred=frozenset(column.name for column in own),
        properties={**wanted.properties, RAW_NAME_PROPERTY: raw},
        renewed_ms=settings.tables.valid_through_refresh_ms,
        key=_row_key(table.key, table.record_columns),
        primary=_primary_properties(settings),
    )


def wanted_quarantine(settings: SinkSections) -> TableSpec:
    """Return the quarantine's declaration. Without an address, a catalog chooses its location; a
    format without a catalog has it beside the others."""
    from headgate.tables.neutral_schema import declared_columns

    aside, tables = settings.quarantine, settings.tables
    beside = f"{settings.table.location.rstrip('/')}_quarantine"
    default = tables.location_of(aside.table) if tables else beside
    if settings.type_of(aside.table) == ICEBERG:
        default = ""
    made = quarantine_declaration()
    return replace(
        _wanted(settings, aside.table, aside.location or default),
        create=True,
        columns=declared_columns(made.columns),
        comments=made.comments,
        primary=_primary_properties(settings),
    )


def _declared(settings: SinkSections, table: TableSettings) -> TableSpec:
    from headgate.tables.neutral_schema import declared_columns

    wanted = declared(table)
    return replace(
        _wanted(settings, table.identifier, table.location),
        create=table.create,
        columns=declared_columns(wanted.columns),
        comments=wanted.comments,
        partition_by=table.partition_by,
        sort_by=table.sort_by,
        properties=table.properties,
    )


def _wanted(settings: SinkSections, name: str, location: str) -> TableSpec:
    """Return what applies to all tables of a sink."""
    return TableSpec(
        name,
        location,
        storage=settings.catalog.properties,
        renewed_ms=settings.coordinator.tag_refresh_interval_ms,
        by_spark=settings.spark.writes,
        branch=settings.table.branch,
        expire_after_ms=settings.maintenance.expire_after_ms,
        index_memory_bytes=settings.changes.index_memory_bytes,
        readd_dropped=(settings.tables or settings.table).schema.readd_dropped,
    )


def _primary_properties(settings: SinkSections) -> Mapping[str, str]:
    """Return the file's properties for the primary table, or for all tables next to it."""
    tables = settings.tables
    return tables.create.properties if tables else settings.table.properties


def _row_key(key: tuple[str, ...], places: RecordColumns) -> RowKey | None:
    return RowKey(key, places.partition, places.offset, places.topic) if key else None


def check_kind(settings: SinkSections) -> None:
    """Refuse what the kind does not support, and a guarantee weaker than the sink file accepts.

    Raises ``KindUnknown``, ``KindLacks``, ``GuaranteeTooWeak`` or ``ConfigurationError``.
    """
    _check_type_aside(settings)
    kind = other_kind(settings)
    if kind is None:
        return
    _refuse_declared(settings.table.type, kind)
    for capability, setting in _asked(settings):
        if capability is None or capability not in kind.capabilities:
            raise KindLacks(
                f"{setting}: tables of kind {settings.table.type} do not support that",
                "leave it out, or fill an Iceberg table",
            )
    if (promised := weaker(settings)) and not settings.table.accept_duplicates:
        raise GuaranteeTooWeak(
            promised,
            "set table.accept_duplicates = true if that will do, or fill another kind of table",
        )
    if settings.tables:
        _check_places(settings, kind)
    kind.refuse(wanted_table(settings))
    _check_session(settings)
    if settings.quarantine.keeps:
        _check_place_aside(settings)
    if settings.quarantine.keeps and not settings.apart:
        _refuse_aside(settings, kind)


def _check_session(settings: SinkSections) -> None:
    """Check that one session can both write the files and commit them, where it has to."""
    needed, spark = session_conf(settings), settings.spark
    if needed is None:
        return
    kind = settings.table.type
    if spark.remote:
        raise KindLacks(
            f"spark.remote: commits to tables of kind {kind} run in the JVM of this process",
            'use spark.master or spark-submit, or set spark.writer = "in-process"',
        )
    if differing := sorted(
        key for key in needed if spark.conf.get(key, needed[key]) != needed[key]
    ):
        raise ConfigurationError(
            f"spark.conf.{differing[0]} is not what commits to tables of kind {kind} need, and one "
            "session writes and commits",
            f"remove it, or set {differing[0]} under [catalog.properties]",
        )


def _refuse_declared(name: str, kind: TableFormat) -> None:
    """Refuse a kind that declares what headgate would never call."""
    if unknown := sorted(set(map(str, kind.capabilities)) - set(Capability)):
        raise KindLacks(
            f"tables of kind {name} declare {', '.join(unknown)}, for which there is no port",
            f"the package may be for another release; known: {', '.join(sorted(Capability))}",
        )


def _any_evolves(tables: TablesSettings) -> bool:
    evolve = UnknownFields.EVOLVE
    said = [tables.schema.unknown_fields, *(each.unknown_fields for each in tables.table)]
    return bool(tables) and evolve in said


def _check_places(settings: SinkSections, kind: TableFormat) -> None:
    """Check that tables without a catalog can be found from their names."""
    location = settings.tables.create.location
    if not location.endswith("/{table}") or location.count("{table}") > 1:
        raise TablesUnfit(
            f"tables.create.location does not end with /{{table}}, or has it twice, and tables of "
            f"kind {settings.tables.type} are found by it",
            'write "s3://lake/{namespace}/{table}", or an absolute path',
        )
    for each in settings.tables.table:
        if each.location:
            raise TablesUnfit(
                f"tables.table {each.match!r}: location is set, but tables of kind "
                f"{settings.tables.type} are found by tables.create.location",
                "remove it",
            )
    for space in sorted({route.to.rpartition(".")[0] for route in settings.tables.route}):
        kind.refuse(wanted_secondary(settings, f"{space}.table"))
    for each in settings.tables.table:
        if each.columns and settings.tables.create.schema is not CreateFrom.OFF:
            table = one_table(settings.tables, "any.table", each)
            kind.refuse(wanted_made(settings, table, "any", Struct()))


def _check_type_aside(settings: SinkSections) -> None:
    """The quarantine is of the table's kind, or an Iceberg table with a catalog of its own."""
    wanted, catalog = settings.quarantine, settings.quarantine.catalog
    if wanted.type in ("", settings.table.type):
        if catalog != CatalogSettings():
            raise ConfigurationError(
                f"quarantine.catalog is set, but the quarantine is of kind {settings.table.type} "
                "like the table, and found as the table is",
                'remove it, or set quarantine.type = "iceberg" beside a table of another kind',
            )
        return
    if wanted.type != ICEBERG:
        _kind(wanted.type, "quarantine.type")
        raise KindLacks(
            f"quarantine.type: a table of kind {settings.table.type} has no quarantine of kind "
            f"{wanted.type}",
            "leave it out: the quarantine is of the table's kind"
            + ("" if settings.table.type == ICEBERG else '; or set it to "iceberg"'),
        )
    if catalog.backend is not Backend.PYICEBERG:
        raise KindLacks(
            f"quarantine.catalog.backend: a quarantine beside a table of kind "
            f"{settings.table.type} has no catalog in Java",
            "use a catalog that pyiceberg opens",
        )


def _check_place_aside(settings: SinkSections) -> None:
    aside = settings.quarantine
    place = aside.location if settings.apart else wanted_quarantine(settings).location
    if place.rstrip("/") == settings.table.location.rstrip("/") != "":
        raise ConfigurationError(
            "quarantine.location is table.location", "the quarantine is a table of its own"
        )


def _refuse_aside(settings: SinkSections, kind: TableFormat) -> None:
    try:
        kind.refuse(wanted_quarantine(settings))
    except ConfigurationError as error:
        raise type(error)(f"the quarantine: {error.message}", error.hint) from None


def _asked(settings: SinkSections) -> list[tuple[Capability | None, str]]:
    """Return the settings that go beyond appending to one table, each with the capability it needs.

    Without a capability, only Iceberg supports it.
    """
    table, tables, catalog = settings.table, settings.tables, settings.catalog
    evolves = table.schema.unknown_fields is UnknownFields.EVOLVE
    upkeep = settings.maintenance or settings.maintenance.expire_after_ms
    upkeep = upkeep and not settings.apart
    aside = settings.quarantine
    letters = aside.dead_letter_topic and not settings.apart
    asked = {
        "[tables]": (Capability.MANY_TABLES, tables),
        "tables.atomic": (None, tables.atomic),
        "tables.table.key": (Capability.KEYED_TABLES, tables.keyed),
        'tables.schema.unknown_fields = "evolve"': (Capability.EVOLUTION, _any_evolves(tables)),
        "tables.create.sort_by": (None, tables.create.sort_by),
        "quarantine.dead_letter_topic": (None, letters),
        "a quarantine": (Capability.SECONDARY_TABLES, aside.keeps and not settings.apart),
        "table.branch": (Capability.BRANCHES, table.branch != "main"),
        'table.schema.unknown_fields = "evolve"': (Capability.EVOLUTION, evolves),
        "[maintenance]": (None, upkeep),
        "table.sort_by": (None, table.sort_by),
        "table.key": (Capability.KEYS, table.key),
        'changes.on_partitions_added = "wait"': (None, settings.changes.held_ms is not None),
        "catalog.backend": (None, catalog.backend is not Backend.PYICEBERG),
    }
    return [(capability, setting) for setting, (capability, is_set) in asked.items() if is_set]
