"""Translates where records go: one table, routes by a field, or tables that a field names."""

from __future__ import annotations

import re
from typing import Any

from headgate.operations.kafka_connect.converters_and_transforms import (
    fields_with_topic_name,
    transform_names,
)
from headgate.operations.kafka_connect.translation_report import Report

_PARTS = re.compile(r"(?:[^,(]|\([^)]*\))+")
_CREATE = {"json": "infer", "connect-json": "connect", "avro-registry": "registry"}
_CREATE |= {"protobuf-registry": "registry", "json-registry": "registry"}
_NAMED_BY_FIELD = r"^(?P<namespace>[^.]+)[.](?P<name>[^.]+)\Z"
_OF_TABLE = (".route-regex", ".partition-by", ".commit-branch")


def tables_of(report: Report) -> list[str]:
    """Return the tables that the connector names, each once."""
    return [*dict.fromkeys(report.connector_list("iceberg.tables"))]


def is_routed(report: Report) -> bool:
    """Return whether a field decides to which table a record goes."""
    return report.is_connector_value_true("iceberg.tables.dynamic-enabled") or bool(
        report.connector_value("iceberg.tables.route-field")
    )


def fill_tables(report: Report, only_table: str | None) -> None:
    """Fill ``[table]`` or ``[tables]``.

    ``only_table``: of several tables that each take every record, the one that this sink file is
    for.
    """
    tables = tables_of(report)
    if is_routed(report):
        report.ensure_section("tables")
        _fill_branch(report, tables, routed=True)
        _fill_routes(report, tables)
    elif tables:
        name = only_table or tables[0]
        table = report.ensure_section("table")
        table["identifier"] = name
        report.note_kept(
            "iceberg.tables",
            "table.identifier"
            + (": a sink file for each, as each gets every record" if len(tables) > 1 else ""),
        )
        _fill_branch(report, [name], routed=False)
    else:
        report.note_refused(
            "iceberg.tables", "no table is named, and Iceberg's sink would not start"
        )
    report.note_dropped(
        ("iceberg.tables.dynamic-enabled",) if not is_routed(report) else (), "routes say it"
    )


def _fill_branch(report: Report, tables: list[str], *, routed: bool) -> None:
    default = report.connector_value("iceberg.tables.default-commit-branch")
    branches = {
        t: report.connector_value(f"iceberg.table.{t}.commit-branch") or default for t in tables
    }
    named = {branch for branch in [*branches.values(), default] if branch and branch != "main"}
    keys = [k for k in report.keys if k.endswith(("commit-branch",))]
    for key in keys:
        if routed and named:
            report.note_refused(key, "a sink with routes commits to the main branch")
        elif key == "iceberg.tables.default-commit-branch" or key.split(".")[2:-1] == (
            tables[0].split(".") if tables else []
        ):
            report.note_kept(key, "table.branch")
        else:
            report.note_dropped((key,), "of another table")
    if not routed and tables and (branch := branches[tables[0]]) and branch != "main":
        report.ensure_section("table")["branch"] = branch


def _fill_routes(report: Report, tables: list[str]) -> None:
    field = report.connector_value("iceberg.tables.route-field")
    section = report.ensure_section("tables")
    by_topic = field in fields_with_topic_name(report, transform_names(report))
    if report.is_connector_value_true("iceberg.tables.dynamic-enabled"):
        routes = [_dynamic_route(field, by_topic=by_topic)]
        report.note_kept(
            "iceberg.tables.dynamic-enabled",
            "a route whose table the field names: lower case, and _ for all but letters and digits",
        )
        if not field:
            report.note_refused("iceberg.tables.route-field", "it is needed with dynamic-enabled")
        report.note_dropped(("iceberg.tables",), "the field names the tables")
    else:
        routes = [
            route for t in tables if (route := _static_route(report, t, field, by_topic=by_topic))
        ]
        report.note_kept("iceberg.tables", "the tables of [[tables.route]]")
        report.note_dropped(("iceberg.tables.dynamic-enabled",), "routes say it")
    what = "the topic, since a transform copies it there" if by_topic else "tables.route.field"
    report.note_kept("iceberg.tables.route-field", what)
    sink = re.sub(r"\W", "_", report.document["name"])
    namespace = tables[0].rpartition(".")[0] if tables else "headgate"
    section["ledger"] = f"{namespace}.headgate_{sink}"
    section["unmatched"] = "skip"  # as the connector, which says nothing of them
    section["route"] = routes


def _dynamic_route(field: str, *, by_topic: bool) -> dict[str, str]:
    where = {"topic": _NAMED_BY_FIELD} if by_topic else {"field": field, "value": _NAMED_BY_FIELD}
    return {**where, "to": "{namespace}.{name}"}


