"""Finds table formats by name: Iceberg, headgate's other formats, and those of other packages.

A package offers a format through an entry point in the group ``headgate.tables``. The entry point's
name is the value of ``table.type`` in the sink file; its object is a callable without arguments
that returns a ``TableFormat``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from headgate.config.catalog_settings import Backend, CatalogSettings
from headgate.config.multi_table_settings import CreateFrom, TablesSettings
from headgate.config.routed_tables import (
    schema_policy_of,
    section_of_table,
    settings_of_routed_table,
)
from headgate.config.table_declaration import declaration_of, quarantine_declaration
from headgate.config.table_settings import ICEBERG, RecordColumns, TableSettings
from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import (
    ConfigurationError,
    GuaranteeTooWeak,
    TableFormatLacks,
    TableFormatUnknown,
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
from headgate.data_plane.cdc.policy import OnDelete
from headgate.data_plane.formats.format_registry import did_you_mean_suffix
from headgate.data_plane.routing.routes import RAW_NAME_PROPERTY
from headgate.participant.settings import UnknownFields

if TYPE_CHECKING:
    from headgate.config.sink_sections import SinkSections

ENTRY_POINT_GROUP = "headgate.tables"

KindFactory = Callable[[], TableFormat]

_ICEBERG = Traits(Guarantee.EXACTLY_ONCE, frozenset(Capability))


def plugin_format(settings: SinkSections) -> TableFormat | None:
    """Return the format of the sink's own table (Iceberg: none). Raises ``TableFormatUnknown``."""
    return plugin_format_of_table(settings, settings.table.identifier)


def plugin_format_of_table(settings: SinkSections, table: str) -> TableFormat | None:
    """Return the format of a table of the sink (Iceberg: none). Raises ``TableFormatUnknown``."""
    name = settings.table_type_of(table)
    return None if name == ICEBERG else _require_known_format(name, "table.type")


def traits_of_format(settings: SinkSections) -> Traits:
    """Return what the sink's format guarantees and supports. Raises ``TableFormatUnknown``."""
    plugin = plugin_format(settings)
    return _ICEBERG if plugin is None else Traits(plugin.guarantee, plugin.capabilities)


def describe_weaker_guarantee(settings: SinkSections) -> str | None:
    """Describe the guarantee of the sink's format if it is less than exactly once."""
    guarantee = traits_of_format(settings).guarantee
    if guarantee is Guarantee.EXACTLY_ONCE:
        return None
    return f"tables of format {settings.table.type} hold records {guarantee.value}"


def spark_conf_for_format_commits(settings: SinkSections) -> Mapping[str, str] | None:
    """Return what the Spark session that writes the files needs for commits of the sink's format.

    ``None``: they need no session of Spark, or files are written without one.
    """
    plugin = plugin_format(settings)
    if plugin is None or not settings.spark.is_writer:
        return None
    if not isinstance(plugin, SupportsSparkSession):
        return None
    return plugin.spark_conf(primary_table_spec(settings))


def known_format_names() -> list[str]:
    """Return all values that ``table.type`` accepts, sorted."""
    from importlib.metadata import entry_points

    registered = (point.name for point in entry_points(group=ENTRY_POINT_GROUP))
    return sorted({ICEBERG, *registered})


def _require_known_format(name: str, setting: str) -> TableFormat:
    factory = _find_registered_factory(name)
    if factory is None:
        known = known_format_names()
        raise TableFormatUnknown(
            f"{setting} cannot be {name!r}",
            f"known formats: {', '.join(known)}{did_you_mean_suffix(name, known)}",
        )
    return factory()


def _find_registered_factory(name: str) -> KindFactory | None:
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return cast("KindFactory", point.load())
    return None


def primary_table_spec(settings: SinkSections) -> TableSpec:
    """Return what the sink file declares about its table. Raises ``ConfigurationError``."""
    try:
        wanted = _declared_spec(settings, settings.table)
    except ConfigurationError as error:
        raise ConfigurationError(f"table.columns: {error.message}", error.hint) from None
    evolves = settings.table.schema.unknown_fields is UnknownFields.EVOLVE
    wanted = replace(wanted, keeps_columns=not evolves)
    if settings.tables:
        return replace(wanted, primary=_declared_table_properties(settings), ledger=True)
    return replace(
        wanted,
        key=_row_key_if_rows_replaced(settings, settings.table.key, settings.table.record_columns),
    )


