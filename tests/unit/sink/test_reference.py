"""The reference page is made from the settings and is up to date."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path

from headgate.kafka import keys as kafka_keys
from headgate.sink.reference import render
from headgate.sink.settings import SinkSettings

PAGE = Path(__file__).parents[3] / "docs" / "reference.md"


def every_field(kind: type) -> Iterator[tuple[type, dataclasses.Field[object]]]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        yield kind, field
        hint = hints[field.name]
        element = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
        if dataclasses.is_dataclass(element) and isinstance(element, type):
            yield from every_field(element)


def test_the_committed_page_is_what_the_code_generates() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), (
        "run: python -m headgate.sink.reference > docs/reference.md"
    )


def test_every_key_has_a_sentence_and_a_unit_where_its_name_says_one() -> None:
    for kind, field in every_field(SinkSettings):
        where = f"{kind.__name__}.{field.name}"
        assert field.metadata.get("sentence", "").endswith("."), where
        unit = field.metadata.get("unit")
        assert unit is not None, where
        assert (unit == "ms") == field.name.endswith("_ms"), where
        assert (unit == "bytes") == field.name.endswith("_bytes"), where


def test_no_kafka_key_is_both_allowed_and_refused() -> None:
    assert not kafka_keys.ALLOWED & kafka_keys.REFUSED.keys()