def _static_route(
    report: Report, table: str, field: str, *, by_topic: bool
) -> dict[str, str] | None:
    key = f"iceberg.table.{table}.route-regex"
    pattern = report.connector_value(key)
    if not pattern:
        report.note_to_add_by_hand(
            key, "without it no record goes to the table, neither there nor here"
        )
        return None
    whole = f"^(?:{pattern})\\Z"
    try:
        re.compile(whole)
    except re.error as error:
        report.note_refused(key, f"Java's pattern is none of Python's: {error}")
        return None
    report.note_kept(key, "tables.route.value; of several that match, the first route counts")
    where = {"topic": whole} if by_topic else {"field": field, "value": whole}
    return {**where, "to": table}


def fill_columns_and_creation(report: Report) -> None:
    """Fill what keys say of columns and of the creation of tables; note what becomes of others."""
    routed = "tables" in report.document
    section = report.ensure_section("tables" if routed else "table")
    if report.is_connector_value_true("iceberg.tables.evolve-schema-enabled"):
        section["schema"] = {"unknown_fields": "evolve"}
    report.note_kept(
        "iceberg.tables.evolve-schema-enabled", "schema.unknown_fields, evolve or ignore"
    )
    report.note_dropped(
        ("iceberg.tables.schema-force-optional",), "new columns are always optional"
    )
    report.note_dropped(
        ("iceberg.tables.replace-null-with-default",), "an explicit null always stays null"
    )
    _fill_creation(report, section, routed=routed)
    for key in report.keys:
        if key.endswith(".id-columns") or key == "iceberg.tables.default-id-columns":
            report.note_dropped(
                (key,),
                "Apache's releases only append, so rows were never replaced by it; table.key does, "
                "in a new table (docs/guides/upserts-and-deletes.md)",
            )
        elif key.startswith("iceberg.tables.write-props."):
            report.note_to_add_by_hand(
                key, "set it as a property of the table: writers follow the table"
            )
        elif key in ("iceberg.tables.upsert-mode-enabled", "iceberg.tables.cdc-field"):
            _note_upsert_key(report, key)
        elif key.startswith("iceberg.table.") and key.endswith(_OF_TABLE):
            report.note_dropped((key,), "of a table that iceberg.tables does not name")


def _note_upsert_key(report: Report, key: str) -> None:
    if report.connector_value(key).lower() in ("false", ""):
        report.note_dropped((key,), "every record adds a row")
        return
    report.note_refused(
        key,
        "the table has equality deletes; write table.key and fill a new table "
        "(docs/guides/upserts-and-deletes.md)",
    )


def _fill_creation(report: Report, section: dict[str, Any], *, routed: bool) -> None:
    creates = report.is_connector_value_true("iceberg.tables.auto-create-enabled")
    partition = report.connector_value("iceberg.tables.default-partition-by")
    properties = report.keys_below("iceberg.tables.auto-create-props.")
    by_key = [k for k in report.keys if k.endswith("partition-by")]
    by_key += [f"iceberg.tables.auto-create-props.{name}" for name in properties]
    if not routed:
        why = "the table is there, and is filled as it is; headgate init proposes one to create"
        report.note_dropped(("iceberg.tables.auto-create-enabled", *by_key), why)
        return
    form = report.document.get("format", {}).get("type", "")
    if not creates:
        report.note_dropped(("iceberg.tables.auto-create-enabled", *by_key), "no table is created")
        return
    if form not in _CREATE:
        report.note_to_add_by_hand(
            "iceberg.tables.auto-create-enabled",
            "records of this format show no columns: declare them under [[tables.table]]",
        )
        report.note_dropped(by_key, "goes with iceberg.tables.auto-create-enabled")
        return
    create: dict[str, Any] = {"schema": _CREATE[form]}
    report.note_kept("iceberg.tables.auto-create-enabled", "tables.create, for tables to come")
    if parts := parse_partition_by(partition):
        create["partition_by"] = parts
    report.note_kept("iceberg.tables.default-partition-by", "tables.create.partition_by")
    if properties:
        create["properties"] = dict(properties)
    for name in properties:
        report.note_kept(
            f"iceberg.tables.auto-create-props.{name}", f'tables.create.properties."{name}"'
        )
    section["create"] = create
    tables = [
        {"match": re.escape(t).replace("\\", ""), "partition_by": parts}
        for t in tables_of(report)
        if (parts := parse_partition_by(report.connector_value(f"iceberg.table.{t}.partition-by")))
    ]
    if tables:
        section["table"] = tables
    for table in tables_of(report):
        report.note_kept(f"iceberg.table.{table}.partition-by", "tables.table.partition_by")


def parse_partition_by(text: str) -> list[str]:
    """Return the parts of a partition setting of the connector, in the words of a sink file."""
    found = []
    for part in (p.strip() for p in _PARTS.findall(text)):
        name, bracket, inner = part.partition("(")
        singular = {"years": "year", "months": "month", "days": "day", "hours": "hour"}
        name = singular.get(name.strip().lower(), name.strip())
        arguments = [a.strip() for a in inner.rstrip(") ").split(",")]
        if name in ("bucket", "truncate") and len(arguments) == 2 and arguments[1].isdecimal():
            arguments.reverse()
        found.append(f"{name}({', '.join(arguments)})" if bracket else name)
    return found
