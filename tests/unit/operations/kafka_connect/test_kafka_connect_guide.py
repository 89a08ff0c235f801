"""The guide's connector becomes the sink that the guide says, and the guide names every key."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from repository.tree import ROOT
from support.kafka_connect import LEAST, RELEASED

from headgate.operations.kafka_connect.import_connector import import_connector
from headgate.operations.kafka_connect.translation import translate_connector
from headgate.operations.kafka_connect.translation_report import Verdict

GUIDE = (ROOT / "docs/guides/from-kafka-connect.md").read_text()


def test_the_guide_s_connector_is_imported_whole(tmp_path: Path) -> None:
    for number, text in enumerate(re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "connector.json").write_text(text)
        assert not import_connector(folder / "connector.json", folder=folder, say=lambda _: None)
        assert (folder / f"{json.loads(text)['name']}.toml").exists()


@pytest.mark.parametrize("key", RELEASED)
def test_the_guide_names_what_a_released_key_becomes(key: str) -> None:
    named = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", GUIDE, flags=re.DOTALL))
    family = key.rpartition(".")[0] + ".*"
    assert key.replace("lake.trips", "NAME") in named or family in named


@pytest.mark.parametrize("key", RELEASED)
def test_no_released_key_is_unknown(key: str) -> None:
    (sink, *_) = translate_connector({**LEAST, key: LEAST.get(key, "1")}, {})
    fate = next(fate for fate in sink.fates if fate.key == key)
    assert "no release" not in fate.text
    assert fate.verdict is not Verdict.REFUSED or key.endswith("commit-branch")
