"""Whether what a sink file asks for fields without a column can be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.control_protocol.bad_records import Disposal
from headgate.control_protocol.errors import (
    ColumnsCannotEvolve,
    ConfigurationError,
    TablesUnfit,
)
from headgate.data.formats.registry import ValueOptions, record_format
from headgate.participant.settings import UnknownFields
from headgate.sink.table_settings import SchemaSettings

if TYPE_CHECKING:
    from headgate.sink.settings import SinkSettings


def check_schema_policy(settings: SinkSettings) -> None:
    """Raises ``ColumnsCannotEvolve``, ``ConfigurationError``."""
    if settings.tables:
        if settings.table.schema != SchemaSettings():
            raise TablesUnfit("table.schema is set", "with many tables it is tables.schema")
        _check(settings, "tables.schema", settings.tables.schema)
        for each in settings.tables.table:
            if each.unknown_fields:
                wanted = _unknown_fields(f"tables.table {each.match!r}", each.unknown_fields)
                _check_fields(settings, f"tables.table {each.match!r}: ", wanted)
        return
    _check(settings, "table.schema", settings.table.schema)


def _check(settings: SinkSettings, section: str, schema: SchemaSettings) -> None:
    ones = [each.unknown_fields for each in settings.tables.table]
    if schema.readd_dropped and UnknownFields.EVOLVE not in (schema.unknown_fields, *ones):
        raise ConfigurationError(
            f"{section}.readd_dropped is set, but no columns are added",
            f'set {section}.unknown_fields = "evolve", or leave it out',
        )
    _check_fields(settings, f"{section}.", schema.unknown_fields)


def _unknown_fields(where: str, text: str) -> UnknownFields:
    try:
        return UnknownFields(text)
    except ValueError:
        raise ConfigurationError(
            f"{where}: unknown_fields cannot be {text!r}",
            f"it is one of {', '.join(UnknownFields)}",
        ) from None


def _check_fields(settings: SinkSettings, where: str, wanted: UnknownFields) -> None:
    if wanted is UnknownFields.IGNORE:
        return
    said = f'{where}unknown_fields = "{wanted}"'
    if settings.transform:
        raise ColumnsCannotEvolve(
            f"{said} and a transform do not go together",
            "what a transform gives is declared in it: leave the transform out, or ignore",
        )
    name = settings.format.type
    made = record_format(name, ValueOptions.taken(settings.format.options).of_format)
    if not hasattr(made, "lacking"):
        raise ColumnsCannotEvolve(
            f"{said}: the format {name} does not tell of fields that a table lacks",
            "use json, connect-json, or a format of Avro or Protobuf; or ignore",
        )
    if wanted is UnknownFields.QUARANTINE and settings.quarantine.policy is Disposal.FAIL:
        raise ConfigurationError(
            f"{said}, but quarantine.policy stops the sink at a bad record",
            'set quarantine.policy = "quarantine", or unknown_fields = "fail"',
        )
