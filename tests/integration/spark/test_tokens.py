"""Executors of Spark get tokens by themselves: neither a secret nor a token is in a plan."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from integration.deployment import HEADGATE, Deployment
from integration.registry.server import RegistryServer, produce_framed
from integration.spark.cluster import standalone_cluster
from integration.spark.executor_tokens import ask_executors_twice
from integration.spark.test_planted_secrets import RECORDER
from support.token_kit import SECRET, KafkaWithTokens, TokenServer
from unit.operations.filled_table import sink_file_text

from headgate.operations.demo.producer import ensure_topic

pytestmark = [pytest.mark.integration, pytest.mark.spark]

LIFE_S = 15


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer(LIFE_S) as server:
        yield server


@pytest.fixture
def registry(server: TokenServer) -> Iterator[RegistryServer]:
    """It answers only who sends a token that the server gave."""
    with RegistryServer(tokens=server.given) as registry:
        yield registry


@pytest.fixture
def sink(
    server: TokenServer, registry: RegistryServer, tmp_path: Path, unique_name: str
) -> Iterator[Deployment]:
    with KafkaWithTokens(tmp_path / "kafka", server) as kafka:
        ensure_topic(kafka.bootstrap, unique_name, partitions=2)
        (tmp_path / "secret").write_text(SECRET)
        auth = {
            "type": "oidc",
            "token_url": server.url,
            "client_id": "headgate",
            "client_secret": f"${{file:{tmp_path / 'secret'}}}",
        }
        (tmp_path / "events").mkdir()
        conf = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (tmp_path / "events").as_uri(),
        }
        change = {
            "kafka": dict(kafka.settings()),
            "kafka.auth": auth,
            "format": {"type": "json-registry"},
            "format.options": {"registry.url": registry.url},
            "format.auth": auth,
            "table.columns": {"columns": {"id": "long", "name": "string"}},
            "spark": {"writer": "spark", "master": "local[2]"},
            "spark.conf": conf,
        }
        own = {"group": unique_name, "change": change}
        with Deployment(tmp_path, kafka.bootstrap, [unique_name], **own) as deployed:
            yield deployed


@pytest.mark.wide
def test_workers_read_with_tokens_of_their_own_and_no_plan_holds_any(
    sink: Deployment, server: TokenServer, registry: RegistryServer, tmp_path: Path
) -> None:
    """Neither those of Kafka nor those of the registry."""
    payloads = tmp_path / "payloads.bin"
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(RECORDER)
    own = ["env", f"PYTHONPATH={tmp_path / 'site'}", f"PAYLOADS_INTO={payloads}"]
    sink.start(command=[*own, HEADGATE, "run"])
    produce_framed(sink, registry, range(2_000))
    sink.wait_until_lag_zero(240)
    server.wait_for_requests(4)  # their tokens are renewed meanwhile
    produce_framed(sink, registry, range(2_000, 4_000))
    sink.wait_until_lag_zero(240)
    sink.stop()
    sink.judge()
    assert sorted(row["id"] for row in sink.rows().to_pylist()) == [*range(4_000)]
    assert payloads.stat().st_size > 0
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "secret":
            octets = path.read_bytes()
            assert not [n for n in (SECRET, *server.given) if n.encode() in octets], path


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_executors_that_get_no_token_are_told_by_check(server: TokenServer, tmp_path: Path) -> None:
    """The driver has its token from memory when the file is gone; executors begin without one."""
    path = tmp_path / "token"
    path.write_text(server.token(600))
    auth = f'type = "token-file"\npath = "{path}"\n'
    text = sink_file_text(tmp_path)
    text += f'[kafka.auth]\n{auth}[format]\ntype = "json-registry"\n[format.options]\n'
    text += f'"registry.url" = "https://registry.test"\n[format.auth]\n{auth}'
    with (
        standalone_cluster(tmp_path, workers=1) as master,
        # A process has one Spark session, and an earlier test may have left this one a local one.
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
    ):
        well, failed = pool.submit(ask_executors_twice, text, master, path).result()
    assert well.startswith("1 tasks on ")
    assert re.search(r"on executor .*token", failed)
