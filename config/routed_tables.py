"""Checks a sink file's settings for routed tables, and resolves them for one table."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.config.catalog_settings import Backend
from headgate.config.column_rules import (
    require_valid_column_rules,
    rules_of_columns,
    value_format_of,
)
from headgate.config.multi_table_settings import (
    CreateFrom,
    OneTableSettings,
    OnMissing,
    TablesSettings,
)
from headgate.config.table_declaration import require_consistent_columns, require_valid_declaration
from headgate.config.table_settings import ICEBERG, ColumnSettings, TableSettings
from headgate.control_protocol.errors import (
    ConfigurationError,
    CreationUnfit,
    RouteUnfit,
    TablesUnfit,
)
from headgate.coordinator.settings import RollbackPolicy, TableRecreatedPolicy, TagMissingPolicy
from headgate.data_plane.batch.routed_table import CreationSource
from headgate.data_plane.formats.column_options import FROM, parse_path
from headgate.data_plane.routing.routes import (
    TABLE_COLUMN,
    Route,
    compile_pattern,
    fold_case,
    require_valid_route,
)
from headgate.participant.settings import Incompatible, SchemaPolicy, UnknownFields
from headgate.tables.iceberg.catalog_types import not_atomic_error, require_supported_type

if TYPE_CHECKING:
    from headgate.config.sink_sections import SinkSections
    from headgate.data_plane.batch.writer_task_plan import SourcePlan

_PLACEHOLDER = re.compile(r"\{\w+\}")
ONE_NAME = re.compile(r"[\w.-]+")
"""A section for one table, as opposed to a pattern for several."""
_ONE_OF = re.compile(r"[^(),\s|]+(?:\|[^(),\s|]+)+")


def require_valid_routed_tables(settings: SinkSections) -> None:
    """Raises ``ConfigurationError`` for settings that do not go together with many tables."""
    tables = settings.tables
    if not tables:
        if tables != TablesSettings():
            raise TablesUnfit("tables.ledger is missing", "name the table that decides for all")
        return
    if not tables.route:
        raise TablesUnfit("tables.route is missing", "say which records go to which table")
    for number, route in enumerate(tables.routing.routes, start=1):
        require_valid_route(route, f"route {number}")
        _require_route_not_to_own_table(settings, route, number)
        if settings.transform:
            _require_route_readable_from_rows(route, number)
        else:
            _require_readable_route_input(settings, route, number)
    _require_policies_fit_many_tables(settings)
    _require_consistent_tables_section(settings)
    _require_records_can_show_columns(settings)
    _require_distinct_locations(settings)
    any_table = TableSettings(identifier="any.table", record_columns=tables.record_columns)
    require_consistent_columns("tables", any_table)
    for each in tables.table:
        _require_valid_table_section(settings, each)


def _require_route_not_to_own_table(settings: SinkSections, route: Route, number: int) -> None:
    """ROUTE-5: refuse a route that leads nowhere but into one of the sink's own tables."""
    own = [settings.tables.ledger]
    own += [settings.quarantine.table] if settings.quarantine.keeps_rejected_records else []
    if fold_case(route.to) in map(fold_case, own):
        raise RouteUnfit(
            f"route {number} leads to {route.to}, which is one of the sink's own tables",
            "name a table of its own for these records",
        )


def _require_readable_route_input(settings: SinkSections, route: Route, number: int) -> None:
    made = value_format_of(settings)
    if route.record and not hasattr(made, "names_of_records"):
        raise RouteUnfit(
            f"route {number} looks at Avro record names, but values are {settings.format.type}",
            'format.type = "avro" and "avro-registry" have them',
        )
    if route.field:
        try:
            path = parse_path(route.field)
        except ValueError as error:
            raise RouteUnfit(f"route {number}: field = {error}", "write a.b.c") from None
        if len(path) > 1 and FROM not in getattr(made, "rules", frozenset()):
            raise RouteUnfit(
                f"route {number}: the format {settings.format.type} does not support paths",
                "name a field of the record itself",
            )


