"""A mistake in a sink file is told with its line and column."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from unit.config.test_load import MINIMAL

from headgate.config.load import load
from headgate.config.toml_positions import find_line_and_column_of_error
from headgate.control_protocol.errors import ConfigurationError
from headgate.operations.init.sink_file_template import build_sink_file_text

TEXT = '''# [no] section
a = 1
"b.c" = """
[x]
y = 2 # " """ # c
'd' = [ 1, # one ]
  { e = "}", f.g = '#' }, [2]]
[ s . "t u" ]
v.w = true
[[l]]
k = 1
[[l.m]]
n = 0x1
[[l.m]]
n = 2
[[l]]
k = 2 ] nothing'''.removesuffix(" ] nothing")


@pytest.mark.parametrize(
    ("message", "at"),
    [
        ("a must be text", (2, 5)),
        ("a is not a known key", (2, 1)),
        ('b."c" is odd', None),
        ("d[0] is odd", (6, 9)),
        ("d[1].e is odd", (7, 9)),
        ("d[1].f.g is odd", (7, 20)),
        ("d[2][0] is odd", (7, 28)),
        ('s."t u" is odd', (8, 1)),
        ('s."t u".v.w is odd', (9, 7)),
        ('s."t u".zz is missing', (8, 1)),
        ("l[0].k is odd", (11, 5)),
        ("l[0].m[1].n is odd", (15, 5)),
        ("l[1].k is odd", (17, 5)),
        ("x is odd", None),
        ("", None),
    ],
)
def test_the_place_of_a_key_and_of_its_value(message: str, at: tuple[int, int] | None) -> None:
    tomllib.loads(TEXT)
    assert find_line_and_column_of_error(TEXT, message) == at


@pytest.mark.parametrize(
    ("wrong", "at"),
    [
        ("[coordinator]\ncommit_interval = 1", "11:1: coordinator.commit_interval is not"),
        ("[coordinator]\ncommit_interval_ms = '1'", "11:22: coordinator.commit_interval_ms must"),
        ('[quarantine]\npolicy = "kep"', "11:10: quarantine.policy cannot be 'kep'"),
        ("[[table.columns]]\nname = 'x'", "10:1: table.columns[0].type is missing"),
        ('[kafka.auth]\nkind = "x"', "11:1: kafka.auth.kind is not a known key"),
    ],
)
def test_a_sink_file_s_mistake_is_told_with_its_place(tmp_path: Path, wrong: str, at: str) -> None:
    path = tmp_path / "trips.toml"
    path.write_text(f"{MINIMAL}\n{wrong}\n")
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert caught.value.message.startswith(f"{path}:{at}")


def places(value: Any, path: str) -> list[str]:
    """The paths of everything in a document, as messages write them."""
    if isinstance(value, dict):
        inside = [(f'{path}."{k}"' if path else k, each) for k, each in value.items()]
    elif isinstance(value, list):
        inside = [(f"{path}[{n}]", each) for n, each in enumerate(value)]
    else:
        inside = []
    return [path] * bool(path) + [found for at, each in inside for found in places(each, at)]


def test_everything_in_a_first_sink_file_has_a_place() -> None:
    text = build_sink_file_text("shop", Path(), "shop", {"client.id": "a"})
    for place in places(tomllib.loads(text), ""):
        assert find_line_and_column_of_error(text, f"{place} is odd"), place
