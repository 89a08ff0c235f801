"""Turns a sink file's column settings into rules for the writers, and checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from headgate.config.setting_types import holds_stand_in
from headgate.config.table_declaration import arrow_field_of
from headgate.control_protocol.errors import (
    ColumnRuleUnfit,
    ColumnRuleUnknownToFormat,
    ConfigurationError,
)
from headgate.data_plane.formats.column_options import (
    ColumnRule,
    is_text_type,
    is_time_or_timestamp,
    parse_path,
)
from headgate.data_plane.formats.format_registry import (
    ValueOptions,
    create_record_format,
    find_format_factory,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headgate.config.sink_sections import SinkSections
    from headgate.config.table_settings import ColumnSettings
    from headgate.data_plane.formats.record_format import RecordFormat

_NO_RULE = ColumnRule()


def value_format_of(settings: SinkSections) -> RecordFormat:
    """Return the format of the values, to be asked what it can do. Raises ``ConfigurationError``.

    It is the class alone if its options are not readable here.
    """
    options = ValueOptions.from_options(settings.format.options).of_format
    return create_format_or_class(settings.format.type, options)


def create_format_or_class(name: str, options: Mapping[str, str]) -> RecordFormat:
    try:
        return create_record_format(name, options)
    except ConfigurationError:
        if not any(map(holds_stand_in, options.values())):
            raise
        return cast("RecordFormat", find_format_factory(name))


def rules_of_decoded_columns(settings: SinkSections) -> dict[str, ColumnRule]:
    """Return the rules by column, for columns that records are decoded into.

    Raises ``ColumnRuleUnfit``.
    """
    declared = settings.transform.columns
    section = "transform.columns" if declared else "table.columns"
    found = {
        column.name: rule
        for column in declared or settings.table.columns
        for rule in [_column_rule_of(section, column)]
        if rule != _NO_RULE
    }
    useless = [
        c.name for c in settings.table.columns if declared and _column_rule_of("", c) != _NO_RULE
    ]
    if useless:
        raise ColumnRuleUnfit(
            f"table.columns: {useless[0]!r} has a rule, but values are decoded into "
            "transform.columns",
            "move the rule there",
        )
    return found


def rules_of_columns(section: str, columns: Sequence[ColumnSettings]) -> dict[str, ColumnRule]:
    """Return the rules by column, for columns that have one. Raises ``ColumnRuleUnfit``."""
    found = {column.name: _column_rule_of(section, column) for column in columns}
    return {name: rule for name, rule in found.items() if rule != _NO_RULE}


def require_valid_column_rules(
    section: str, columns: Sequence[ColumnSettings], settings: SinkSections
) -> None:
    """Raises ``ColumnRuleUnfit``, ``ColumnRuleUnknownToFormat``."""
    rules = rules_of_columns(section, columns)
    for column in columns:
        if column.name in rules:
            _require_valid_rule(section, column, rules[column.name], settings)
            _require_rule_known_to_format(section, column, rules[column.name], settings)


def _column_rule_of(section: str, column: ColumnSettings) -> ColumnRule:
    try:
        path = parse_path(column.path) if column.path else ()
    except ValueError as error:
        raise _rule_unfit_error(section, column, f"from = {error}", "write a.b.c") from None
    return ColumnRule(path, column.unit, column.as_text, column.value, column.default)


def require_valid_sink_column_rules(settings: SinkSections) -> None:
    """Raises ``ColumnRuleUnfit``, ``ColumnRuleUnknownToFormat``."""
    rules = rules_of_decoded_columns(settings)
    if not rules:
        return
    section = "transform.columns" if settings.transform.columns else "table.columns"
    columns = settings.transform.columns or settings.table.columns
    require_valid_column_rules(section, columns, settings)
    filled = {column.name for column in columns if not column.from_record}
    if all(name in rules and rules[name].value is not None for name in filled):
        raise ColumnRuleUnfit(
            f"{section}: every column has a constant value, so nothing is read from records",
            "declare a column that is filled from records",
        )


def _require_valid_rule(
    section: str, column: ColumnSettings, rule: ColumnRule, settings: SinkSections
) -> None:
    # imports Arrow: only for files with rules
    from headgate.data_plane.formats.casting.epoch_times import DIGITS

    # A hash is of text, also where a column takes its bytes.
    hashed = column.name in settings.shape.hash
    kind = arrow_field_of(column.name, "string" if hashed else column.type)
    if column.from_record:
        raise _rule_unfit_error(
            section, column, "is from_record and has a rule", "keep one of them"
        )
    if rule.value is not None and rule.options_needing_format():
        raise _rule_unfit_error(
            section,
            column,
            "has a constant value and another rule",
            "keep either value or the other rules",
        )
    if rule.unit and rule.unit not in DIGITS:
        raise _rule_unfit_error(
            section, column, f"unit cannot be {rule.unit!r}", "use s, ms, us or ns"
        )
    if rule.unit and not is_time_or_timestamp(kind.type):
        raise _rule_unfit_error(
            section,
            column,
            f"has a unit, but is {column.type}",
            "only times and timestamps have units",
        )
    if rule.as_text and not is_text_type(kind.type):
        raise _rule_unfit_error(
            section, column, f"is as_text, but is {column.type}", "make it a string"
        )
    for name, value in (("value", rule.value), ("default", rule.default)):
        try:
            rule.convert_constant(value, kind)
        except ValueError as error:
            raise _rule_unfit_error(
                section, column, f"{name}: {error}", "write one that it takes"
            ) from None


def _require_rule_known_to_format(
    section: str, column: ColumnSettings, rule: ColumnRule, settings: SinkSections
) -> None:
    name = settings.format.type
    made = value_format_of(settings)
    known: frozenset[str] = getattr(made, "rules", frozenset())
    beyond = sorted(rule.options_needing_format() - known)
    if beyond:
        raise ColumnRuleUnknownToFormat(
            f"{section}: {column.name!r} has {beyond[0]}, which the format {name} does not know",
            f"it knows {', '.join(sorted(known)) or 'none'}, and value",
        )


def _rule_unfit_error(
    section: str, column: ColumnSettings, what: str, hint: str
) -> ColumnRuleUnfit:
    return ColumnRuleUnfit(f"{section}: {column.name!r} {what}", hint)
