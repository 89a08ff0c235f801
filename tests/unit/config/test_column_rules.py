"""Rules of columns in the sink file: they arrive, or are refused with a code and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.config.test_load import MINIMAL, refusal, sink

from headgate.config.column_rules import rules_of_decoded_columns
from headgate.config.load import load
from headgate.config.table_declaration import declaration_of
from headgate.control_protocol.errors import ColumnRuleUnfit, ColumnRuleUnknownToFormat
from headgate.data_plane.formats.column_options import ColumnRule


def columns(*texts: str) -> str:
    return f"columns = [{', '.join(f'{{ {text} }}' for text in texts)}]\n"


def test_rules_arrive_from_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGION", "eu")
    settings = sink(
        columns(
            'name = "id", type = "long"',
            'name = "user", type = "long", from = \'payload."user.id"\'',
            'name = "at", type = "timestamptz", unit = "s", default = 1970-01-01T00:00:00Z',
            'name = "note", type = "string", as_text = true',
            'name = "region", type = "string", value = "${env:REGION}"',
            'name = "day", type = "date", default = 2026-01-01',
            'name = "price", type = "decimal(9, 2)", default = 1.25',
            'name = "flag", type = "boolean", default = false',
        )
    )
    assert rules_of_decoded_columns(settings) == {
        "user": ColumnRule(("payload", "user.id")),
        "at": ColumnRule(unit="s", default="1970-01-01T00:00:00+00:00"),
        "note": ColumnRule(as_text=True),
        "region": ColumnRule(value="eu"),
        "day": ColumnRule(default="2026-01-01"),
        "price": ColumnRule(default=1.25),
        "flag": ColumnRule(default=False),
    }
    assert rules_of_decoded_columns(sink(columns('name = "id", type = "long"'))) == {}


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ('name = "c", type = "long", unit = "s"', "has a unit, but is long"),
        ('name = "c", type = "date", unit = "s"', "has a unit, but is date"),
        ('name = "c", type = "timestamp", unit = "m"', "use s, ms, us or ns"),
        ('name = "c", type = "long", as_text = true', "make it a string"),
        ('name = "c", type = "long", default = "x"', '"x" is not a number'),
        ('name = "c", type = "int", default = 3000000000', "out of the range"),
        ('name = "c", type = "string", value = 5', "is not text"),
        ('name = "c", type = "timestamp", unit = "s", default = inf', "is not a number"),
        ('name = "c", type = "long", value = 5, default = 6', "keep either value"),
        ('name = "c", type = "long", value = 5, from = "a.b"', "keep either value"),
        ('name = "c", type = "long", from = "a..b"', "not a path of field names"),
        ('name = "c", type = "list<long>", default = "x"', "is not an array"),
    ],
)
def test_rules_that_cannot_be_are_refused(column: str, said: str) -> None:
    error = refusal(MINIMAL + columns('name = "id", type = "long"', column))
    assert isinstance(error, ColumnRuleUnfit)
    assert said in str(error)
    assert "'c'" in str(error)


@pytest.mark.parametrize(
    ("kind", "rule", "said"),
    [
        ("csv", 'from = "a"', "has from, which the format csv does not know"),
        ("csv", "as_text = true", "has as_text"),
        ("string", 'default = "x"', "it knows unit, and value"),
        ("bytes", 'from = "a"', "it knows none, and value"),
    ],
)
def test_what_a_format_does_not_know_is_refused_by_name(kind: str, rule: str, said: str) -> None:
    table = columns('name = "id", type = "string"', f'name = "c", type = "string", {rule}')
    error = refusal(f'{MINIMAL}{table}[format]\ntype = "{kind}"\noptions = {{ {OPTION[kind]} }}')
    assert isinstance(error, ColumnRuleUnknownToFormat)
    assert said in str(error)


OPTION = {"csv": "", "string": 'column = "c"', "bytes": 'column = "c"'}


def test_a_table_of_constants_alone_is_refused() -> None:
    error = refusal(MINIMAL + columns('name = "c", type = "long", value = 1'))
    assert "nothing is read from records" in str(error)


def test_rules_belong_to_the_columns_that_values_are_decoded_into() -> None:
    transform = '[transform]\nsql = "SELECT * FROM records"\n' + columns(
        'name = "a", type = "long"'
    )
    table = columns('name = "c", type = "timestamp", unit = "s"')
    assert "move the rule there" in str(refusal(MINIMAL + table + transform))
    inside = columns('name = "c", type = "timestamp", unit = "s"')
    settings = sink(
        columns('name = "c", type = "timestamp"'),
        f'[transform]\nsql = "SELECT * FROM records"\n{inside}',
    )
    assert rules_of_decoded_columns(settings) == {"c": ColumnRule(unit="s")}


def test_a_record_column_has_no_rule() -> None:
    table = columns(
        'name = "id", type = "long"', 'name = "t", type = "string", from_record = true, value = "x"'
    )
    assert "keep one of them" in str(
        refusal(f'{MINIMAL}{table}[table.record_columns]\ntopic = "t"')
    )


def test_the_metadata_columns_may_be_one_struct() -> None:
    settings = sink('[table.record_columns]\nstruct = "kafka"')
    assert settings.table.record_columns.columns_by_part() == {"struct": "kafka"}
    assert settings.table.record_columns.coordinate_columns == (
        "kafka.topic",
        "kafka.partition",
        "kafka.offset",
    )
    kind = "struct<topic: string, partition: int, offset: long, timestamp: timestamptz>"
    assert declaration_of(settings.table).columns == {"kafka": kind}


def test_a_refused_file_keeps_the_code_of_what_is_wrong_with_it(tmp_path: Path) -> None:
    """As the command line shows it, with the file's name in front."""
    file = tmp_path / "trips.toml"
    file.write_text(MINIMAL + columns('name = "c", type = "long", unit = "s"'))
    with pytest.raises(ColumnRuleUnfit, match=rf"^HG-117 {file}:\d+:\d+: table.columns: 'c' has"):
        load(file)