def table_spec_of(settings: SinkSections, name: str) -> TableSpec:
    """Return what the sink file says of a table of the sink. Raises ``ConfigurationError``."""
    primary = name == settings.table.identifier
    return primary_table_spec(settings) if primary else secondary_table_spec(settings, name)


def secondary_table_spec(settings: SinkSections, name: str) -> TableSpec:
    """Return the quarantine's declaration, or that of a routed table that must not be created."""
    if name == settings.quarantine.table:
        return quarantine_spec(settings)
    tables = settings.tables
    if not tables:  # a quarantine that the sink file does not name any more
        return _base_spec(settings, name, "")
    section = section_of_table(tables, name)
    unknown_fields = schema_policy_of(tables, section).unknown_fields
    return replace(
        _base_spec(settings, name, tables.creation_location_of(name)),
        properties=tables.create.properties,
        renewed_ms=tables.valid_through_refresh_ms,
        key=_row_key_if_rows_replaced(settings, tables.routing.key_of(name), tables.record_columns),
        primary=_declared_table_properties(settings),
        keeps_columns=unknown_fields is not UnknownFields.EVOLVE,
    )


def routed_spec_to_create(
    settings: SinkSections, table: TableSettings, raw_name: str, inferred: Struct
) -> TableSpec:
    """Return a routed table to create; ``inferred`` are the columns that records have shown.

    ``raw_name`` is the name before the route made it a table name. Raises ``ConfigurationError``.
    """
    wanted = _declared_spec(settings, table)
    taken = {column.name.lower() for column in wanted.columns.fields}
    own = tuple(column for column in inferred.fields if column.name.lower() not in taken)
    return replace(
        wanted,
        columns=Struct((*own, *wanted.columns.fields)),
        inferred=frozenset(column.name for column in own),
        properties={**wanted.properties, RAW_NAME_PROPERTY: raw_name},
        renewed_ms=settings.tables.valid_through_refresh_ms,
        key=_row_key_if_rows_replaced(settings, table.key, table.record_columns),
        primary=_declared_table_properties(settings),
    )


def quarantine_spec(settings: SinkSections) -> TableSpec:
    """Return the quarantine's declaration. Without an address, a catalog chooses its location; a
    format without a catalog has it beside the others."""
    from headgate.tables.neutral_schema import parse_declared_columns

    quarantine, tables = settings.quarantine, settings.tables
    beside = f"{settings.table.location.rstrip('/')}_quarantine"
    default = tables.creation_location_of(quarantine.table) if tables else beside
    if settings.table_type_of(quarantine.table) == ICEBERG:
        default = ""
    made = quarantine_declaration()
    return replace(
        _base_spec(settings, quarantine.table, quarantine.location or default),
        create=True,
        columns=parse_declared_columns(made.columns),
        comments=made.comments,
        primary=_declared_table_properties(settings),
    )


def _declared_spec(settings: SinkSections, table: TableSettings) -> TableSpec:
    from headgate.tables.neutral_schema import parse_declared_columns

    wanted = declaration_of(table)
    return replace(
        _base_spec(settings, table.identifier, table.location),
        create=table.create,
        columns=parse_declared_columns(wanted.columns),
        comments=wanted.comments,
        partition_by=table.partition_by,
        sort_by=table.sort_by,
        properties=table.properties,
    )


def _base_spec(settings: SinkSections, name: str, location: str) -> TableSpec:
    """Return what applies to all tables of a sink."""
    return TableSpec(
        name,
        location,
        storage=settings.catalog.properties,
        renewed_ms=settings.coordinator.tag_refresh_interval_ms,
        by_spark=settings.spark.is_writer,
        branch=settings.table.branch,
        expire_after_ms=settings.maintenance.expire_after_ms,
        index_memory_bytes=settings.changes.index_memory_bytes,
        readd_dropped=(settings.tables or settings.table).schema.readd_dropped,
    )


def _declared_table_properties(settings: SinkSections) -> Mapping[str, str]:
    """Return the file's properties for the primary table, or for all tables next to it."""
    tables = settings.tables
    return tables.create.properties if tables else settings.table.properties


