"""Lists the rights that each role needs on Kafka and on the catalog, as commands to paste. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headgate.config.catalog_settings import CatalogSettings
from headgate.config.multi_table_settings import CreateFrom
from headgate.config.sink_settings import SinkSettings
from headgate.config.worker_settings import WorkerSettings


class Role(StrEnum):
    """Who uses a sink file: a participant, an operator, or a viewer."""

    SINK = "sink"
    OPERATOR = "operator"
    VIEWER = "viewer"


@dataclass(frozen=True, slots=True)
class Rights:
    """Kafka's operations, in the brokers' lower-case words. ``commits``: to the table."""

    source: tuple[str, ...]
    control: tuple[str, ...]
    group: tuple[str, ...]
    commits: bool


RIGHTS: Mapping[Role, Rights] = {
    Role.SINK: Rights(
        ("read", "describe"),
        ("read", "write", "describe", "describe_configs"),
        ("read", "describe"),
        commits=True,
    ),
    Role.OPERATOR: Rights(
        ("describe",),
        ("read", "write", "describe", "describe_configs"),
        ("read", "describe"),
        commits=True,
    ),
    Role.VIEWER: Rights(("describe",), ("read", "describe"), ("describe",), commits=False),
}


def sink_grant_commands(settings: SinkSettings, role: Role, principal: str) -> str:
    """Return what an administrator pastes into a shell, and into the catalog's database."""
    rights = RIGHTS[role]
    lines = [f"# {role.value} of sink {settings.name}; B holds the bootstrap servers"]
    for topic in settings.source.topics:
        if topic.startswith("^"):
            lines.append(f"# every topic that matches {topic} needs the same as the next line")
        lines.append(_acl_command(principal, rights.source, "topic", topic.removeprefix("^")))
    lines.append(_acl_command(principal, rights.control, "topic", settings.control.topic))
    lines.append(_acl_command(principal, rights.group, "group", settings.source.group_id))
    if role is Role.SINK and settings.quarantine.dead_letter_topic:
        letters = ("read", "write", "describe")
        lines.append(
            _acl_command(principal, letters, "topic", settings.quarantine.dead_letter_topic)
        )
        group = f"{settings.source.group_id}-dead-letters"
        lines.append(_acl_command(principal, ("read", "describe"), "group", group))
    if role is Role.SINK:
        lines += _lineage_and_signal_grant_commands(settings, principal)
    return "\n".join([*lines, "", *_catalog_grant_commands(settings, role, principal), ""])


def _lineage_and_signal_grant_commands(settings: SinkSettings, principal: str) -> list[str]:
    """Return what lineage and signals need; their notes are in the control topic."""
    lines = []
    for section, given in (("lineage", settings.lineage), ("signal", settings.signal)):
        if given.topic:
            lines.append(_acl_command(principal, ("write", "describe"), "topic", given.topic))
        if given:
            group = f"{settings.source.group_id}-{section}"
            lines.append(_acl_command(principal, ("read", "describe"), "group", group))
    return lines


class FleetRole(StrEnum):
    """Who uses the file of a fleet's workers: a worker, an operator, or a viewer (the page)."""

    WORKER = "worker"
    OPERATOR = "operator"
    VIEWER = "viewer"


@dataclass(frozen=True, slots=True)
class FleetRights:
    """As ``Rights``, on a fleet's topics, its group, and its transactional id."""

    fleet: tuple[str, ...]
    state: tuple[str, ...]
    group: tuple[str, ...]
    transactional_id: tuple[str, ...]


FLEET_RIGHTS: Mapping[FleetRole, FleetRights] = {
    FleetRole.WORKER: FleetRights(
        ("read", "write", "describe"),
        ("read", "write", "describe"),
        ("read", "describe"),
        ("write", "describe"),
    ),
    FleetRole.OPERATOR: FleetRights(
        ("read", "write", "describe", "describe_configs"),
        ("read", "describe", "describe_configs"),
        ("describe",),
        ("write", "describe"),
    ),
    FleetRole.VIEWER: FleetRights(("read", "describe"), ("read", "describe"), ("describe",), ()),
}


