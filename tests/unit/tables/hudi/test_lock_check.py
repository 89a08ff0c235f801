"""The server of Hudi's lock is asked whether it is there; nobody takes the lock for that."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from threading import Thread

import pytest

from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.tables.hudi import lock_check as lock
from headgate.tables.hudi.lock_check import check_lock_server

URL = "hoodie.write.lock.zookeeper.url"
LEADS = b"Zookeeper version: 3.6.3\nMode: leader\nNode count: 5\n"
ALONE = b"This ZooKeeper instance is not currently serving requests\n"


class Servers:
    """Each takes one connection, and says the same to whatever it is asked."""

    def __init__(self, opening: ExitStack) -> None:
        self._opening = opening

    def that_says(self, answer: bytes) -> str:
        listening = self._opening.enter_context(closing(socket.create_server(("127.0.0.1", 0))))

        def answered() -> None:
            with closing(listening.accept()[0]) as connection:
                connection.recv(4)
                connection.sendall(answer)

        thread = Thread(target=answered, daemon=True)
        thread.start()
        self._opening.callback(thread.join, 10)
        return f"127.0.0.1:{listening.getsockname()[1]}"

    def gone(self) -> str:
        with closing(socket.create_server(("127.0.0.1", 0))) as listening:
            return f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def servers() -> Iterator[Servers]:
    with ExitStack() as opening:
        yield Servers(opening)


def test_one_of_several_servers_that_answers_will_do(servers: Servers) -> None:
    there = servers.that_says(LEADS)
    url = f"{servers.gone()}, {there}/below"
    told = f"ZooKeeper at {there} answers (leader); no lock was taken"
    assert check_lock_server("db.trips", {URL: url}) == told


def test_one_that_does_not_let_itself_be_asked_takes_connections(servers: Servers) -> None:
    assert "takes connections" in check_lock_server("db.trips", {URL: servers.that_says(b"")})


def test_none_that_answers_is_an_error_that_names_each(servers: Servers) -> None:
    gone, alone = servers.gone(), servers.that_says(ALONE)
    with pytest.raises(Unreachable, match="too few of its servers") as told:
        check_lock_server("db.trips", {URL: f"{gone},{alone}"})
    assert gone in told.value.message
    assert URL in told.value.hint


@pytest.mark.parametrize(
    "url", ["", "zk1:", "zk1:21a", ":2181", "zk1:2181,,zk2", "zk1:65536", "zk1:²"]
)
def test_what_is_no_address_is_said_to_be_none(url: str) -> None:
    with pytest.raises(ConfigurationError, match="no host and port"):
        check_lock_server("db.trips", {URL: url})


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("zk1", [("zk1", 2181)]),
        ("[::1]:2182,[::2]", [("::1", 2182), ("::2", 2181)]),
        ("zk1:2181, zk2:2182/headgate", [("zk1", 2181), ("zk2", 2182)]),
    ],
)
def test_addresses_are_those_of_the_client_of_zookeeper(
    url: str, asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[str, int]] = []

    def answer(host: str, port: int) -> str:
        found.append((host, port))
        raise OSError("refused")

    monkeypatch.setattr(lock, "_ask_zookeeper", answer)
    with pytest.raises(Unreachable):
        check_lock_server("db.trips", {URL: url})
    assert found == asked
