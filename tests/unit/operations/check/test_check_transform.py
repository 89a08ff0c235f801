"""``check`` answers for every mistake in the module that ``transform.python`` names."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.operations.filled_table import FilledTable, sink_file_text

from headgate.config.load import parse
from headgate.control_protocol.errors import ConfigurationError, RetryLater
from headgate.operations.check.keys_and_transform import check_transform


def check(home: Path, monkeypatch: pytest.MonkeyPatch, module: str, code: str) -> str:
    (home / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(home)
    monkeypatch.delenv("HEADGATE_NO_SUCH_THING", raising=False)
    text = f'{sink_file_text(home)}[transform]\npython = "{module}:f"\n'
    return check_transform(parse(text))


@pytest.mark.parametrize(
    ("module", "code", "said"),
    [
        ("of_wrong_syntax", "def f(:\n", "SyntaxError"),
        ("without_its_setting", 'import os\nos.environ["HEADGATE_NO_SUCH_THING"]\n', "KeyError"),
        ("of_unknown_names", "absent\n", "NameError"),
    ],
)
@pytest.mark.usefixtures("filled")
def test_a_module_that_cannot_be_loaded_is_a_mistake_of_the_sinks_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, code: str, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"'{module}:f' cannot be loaded: {said}"):
        check(tmp_path, monkeypatch, module, code)


def test_a_relative_path_is_a_mistake_of_the_sinks_file(
    tmp_path: Path, filled: FilledTable
) -> None:
    assert filled.table
    text = f'{sink_file_text(tmp_path)}[transform]\npython = ".mine:f"\n'
    with pytest.raises(ConfigurationError, match=r"'\.mine:f' cannot be loaded: TypeError"):
        check_transform(parse(text))


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("asks_when_loaded", 'open("/nowhere/prices.csv")\n'),
        ("asks_when_called", 'def f(rows):\n    open("/nowhere/prices.csv")\n'),
    ],
)
@pytest.mark.usefixtures("filled")
def test_what_others_do_not_answer_to_a_function_is_asked_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, code: str
) -> None:
    with pytest.raises(RetryLater, match=r"FileNotFoundError: .*/nowhere/prices\.csv"):
        check(tmp_path, monkeypatch, module, code)
