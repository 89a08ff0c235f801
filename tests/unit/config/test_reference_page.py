"""The reference page is made from the settings and is up to date."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from headgate.config.reference_page import render_reference_page
from headgate.config.section_schema import Key, keys_of
from headgate.config.sink_settings import SinkSettings
from headgate.config.worker_settings import WorkerSettings
from headgate.kafka import client_settings as kafka_keys

PAGE = Path(__file__).parents[3] / "docs/reference/settings.md"


def every_key(section: type) -> Iterator[Key]:
    for key in keys_of(section).values():
        yield key
        if key.inner_section:
            yield from every_key(key.inner_section)


def test_the_committed_page_is_what_the_code_generates() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_reference_page(), (
        "run: python -m headgate.config.reference_page > docs/reference/settings.md"
    )


def test_no_cell_ends_before_its_text() -> None:
    """Markdown drops what follows the last cell of a row."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}


def test_every_key_has_a_sentence_and_a_unit_where_its_name_says_one() -> None:
    for key in (*every_key(SinkSettings), *every_key(WorkerSettings)):
        where = f"{key.section.__name__}.{key.name}"
        assert key.description.endswith("."), where
        assert bool(key.unit) == (key.hint is int), where
        assert (key.unit == "ms") == key.field.name.endswith("_ms"), where
        assert (key.unit == "bytes") == key.field.name.endswith("_bytes"), where


def test_no_kafka_key_is_both_allowed_and_refused() -> None:
    assert not kafka_keys.ALLOWED & kafka_keys.REFUSED.keys()
