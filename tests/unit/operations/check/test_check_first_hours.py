"""What newcomers get wrong first is answered by what happened, where, and what to do."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner
from rich.console import Console
from unit.config.test_load import MINIMAL

from headgate.control_protocol.errors import ConfigurationError, HeadgateError, Unreachable
from headgate.operations.check.check import Check, State
from headgate.operations.cli.main import main
from headgate.operations.init.sink_file_template import propose_and_write_sink_file
from headgate.operations.render_command_results import show_checks
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.storage.store_write_check import require_writable_store


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html>\n<title>It works</title>\n")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def website() -> Iterator[str]:
    """A server that answers everything, and is no catalog."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_server_that_is_no_rest_catalog_is_called_that(website: str) -> None:
    with pytest.raises(Unreachable) as caught:
        load_catalog("lake", {"type": "rest", "uri": website})
    assert caught.value.message == (
        "catalog 'lake' cannot be opened: what answers there is no REST catalog"
    )
    assert caught.value.hint == "correct catalog.properties.uri"


def test_glue_without_a_region_says_where_to_write_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="catalog 'lake' cannot be opened") as caught:
        load_catalog("lake", {"type": "glue"})
    assert caught.value.hint == "set glue.region, or AWS_REGION in the environment"


def test_hdfs_without_its_client_is_said_in_one_line() -> None:
    with pytest.raises(HeadgateError) as caught:
        require_writable_store({}, "hdfs://127.0.0.1:1/warehouse")
    assert caught.value.message.startswith("hdfs://127.0.0.1:1/warehouse/headgate-check-")
    assert "\n" not in str(caught.value)
    assert "JAVA_HOME" in caught.value.hint or "name node" in caught.value.hint


def test_the_longest_question_of_check_is_apart_from_its_answer() -> None:
    shown = io.StringIO()
    what, detail = "dead-letter topic", "dead-letter topic bad does not exist"
    show_checks(Console(file=shown, width=100), (Check(what, State.WRONG, detail, "create it"),))
    assert f"{what} {detail}" in shown.getvalue()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["foo"], "--accept foo: 'foo' cannot be accepted (write CODE=CHOICE, with one of HG-201"),
        (["HG-999=earliest"], "'HG-999' cannot be accepted (write CODE=CHOICE, with one of HG-2"),
        (["HG-205=x"], "--accept HG-205=x: 'x' is not a choice (write HG-205=earliest or HG-205=l"),
        (["HG-205=earliest", "HG-205=latest"], "--accept HG-205=latest: 'HG-205' is named twice"),
    ],
)
def test_a_choice_that_cannot_be_accepted_is_refused_by_what_is_wrong_with_it(
    tmp_path: Path, given: list[str], said: str
) -> None:
    sink = tmp_path / "sink.toml"
    sink.write_text(MINIMAL)
    options = [word for choice in given for word in ("--accept", choice)]
    result = CliRunner().invoke(main, ["resume", str(sink), *options])
    assert result.exit_code == 2
    assert said in result.output


def test_init_names_the_address_at_which_no_broker_answers(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1\b") as caught:
        propose_and_write_sink_file(
            "deliver", tmp_path, topic="deliver", kafka={"bootstrap.servers": "127.0.0.1:1"}
        )
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_a_file_is_checked_without_a_broker_and_its_mistake_has_a_place(tmp_path: Path) -> None:
    file = tmp_path / "trips.toml"
    file.write_text(MINIMAL)
    well = CliRunner().invoke(main, ["check", str(file), "--offline", "--json"])
    assert (well.exit_code, [each["state"] for each in json.loads(well.output)]) == (
        0,
        ["ok", "unchecked"],
    )
    file.write_text(f'{MINIMAL}\n[quarantine]\npolicy = "kep"\n')
    wrong = CliRunner().invoke(main, ["check", str(file), "--offline"])
    assert wrong.exit_code == 2
    assert f"{file}:11:10: quarantine.policy cannot be 'kep'" in wrong.output
    both = CliRunner().invoke(main, ["check", str(file), "--offline", "--kafka"])
    assert both.exit_code == 2
