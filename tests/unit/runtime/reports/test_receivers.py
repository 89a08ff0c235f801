"""Receivers that are slow, wrong or gone: bounded, and named without a secret (REPORT-1)."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from support.report_server import ReportServer

from headgate.config.report_settings import LineageSettings, SignalSettings
from headgate.config.setting_types import Secret
from headgate.control_protocol.errors import ReceiverAway
from headgate.runtime.reports import receivers
from headgate.runtime.reports.receivers import HttpReceiver, open_receiver

PATH = "/services/T0SECRET/B0SECRET"


def test_a_report_is_posted_with_its_token_and_an_id() -> None:
    with ReportServer(status=201) as server:
        given = SignalSettings(url=server.address + PATH, token=Secret("a-token-of-tests"))
        receiver = open_receiver("signal", given, {}, lambda: False)
        receiver.send("key", {"a": "ä"})
        receiver.send("key", {"a": 2})
        receiver.close()
    first, second = server.got
    assert (first.path, first.body, second.body) == (PATH, {"a": "ä"}, {"a": 2})
    assert first.headers["Authorization"] == "Bearer a-token-of-tests"
    assert first.headers["Idempotency-Key"] == "key"
    assert first.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("status", [199, 300, 302, 400, 401, 404, 429, 500, 503])
def test_any_other_answer_is_a_failure_and_no_redirect_is_followed(status: int) -> None:
    with ReportServer(status=max(200, status)) as other, ReportServer(status=status) as server:
        server.location = other.address if status // 100 == 3 else ""
        receiver = HttpReceiver("signal.url", server.address + PATH, "a-token-of-tests")
        with pytest.raises(ReceiverAway) as away:
            receiver.send("key", {})
        assert other.got == []
    assert "SECRET" not in str(away.value)
    assert "127.0.0.1" in away.value.message


def test_one_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "ANSWER_S", 0.2)
    with ReportServer(status=0) as server:
        receiver = HttpReceiver("signal.url", server.address + PATH, "")
        with pytest.raises(ReceiverAway, match="TimeoutError") as away:
            receiver.send("key", {})
    assert "SECRET" not in str(away.value)


def test_one_that_answers_a_byte_now_and_then_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receivers, "DEADLINE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended = threading.Event()

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not ended.wait(0.05):
                    connection.sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        port = listening.getsockname()[1]
        with pytest.raises(ReceiverAway, match=r"no whole answer in 0\.5 s"):
            HttpReceiver("signal.url", f"http://127.0.0.1:{port}/", "").send("key", {})
        ended.set()
        dripping.join()


def test_a_server_without_a_certificate_that_anybody_knows_is_refused() -> None:
    with ReportServer() as server:
        url = server.address.replace("http://", "https://")
        with pytest.raises(ReceiverAway, match="SSLError"):
            HttpReceiver("signal.url", url, "").send("key", {})
        assert server.got == []


def test_one_that_is_gone_is_named_by_its_host() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        receiver = HttpReceiver("lineage.url", f"http://127.0.0.1:{port}{PATH}", "")
        with pytest.raises(ReceiverAway) as away:  # bound, and nobody listens
            receiver.send("key", {})
    assert away.value.message.startswith(f"lineage.url (127.0.0.1:{port}): ")
    assert "SECRET" not in str(away.value)


def test_a_file_gets_a_line_for_each(tmp_path: Path) -> None:
    given = LineageSettings(file=str(tmp_path / "events.json"))
    receiver = open_receiver("lineage", given, {}, lambda: False)
    receiver.send("key", {"a": 1})
    receiver.send("key", {"a": "\n"})
    lines = (tmp_path / "events.json").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"a": 1}, {"a": "\n"}]
    missing = open_receiver("lineage", LineageSettings(file=str(tmp_path / "no/f")), {}, bool)
    with pytest.raises(OSError, match="No such file"):
        missing.send("key", {})