def _row_key_if_rows_replaced(
    settings: SinkSections, key: tuple[str, ...], record_columns: RecordColumns
) -> RowKey | None:
    if not key or settings.changes.history:  # KEY-14: its commits only append
        return None
    deleted_at = settings.changes.deleted_at if settings.changes.marks_deleted_rows else ""
    return RowKey(
        key, record_columns.partition, record_columns.offset, record_columns.topic, deleted_at
    )


def require_format_support(settings: SinkSections) -> None:
    """Refuse what the format does not support, and a guarantee weaker than the sink file accepts.

    Raises ``TableFormatUnknown``, ``TableFormatLacks``, ``GuaranteeTooWeak`` or
    ``ConfigurationError``.
    """
    _require_quarantine_format(settings)
    plugin = plugin_format(settings)
    if plugin is None:
        return
    _require_known_capabilities(settings.table.type, plugin)
    for capability, setting in _needed_capabilities(settings):
        if capability is None or capability not in plugin.capabilities:
            raise TableFormatLacks(
                f"{setting}: tables of format {settings.table.type} do not support that",
                "leave it out, or fill an Iceberg table",
            )
    if (promised := describe_weaker_guarantee(settings)) and not settings.table.accept_duplicates:
        raise GuaranteeTooWeak(
            promised,
            "set table.accept_duplicates = true if that will do, or fill another table format",
        )
    if settings.tables:
        _require_locations_from_names(settings, plugin)
    plugin.require_supported(primary_table_spec(settings))
    _require_fitting_spark_session(settings)
    if settings.quarantine.keeps_rejected_records:
        _require_own_quarantine_location(settings)
    if settings.quarantine.keeps_rejected_records and not settings.has_quarantine_of_other_format:
        _require_supported_quarantine(settings, plugin)


def _require_fitting_spark_session(settings: SinkSections) -> None:
    """Check that one session can both write the files and commit them, where it has to."""
    needed, spark = spark_conf_for_format_commits(settings), settings.spark
    if needed is None:
        return
    name = settings.table.type
    if spark.remote:
        raise TableFormatLacks(
            f"spark.remote: commits to tables of format {name} run in the JVM of this process",
            'use spark.master or spark-submit, or set spark.writer = "in-process"',
        )
    if differing := sorted(
        key for key in needed if spark.conf.get(key, needed[key]) != needed[key]
    ):
        raise ConfigurationError(
            f"spark.conf.{differing[0]} is not what commits to tables of format {name} need, and "
            "one session writes and commits",
            f"remove it, or set {differing[0]} under [catalog.properties]",
        )


def _require_known_capabilities(name: str, plugin: TableFormat) -> None:
    """Refuse a format that declares what headgate would never call."""
    if unknown := sorted(set(map(str, plugin.capabilities)) - set(Capability)):
        raise TableFormatLacks(
            f"tables of format {name} declare {', '.join(unknown)}, for which there is no port",
            f"the package may be for another release; known: {', '.join(sorted(Capability))}",
        )


def _may_evolve_columns(tables: TablesSettings) -> bool:
    evolve = UnknownFields.EVOLVE
    message = [tables.schema.unknown_fields, *(each.unknown_fields for each in tables.table)]
    return bool(tables) and evolve in message


def _require_locations_from_names(settings: SinkSections, plugin: TableFormat) -> None:
    """Require a location template that a table's name gives, no other location, and tables that the
    format supports."""
    location = settings.tables.create.location
    if not location.endswith("/{table}") or location.count("{table}") > 1:
        raise TablesUnfit(
            f"tables.create.location does not end with /{{table}}, or has it twice, and tables of "
            f"format {settings.tables.type} are found by it",
            'write "s3://lake/{namespace}/{table}", or an absolute path',
        )
    for each in settings.tables.table:
        if each.location:
            raise TablesUnfit(
                f"tables.table {each.match!r}: location is set, but tables of format "
                f"{settings.tables.type} are found by tables.create.location",
                "remove it",
            )
    for space in sorted({route.to.rpartition(".")[0] for route in settings.tables.route}):
        plugin.require_supported(secondary_table_spec(settings, f"{space}.table"))
    for each in settings.tables.table:
        if each.columns and settings.tables.create.schema is not CreateFrom.OFF:
            table = settings_of_routed_table(settings.tables, "any.table", each)
            plugin.require_supported(routed_spec_to_create(settings, table, "any", Struct()))