def _require_route_readable_from_rows(route: Route, number: int) -> None:
    """Refuse routes by value, header or record name, which a transform's rows no longer have."""
    if route.header or route.record or route.field not in ("", TABLE_COLUMN):
        seen = route.header or route.record or route.field
        raise RouteUnfit(
            f"route {number} looks at {seen!r}, but after a transform there are only rows",
            f"give what decides as a column {TABLE_COLUMN} in the transform, and write "
            f'field = "{TABLE_COLUMN}" in the route',
        )


def _require_columns_in_transform_section(settings: SinkSections) -> None:
    if not settings.transform.columns:
        raise TablesUnfit(
            "transform.columns are missing: with many tables, nothing else says how values are "
            "decoded",
            "declare the columns that the transform reads",
        )
    ruled = [each for each in settings.tables.table if rules_of_columns("", each.columns)]
    if ruled:
        raise TablesUnfit(
            f"tables.table {ruled[0].match!r}: a column has a rule, but values are decoded into "
            "transform.columns",
            "move the rule there",
        )


def _require_policies_fit_many_tables(settings: SinkSections) -> None:
    if settings.transform:
        _require_columns_in_transform_section(settings)
    policies = settings.coordinator
    for name, value, lets_go_back in (
        ("on_rollback", policies.on_rollback, RollbackPolicy.FOLLOW_TABLE),
        ("on_tag_missing", policies.on_tag_missing, TagMissingPolicy.FOLLOW_TABLE),
        ("on_table_recreated", policies.on_table_recreated, TableRecreatedPolicy.RESTART),
    ):
        if value is lets_go_back:
            require_no_routed_tables(settings, f"coordinator.{name} = {value}")


def require_no_routed_tables(settings: SinkSections, cause_in_error: str) -> None:
    """PENDING-9: refuse to go back, since the tables hold what a ledger would forget.

    Raises ``TablesUnfit``.
    """
    if settings.tables:
        raise TablesUnfit(
            f"{cause_in_error} would let the ledger {settings.tables.ledger} go back, and its "
            "tables would get rows twice",
            "restore the ledger; headgate rollback rolls it back together with its tables",
        )


_FORMATS = {
    CreateFrom.INFER: ("json",),
    CreateFrom.REGISTRY: (
        *("avro-registry", "avro", "glue-registry", "json-registry"),
        *("protobuf-registry", "protobuf"),
    ),
    CreateFrom.CONNECT: ("connect-json",),
}


def _require_records_can_show_columns(settings: SinkSections) -> None:
    """CREATE-1: require a format that tells columns, and no transform, where tables are created by
    records."""
    wanted, name = settings.tables.create.schema, settings.format.type
    if not wanted.takes_columns_from_records:
        return
    if settings.transform:
        raise CreationUnfit(
            f'tables.create.schema = "{wanted}" does not go with a transform',
            "a transform's result must be declared: declare the tables, or create them yourself",
        )
    made = value_format_of(settings)
    if name not in _FORMATS[wanted] or not hasattr(made, "unknown_columns_of_last_decode"):
        raise CreationUnfit(
            f'tables.create.schema = "{wanted}": the format {name} does not tell of columns so',
            "infer is for json, registry for formats with schemas, connect for "
            "connect-json; or declare the columns",
        )


def _require_distinct_locations(settings: SinkSections) -> None:
    """Refuse two tables in one place: each would take the other one's files for its own."""
    tables = settings.tables
    names = [route.to for route in tables.routing.routes]
    if tables.type != ICEBERG:
        names += [
            tables.ledger,
            *([] if settings.has_quarantine_of_other_format else [settings.quarantine.table]),
        ]
    elif tables.create.schema is CreateFrom.OFF:
        return
    places = [("tables.create", tables.create.location)]
    places += [
        (f"tables.table {each.match!r}", each.location)
        for each in tables.table
        if not ONE_NAME.fullmatch(each.match)
    ]
    for part, of in (("namespace", 0), ("table", 2)):
        named = {name.rpartition(".")[of] for name in names}
        several = len(named) > 1 or any("{" in each for each in named)
        for where, location in places:
            if several and location and f"{{{part}}}" not in location:
                raise TablesUnfit(
                    f"{where}: location = {location!r} is the same for several tables",
                    f"write {{{part}}} into it",
                )
    _require_own_quarantine_location(settings, [location for _, location in places if location])
    taken = {settings.quarantine.location.rstrip("/"): "quarantine"}
    for each in tables.table:
        place = tables.creation_location_of(each.match, each.location) if each.location else ""
        if place and ONE_NAME.fullmatch(each.match):
            where = f"tables.table {each.match!r}"
            if (other := taken.setdefault(place.rstrip("/"), where)) != where:
                raise TablesUnfit(
                    f"{where}: location = {each.location!r} is that of {other}, too",
                    "name a place of its own",
                )


