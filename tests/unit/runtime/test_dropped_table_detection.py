"""What a start asks before it makes anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from headgate.config.load import parse
from headgate.control_protocol.commit_record import offset_metadata_of_table
from headgate.control_protocol.errors import TableRecreated, Unreachable
from headgate.control_protocol.identifiers import SinkName
from headgate.runtime import dropped_table_detection
from headgate.runtime.dropped_table_detection import require_table_never_filled_before

ONE = """
name = "trips"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
[table]
identifier = "lake.trips"
create = true
[[table.columns]]
name = "id"
type = "long"
"""
MANY = (
    ONE[: ONE.index("[table]")]
    + """
[tables]
ledger = "lake.ledger"
[[tables.route]]
to = "lake.{topic}"
"""
)


def noted(monkeypatch: pytest.MonkeyPatch, note: str | Callable[[], str | None] | None) -> None:
    class Topics:
        def __init__(self, *_: Any, **__: Any) -> None:
            """Of any group."""

        def committed_offset_metadata(self) -> str | None:
            return note() if callable(note) else note

        def close(self) -> None:
            """Nothing is held."""

    monkeypatch.setattr(dropped_table_detection, "KafkaSourceTopics", Topics)


@pytest.mark.parametrize(
    ("text", "table", "remedy"),
    [
        (ONE, "lake.trips", "coordinator.on_table_recreated"),
        (MANY, "lake.ledger", "another name and group"),
    ],
)
@pytest.mark.parametrize(
    "note", [offset_metadata_of_table("uuid-1", SinkName("trips")), "headgate table=uuid-1"]
)
def test_config_1_a_table_that_the_group_knows_is_not_made_anew(
    monkeypatch: pytest.MonkeyPatch, text: str, table: str, remedy: str, note: str
) -> None:
    noted(monkeypatch, note)
    with pytest.raises(TableRecreated) as stopped:
        require_table_never_filled_before(parse(text))
    assert f"there is no table {table}, but this sink has filled it (UUID uuid-1)" in str(
        stopped.value
    )
    assert "nothing was created" in stopped.value.message
    assert remedy in stopped.value.hint


@pytest.mark.parametrize(
    ("note", "text"),
    [
        (None, ONE),
        ("somebody else's", ONE),
        (
            offset_metadata_of_table("uuid-1", SinkName("others")),
            ONE,
        ),  # the coordinator says that by name
        (
            offset_metadata_of_table("uuid-1", SinkName("trips")),
            f'{ONE}\n[coordinator]\non_table_recreated = "restart"',
        ),
        (
            offset_metadata_of_table("uuid-1", SinkName("trips")),
            ONE.replace("create = true", "create = false"),
        ),
    ],
)
def test_config_1_a_first_start_makes_its_table(
    monkeypatch: pytest.MonkeyPatch, note: str | None, text: str
) -> None:
    noted(monkeypatch, note)
    require_table_never_filled_before(parse(text))


def test_config_1_who_keeps_the_notes_may_just_be_elected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on brokers that were started a moment ago."""
    answers: list[Exception] = [Unreachable("not coordinator"), Unreachable("not coordinator")]

    def note() -> str | None:
        if answers:
            raise answers.pop()
        return None

    noted(monkeypatch, note)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    require_table_never_filled_before(parse(ONE), 600.0)
    assert not answers
    answers.append(Unreachable("not coordinator"))
    with pytest.raises(Unreachable):
        require_table_never_filled_before(parse(ONE))
