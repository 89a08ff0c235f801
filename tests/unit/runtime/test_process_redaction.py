"""No secret leaves a participant: not in events, errors or logs, however it is run."""

from __future__ import annotations

import importlib
import json
import logging
import pickle
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from unit.config.test_load import MINIMAL

from headgate.config.load import parse
from headgate.control_protocol.errors import PoisonRecord, StopSink, Unreachable
from headgate.control_protocol.events import (
    AbortCommit,
    EndCommit,
    Envelope,
    Notice,
    TableStart,
    WriteStatus,
)
from headgate.control_protocol.identifiers import (
    ControlOffset,
    Epoch,
    Sender,
    SinkName,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.machine_io import OutgoingEvent
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.redacting_loggers import redacted_logger, redacting
from headgate.control_protocol.redaction import REASON_CHARACTERS_MAX, Redaction
from headgate.data_plane.formats.registry.schemas import SchemaRegistry
from headgate.runtime import assembly, early_signals, process, process_notices, spark_submit
from headgate.runtime.write_planning import build_source_plan

SECRET = "sesame-open"
LOGS_IN = MINIMAL.replace("[kafka]\n", f'[kafka]\n"sasl.password" = "{SECRET}"\n')
MASKING = Redaction(frozenset({SECRET, "abc"}))


def test_failure_texts_are_redacted_and_bounded_before_they_travel() -> None:
    reason = f"login {SECRET} at postgresql://me:hidden@host/db " + "x" * 10_000
    said = MASKING.redact_event(WriteStatus(1, failure=reason))
    assert isinstance(said, WriteStatus)
    assert (said.failure or "").startswith("login *** at postgresql://me:***@host/db x")
    assert len(said.failure or "") == REASON_CHARACTERS_MAX
    aborted = MASKING.redact_event(AbortCommit(ControlOffset(1), Offsets(), reason=SECRET))
    assert isinstance(aborted, AbortCommit)
    assert aborted.reason == "***"
    assert MASKING.redact_event(EndCommit()) == EndCommit()


def test_an_error_is_redacted_where_it_is() -> None:
    error = MASKING.redact_in_place(PoisonRecord(f"value {SECRET}", f"mend {SECRET}"))
    assert str(error) == "HG-207 value *** (mend ***)"
    assert SECRET not in repr(error)


def test_a_redaction_shows_no_secret_and_travels() -> None:
    assert SECRET not in repr(MASKING)
    assert pickle.loads(pickle.dumps(MASKING)) == MASKING
    assert MASKING("abc") == "abc", "too short to search for"


def test_a_settings_redaction_knows_every_section() -> None:
    text = (
        MINIMAL
        + '[format]\ntype = "avro-registry"\n[format.options]\n'
        + '"registry.url" = "http://r"\n"registry.basic.auth.user.info" = "me:format-secret"\n'
        + '[spark.conf]\n"spark.hadoop.secret" = "spark-secret"\n'
    )
    settings = parse(text)
    assert settings.redaction("me:format-secret, spark-secret") == "***, ***"
    assert settings.redact("spark-secret") == "***"


def test_what_the_package_logs_in_somebodys_program_is_redacted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = redacted_logger("headgate.participant")
    with caplog.at_level(logging.INFO, "headgate"), redacting(MASKING):
        log.warning("cannot log in with %s", SECRET)
        log.info("%d records", 5)
    log.warning("afterwards: %s", SECRET)
    assert caplog.messages == ["cannot log in with ***", "5 records", f"afterwards: {SECRET}"]


def test_every_logger_of_the_package_is_such_a_one() -> None:
    skipped = ("demo", "cli")
    for package in (
        "control_protocol",
        "coordinator",
        "participant",
        "config",
        "runtime",
        "operations",
    ):
        found = importlib.import_module(f"headgate.{package}")
        for path in Path(next(iter(found.__path__))).rglob("*.py"):
            text = path.read_text()
            if path.stem in ("redacting_loggers", *skipped) or "demo" in path.parts:
                continue
            assert "= logging.getLogger(" not in text, path


def failing_with(error: Exception) -> Any:
    def ready(*_: Any) -> Any:
        raise error

    return ready


@pytest.mark.parametrize("opening", ["open_sink", "open_task"])
def test_embedding_raises_redacted_errors(monkeypatch: pytest.MonkeyPatch, opening: str) -> None:
    settings = parse(LOGS_IN)
    monkeypatch.setattr(
        assembly,
        "_prepare_tables_and_control_topic",
        failing_with(Unreachable(f"refused {SECRET}")),
    )
    made = (
        assembly.open_sink(settings)
        if opening == "open_sink"
        else assembly.open_task(settings, steering=object())  # type: ignore[arg-type]
    )
    with pytest.raises(Unreachable) as caught, made:
        pass
    assert str(caught.value) == "HG-401 refused ***"


def test_the_spark_job_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "sink.toml"
    file.write_text(LOGS_IN)
    monkeypatch.setattr(sys, "argv", ["spark_submit.py", "--config", str(file)])
    monkeypatch.setattr(early_signals, "catch_signals", lambda: None)  # others would find them

    def run(*_: Any, **__: Any) -> None:
        logging.getLogger("some.library").warning("logs in with %s", SECRET)
        raise StopSink(f"refused {SECRET}", f"not {SECRET}")

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    assert spark_submit.main() == 1
    shown = capsys.readouterr().err
    assert "logs in with ***" in shown
    assert "HG-200 refused *** (not ***)" in shown
    assert SECRET not in shown


def test_a_drivers_stop_and_its_statuses_are_redacted() -> None:
    from headgate.control_protocol.machine_io import Stop
    from headgate.control_protocol.testing.clock import FakeClock
    from headgate.control_protocol.testing.group import FakeGroup, FakeMember
    from headgate.control_protocol.testing.log import FakeLog, FakeLogServer
    from headgate.control_protocol.testing.source import FakeSource
    from headgate.control_protocol.testing.writer import FakeBatchWriter, FakeStorage
    from headgate.participant.driver import ParticipantDriver, World
    from headgate.participant.settings import ParticipantSettings
    from headgate.participant.state import State

    class Leadership:
        error: StopSink | None = None

        def on_assignment(self, partitions: frozenset[TopicPartition]) -> None: ...

        def failure(self) -> StopSink | None:
            return self.error

        def close(self) -> None: ...

    clock, source, leadership = FakeClock(), FakeSource(), Leadership()
    driver = ParticipantDriver(
        State(SinkName("sink"), Sender("one", "life"), ParticipantSettings()),
        World(
            FakeMember(FakeGroup(source, clock), "one"),
            FakeLog(FakeLogServer(clock)),
            FakeBatchWriter(source, FakeStorage(), clock),
            leadership,
            clock,
            MASKING,
        ),
    )
    with pytest.raises(StopSink) as caught:
        driver._execute(Stop(StopSink(f"stops: {SECRET}")))
    assert str(caught.value) == "HG-200 stops: ***"
    term, failed = driver.state.term, WriteStatus(1, failure=f"why: {SECRET}")
    draft = OutgoingEvent(term.epoch, term.answered, failed, 1)
    assert [e.event.failure for e in driver._make_envelopes(draft)] == ["why: ***"]  # type: ignore[union-attr]
    leadership.error = StopSink(f"the coordinator: {SECRET}")
    with pytest.raises(StopSink, match=r"the coordinator: \*\*\*"):
        driver.run_once(0)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Notice]:
    """What is appended to the control topic for ``status``."""
    notices: list[Notice] = []

    class Log:
        def append(self, envelopes: list[Envelope]) -> None:
            notices.extend(e.event for e in envelopes if isinstance(e.event, Notice))

        def close(self) -> None: ...

    monkeypatch.setattr(process_notices, "require_fitting_topic_if_present", lambda *_: True)
    monkeypatch.setattr(process_notices, "open_control_log", lambda *_: Log())
    return notices


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StopSink(f"refused {SECRET}", f"not {SECRET}"), "refused *** (not ***)"),
        (ValueError(f"refused {SECRET}"), "ValueError: refused ***"),
    ],
    ids=["foreseen", "unforeseen"],
)
def test_a_last_word_is_redacted(said: list[Notice], error: Exception, text: str) -> None:
    with (
        pytest.raises(type(error)),
        process_notices.announcing_end(parse(LOGS_IN), Sender("one", "life")),
    ):
        raise error
    assert [notice.text for notice in said] == [text]


