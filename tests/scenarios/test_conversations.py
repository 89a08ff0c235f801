"""Every failure that the protocol describes, played, as a conversation to read.

``conversations/<name>.txt`` is what was said. A change of the protocol shows there as a diff:
read it, and if it is meant, ``pytest tests/scenarios --regenerate``.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from protocol import rules
from scenarios.plays import PLAYS, Play

FOLDER = Path(__file__).parent / "conversations"


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.name)
def test_the_conversation_is_as_written_down(play: Play, request: pytest.FixtureRequest) -> None:
    text = play.text()
    golden = FOLDER / f"{play.name}.txt"
    if request.config.getoption("--regenerate", default=False):
        FOLDER.mkdir(exist_ok=True)
        golden.write_text(text)
    written = golden.read_text() if golden.exists() else ""
    difference = difflib.unified_diff(
        written.splitlines(), text.splitlines(), "as written down", "as played", lineterm=""
    )
    assert list(difference) == []


def test_every_text_has_its_play() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {play.name for play in PLAYS}


def test_every_play_names_a_heading_of_the_protocol_and_none_is_forgotten() -> None:
    headings = set(rules.failures())
    played = {play.heading for play in PLAYS if play.heading}

    assert played - headings == set()
    assert headings - played == set()
