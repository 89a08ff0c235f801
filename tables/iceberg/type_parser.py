"""Column types as people write them, made into Iceberg's. The grammar::

column    = type [ "not null" ]
type      = primitive | "decimal(" p "," s ")" | "fixed(" n ")" | "list<" column ">"
          | "map<" type "," column ">" | "struct<" name ":" column { "," name ":" column } ">"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from itertools import count

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headgate.control_protocol.errors import ConfigurationError

_PRIMITIVES: Mapping[str, IcebergType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "time": TimeType(),
    "timestamp": TimestampType(),
    "timestamptz": TimestamptzType(),
    "timestamp_ns": TimestampNanoType(),
    "timestamptz_ns": TimestamptzNanoType(),
    "string": StringType(),
    "uuid": UUIDType(),
    "binary": BinaryType(),
}
_OTHERS = ("decimal", "fixed", "list", "map", "struct")
_ELSEWHERE = {"bigint": "long", "text": "string", "varchar": "string", "char": "string"}
"""What other systems call it."""

_DEPTH_MAX = 40
"""Beyond, readers of the table's metadata give up one after the other."""

_DIGITS_MAX = 10
_TEXT_SHOWN = 200
_TOKEN = re.compile(r"\s*([\w.$-]+|[<>(),:])")


def parse_columns(
    columns: Mapping[str, str], comments: Mapping[str, str] | None = None
) -> list[NestedField]:
    """Return the fields of a schema, ids from 1. Raises ``ConfigurationError`` for a column."""
    ids = count(1)
    fields = []
    for name, text in columns.items():
        field_id = next(ids)
        try:
            field_type, required = _Parser(text, ids).parse_type_and_required()
        except ConfigurationError as error:
            raise ConfigurationError(f"column {name!r}: {error.message}", error.hint) from None
        doc = (comments or {}).get(name)
        fields.append(NestedField(field_id, name, field_type, required=required, doc=doc))
    try:
        Schema(*fields)
    except ValueError as error:
        raise ConfigurationError(
            f"two columns, or a column and a field, cannot be told apart: {error}", "rename one"
        ) from None
    return fields


class _Parser:
    """Reads one text from left to right; ``ids`` numbers the fields inside nested types."""

    def __init__(self, text: str, ids: count[int]) -> None:
        self._text = text
        self._ids = ids
        self._depth = 0
        self._tokens: list[str] = _TOKEN.findall(text)
        if _TOKEN.sub("", text).strip():
            raise self._unreadable_error("it has a character that no type has")

    def parse_type_and_required(self) -> tuple[IcebergType, bool]:
        column = self._parse_type_and_required()
        if self._tokens:
            raise self._unreadable_error(f"{self._tokens[0]!r} is too much")
        return column

    def _parse_type_and_required(self) -> tuple[IcebergType, bool]:
        column_type = self._parse_type()
        required = [token.lower() for token in self._tokens[:2]] == ["not", "null"]
        if required:
            del self._tokens[:2]
        return column_type, required

    def _parse_type(self) -> IcebergType:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._unreadable_error(f"it is nested more than {_DEPTH_MAX} deep")
        try:
            return self._parse_type_of_checked_depth()
        finally:
            self._depth -= 1

    def _parse_type_of_checked_depth(self) -> IcebergType:
        """Parse a type, nested or not, whose depth ``_parse_type`` has checked."""
        name = self._next_token()
        match name.lower():
            case "decimal":
                return self._parse_decimal()
            case "fixed":
                return self._parse_fixed()
            case "list":
                return self._parse_list()
            case "map":
                return self._parse_map()
            case "struct":
                return self._parse_struct()
        try:
            return _PRIMITIVES[name.lower()]
        except KeyError:
            raise self._unknown_type_error(name) from None

    def _parse_decimal(self) -> IcebergType:
        self._expect("(")
        precision = self._parse_number()
        self._expect(",")
        scale = self._parse_number()
        self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self._unreadable_error(
                "a decimal has 1 to 38 digits, of them scale behind the point"
            )
        return DecimalType(precision, scale)

    def _parse_fixed(self) -> IcebergType:
        self._expect("(")
        length = self._parse_number()
        self._expect(")")
        if length == 0:
            raise self._unreadable_error("a fixed value has at least one byte")
        return FixedType(length)

    def _parse_list(self) -> IcebergType:
        element_id = next(self._ids)
        self._expect("<")
        element, required = self._parse_type_and_required()
        self._expect(">")
        return ListType(element_id, element, element_required=required)

    def _parse_map(self) -> IcebergType:
        key_id, value_id = next(self._ids), next(self._ids)
        self._expect("<")
        key = self._parse_type()
        self._expect(",")
        value, required = self._parse_type_and_required()
        self._expect(">")
        return MapType(key_id, key, value_id, value, value_required=required)

    def _parse_struct(self) -> IcebergType:
        self._expect("<")
        fields = [self._parse_field()]
        while self._tokens[:1] == [","]:
            self._expect(",")
            fields.append(self._parse_field())
        self._expect(">")
        names = [each.name for each in fields]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise self._unreadable_error(f"it names the field {twice!r} twice")
        return StructType(*fields)

    def _parse_field(self) -> NestedField:
        field_id, name = next(self._ids), self._next_token()
        self._expect(":")
        field_type, required = self._parse_type_and_required()
        return NestedField(field_id, name, field_type, required=required)

    def _parse_number(self) -> int:
        token = self._next_token()
        if not token.isdecimal():
            raise self._unreadable_error(f"{token!r} is no number")
        if len(token) > _DIGITS_MAX:
            raise self._unreadable_error(f"a number has at most {_DIGITS_MAX} digits")
        return int(token)

    def _expect(self, symbol: str) -> None:
        if (token := self._next_token()) != symbol:
            raise self._unreadable_error(f"{symbol!r} is expected where {token!r} stands")

    def _next_token(self) -> str:
        if not self._tokens:
            raise self._unreadable_error("it ends too early")
        return self._tokens.pop(0)

    def _quoted_text(self) -> str:
        more = len(self._text) - _TEXT_SHOWN
        return repr(self._text) if more <= 0 else f"{self._text[:_TEXT_SHOWN]!r}..."

    def _unreadable_error(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"the type {self._quoted_text()} cannot be read: {why}",
            "write for instance long, decimal(10, 2), list<string>, struct<a: int, b: string>",
        )

    def _unknown_type_error(self, name: str) -> ConfigurationError:
        known = [*_PRIMITIVES, *_OTHERS]
        word = name.lower()
        close = get_close_matches(word, known, n=1, cutoff=0.5)
        near = [_ELSEWHERE[word]] if word in _ELSEWHERE else [w for w in close if w[:2] == word[:2]]
        return ConfigurationError(
            f"the type {self._quoted_text()} cannot be read: there is no type {name!r}",
            f"do you mean {near[0]!r}?" if near else f"known are {', '.join(known)}",
        )