def fleet_grant_commands(settings: WorkerSettings, role: FleetRole, principal: str) -> str:
    """Return what an administrator pastes into a shell. Each sink's own rights come on top."""
    rights, fleet = FLEET_RIGHTS[role], settings.fleet
    lines = [f"# {role.value} of fleet {fleet.name}; B holds the bootstrap servers"]
    if role is FleetRole.OPERATOR:
        topics = f"{fleet.name} and {fleet.state_topic}"
        lines.append(f"# the first apply creates {topics}: it needs Create on both as well")
    if role is FleetRole.WORKER:
        lines.append(
            "# a worker runs sinks with the credentials in their files: headgate rights SINK.toml"
        )
    lines.append(_acl_command(principal, rights.fleet, "topic", fleet.name))
    lines.append(_acl_command(principal, rights.state, "topic", fleet.state_topic))
    lines.append(_acl_command(principal, rights.group, "group", fleet.name))
    if rights.transactional_id:
        lines.append(
            _acl_command(principal, rights.transactional_id, "transactional-id", fleet.name)
        )
    return "\n".join([*lines, ""])


def _acl_command(principal: str, operations: tuple[str, ...], kind: str, name: str) -> str:
    words = [
        *("--add", "--allow-principal", f"User:{principal}"),
        *(word for o in operations for word in ("--operation", _acl_name(o))),
        *(f"--{kind}", name),
    ]
    start = 'kafka-acls --bootstrap-server "$B" --command-config admin.conf'
    return f"{start} {shlex.join(words)}"


def _acl_name(operation: str) -> str:
    """Spell ``describe_configs`` as kafka-acls does."""
    return "".join(part.capitalize() for part in operation.split("_"))


def _catalog_grant_commands(settings: SinkSettings, role: Role, principal: str) -> list[str]:
    tables, aside = [settings.table.identifier], settings.quarantine.table
    is_sink, quarantines = role is Role.SINK, settings.quarantine.keeps_rejected_records
    creates = is_sink and settings.table.create
    if settings.tables:
        routed = {r.to if "{" not in r.to else f"every {r.to}" for r in settings.tables.route}
        tables += sorted(routed - {*tables})
        creates = creates or (is_sink and settings.tables.create.schema is not CreateFrom.OFF)
    if settings.has_quarantine_of_other_format:
        its_own = settings.quarantine.catalog
        return [
            *_grant_lines_of_catalog(settings.catalog, tables, role, principal, creates=creates),
            "",
            *_grant_lines_of_catalog(its_own, [aside], role, principal, creates=is_sink),
        ]
    tables += [aside] if quarantines else []
    creates = creates or (is_sink and quarantines)  # it is made if it is missing
    return _grant_lines_of_catalog(settings.catalog, tables, role, principal, creates=creates)


def _grant_lines_of_catalog(
    catalog: CatalogSettings, tables: list[str], role: Role, principal: str, *, creates: bool
) -> list[str]:
    named = f"{', '.join(tables[:-1])} and {tables[-1]}" if len(tables) > 1 else tables[0]
    uri = catalog.properties.get("uri", "")
    if catalog.properties.get("type") == "sql" and uri.startswith("postgresql"):
        user = '"' + principal.replace('"', '""') + '"'
        may = "SELECT, UPDATE" if RIGHTS[role].commits else "SELECT"
        if creates:
            may += ", INSERT"
        lines = [f"-- catalog, in PostgreSQL: for {named}, and every table of this catalog"]
        lines.append(f"GRANT {may} ON iceberg_tables TO {user};")
        properties = "SELECT, INSERT" if creates else "SELECT"
        return [*lines, f"GRANT {properties} ON iceberg_namespace_properties TO {user};"]
    may = "load and commit" if RIGHTS[role].commits else "load"
    if creates:
        may += ", and create,"
    storage = {
        Role.SINK: "read, write and delete files below the table's location",
        Role.OPERATOR: "read and write files below the table's location/metadata; delete, maintain "
        "and tables resume also read, write and delete files below its location",
        Role.VIEWER: "read files below the table's location/metadata",
    }[role]
    return [f"# catalog: {principal} may {may} {named}", f"# storage: {storage}"]
