"""``[lineage]`` and ``[signal]``: what they refuse, and what of them is never shown."""

from __future__ import annotations

import pytest
from unit.config.test_load import MINIMAL

from headgate.config.load import parse
from headgate.control_protocol.errors import ReportUnfit

HOOK = "https://hooks.example/services/T0SECRET/B0SECRET"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[lineage]\nurl = "http://a/b"\ntopic = "t"', "lineage.url and lineage.topic are both"),
        ('[lineage]\ntopic = "t"\nfile = "f"', "lineage.topic and lineage.file are both"),
        ('[lineage]\nnamespace = "city"', "[lineage] says nothing of a receiver"),
        ('[signal]\nevery = "day"', "[signal] says nothing of a receiver"),
        ('[signal]\nevery = "hour"', "[signal] says nothing of a receiver"),
        ("[lineage]\nevery_ms = 60000", "[lineage] says nothing of a receiver"),
        ("[signal]", "[signal] says nothing of a receiver"),
        ('[lineage]\nurl = "http://a/b"\nevery_ms = 10', "lineage.every_ms cannot be 10"),
        ('[signal]\nurl = "ftp://a/b"', "signal.url is no URL of HTTP"),
        ('[signal]\nurl = "http://a:99999/b"', "signal.url is no URL of HTTP"),
        ('[signal]\nurl = "http://user:secret@a/b"', "signal.url holds a user or a password"),
        ('[signal]\ntopic = "a/b"', "signal.topic cannot be 'a/b'"),
        ('[signal]\ntopic = "trips"', "is a topic that the sink reads or writes itself"),
        ('[lineage]\ntopic = "headgate-control"', "is a topic that the sink reads or writes"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, said: str) -> None:
    with pytest.raises(ReportUnfit) as refused:
        parse(f"{MINIMAL}\n{text}\n")
    assert said in refused.value.message
    assert "secret" not in str(refused.value).replace("${", "")


def test_a_token_belongs_to_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_TOKEN", "a-token-of-tests")
    with pytest.raises(ReportUnfit, match=r"signal\.token is set without signal\.url"):
        parse(f'{MINIMAL}\n[signal]\ntopic = "hours"\ntoken = "${{env:HOOK_TOKEN}}"\n')


def test_nothing_shows_the_path_of_a_hook_or_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", HOOK)
    monkeypatch.setenv("HOOK_TOKEN", "a-token-of-tests")
    section = 'url = "${env:HOOK}"\ntoken = "${env:HOOK_TOKEN}"'
    settings = parse(f"{MINIMAL}\n[signal]\n{section}\n[lineage]\n{section}\n")
    assert settings.signal.url == settings.lineage.url == HOOK
    assert "SECRET" not in repr(settings)
    assert "a-token-of-tests" not in repr(settings)
    shown = settings.redact(f"Max retries exceeded with url: /services/T0SECRET/B0SECRET; {HOOK}")
    assert "SECRET" not in shown
    assert "a-token-of-tests" not in settings.redact("Bearer a-token-of-tests")