def _require_own_quarantine_location(settings: SinkSections, places: Collection[str]) -> None:
    tables, quarantine = settings.tables, settings.quarantine
    for place in places if quarantine.location else ():
        if tables.creation_location_of(quarantine.table, place) == quarantine.location.rstrip("/"):
            continue
        for route in tables.routing.routes:
            made = compile_template_pattern(tables.creation_location_of(route.to, place))
            if made.fullmatch(quarantine.location.rstrip("/")):
                raise TablesUnfit(
                    f"quarantine.location = {quarantine.location!r} may be that of a table to "
                    f"which a route leads ({route.to})",
                    "name a place of its own",
                )


def _require_consistent_tables_section(settings: SinkSections) -> None:
    tables = settings.tables
    if tables.max < 1 or tables.new_per_minute_max < 1:
        raise ConfigurationError("tables.max or tables.new_per_minute_max is below 1", "raise it")
    _require_valid_linger_and_refresh(settings)
    _require_atomic_commit_possible(settings)
    if tables.create.schema is CreateFrom.OFF and (
        tables.create.partition_by or any(each.partition_by for each in tables.table)
    ):
        raise TablesUnfit(
            "a partitioning is set, but no table is created",
            'set tables.create.schema = "declared"',
        )
    if tables.on_missing is OnMissing.CREATE and tables.create.schema is CreateFrom.OFF:
        raise TablesUnfit(
            'tables.on_missing = "create" is given, but no table is made',
            "set tables.create.schema",
        )


PACE_PART = 8
"""Pending commits wait for others for at most this fraction of the age at which they expire, so
that a failed delivery has time."""


def _require_atomic_commit_possible(settings: SinkSections) -> None:
    """Check the settings only; the catalog's server is asked when it is opened."""
    if not settings.tables.atomic:
        return
    catalog = settings.catalog
    java = catalog.backend is Backend.JAVA
    if java or require_supported_type(catalog.name, catalog.properties) not in ("rest", ""):
        raise not_atomic_error(catalog.name)
    for each in settings.tables.table:
        if each.delivery_linger_ms:
            raise TablesUnfit(
                f"tables.table {each.match!r}: delivery_linger_ms is set, and so is tables.atomic",
                "gathered rows arrive later than the rest of their decision: remove one of the two",
            )


def _require_valid_linger_and_refresh(settings: SinkSections) -> None:
    """LINGER-1: refuse a linger in which pending commits would expire, and a valid-through refresh
    below 0."""
    most_ms = settings.coordinator.claim_age_max_ms // PACE_PART
    for each in settings.tables.table:
        if not 0 <= each.delivery_linger_ms <= most_ms:
            raise TablesUnfit(
                f"tables.table {each.match!r}: delivery_linger_ms = "
                f"{each.delivery_linger_ms} is not from 0 to "
                f"{most_ms}",
                f"that is 1/{PACE_PART} of coordinator.claim_age_max_ms, after which pending rows "
                "expire",
            )
    if settings.tables.valid_through_refresh_ms < 0:
        raise TablesUnfit("tables.valid_through_refresh_ms is below 0", "0 turns it off")


def _require_valid_table_section(settings: SinkSections, section: OneTableSettings) -> None:
    where = f"tables.table {section.match!r}"
    try:
        re.compile(section.match)
    except re.error as error:
        raise TablesUnfit(f"{where}: match is not a valid pattern: {error}", "mend it") from None
    require_valid_column_rules(where, section.columns, settings)
    off = settings.tables.create.schema is CreateFrom.OFF
    if section.columns and off and not rules_of_columns(where, section.columns):
        raise TablesUnfit(
            f"{where} declares columns, but tables.create.schema is off: no table is created by "
            "them, and records for missing tables go to the quarantine",
            'set tables.create.schema = "declared"; existing tables stay as they are',
        )
    if section.columns:
        try:
            table = settings_of_routed_table(settings.tables, "any.table", section)
            require_valid_declaration(table)
        except ConfigurationError as error:
            raise type(error)(f"{where}: {error.message}", error.hint) from None
        require_consistent_columns(where, table)


