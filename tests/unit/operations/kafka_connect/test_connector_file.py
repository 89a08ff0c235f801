"""Files of a connector as people have them, and what is wrong with others, with the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.control_protocol.errors import ConnectorFileUnfit
from headgate.operations.kafka_connect.connector_file import read_connector_file


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "trips", "config": {"topics": "a", "tasks.max": 2, "x": true, "y": null}}',
        '{"name": "trips", "topics": "a", "tasks.max": "2", "x": "true"}',
        '{"name": "trips", "config": {"topics": "a", "tasks.max": "2", "x": "true"}, "tasks": []}',
        "# of a worker that stands alone\nname=trips\ntopics = a\ntasks.max:2\nx true\n",
        "name=trips\r\ntopics=\\\n   a\r\n! more\ntasks.max=2\nx=\\u0074rue",
    ],
)
def test_json_and_properties_say_the_same(tmp_path: Path, text: str) -> None:
    file = tmp_path / "connector"
    file.write_text(text)
    assert read_connector_file(file) == {
        "name": "trips",
        "topics": "a",
        "tasks.max": "2",
        "x": "true",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"name": "trips",\n "config": {"topics": }}', ":2:23: is not valid JSON"),
        ('{"config": {\n"topics": ["a"]}}', ":2: topics is a list"),
        ('{"config": {"a": "1",\n\n"a": "2"}}', ":3: a is there twice"),
        ('{"config": {"a": [],\n"b": "a",\n"c": "\\"a\\":"}}', ":1: a is a list"),
        ('{"config": {\n"größe" : []}}', ":2: größe is a list"),
        ('{"config": {\n"gr\\u00f6\\u00dfe": []}}', ":2: größe is a list"),
        ('{"config": "x"}', ":1: config is no object"),
        ('{"name": "config",\n"connectorConfiguration": "x"}', ":2: connectorConfiguration is no"),
        ("[]", "is a list"),
        ('{"tasks.max": ' + "1" * 5_000 + "}", "cannot be read: Exceeds the limit"),
        ("name=a\nnonsense\n", ":2: is neither key=value nor JSON"),
        ("", "has no keys"),
    ],
)
def test_another_file_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "connector.json"
    file.write_text(text)
    with pytest.raises(ConnectorFileUnfit) as error:
        read_connector_file(file)
    assert said in error.value.message


def test_lines_and_escapes_are_javas(tmp_path: Path) -> None:
    """Only CR and LF end a line, and two escapes may be one character."""
    file = tmp_path / "connector.properties"
    text = "name=\\ud83d\\ude00 \\ud83d\ntopics=a\u2028b\x85c\fd\nx=\\u0041\r\ny=1\n"
    file.write_text(text, newline="")
    assert read_connector_file(file) == {
        "name": "\N{GRINNING FACE} \N{REPLACEMENT CHARACTER}",
        "topics": "a\u2028b\x85c\fd",
        "x": "A",
        "y": "1",
    }


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConnectorFileUnfit, match="cannot be read"):
        read_connector_file(tmp_path / "none.json")
