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
            field_type, required = _Parser(text, ids).column_to_the_end()
        except ConfigurationError as error:
            raise ConfigurationError(f"column {name!r}: {error.message}", error.hint) from None
        doc = (comments or {}).get(name)
        fields.append(NestedField(field_id, name, field_type, required=required, doc=doc))
    return fields


class _Parser:
    """Reads one text from left to right; ``ids`` numbers the fields inside nested types."""

    def __init__(self, text: str, ids: count[int]) -> None:
        self._text = text
        self._ids = ids
        self._depth = 0
        self._tokens: list[str] = _TOKEN.findall(text)
        if _TOKEN.sub("", text).strip():
            raise self._unreadable("it has a character that no type has")

    def column_to_the_end(self) -> tuple[IcebergType, bool]:
        column = self._column()
        if self._tokens:
            raise self._unreadable(f"{self._tokens[0]!r} is too much")
        return column

    def _column(self) -> tuple[IcebergType, bool]:
        column_type = self._type()
        required = [token.lower() for token in self._tokens[:2]] == ["not", "null"]
        if required:
            del self._tokens[:2]
        return column_type, required

    def _type(self) -> IcebergType:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._unreadable(f"it is nested more than {_DEPTH_MAX} deep")
        try:
            return self._type_inside()
        finally:
            self._depth -= 1

    def _type_inside(self) -> IcebergType:
        name = self._next()
        match name.lower():
            case "decimal":
                return self._decimal()
            case "fixed":
                return self._fixed()
            case "list":
                return self._list()
            case "map":
                return self._map()
            case "struct":
                return self._struct()
        try:
            return _PRIMITIVES[name.lower()]
        except KeyError:
            raise self._unknown(name) from None

    def _decimal(self) -> IcebergType:
        self._expect("(")
        precision = self._number()
        self._expect(",")
        scale = self._number()
        self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self._unreadable("a decimal has 1 to 38 digits, of them scale behind the point")
        return DecimalType(precision, scale)

    def _fixed(self) -> IcebergType:
        self._expect("(")
        length = self._number()
        self._expect(")")
        if length == 0:
            raise self._unreadable("a fixed value has at least one byte")
        return FixedType(length)

    def _list(self) -> IcebergType:
        element_id = next(self._ids)
        self._expect("<")
        element, required = self._column()
        self._expect(">")
        return ListType(element_id, element, element_required=required)

    def _map(self) -> IcebergType:
        key_id, value_id = next(self._ids), next(self._ids)
        self._expect("<")
        key = self._type()
        self._expect(",")
        value, required = self._column()
        self._expect(">")
        return MapType(key_id, key, value_id, value, value_required=required)

    def _struct(self) -> IcebergType:
        self._expect("<")
        fields = [self._field()]
        while self._tokens[:1] == [","]:
            self._expect(",")
            fields.append(self._field())
        self._expect(">")
        return StructType(*fields)

    def _field(self) -> NestedField:
        field_id, name = next(self._ids), self._next()
        self._expect(":")
        field_type, required = self._column()
        return NestedField(field_id, name, field_type, required=required)

    def _number(self) -> int:
        token = self._next()
        if not token.isdecimal():
            raise self._unreadable(f"{token!r} is no number")
        return int(token)

    def _expect(self, symbol: str) -> None:
        if (token := self._next()) != symbol:
            raise self._unreadable(f"{symbol!r} is expected where {token!r} stands")

    def _next(self) -> str:
        if not self._tokens:
            raise self._unreadable("it ends too early")
        return self._tokens.pop(0)

    def _quote_text(self) -> str:
        more = len(self._text) - _TEXT_SHOWN
        return repr(self._text) if more <= 0 else f"{self._text[:_TEXT_SHOWN]!r}..."

    def _unreadable(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"the type {self._quote_text()} cannot be read: {why}",
            "write for instance long, decimal(10, 2), list<string>, struct<a: int, b: string>",
        )

    def _unknown(self, name: str) -> ConfigurationError:
        known = [*_PRIMITIVES, *_OTHERS]
        word = name.lower()
        close = get_close_matches(word, known, n=1, cutoff=0.5)
        near = [_ELSEWHERE[word]] if word in _ELSEWHERE else [w for w in close if w[:2] == word[:2]]
        return ConfigurationError(
            f"the type {self._quote_text()} cannot be read: there is no type {name!r}",
            f"do you mean {near[0]!r}?" if near else f"known are {', '.join(known)}",
        )
