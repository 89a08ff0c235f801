"""Checks whether a sink file's policy for fields without a column can be carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from headgate.control_protocol.bad_records import Disposal
from headgate.control_protocol.errors import (
    ColumnsCannotEvolve,
    ConfigurationError,
    TablesUnfit,
)
from headgate.data.formats.registry import ValueOptions, record_format
from headgate.participant.settings import Incompatible, UnknownFields
from headgate.sink.table_settings import SchemaSettings

if TYPE_CHECKING:
    from headgate.sink.sections import SinkSections


_Choice = TypeVar("_Choice", UnknownFields, Incompatible)


def check_schema_policy(settings: SinkSections) -> None:
    """Raises ``ColumnsCannotEvolve``, ``ConfigurationError``."""
    if settings.tables:
        if settings.table.schema != SchemaSettings():
            raise TablesUnfit("table.schema is set", "with many tables, use tables.schema")
        _check(settings, "tables.schema", settings.tables.schema)
        for each in settings.tables.table:
            where = f"tables.table {each.match!r}"
            if each.unknown_fields:
                wanted = _choice(f"{where}: unknown_fields", UnknownFields, each.unknown_fields)
                _check_fields(settings, f"{where}: ", wanted)
            if each.incompatible:
                chosen = _choice(f"{where}: incompatible", Incompatible, each.incompatible)
                _check_values(settings, f"{where}: ", chosen)
        return
    _check(settings, "table.schema", settings.table.schema)


def _check(settings: SinkSections, section: str, schema: SchemaSettings) -> None:
    ones = [each.unknown_fields for each in settings.tables.table]
    if schema.readd_dropped and UnknownFields.EVOLVE not in (schema.unknown_fields, *ones):
        raise ConfigurationError(
            f"{section}.readd_dropped is set, but no columns are added",
            f'set {section}.unknown_fields = "evolve", or leave it out',
        )
    _check_fields(settings, f"{section}.", schema.unknown_fields)
    _check_values(settings, f"{section}.", schema.incompatible)


def _check_values(settings: SinkSections, where: str, wanted: Incompatible) -> None:
    """Require a format that knows field names: only it can read a record again column by column."""
    if wanted is not Incompatible.IGNORE:
        return
    name = settings.format.type
    made = record_format(name, ValueOptions.taken(settings.format.options).of_format)
    if not hasattr(made, "lacking"):
        raise ColumnsCannotEvolve(
            f'{where}incompatible = "{wanted}": the format {name} does not know fields by name',
            "use json, connect-json, or a format of Avro or Protobuf; or quarantine",
        )


def _choice(where: str, kind: type[_Choice], text: str) -> _Choice:
    try:
        return kind(text)
    except ValueError:
        raise ConfigurationError(
            f"{where} cannot be {text!r}", f"it is one of {', '.join(kind)}"
        ) from None


def _check_fields(settings: SinkSections, where: str, wanted: UnknownFields) -> None:
    if wanted is UnknownFields.IGNORE:
        return
    said = f'{where}unknown_fields = "{wanted}"'
    if settings.transform:
        raise ColumnsCannotEvolve(
            f"{said} and a transform cannot be combined",
            "a transform declares its own result: leave the transform out, or ignore",
        )
    name = settings.format.type
    made = record_format(name, ValueOptions.taken(settings.format.options).of_format)
    if not hasattr(made, "lacking"):
        raise ColumnsCannotEvolve(
            f"{said}: the format {name} does not report fields that a table lacks",
            "use json, connect-json, or a format of Avro or Protobuf; or ignore",
        )
    if wanted is UnknownFields.QUARANTINE and settings.quarantine.policy is Disposal.FAIL:
        raise ConfigurationError(
            f"{said}, but quarantine.policy stops the sink at a bad record",
            'set quarantine.policy = "quarantine", or unknown_fields = "fail"',
        )
