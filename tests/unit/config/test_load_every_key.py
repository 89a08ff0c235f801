"""Every key of the reference page, written wrongly: one short error, and the same of each command.

A compact form of 1,555 generated sink files that went through ``check`` and ``run``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.config.load import load
from headgate.control_protocol.errors import ConfigurationError
from headgate.operations.cli.main import main

PAGE = Path(__file__).parents[3] / "docs/reference/settings.md"
CHARACTERS_MAX = 1_000
"""Of an error: a few lines of a terminal."""

ONE_TABLE: Mapping[str, Any] = {
    "name": "trips",
    "source": {"topics": ["trips"]},
    "kafka": {"bootstrap.servers": "127.0.0.1:1"},
    "table": {
        "identifier": "db.trips",
        "create": True,
        "columns": [{"name": "id", "type": "long"}],
    },
    "spark": {"writer": "in-process"},
}
SHAPED: Mapping[str, Any] = {
    **ONE_TABLE,
    "table": {**ONE_TABLE["table"], "columns": [{"name": "id", "type": "string"}]},
    "shape": {
        "where": "id is not null",
        "mask": [{"column": "id"}],
        "expect": [{"name": "short", "that": "id = '1'"}],
    },
}
MANY_TABLES: Mapping[str, Any] = {
    **{name: ONE_TABLE[name] for name in ("name", "source", "kafka", "spark")},
    "tables": {
        "ledger": "db.ledger",
        "route": [{"topic": "trips", "to": "db.trips"}],
        "table": [{"match": "db.trips", "columns": [{"name": "id", "type": "long"}]}],
        "create": {"schema": "declared"},
    },
}
TRANSFORMED: Mapping[str, Any] = {
    **ONE_TABLE,
    "spark": {"writer": "spark"},
    "transform": {"sql": "SELECT id FROM records", "columns": [{"name": "id", "type": "long"}]},
}

WRONG: Mapping[str, tuple[Any, ...]] = {
    "whole number": ("5", True, 1.5, [1]),
    "boolean": ("yes", 1, []),
    "text": (5, True, [], {"a": 1}),
    "list of texts": ("text", [5], {"a": "b"}),
    "section of texts": ("text", 5, [1], {"a": {"b": 1}}),
}
"""By type of a key, what it never is."""

DOUBTFUL: Mapping[str, tuple[Any, ...]] = {
    "whole number": (-1, 0, 10**18),
    "text": ("", " ", "a\n", "\0", "x" * 3_000, "${vault:x}", "${env:NOT_SET}"),
    "list of texts": ([], [""], ["no such thing"]),
    "section of texts": ({"no.such.key": "x"}, {"": ""}),
}
"""What is refused or taken, never more than that."""


def keys() -> Iterator[tuple[str, str, str]]:
    """Section, key and type of every key of the sink file on the page."""
    section = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## \[+([\w.]+)\]+", line):
            section = heading[1]
        elif line == "# The worker's file":
            return  # another file
        elif row := re.match(r"\| `([\w-]+)` \| ([^|]+) \|", line):
            yield section, row[1], row[2]


KEYS = list(keys())


def changed(section: str, key: str, value: Any) -> str:
    """A right file but for this key, as TOML. Fails if the page has a section that it lacks."""
    first = section.partition(".")[0]
    whole: Any = {
        "tables": MANY_TABLES,
        "transform": TRANSFORMED,
        "shape": SHAPED,
    }.get(first, ONE_TABLE)
    return "\n".join(
        f"{json.dumps(name)} = {_toml(said)}"
        for name, said in _put(whole, section.split(".") if section else [], key, value).items()
    )


def _put(whole: Any, path: list[str], key: str, value: Any) -> dict[str, Any]:
    if not path:
        return {**whole, key: value}
    inner = whole.get(path[0], {})
    if isinstance(inner, list):
        return {**whole, path[0]: [_put(inner[0], path[1:], key, value), *inner[1:]]}
    return {**whole, path[0]: _put(inner, path[1:], key, value)}


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        said = (f"{json.dumps(name)} = {_toml(inner)}" for name, inner in value.items())
        return "{ " + ", ".join(said) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def error_of(file: Path, text: str) -> ConfigurationError | None:
    file.write_text(text, encoding="utf-8")
    try:
        load(file)
    except ConfigurationError as error:
        assert len(str(error)) <= CHARACTERS_MAX, text
        assert "\n" not in str(error), text
        return error
    return None


def test_the_page_has_the_keys() -> None:
    assert len(KEYS) > 150
    assert {section for section, _, _ in KEYS} >= {"", "source", "table.columns", "http"}


@pytest.mark.parametrize("section", sorted({section for section, _, _ in KEYS}))
def test_a_key_of_a_wrong_type_is_named(section: str, tmp_path: Path) -> None:
    for _, key, kind in (each for each in KEYS if each[0] == section):
        for value in WRONG.get(kind.strip(), ("nonsense", 5) if "` or `" in kind else ()):
            if (section, key, value) == ("source", "start_at", 5):
                continue  # milliseconds: the only key that may be written in several ways
            error = error_of(tmp_path / "sink.toml", changed(section, key, value))
            assert error is not None, (section, key, value)
            assert key in error.message, (section, key, value)


@pytest.mark.parametrize("section", sorted({section for section, _, _ in KEYS}))
def test_a_misspelt_key_is_named_with_the_right_one(section: str, tmp_path: Path) -> None:
    for _, key, _ in (each for each in KEYS if each[0] == section):
        error = error_of(tmp_path / "sink.toml", changed(section, f"{key}z", "x"))
        assert error is not None
        assert f"{key}z is not a known key" in error.message
        assert key in error.hint, (section, key)


@pytest.mark.parametrize("section", sorted({section for section, _, _ in KEYS}))
def test_an_odd_value_is_taken_or_refused_in_short(section: str, tmp_path: Path) -> None:
    for _, key, kind in (each for each in KEYS if each[0] == section):
        for value in DOUBTFUL.get(kind.strip(), ()):
            error_of(tmp_path / "sink.toml", changed(section, key, value))


@pytest.mark.parametrize("section", sorted({section for section, _, _ in KEYS}))
def test_check_and_run_refuse_a_wrong_file_in_the_same_words(section: str, tmp_path: Path) -> None:
    _, key, _ = next(each for each in KEYS if each[0] == section)
    file = tmp_path / "sink.toml"
    file.write_text(changed(section, key, {"a": [1]}), encoding="utf-8")
    said = {
        command: CliRunner().invoke(main, [command, str(file)])
        for command in ("check", "run", "status", "audit")
    }
    assert {each.exit_code for each in said.values()} == {2}
    assert len({each.output for each in said.values()}) == 1
    assert said["check"].output.startswith(f"headgate: HG-100 {file}:")
