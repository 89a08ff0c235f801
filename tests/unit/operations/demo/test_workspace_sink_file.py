"""The demo's sink file is a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config.load import load
from headgate.config.sink_sections import WriterKind
from headgate.operations.demo.trips import TRIP_COLUMNS
from headgate.operations.demo.workspace import PARTITIONS, TOPIC, sink_file_text


@pytest.mark.parametrize("writer", WriterKind)
def test_it_loads_and_says_what_was_chosen(tmp_path: Path, writer: WriterKind) -> None:
    path = tmp_path / "sink.toml"
    path.write_text(sink_file_text(path, "127.0.0.1:29999", writer.value))
    settings = load(path)
    assert settings.kafka["bootstrap.servers"] == "127.0.0.1:29999"
    assert settings.source.topics == (TOPIC,)
    assert settings.spark.writer is writer
    assert settings.spark.master == ("local[1]" if writer is WriterKind.SPARK else "")
    assert settings.catalog.properties["uri"] == f"sqlite:///{tmp_path}/catalog.db"
    assert {column.name: column.type for column in settings.table.columns} == TRIP_COLUMNS
    assert settings.table.record_columns.coordinate_columns is not None
    assert PARTITIONS == 4


def test_on_s3_only_the_warehouse_is_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "sink.toml"
    path.write_text(sink_file_text(path, "127.0.0.1:29999", "in-process", "http://127.0.0.1:9"))
    properties = load(path).catalog.properties
    assert properties["uri"] == f"sqlite:///{tmp_path}/catalog.db"
    assert properties["warehouse"] == "s3://lake/warehouse"
    assert properties["s3.endpoint"] == "http://127.0.0.1:9"
    assert "s3.region" in properties


def test_its_comments_stand_in_line(tmp_path: Path) -> None:
    text = sink_file_text(tmp_path / "sink.toml", "127.0.0.1:29999", "spark")
    places = {line.index(" # ") for line in text.splitlines() if " # " in line}
    assert len(places) == 1
