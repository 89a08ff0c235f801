"""Runs the embedded broker for people who try headgate out; it is not for production."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

from headgate.control_protocol.errors import ConfigurationError
from headgate.operations.demo.broker import HOST, EmbeddedKafka, fetch_broker_jars
from headgate.sink.early_signals import take_over


def keep(
    folder: Path, port: int, say: Callable[[str], None], stop: threading.Event | None = None
) -> None:
    """Run until ``stop``, SIGINT or SIGTERM; a later start finds its data again.

    Raises ``ConfigurationError`` for a folder with other content and for a port in use,
    ``Unreachable`` if it fails.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "server.properties").exists():
        raise ConfigurationError(
            f"{folder} holds something else", "name a folder that is empty, or not there yet"
        )
    _refuse_taken(port)
    stop = stop or threading.Event()
    if threading.current_thread() is threading.main_thread():
        take_over(lambda *_: stop.set())
    jars = fetch_broker_jars()
    with EmbeddedKafka(folder, jars, port=port) as broker:
        say(
            f"Kafka answers at {broker.bootstrap}; its data and log are in {folder}; Ctrl-C ends it"
        )
        stop.wait()
    say("ended; the data stay")


def _refuse_taken(port: int) -> None:
    """Refuse a port in use: another broker there would answer in this one's place."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not one that just ended
        try:
            trial.bind((HOST, port))
        except OSError as error:
            raise ConfigurationError(
                f"Kafka cannot listen on {HOST}:{port}: {error.strerror}",
                "end what listens there, or name another port with --port",
            ) from error
