"""Checks a sink file's ``[shape]`` against its other settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headgate.config.setting_types import holds_stand_in
from headgate.control_protocol.errors import PredicateUnfit, ShapeUnfit
from headgate.control_protocol.signatures import KEY_CHARACTERS_MIN
from headgate.data_plane.batch.row_rules import masked_key_error
from headgate.data_plane.formats.column_options import parse_path
from headgate.data_plane.formats.format_registry import ValueOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate.config.sink_sections import SinkSections
    from headgate.config.table_settings import ColumnSettings

_TEXT, _DIGESTS = "string", ("fixed(32)", "binary")


def require_valid_shape(settings: SinkSections) -> None:
    """Raises ``ShapeUnfit``; the columns of a table that nobody declares are compared later."""
    shape = settings.shape
    _require_valid_hash_key(settings)
    if not shape:
        if shape.tables:
            raise ShapeUnfit("shape.tables is set without a rule", "add one, or leave it out")
        return
    _require_valid_shape_names_and_masks(settings)
    _require_readable_conditions(settings)
    _require_valid_shape_table_pattern(settings)
    _require_hidden_columns_are_text(settings)
    if shape.hidden_columns:
        _require_hidden_values_nowhere_else(settings)


def _require_valid_hash_key(settings: SinkSections) -> None:
    shape = settings.shape
    if bool(shape.hash) != bool(shape.hash_key):
        missing, there = ("hash", "hash_key") if shape.hash_key else ("hash_key", "hash")
        raise ShapeUnfit(
            f"shape.{there} is set without shape.{missing}",
            "without a key everybody who can guess a value can find its hash: write hash_key = "
            '"${file:PATH}"'
            if shape.hash
            else "name the columns, or leave the key out",
        )
    if shape.hash_key and len(shape.hash_key.text) < KEY_CHARACTERS_MIN:
        raise ShapeUnfit(
            f"shape.hash_key has {len(shape.hash_key.text)} characters",
            f"use at least {KEY_CHARACTERS_MIN}, such as openssl rand -hex 32 prints",
        )


def _require_valid_shape_names_and_masks(settings: SinkSections) -> None:
    """Refuse columns and expectations without a name or named twice, and masks that keep fewer
    than no characters."""
    shape = settings.shape
    for what, names in (
        ("column", shape.hidden_columns),
        ("expectation", tuple(each.name for each in shape.expect)),
    ):
        twice = sorted({name for name in names if names.count(name) > 1 or not name})
        if twice:
            raise ShapeUnfit(
                f"[shape] has an {what} without a name, or names one twice: {twice[0]!r}",
                "name each once: a column is hashed or masked",
            )
    for each in shape.mask:
        if each.keep_first < 0 or each.keep_last < 0:
            raise ShapeUnfit(
                f"shape.mask {each.column!r} keeps fewer than no characters", "write 0 or more"
            )


def _require_readable_conditions(settings: SinkSections) -> None:
    shape = settings.shape
    conditions = [("shape.where", shape.where)] if shape.where else []
    conditions += [(f"shape.expect {each.name!r}", each.that) for each in shape.expect]
    if not conditions:
        return
    from headgate.tables.iceberg.row_deletion import parse_predicate

    for where, text in conditions:
        if holds_stand_in(text):
            continue
        try:
            parse_predicate(text)
        except PredicateUnfit as error:
            raise ShapeUnfit(f"{where}: {error.message}", error.hint) from None


def _require_valid_shape_table_pattern(settings: SinkSections) -> None:
    shape, tables = settings.shape, settings.tables
    if not shape.tables:
        return
    if not tables or settings.transform:
        raise ShapeUnfit(
            "shape.tables is set, and "
            + ("rows go to no table before the transform" if tables else "there is one table"),
            "leave it out",
        )
    try:
        re.compile(shape.tables)
    except re.error as error:
        raise ShapeUnfit(f"shape.tables is not a valid pattern: {error}", "mend it") from None


def _require_hidden_columns_are_text(settings: SinkSections) -> None:
    """Compare hidden columns with those that are declared; a table's own are compared later."""
    shape = settings.shape
    declared: list[ColumnSettings] = [*(settings.transform.columns or settings.table.columns)]
    parts = set(settings.table.record_columns.columns_by_part().values())
    types = {column.name: column.type for column in declared}
    for name in shape.hidden_columns if declared and not settings.tables else ():
        if name not in types and name not in parts:
            raise ShapeUnfit(
                f"[shape] hides the column {name!r}, which is not declared",
                "correct the name, or declare the column",
            )
        fitting = (_TEXT, *_DIGESTS) if name in shape.hash else (_TEXT,)
        if types.get(name, _TEXT) not in fitting:
            raise ShapeUnfit(
                f"[shape] hides the column {name!r}, which is {types[name]}",
                'only text is hashed or masked: declare it as "string", with as_text = true if '
                'records have numbers there, or as "fixed(32)" or "binary" for the bytes of a hash',
            )


def _require_hidden_values_nowhere_else(settings: SinkSections) -> None:
    """Refuse what would show a hidden value beside its column."""
    shape = settings.shape
    if settings.quarantine.dead_letter_topic:
        raise ShapeUnfit(
            "quarantine.dead_letter_topic is set, and [shape] hides columns",
            "a bad record would go there as it is: leave the topic out",
        )
    keys = [settings.table.key, *(each.key for each in settings.tables.table)]
    for each in shape.mask:
        if any(each.column in key for key in keys):
            raise masked_key_error(each.column)
    fold = str.lower if ValueOptions.from_options(settings.format.options).caseless else str
    paths = {tuple(map(fold, path)) for path in _hidden_column_paths(settings)}
    for number, route in enumerate(settings.tables.routing.routes if settings.tables else (), 1):
        if route.field and tuple(map(fold, parse_path(route.field))) in paths:
            raise ShapeUnfit(
                f"route {number} looks at {route.field}, which [shape] hides",
                "its values would be in names of tables and in errors: route by something else",
            )


def _hidden_column_paths(settings: SinkSections) -> Iterator[tuple[str, ...]]:
    hidden = settings.shape.hidden_columns
    for name in hidden:
        yield (name,)
    sections = [settings.table.columns, *(each.columns for each in settings.tables.table)]
    for column in (column for section in sections for column in section):
        if column.name in hidden and column.path:
            yield parse_path(column.path)
