"""What ``headgate check`` and ``headgate rights`` say of the receivers of lineage and signals."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from support.report_server import ReportServer
from unit.config.test_load import MINIMAL

from headgate.config.load import parse
from headgate.config.report_settings import LineageSettings, SignalSettings
from headgate.control_protocol.errors import ConfigurationError, ReceiverAway
from headgate.operations.check.report_receivers import check_receiver
from headgate.operations.check.required_grants import Role, sink_grant_commands
from headgate.operations.check.table import NotChecked


def test_a_server_is_asked_for_a_connection_and_sent_nothing() -> None:
    with ReportServer() as server:
        given = SignalSettings(url=f"{server.address}/services/SECRET")
        said = check_receiver("signal", given, None)
        assert said == f"127.0.0.1:{server.port} takes connections; nothing was sent"
        assert server.got == []


def test_a_server_that_is_away_is_named_without_its_path() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/services/SECRET"
        with pytest.raises(ReceiverAway) as away:
            check_receiver("signal", SignalSettings(url=url), None)
    assert "SECRET" not in str(away.value)


def test_a_file_needs_a_folder(tmp_path: Path) -> None:
    assert "lines go to" in check_receiver("lineage", LineageSettings(file=f"{tmp_path}/a"), None)
    with pytest.raises(ConfigurationError, match="no folder"):
        check_receiver("lineage", LineageSettings(file=f"{tmp_path}/none/a"), None)


def test_a_topic_is_not_checked_where_no_broker_answers() -> None:
    with pytest.raises(NotChecked):
        check_receiver("lineage", LineageSettings(topic="lineage"), None)


def test_rights_name_the_topics_and_the_groups_of_notes() -> None:
    reports = '[lineage]\nurl = "http://a/b"\n[signal]\ntopic = "hours"\n'
    settings = parse(f"{MINIMAL}\n{reports}")
    found = sink_grant_commands(settings, Role.SINK, "trips")
    assert "--operation Write --operation Describe --topic hours" in found
    assert "--group headgate-trips-lineage" in found
    assert "--group headgate-trips-signal" in found
    assert "headgate-trips-signal" not in sink_grant_commands(settings, Role.VIEWER, "trips")
    plain = sink_grant_commands(parse(MINIMAL), Role.SINK, "trips")
    assert "-signal" not in plain
