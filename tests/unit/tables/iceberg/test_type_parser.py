"""Type texts become Iceberg types; mistakes name the column, the text and the way out."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, StructType

from headgate.control_protocol.errors import ConfigurationError
from headgate.tables.iceberg.type_parser import parse_columns


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("boolean", "optional boolean"),
        ("int not null", "required int"),
        (" LONG  Not Null ", "required long"),
        ("decimal(10,2)", "optional decimal(10, 2)"),
        ("fixed(16)", "optional fixed[16]"),
        ("timestamptz", "optional timestamptz"),
        ("list<string>", "optional list<string>"),
        ("map<string,long>", "optional map<string, long>"),
        ("list<map<string, list<int>>>", "optional list<map<string, list<int>>>"),
    ],
)
def test_types_are_read(text: str, spelt: str) -> None:
    (field,) = parse_columns({"c": text})
    assert f"{'required' if field.required else 'optional'} {field.field_type}" == spelt


def test_a_struct_keeps_names_order_and_required_fields() -> None:
    (field,) = parse_columns({"c": "struct<a: int not null, b: struct<d: list<long not null>>>"})
    assert isinstance(field.field_type, StructType)
    a, b = field.field_type.fields
    assert (a.name, a.required, str(a.field_type)) == ("a", True, "int")
    assert (b.name, b.required) == ("b", False)
    assert isinstance(b.field_type, StructType)
    assert isinstance(inner := b.field_type.fields[0].field_type, ListType)
    assert inner.element_required is True


def test_every_nested_field_has_an_id_of_its_own() -> None:
    fields = parse_columns({"a": "map<string, struct<x: int, y: list<int>>>", "b": "long"})
    assert sorted(Schema(*fields).field_ids) == list(range(1, 8))


def test_comments_travel() -> None:
    (field,) = parse_columns({"c": "long"}, {"c": "how many"})
    assert field.doc == "how many"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bigint", "there is no type 'bigint' (do you mean 'long'?)"),
        ("timestamp_tz", "do you mean 'timestamptz'?"),
        ("qqqq", "known are boolean, int"),
        ("list<strin>", "there is no type 'strin' (do you mean 'string'?)"),
        ("decimal(39, 2)", "1 to 38 digits"),
        ("decimal(3, 4)", "1 to 38 digits"),
        ("decimal(a, 2)", "'a' is no number"),
        ("fixed(0)", "at least one byte"),
        (f"fixed({'9' * 5000})", "a number has at most 10 digits"),
        ("struct<a: int, a: string>", "it names the field 'a' twice"),
        ("list<int", "it ends too early"),
        ("list int", "'<' is expected where 'int' stands"),
        ("map<string>", "',' is expected where '>' stands"),
        ("struct<a int>", "':' is expected where 'int' stands"),
        ("int null", "'null' is too much"),
        ("int!", "a character that no type has"),
        ("", "it ends too early"),
    ],
)
def test_mistakes_say_where_and_what_instead(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_columns({"fare": text})
    assert "column 'fare'" in str(caught.value)
    assert said in str(caught.value)


def test_a_column_with_a_dot_is_not_named_as_a_field_beside_it() -> None:
    with pytest.raises(ConfigurationError, match=r"told apart: .* for name s\.a: .* \(rename one"):
        parse_columns({"s.a": "int", "s": "struct<a: int>"})
