"""A table with commits, and the sink file that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from unit.operations.filled_table import FilledTable, catalog_properties, sink_file_text

from headgate.config.load import load
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.events import Notice
from headgate.operations.control import operator_claim


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a person's acts say on the control topic; there are no brokers to wait for."""
    said: list[str] = []

    def say(settings: object, sender: object, event: Notice, answer_timeout_ms: int) -> None:
        said.append(event.text)

    monkeypatch.setattr(operator_claim, "try_append_notice", say)
    return said


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = load_catalog("default", **catalog_properties(tmp_path))
    yield catalog
    catalog.close()


@pytest.fixture
def filled(catalog: Catalog, told: list[str]) -> FilledTable:
    assert not told
    return FilledTable(catalog)


@pytest.fixture
def sink_file(tmp_path: Path) -> Path:
    path = tmp_path / "sink.toml"
    path.write_text(sink_file_text(tmp_path))
    return path


@pytest.fixture
def settings(sink_file: Path) -> SinkSettings:
    return load(sink_file)
