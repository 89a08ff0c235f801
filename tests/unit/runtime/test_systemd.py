"""What systemd is told."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.runtime.systemd import ServiceManager


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(path))
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        yield listening


def said(heard: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(heard.recv(4096).decode().splitlines()[0])
        except BlockingIOError:
            return found


def test_ready_once_then_stopping(heard: socket.socket) -> None:
    manager = ServiceManager()
    for _ in range(3):
        manager.on_turn("takes part")
    manager.on_stopping()
    assert said(heard) == ["READY=1", "STOPPING=1"]


def test_the_watchdog_hears_of_every_turn_that_it_needs(
    heard: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "3")
    manager = ServiceManager()
    for _ in range(3):
        manager.on_turn("takes part")
    assert said(heard)[:2] == ["READY=1", "WATCHDOG=1"]


@pytest.mark.parametrize("address", ["", "/nowhere/at/all", "@abstract-and-absent"])
def test_nobody_listens_and_nothing_happens(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setenv("WATCHDOG_USEC", "not a number")
    manager = ServiceManager()
    manager.on_turn("takes part")
    manager.on_stopping()