def test_what_a_coordinator_tries_in_vain_is_redacted(said: list[Notice]) -> None:
    complain = process_notices.Complaints(parse(LOGS_IN), Sender("one", "life"))
    complain(f"HG-401 refused {SECRET}", None)
    complain._saying.join()
    assert [(notice.code, notice.text) for notice in said] == [("HG-401", "HG-401 refused ***")]


@pytest.mark.parametrize("excerpts", [True, False])
def test_whether_errors_show_records_reaches_the_writers(excerpts: bool) -> None:
    settings = parse(MINIMAL + f"[quarantine]\nexcerpts = {str(excerpts).lower()}\n")
    batch = Batch(
        1,
        TransactionId(Epoch(1), TransactionNumber(1)),
        TableStart("db.trips", "uuid", 0, 0, "/lake/trips/1"),
        {},
        1,
    )
    assert build_source_plan(settings, batch).handling.excerpts is excerpts


@pytest.mark.parametrize(
    "echoed",
    [
        "GET /schemas Authorization: Basic bWU6Zm9ybWF0LXNlY3JldA==",
        '{"headers": {"authorization": "Bearer format-secret"}}',
        "user=me&password=for%6Dat-secret format-secret".replace("%6D", "m"),
    ],
)
def test_an_answer_that_echoes_what_it_was_sent_shows_no_secret(echoed: str) -> None:
    text = (
        MINIMAL
        + '[format]\ntype = "avro-registry"\n[format.options]\n'
        + '"registry.url" = "http://r"\n"registry.basic.auth.user.info" = "me:format-secret"\n'
    )
    for mask in (parse(text).redaction, parse(text).redaction_for_tasks):
        said = mask(echoed)
        assert "format-secret" not in said
        assert "bWU6" not in said
        assert "***" in said