def compile_template_pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of what a template, a route's name or a location, may become."""
    return re.compile("[a-z0-9_]+".join(map(re.escape, _PLACEHOLDER.split(template))))


def section_of_table(tables: TablesSettings, table: str) -> OneTableSettings | None:
    """Return the first section whose pattern matches the whole name."""
    return next(
        (each for each in tables.table if compile_pattern(each.match).fullmatch(table)), None
    )


def settings_of_routed_table(
    tables: TablesSettings,
    table: str,
    section: OneTableSettings,
    inferred_columns: Collection[str] = (),
) -> TableSettings:
    """Return the settings of one table; ``inferred_columns`` are those that records show.

    Raises ``ConfigurationError`` if CREATE-3 finds no column.
    """
    columns = {column.name for column in section.columns} | set(inferred_columns)
    columns |= set(tables.record_columns.columns_by_part().values())
    by = section.partition_by or tables.create.partition_by
    return TableSettings(
        type=tables.type,
        identifier=table,
        create=tables.create.schema is not CreateFrom.OFF,
        columns=section.columns,
        partition_by=tuple(resolve_column_choice(text, columns, "partition") for text in by),
        sort_by=tuple(
            resolve_column_choice(text, columns, "sort") for text in tables.create.sort_by
        ),
        properties=tables.create.properties,
        location=tables.creation_location_of(table, section.location),
        record_columns=tables.record_columns,
        key=section.key,
    )


def resolve_column_choice(
    term: str, columns: set[str], partition_or_sort: str = "partition"
) -> str:
    """CREATE-3: return the term with its first existing column, ``day(a)`` for ``day(a|b)``.

    Raises ``ConfigurationError``.
    """
    found = _ONE_OF.search(term)
    if found is None:
        return term
    names = found[0].split("|")
    there = next((name for name in names if name in columns), None)
    if there is None:
        raise ConfigurationError(
            f"{partition_or_sort} {term!r}: there is no column {' or '.join(names)}",
            "the table cannot be created without it",
        )
    return term.replace(found[0], there)


class DeclaredTables:
    """Says what the sink file declares for each routed table: a ``TableDeclarations``."""

    def __init__(self, settings: SinkSections) -> None:
        self._settings = settings
        self._routing = settings.tables.routing

    def source_plan_for_table(self, source: SourcePlan, table: str) -> SourcePlan:
        return source_plan_of_table(self._settings, source, table)

    @property
    def recreates_missing(self) -> bool:
        return self._settings.tables.on_missing is OnMissing.CREATE

    def creation_source_of(self, source: SourcePlan, table: str) -> CreationSource | None:
        """CREATE-1: use the declared columns, else those that records show, if allowed."""
        wanted = self._settings.tables.create.schema
        makes = wanted is not CreateFrom.OFF and not self._settings.transform
        if not makes or not self._routing.may_create(table):
            return None
        each = section_of_table(self._settings.tables, table)
        declared = bool(each and each.columns)
        return CreationSource(self.source_plan_for_table(source, table), declared)


def source_plan_of_table(settings: SinkSections, source: SourcePlan, table: str) -> SourcePlan:
    """Return how records are read for one of the tables."""
    each = section_of_table(settings.tables, table)
    columns: tuple[ColumnSettings, ...] = each.columns if each else ()
    return replace(
        source,
        record_columns=settings.tables.record_columns.columns_by_part(),
        rules=rules_of_columns(f"tables.table {table!r}", columns),
        routing=None,
        schema_policy=schema_policy_of(settings.tables, each),
        changes=settings.changes.change_rules_for_key(each.key) if each else None,
    )


def schema_policy_of(tables: TablesSettings, section: OneTableSettings | None) -> SchemaPolicy:
    """Return what happens to fields for which such a table has no column."""
    policy = tables.schema.policy
    if section is not None and section.unknown_fields:
        policy = replace(policy, unknown_fields=UnknownFields(section.unknown_fields))
    if section is not None and section.incompatible:
        policy = replace(policy, incompatible=Incompatible(section.incompatible))
    return policy