def _require_quarantine_format(settings: SinkSections) -> None:
    """The quarantine is of the table's format, or an Iceberg table with a catalog of its own."""
    wanted, catalog = settings.quarantine, settings.quarantine.catalog
    if wanted.type in ("", settings.table.type):
        if catalog != CatalogSettings():
            raise ConfigurationError(
                f"quarantine.catalog is set, but the quarantine is of format {settings.table.type} "
                "like the table, and found as the table is",
                'remove it, or set quarantine.type = "iceberg" beside a table of another format',
            )
        return
    if wanted.type != ICEBERG:
        _require_known_format(wanted.type, "quarantine.type")
        raise TableFormatLacks(
            f"quarantine.type: a table of format {settings.table.type} has no quarantine of format "
            f"{wanted.type}",
            "leave it out: the quarantine is of the table's format"
            + ("" if settings.table.type == ICEBERG else '; or set it to "iceberg"'),
        )
    if catalog.backend is not Backend.PYICEBERG:
        raise TableFormatLacks(
            f"quarantine.catalog.backend: a quarantine beside a table of format "
            f"{settings.table.type} has no catalog in Java",
            "use a catalog that pyiceberg opens",
        )


def _require_own_quarantine_location(settings: SinkSections) -> None:
    quarantine = settings.quarantine
    place = (
        quarantine.location
        if settings.has_quarantine_of_other_format
        else quarantine_spec(settings).location
    )
    if place.rstrip("/") == settings.table.location.rstrip("/") != "":
        raise ConfigurationError(
            "quarantine.location is table.location", "the quarantine is a table of its own"
        )


def _require_supported_quarantine(settings: SinkSections, plugin: TableFormat) -> None:
    try:
        plugin.require_supported(quarantine_spec(settings))
    except ConfigurationError as error:
        raise type(error)(f"the quarantine: {error.message}", error.hint) from None


def _needed_capabilities(settings: SinkSections) -> list[tuple[Capability | None, str]]:
    """Return the settings that go beyond appending to one table, each with the capability it needs.

    Without a capability, only Iceberg supports it.
    """
    table, tables, catalog = settings.table, settings.tables, settings.catalog
    evolves = table.schema.unknown_fields is UnknownFields.EVOLVE
    upkeep = settings.maintenance or settings.maintenance.expire_after_ms
    upkeep = upkeep and not settings.has_quarantine_of_other_format
    quarantine = settings.quarantine
    letters = quarantine.dead_letter_topic and not settings.has_quarantine_of_other_format
    asked = {
        "[tables]": (Capability.MANY_TABLES, tables),
        "tables.atomic": (None, tables.atomic),
        "tables.table.key": (Capability.KEYED_TABLES, tables.has_keyed_table),
        'tables.schema.unknown_fields = "evolve"': (
            Capability.EVOLUTION,
            _may_evolve_columns(tables),
        ),
        "tables.create.sort_by": (None, tables.create.sort_by),
        "quarantine.dead_letter_topic": (None, letters),
        "a quarantine": (
            Capability.SECONDARY_TABLES,
            quarantine.keeps_rejected_records and not settings.has_quarantine_of_other_format,
        ),
        "table.branch": (Capability.BRANCHES, table.branch != "main"),
        'table.schema.unknown_fields = "evolve"': (Capability.EVOLUTION, evolves),
        "[maintenance]": (None, upkeep),
        "maintenance.rows_after_ms": (None, settings.maintenance.rows_after_ms),
        "table.sort_by": (None, table.sort_by),
        "table.key": (Capability.KEYS, table.key),
        'changes.on_delete = "mark"': (None, settings.changes.on_delete is OnDelete.MARK),
        "changes.history": (None, settings.changes.history),
        'changes.on_partitions_added = "wait"': (
            None,
            settings.changes.added_partitions_hold_ms is not None,
        ),
        "catalog.backend": (None, catalog.backend is not Backend.PYICEBERG),
    }
    return [(capability, setting) for setting, (capability, is_set) in asked.items() if is_set]