def test_forms_that_a_client_sends_are_masked() -> None:
    mask = Redaction(frozenset({'pa ss/"w+rd'}))
    for form in ("cGEgc3MvIncrcmQ=", "pa%20ss%2F%22w%2Brd", "pa+ss%2F%22w%2Brd", 'pa ss/\\"w+rd'):
        assert mask(f"x {form} y") == "x *** y", form


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer 0a1b2c3d4e5f6g7h",
        "'authorization': 'bearer 0a1b2c3d4e5f6g7h'",
        '{"access_token":"0a1b2c3d4e5f6g7h","scope":"catalog"}',
        "sent Bearer 0a1b2c3d4e5f6g7h to it",
    ],
)
def test_a_token_that_no_setting_holds_is_masked(text: str) -> None:
    said = Redaction()(text)
    assert "0a1b" not in said
    assert "***" in said


@pytest.mark.parametrize(
    "text",
    ["Broker: Group authorization failed", "basic authentication is required", "bearer of news"],
)
def test_words_about_authorization_stay(text: str) -> None:
    assert Redaction()(text) == text


def test_what_a_reference_inside_of_a_value_stands_for_is_masked_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PART", "part-of-it")
    text = '[telemetry.otlp_headers]\nAuthorization = "Bearer ${env:PART}"\n'
    text += '[catalog.properties]\ncredential = "client:its-own"\n'
    mask = parse(MINIMAL + text).redaction
    assert mask("said part-of-it, Bearer part-of-it, its-own") == "said ***, ***, ***"
    remote = '[spark]\nremote = "sc://there:15002/;use_ssl=true;token=remote-token"\n'
    assert parse(MINIMAL + remote).redact("remote-token") == "***"


def test_where_the_brokers_are_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERS", "there.example:9092")
    text = MINIMAL.replace("127.0.0.1:9092", "${env:BROKERS}")
    assert parse(text).redact("at there.example:9092") == "at there.example:9092"


class _Echoing(BaseHTTPRequestHandler):
    """A registry that fails, and repeats all that it was sent, at length."""

    def do_GET(self) -> None:
        said = f"Authorization: {self.headers['Authorization']} {self.headers}" + "x" * 9_000
        body = json.dumps({"error_code": 50001, "message": said}).encode()
        self.send_response(500)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_a_registry_that_repeats_what_it_was_sent_gives_nothing_away() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echoing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    text = (
        MINIMAL
        + '[format]\ntype = "avro-registry"\n[format.options]\n"registry.max.retries" = 0\n'
        + f'"registry.url" = "{url}"\n"registry.basic.auth.user.info" = "me:format-secret"\n'
    )
    settings = parse(text)
    options = {name.removeprefix("registry."): v for name, v in settings.format.options.items()}
    try:
        with pytest.raises(Unreachable) as caught:
            SchemaRegistry(options).read_avro_schema(b"\0\0\0\0\1")
    finally:
        server.shutdown()
        server.server_close()
    shown = str(caught.value)
    assert "Authorization: Basic ***" in shown, "it was quoted"
    assert "format-secret" not in shown
    assert "bWU6" not in shown
    assert len(shown) < 500
