"""What a server that runs no participant tells of sinks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from unit.config.test_load import MINIMAL
from unit.operations.http.conftest import ERROR, NOW, MadeUp, report

from headgate.config.load import parse
from headgate.config.reload import Reload
from headgate.config.setting_types import Secret
from headgate.config.telemetry_and_http_settings import HttpSettings
from headgate.control_protocol import redacting_loggers
from headgate.control_protocol.errors import ConfigurationError, HeadgateError, Unreachable
from headgate.coordinator.settings import CoordinatorSettings
from headgate.operations.http import app, sink_status_cache
from headgate.operations.http.app import (
    reload_sink_files_until_stop,
    require_reloadable_http,
    serve_sinks,
    serving_with_meters_if_configured,
)
from headgate.operations.http.sink_status_cache import (
    ServedSink,
    gauges_of_report,
    gauges_of_sinks,
    watching_sink,
)
from headgate.operations.status.report import StatusReport
from headgate.runtime.health import EXIT_CODES, Condition, Unwell
from headgate.runtime.telemetry import metric_catalog as names
from headgate.runtime.telemetry.metric_catalog import INSTRUMENTS


def told(**other: object) -> dict[tuple[str, str], float]:
    return {
        (g.name, ",".join(g.labels.values())): g.value
        for g in gauges_of_report(report(**other))  # type: ignore[arg-type]
    }


def test_a_report_as_gauges() -> None:
    found = told(condition="failing", last_error=ERROR, stalled=("trips/1", "trips/2"))
    assert found[names.STATE, "failing"] == 1
    assert sum(v for (name, _), v in found.items() if name == names.STATE) == 1
    assert found[names.ERROR_INFO, "HG-403"] == 1
    assert found[names.STALLED_PARTITIONS, ""] == 2
    assert found[names.LAG_RECORDS, "trips"] == 105
    assert found[names.LAG_SECONDS, "trips"] == 4.2
    assert found[names.LAST_COMMIT, ""] == (NOW - 60_000) / 1000
    assert {name for name, _ in found} <= INSTRUMENTS.keys()


def test_a_past_error_and_unknown_participants_are_not_told() -> None:
    found = told(last_error=replace(ERROR, past=True), participants_known=False)
    assert not any(name in (names.ERROR_INFO, names.PARTICIPANTS) for name, _ in found)


def test_a_claim_is_no_commit_of_rows() -> None:
    claims = tuple(replace(t, records=0) for t in report().transactions)
    assert (names.LAST_COMMIT, "") not in told(transactions=claims)


def test_a_sink_that_is_away_does_not_silence_the_others() -> None:
    sinks: list[ServedSink] = [MadeUp(Unreachable("nobody answers")), MadeUp(report())]
    found = gauges_of_sinks(sinks)
    assert any(
        g.name == names.STATE and g.labels["state"] == Condition.UNKNOWN.value and g.value
        for g in found
    )
    assert any(g.name == names.LAG_RECORDS for g in found)
    assert all("sink" in g.labels for g in found)


def test_many_who_look_ask_once() -> None:
    asked = 0

    class Counted(MadeUp):
        def _fetch_report_or_error(self):  # type: ignore[no-untyped-def]
            nonlocal asked
            asked += 1
            return super()._fetch_report_or_error()

    sink = Counted(report())
    for _ in range(5):
        sink.status_report()
    assert asked == 1
    sink.forget_report()
    sink.status_report()
    assert asked == 2


def test_a_report_by_earlier_settings_does_not_count() -> None:
    sink = MadeUp(report())
    sink.status_report()
    sink.said = report(condition="stalled")
    assert sink.status_report().condition == report().condition
    sink.adopt_settings(replace(sink.settings, coordinator=CoordinatorSettings()))
    assert sink.status_report().condition == "stalled"


def test_a_participants_server_goes_by_what_was_adopted_live_and_lets_no_turn_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, go_on = threading.Event(), threading.Event()

    class Slow(MadeUp):
        def _fetch_report_or_error(self) -> StatusReport | HeadgateError:
            looks.set()
            assert go_on.wait(PATIENCE_S)
            return self.said

    sink = Slow(report())
    monkeypatch.setattr(app, "ServedSink", lambda _: sink)
    monkeypatch.setattr(app, "_serving_http", lambda *_: nullcontext(""))
    slower = replace(sink.settings, coordinator=CoordinatorSettings(commit_interval_ms=600_000))
    listening = replace(sink.settings, http=HttpSettings(listen="127.0.0.1:0"))
    with serving_with_meters_if_configured(listening) as meters:
        assert meters
        assert looks.wait(PATIENCE_S)
        meters.adopt_settings(slower)
        assert not go_on.is_set()
        assert sink.settings == slower
        go_on.set()


def test_sinks_of_one_server_have_one_set_of_tokens() -> None:
    one = parse(MINIMAL)
    other = replace(
        parse(MINIMAL.replace('"trips"', '"zones"')),
        http=HttpSettings(viewer_token=Secret("x" * 20)),
    )
    with pytest.raises(
        ConfigurationError, match=r"\[http\] of sink zones is not that of sink trips"
    ):
        serve_sinks({Path("one"): one, Path("other"): other}, "127.0.0.1:0")
    with pytest.raises(ConfigurationError, match="two sinks are called trips"):
        serve_sinks({Path("one"): one, Path("other"): one}, "127.0.0.1:0")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('[http]\nlisten = "0.0.0.0:80"', "reached from other machines"),
        ('[http]\nlisten = "here"', r"http\.listen cannot be"),
        ('[http]\ncertificate = "c.pem"', "must be set together"),
        ('[http]\nviewer_token = "plain text in the file"', "must be a reference to a secret"),
        ('[telemetry]\notlp_endpoint = "localhost:4318"', r"otlp_endpoint cannot be"),
        ("[telemetry]\ninterval_ms = 10", r"telemetry\.interval_ms is 10"),
        ("[telemetry]\nper_partitions = true", "is not a known key"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(section: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse(MINIMAL + section)


def test_tokens_are_masked_and_not_short(monkeypatch: pytest.MonkeyPatch) -> None:
    section = '[http]\nviewer_token = "${env:V}"\noperator_token = "${env:O}"\n'
    monkeypatch.setenv("V", "v" * 20)
    monkeypatch.setenv("O", "o" * 20)
    settings = parse(MINIMAL + section)
    assert settings.redact(f"x {'v' * 20} {'o' * 20}") == "x *** ***"
    assert "v" * 20 not in repr(settings)
    monkeypatch.setenv("O", "v" * 20)
    with pytest.raises(ConfigurationError, match="are the same"):
        parse(MINIMAL + section)
    monkeypatch.setenv("O", "short")
    with pytest.raises(ConfigurationError, match=r"http\.operator_token has 5 characters"):
        parse(MINIMAL + section)


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ServedSink, Path]]:
    """A sink that is followed by its file, in a thread that ends with the test."""
    monkeypatch.setattr("headgate.operations.http.app.LOOKED_AT_S", 0.01)
    monkeypatch.setattr("headgate.config.reload.LOOKED_AT_S", 0)
    file, stop = tmp_path / "trips.toml", threading.Event()
    file.write_text(MINIMAL)
    sink = ServedSink(parse(MINIMAL))
    thread = threading.Thread(
        target=reload_sink_files_until_stop,
        args=([(sink, Reload(file, require_reloadable_http))], stop),
    )
    thread.start()
    yield sink, file
    stop.set()
    thread.join()


def _put(file: Path, text: str) -> None:
    file.with_suffix(".new").write_text(text)
    file.with_suffix(".new").replace(file)


def _wait_until(seen: Callable[[], bool], bound_s: float = 60) -> None:
    until_s = time.monotonic() + bound_s
    while not seen():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_thousand_sinks_are_redacted() -> None:
    with app._redacting_secrets_of_all([parse(MINIMAL)] * 1_000):
        assert len(redacting_loggers._REDACTING.redactions) >= 1_000


def test_a_server_follows_a_file_that_changes(followed: tuple[ServedSink, Path]) -> None:
    sink, file = followed
    _put(file, MINIMAL + "[coordinator]\ncommit_interval_ms = 1234\n")
    _wait_until(lambda: sink.settings.coordinator.commit_interval_ms == 1234)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = 7", "was not adopted: HG-100"),
        (MINIMAL + '[http]\nviewer_token = "${env:PATH}"\n', "restart headgate serve"),
    ],
)
def test_a_file_that_a_server_cannot_follow_changes_nothing_and_says_so(
    followed: tuple[ServedSink, Path], caplog: pytest.LogCaptureFixture, text: str, says: str
) -> None:
    sink, file = followed
    before = sink.settings
    _put(file, text)
    _wait_until(lambda: says in caplog.text)
    assert sink.settings is before


def test_without_the_server_s_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "headgate.operations.http.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    settings = replace(parse(MINIMAL), http=HttpSettings(listen="127.0.0.1:0"))
    with (
        pytest.raises(ConfigurationError, match="uvicorn") as refused,
        serving_with_meters_if_configured(settings),
    ):
        pytest.fail("it serves")
    assert "headgate[http]" in refused.value.hint


PATIENCE_S = 60.0


def looked_at(sink: ServedSink) -> Unwell | None:
    """What the first look finds."""
    with watching_sink(sink, PATIENCE_S) as watch:
        deadline = time.monotonic() + PATIENCE_S
        while (found := watch.newest_problem()) and found.condition is Condition.STARTING:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return found


@pytest.mark.parametrize("condition", Condition)
def test_a_participant_is_well_exactly_when_the_command_would_exit_with_0(
    condition: Condition,
) -> None:
    said = report(condition=condition.value, exit_code=EXIT_CODES[condition])
    found = looked_at(MadeUp(said))
    assert (found is None) == (EXIT_CODES[condition] == 0)
    assert found is None or found.condition is condition


def test_why_a_participant_is_not_well_is_what_the_command_says() -> None:
    failing = report(condition="failing", last_error=ERROR, exit_code=1)
    assert str(looked_at(MadeUp(failing))) == f"failing: HG-403 {ERROR.text}"
    noted = report(exit_code=1, notes=("unsigned events were ignored",))
    assert str(looked_at(MadeUp(noted))) == "running: unsigned events were ignored"
    away = looked_at(MadeUp(Unreachable("the catalog does not answer")))
    assert str(away) == "not known: HG-401 the catalog does not answer"


def test_a_look_that_ends_in_any_error_is_told_and_looked_again() -> None:
    """Without its thread the probe would say for ever that no look has ended."""

    class Buggy(MadeUp):
        def _fetch_report_or_error(self) -> StatusReport | HeadgateError:
            raise ZeroDivisionError("division by zero")

    found = looked_at(Buggy(report()))
    assert str(found) == "not known: the look failed: ZeroDivisionError: division by zero"


def test_a_look_that_never_ends_is_no_good_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_status_cache, "_LOOK_S_MAX", -1.0)
    go_on = threading.Event()

    class Stuck(MadeUp):
        def _fetch_report_or_error(self) -> StatusReport | HeadgateError:
            go_on.wait(PATIENCE_S)
            return self.said

    with watching_sink(Stuck(report()), 0.0) as watch:
        found = watch.newest_problem()
        assert found
        assert found.condition is Condition.UNKNOWN
        assert "no look at the sink has ended" in str(found)
        go_on.set()
