"""``headgate import`` writes a file that loads, or nothing at all."""

from __future__ import annotations

import json
import random
import tomllib
from pathlib import Path

import pytest
from support.kafka_connect import LEAST, RELEASED

from headgate.config.load import parse
from headgate.control_protocol.errors import ConfigurationError, ConnectorRefused, HeadgateError
from headgate.operations.kafka_connect.import_connector import import_connector, to_toml


def written(folder: Path, keys: dict[str, str]) -> Path:
    path = folder / "connector.json"
    path.write_text(json.dumps({"name": "trips", "config": keys}))
    return path


def test_the_file_loads_once_its_variables_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {**LEAST, "iceberg.catalog.credential": "me:HUSH"}
    said: list[str] = []
    assert not import_connector(written(tmp_path, keys), folder=tmp_path, say=said.append)
    text = (tmp_path / "trips.toml").read_text()
    assert "HUSH" not in text + "".join(said)
    assert any("CATALOG_CREDENTIAL" in line for line in said)
    monkeypatch.setenv("CATALOG_CREDENTIAL", "me:other")
    assert parse(text).catalog.properties["credential"] == "me:other"


def test_nothing_is_written_where_a_key_is_refused(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(ConnectorRefused, match=r"iceberg\.unheard"):
        import_connector(
            written(tmp_path, {**LEAST, "iceberg.unheard": "1"}), folder=tmp_path, say=said.append
        )
    assert not list(tmp_path.glob("*.toml"))
    assert said[0].startswith("refused")


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "trips.toml").write_text("mine")
    with pytest.raises(ConfigurationError, match="exists already"):
        import_connector(written(tmp_path, LEAST), folder=tmp_path, say=lambda _: None)
    assert (tmp_path / "trips.toml").read_text() == "mine"


@pytest.mark.parametrize("tables", ["a.b-c,a-b.c,a.d", "db.Trips,db.trips"])
def test_tables_whose_sinks_would_share_a_name_get_a_file_each(tmp_path: Path, tables: str) -> None:
    import_connector(
        written(tmp_path, {**LEAST, "iceberg.tables": tables}), folder=tmp_path, say=lambda _: None
    )
    made = [(path.stem, parse(path.read_text())) for path in tmp_path.glob("*.toml")]
    assert {sink.table.identifier for _, sink in made} == set(tables.split(","))
    assert all(sink.name == name for name, sink in made)
    assert ("trips-a-d" in dict(made)) == ("a.d" in tables), "a name of its own stays plain"


def test_a_table_that_is_named_twice_is_one_sink(tmp_path: Path) -> None:
    keys = {**LEAST, "iceberg.tables": "lake.a,lake.a"}
    import_connector(written(tmp_path, keys), folder=tmp_path, say=lambda _: None)
    assert [path.name for path in tmp_path.glob("*.toml")] == ["trips.toml"]


def test_texts_survive_toml() -> None:
    document = {
        "name": 'a"b\\c\n\x7f\té',
        "a.b": {"x": 1, "y": [True, False], "c": {"d e": "f"}},
        "list": [{"k": "v"}, {"k": ""}],
    }
    assert tomllib.loads(to_toml(document)) == document


def test_odd_values_are_refused_by_name_and_never_break_the_translation(tmp_path: Path) -> None:
    chance = random.Random(11)
    values = [
        "",
        "true",
        "false",
        "0",
        "-1",
        "a,b",
        ",",
        "^(",
        "x(",
        "${env:A}",
        "${",
        "é\n",
        "a=b;",
    ]
    more = [
        *("topics.regex", "transforms", "transforms.a.type", "errors.tolerance", "tasks.max"),
        *("iceberg.kafka.sasl.jaas.config", "iceberg.kafka.sasl.mechanism", "value.converter"),
        *("iceberg.kafka.ssl.truststore.location", "iceberg.catalog.type", "iceberg.catalog.uri"),
        *("iceberg.catalog.catalog-impl", "iceberg.hadoop.fs.s3a.endpoint", "connector.class"),
        *("consumer.override.auto.offset.reset", "iceberg.catalog.token", "name", "predicates"),
    ]
    for number in range(400):
        keys = dict(LEAST)
        for key in chance.sample([*RELEASED, *more], chance.randrange(1, 8)):
            keys[key] = chance.choice(values)
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            import_connector(written(folder, keys), folder=folder, say=lambda _: None)
        except HeadgateError:
            assert not list(folder.glob("*.toml"))
