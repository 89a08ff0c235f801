"""What a process logs, for people and for machines."""

from __future__ import annotations

import json
import logging

import pytest
from unit.config.test_load import MINIMAL

from headgate.config.load import parse
from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.redacting_loggers import redacting
from headgate.control_protocol.redaction import Redaction
from headgate.runtime.console_log import JsonLines, Redacting, send_redacted_logs_to_stderr

SECRET = "swordfish-42"


def line(message: str, *arguments: object, **extra: object) -> dict[str, object]:
    record = logging.LogRecord("headgate.x", logging.WARNING, "f", 1, message, arguments, None)
    record.__dict__.update(extra)
    text = formatter().format(record)
    assert "\n" not in text
    return dict(json.loads(text))


def formatter() -> JsonLines:
    secret = f'"sasl.password" = "{SECRET}"\n'
    return JsonLines([parse(MINIMAL.replace("[kafka]\n", f"[kafka]\n{secret}"))])


def test_a_line_is_an_object_with_event_code_and_fields() -> None:
    said = line(
        "batch %d failed: HG-403 no space",
        3,
        **event_extra(LogEvent.BATCH_FAILED, epoch=4, transaction=7),
    )
    del said["time"]
    assert said == {
        "level": "warning",
        "event": "batch.failed",
        "sink": "trips",
        "logger": "headgate.x",
        "message": "batch 3 failed: HG-403 no space",
        "code": "HG-403",
        "epoch": 4,
        "transaction": 7,
    }


def test_a_foreign_line_is_a_note_without_secrets_or_line_breaks() -> None:
    said = line(f"login as x:{SECRET} failed\nthen \u2028 this")
    assert said["event"] == "note"
    assert SECRET not in json.dumps(said)


def test_a_trace_stays_on_its_line() -> None:
    error = Unreachable(f"no answer for {SECRET}")
    info = (type(error), error, None)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "ended", (), info)
    text = formatter().format(record)
    assert "\n" not in text
    assert "Unreachable" in json.loads(text)["trace"]
    assert SECRET not in text


@pytest.mark.parametrize("form", [JsonLines, Redacting])
def test_a_line_holds_no_secret_of_what_runs_now(form: type[JsonLines | Redacting]) -> None:
    """A fleet's page and its workers start with no sink, and a sink's file is read again."""
    error = ValueError(f"cannot use {SECRET}")
    record = logging.LogRecord(
        "foreign", logging.ERROR, "f", 1, f"as {SECRET}", (), (type(error), error, None)
    )
    with redacting(Redaction(frozenset({SECRET}))):
        assert SECRET not in form([]).format(record)


def test_another_form_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_LOG", "xml")
    with pytest.raises(ConfigurationError, match="HEADGATE_LOG cannot be 'xml'"):
        send_redacted_logs_to_stderr([parse(MINIMAL)])
