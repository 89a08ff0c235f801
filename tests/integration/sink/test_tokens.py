"""A broker that asks for tokens of a few seconds, and a token server that goes away."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from integration.deployment import Deployment
from integration.registry.server import RegistryServer, produce_framed
from support.token_kit import SECRET, KafkaWithTokens, TokenServer

from headgate.config.load import load
from headgate.control_protocol.errors import TokenServerRefused, Unreachable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.kafka.record_fetch import try_batch_consumer_and_describe
from headgate.operations.check.check import State
from headgate.operations.check.check import check as check_all
from headgate.operations.cli.main import main
from headgate.operations.demo.producer import ensure_topic
from headgate.operations.init.sink_file_template import propose_and_write_sink_file

pytestmark = pytest.mark.integration

LIFE_S = 10


@pytest.fixture(scope="module")
def server() -> Iterator[TokenServer]:
    with TokenServer(LIFE_S) as server:
        yield server


@pytest.fixture(scope="module")
def kafka(
    server: TokenServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaWithTokens]:
    with KafkaWithTokens(tmp_path_factory.mktemp("guarded"), server) as kafka:
        yield kafka


@pytest.fixture
def sink(
    kafka: KafkaWithTokens, server: TokenServer, tmp_path: Path, unique_name: str
) -> Iterator[Deployment]:
    server.go("ok")
    ensure_topic(kafka.bootstrap, unique_name, partitions=2)
    (tmp_path / "secret").write_text(SECRET)
    auth = {
        "type": "oidc",
        "token_url": server.url,
        "client_id": "headgate",
        "client_secret": f"${{file:{tmp_path / 'secret'}}}",
    }
    change = {"kafka": dict(kafka.settings()), "kafka.auth": auth}
    own = {"group": unique_name, "change": change}
    with Deployment(tmp_path, kafka.bootstrap, [unique_name], **own) as deployed:
        yield deployed


def logs(sink: Deployment) -> str:
    return "".join(path.read_text(errors="replace") for path in sink.sink_file.parent.glob("*.log"))


@pytest.mark.wide
def test_a_sink_commits_while_its_tokens_expire_many_times(
    sink: Deployment, server: TokenServer
) -> None:
    sink.start(2)
    with sink.load(rate=200):
        server.wait_for_requests(10)  # of two processes: two and a half lives
    sink.wait_until_lag_zero()
    said = logs(sink)
    sink.stop()
    sink.judge()
    assert "handshake failed" not in said
    assert "gives no token" not in said
    assert SECRET not in said


@pytest.mark.wide
def test_a_token_server_away_for_longer_than_a_token_lives_is_an_outage_and_no_more(
    sink: Deployment, server: TokenServer
) -> None:
    sink.start(2)
    sink.produce()
    sink.wait_until_lag_zero()
    server.go("hang")
    sink.wait_until(
        lambda: all(p.said("gives no token since") for p in sink.participants), "their warnings"
    )
    over_s = time.monotonic() + 2 * LIFE_S
    sink.wait_until(lambda: time.monotonic() > over_s, "the last token's end")
    sink.produce()
    server.go("fail")
    server.wait_for_requests(4)
    server.go("ok")
    sink.wait_until(lambda: all(p.said("gives tokens again") for p in sink.participants), "tokens")
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()


@pytest.mark.wide
def test_no_secret_and_no_token_is_where_others_look(
    sink: Deployment, server: TokenServer, tmp_path: Path
) -> None:
    (participant,) = sink.start()
    sink.produce()
    sink.wait_until_lag_zero()
    needles = [SECRET, *server.given]
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            held = Path(f"/proc/{process.pid}/environ").read_text(errors="replace")
        except (psutil.Error, OSError):
            continue
        assert not [n for n in needles if n in words]
        assert process.pid == os.getpid() or not [n for n in needles if n in held]
    server.go("refuse")
    sink.wait_until(lambda: participant.said("gives no token since"), "its warning")
    result = CliRunner().invoke(main, ["check", str(sink.sink_file)])
    server.go("ok")
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "secret":
            octets = path.read_bytes()
            assert not [n for n in needles if n.encode() in octets], path
    assert not [n for n in needles if n in result.output]


@pytest.mark.wide
def test_check_says_which_half_failed(sink: Deployment, server: TokenServer) -> None:
    def said(client: str) -> str:
        """Of another client each time: this process keeps the tokens of each."""
        sink.change({"kafka.auth": {"client_id": client}})
        return CliRunner().invoke(main, ["check", str(sink.sink_file)]).output

    assert "a token for headgate, audience kafka" in said("well")
    server.claims = {"iss": "https://another.test"}
    refused_by_brokers = said("strange")
    server.claims = {}
    server.go("refuse")
    refused_by_server = said("unknown")
    server.go("ok")
    assert "the token server gave a token, and the brokers refuse it" in refused_by_brokers
    assert "HG-103" in refused_by_brokers
    assert "HG-282" in refused_by_server
    assert "broker  " not in refused_by_server, "nothing to ask with"


@pytest.mark.wide
def test_the_consumer_of_batches_is_asked_too_and_says_which_half_failed(
    sink: Deployment, server: TokenServer
) -> None:
    """Nothing of its own is kept by this process: each time it is another client."""

    def tried(client: str) -> str:
        sink.change({"kafka.auth": {"client_id": client}})
        at = TopicPartition(sink.topics[0], 0)
        return try_batch_consumer_and_describe(sink.settings.kafka, at, 6)

    assert "came to the end" in tried("reads")
    assert "with a token of its own connection" in tried("reads-again")
    server.claims = {"iss": "https://another.test"}
    with pytest.raises(Unreachable, match=r"token server gave a token, and the brokers do not"):
        tried("unknown-to-brokers")
    server.claims = {}
    server.go("refuse")
    with pytest.raises(TokenServerRefused):
        tried("unknown-to-the-server")
    server.go("ok")
    sink.change({"kafka.auth": {"client_id": "headgate"}})
    answers = {answer.what: answer for answer in check_all(sink.settings)}
    assert answers["batch consumer"].state is State.OK, answers["batch consumer"]


@pytest.fixture
def registry(server: TokenServer) -> Iterator[RegistryServer]:
    """It answers only who sends a token that the server gave."""
    server.go("ok")
    with RegistryServer(tokens=server.given) as registry:
        yield registry


@pytest.mark.wide
def test_a_sink_asks_its_registry_with_tokens_and_init_and_check_do_so_too(
    sink: Deployment,
    server: TokenServer,
    registry: RegistryServer,
    kafka: KafkaWithTokens,
    tmp_path: Path,
) -> None:
    auth = {
        "type": "oidc",
        "token_url": server.url,
        "client_id": "headgate",
        "client_secret": f"${{file:{tmp_path / 'secret'}}}",
    }
    sink.change(
        {
            "format": {"type": "json-registry"},
            "format.options": {"registry.url": registry.url},
            "format.auth": auth,
            "table.columns": {"columns": {"id": "long", "name": "string"}},
        }
    )
    produce_framed(sink, registry, range(500))
    of_section = {f"auth.{key}": value for key, value in auth.items()}
    keys = {**kafka.settings(), **of_section}
    encoded = {"registry.url": registry.url, **of_section}
    path, found = propose_and_write_sink_file(
        "own", tmp_path, topic=sink.topics[0], kafka=keys, format=encoded
    )
    assert found is not None
    assert [column.name for column in found.proposal.columns] == ["id", "name"]
    assert load(path).format.auth.client_id == "headgate"
    assert not [check for check in check_all(sink.settings) if check.state is State.WRONG]
    sink.start(2)
    sink.wait_until_lag_zero()
    server.wait_for_requests(8)  # their tokens expire meanwhile
    produce_framed(sink, registry, range(500, 1_000))
    sink.wait_until_lag_zero()
    said = logs(sink)
    sink.stop()
    sink.judge()
    assert sorted(row["id"] for row in sink.rows().to_pylist()) == [*range(1_000)]
    assert not [needle for needle in (SECRET, *server.given) if needle in said + path.read_text()]


@pytest.mark.soak
@pytest.mark.timeout(1_200)
def test_ten_minutes_of_tokens_of_45_seconds_under_load(
    sink: Deployment, server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle the token server is away for longer than a token lives."""
    monkeypatch.setattr(server, "life_s", 45.0)
    begin_s = time.monotonic()

    def wait_until_s(second: float) -> None:
        what = f"second {second:.0f}"
        sink.wait_until(lambda: time.monotonic() - begin_s > second, what, bound_s=400)

    sink.start(2)
    with sink.load(rate=200):
        wait_until_s(240)
        assert "gives no token" not in logs(sink)
        server.go("hang")
        wait_until_s(312)
        server.go("ok")
        sink.wait_until(lambda: all(p.said("gives tokens again") for p in sink.participants), "all")
        wait_until_s(600)
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()
