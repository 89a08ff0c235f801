"""Whether what a sink file asks for fields without a column can be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.control_protocol.bad_records import Disposal
from headgate.control_protocol.errors import ColumnsCannotEvolve, ConfigurationError
from headgate.data.formats.registry import ValueOptions, record_format
from headgate.participant.settings import Distribution, UnknownFields

if TYPE_CHECKING:
    from headgate.sink.settings import SinkSettings


def check_schema_policy(settings: SinkSettings) -> None:
    """Raises ``ColumnsCannotEvolve``, ``ConfigurationError``."""
    schema = settings.table.schema
    wanted = schema.unknown_fields
    if schema.readd_dropped and wanted is not UnknownFields.EVOLVE:
        raise ConfigurationError(
            "table.schema.readd_dropped is set, but no columns are added",
            'set table.schema.unknown_fields = "evolve", or leave it out',
        )
    if wanted is UnknownFields.IGNORE:
        return
    said = f'table.schema.unknown_fields = "{wanted}"'
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
            "use json, avro or avro-registry, or ignore",
        )
    if wanted is UnknownFields.QUARANTINE and settings.quarantine.policy is Disposal.FAIL:
        raise ConfigurationError(
            f"{said}, but quarantine.policy stops the sink at a bad record",
            'set quarantine.policy = "quarantine", or unknown_fields = "fail"',
        )
    _check_spark(settings, said)


def _check_spark(settings: SinkSettings, said: str) -> None:
    spread = settings.spark.distribution != Distribution.NONE
    if settings.spark.writer == "spark" and spread:
        raise ColumnsCannotEvolve(
            f"{said} and spark.distribution = {settings.spark.distribution} do not go together yet",
            'set spark.distribution = "none", or spark.writer = "in-process"',
        )
