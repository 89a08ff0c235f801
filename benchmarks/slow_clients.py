"""Measures probes while slow clients hold on to a participant's port beside a busy interpreter.

    python benchmarks/slow_clients.py [--clients 1000] [--hosts 1] [--seconds 35] [--tls]
        [--how head|silent|hello|leave] [--byte-each 2]

The server runs in a process of its own, whose other thread never leaves Python's interpreter, and
which may have ``--descriptors`` (1,024 to begin with, which the server may raise). Each client
sends a head without its end, then a byte each two seconds, and comes again when it was closed. Or
it says nothing (``silent``, what ``--tls`` does by default), asks for a handshake that it never
ends (``hello``, with ``--tls``), or goes and comes again at once (``leave``). Ten probes a second
ask ``/livez`` and ``/readyz`` on new connections. Printed: how many failed, and how long the others
took, also before any client; how many descriptors the server has; the machine's load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import multiprocessing
import os
import resource
import ssl
import statistics
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headgate.config.telemetry_and_http_settings import HttpSettings
from headgate.operations.http.routes import Site
from headgate.operations.http.server import serving_http

HEAD = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
PROBES_EACH_S = 10
PROBES_FROM = "127.9.9.9"
"""Like a kubelet, the probes have an address of their own."""
NICE = 3
"""Clients of another machine would not take this one's cores from the server."""


def hello() -> bytes:
    """Return what a client says first when it wants to speak TLS."""
    said = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="x")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return said.read()


def serve(told: Connection, descriptors: int, certificate: str, key: str) -> None:
    """Serve beside a busy thread, until somebody ends this process."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1_024, descriptors), descriptors))
    settings = HttpSettings(certificate=certificate, key=key)
    threading.Thread(target=busy, daemon=True).start()
    with serving_http("127.0.0.1:0", settings, Site({}, settings)) as url:
        told.send(url)
        told.recv()


def busy() -> None:
    while True:
        sum(range(1_000))


async def slow(
    port: int, host: str, how: str, byte_each_s: float, closed: Any, first: bytes
) -> None:
    """Hold on as one client, for ever."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        except OSError:
            await asyncio.sleep(0.1)
            continue
        try:
            writer.write(first)
            while how != "leave":
                try:
                    async with asyncio.timeout(byte_each_s):
                        if not await reader.read(10_000):
                            break
                except TimeoutError:
                    writer.write(b"x" if how == "head" else b"")
        except OSError:
            pass
        finally:
            closed.value += 1
            writer.close()
            await asyncio.sleep(0.5 if how == "leave" else 0)


def hold_on(port: int, asked: argparse.Namespace, closed: Any) -> None:
    """Hold on with all clients, in a process of their own."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    os.nice(NICE)
    first = {"head": HEAD, "hello": hello()}.get(asked.how, b"")

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for n in range(asked.clients):
                host = f"127.0.{n % asked.hosts // 250}.{1 + n % asked.hosts % 250}"
                group.create_task(slow(port, host, asked.how, asked.byte_each, closed, first))

    asyncio.run(all_of_them())


def probe(port: int, trust: ssl.SSLContext | None, seconds: float) -> None:
    took_ms: list[float] = []
    failed = 0
    own: Any = {"timeout": 5, "source_address": (PROBES_FROM, 0)}
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        asked = (
            http.client.HTTPSConnection("127.0.0.1", port, context=trust, **own)
            if trust
            else http.client.HTTPConnection("127.0.0.1", port, **own)
        )
        try:
            asked.request("GET", ("/livez", "/readyz")[len(took_ms) % 2])
            failed += asked.getresponse().status != http.client.OK
            took_ms.append((time.monotonic() - began) * 1000)
        except (OSError, http.client.HTTPException):
            failed += 1
        finally:
            asked.close()
        time.sleep(max(0.0, began + 1 / PROBES_EACH_S - time.monotonic()))
    middle, slowest = statistics.median(took_ms or [0]), max(took_ms, default=0.0)
    over = sum(ms > 100 for ms in took_ms)
    print(
        f"  {failed} of {failed + len(took_ms)} failed, median {middle:.1f} ms, slowest "
        f"{slowest:.1f} ms, {over} over 100 ms, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def certified(home: Path) -> tuple[str, str]:
    import subprocess

    key, certificate = str(home / "key.pem"), str(home / "certificate.pem")
    subject = ["-subj", "/CN=headgate", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command = ["openssl", "req", "-x509", *kind, *subject, "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=35.0)
    parser.add_argument("--descriptors", type=int, default=20_000)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--how", choices=["head", "silent", "hello", "leave"])
    parser.add_argument("--byte-each", type=float, default=2.0)
    asked = parser.parse_args()
    asked.how = asked.how or ("silent" if asked.tls else "head")
    with tempfile.TemporaryDirectory() as folder:
        files = certified(Path(folder)) if asked.tls else ("", "")
        trust = ssl.create_default_context(cafile=files[0]) if asked.tls else None
        processes = multiprocessing.get_context("spawn")
        ours, theirs = processes.Pipe()
        server = processes.Process(target=serve, args=(theirs, asked.descriptors, *files))
        server.start()
        port = int(ours.recv().rpartition(":")[2])
        closed = processes.Value("l", 0)
        clients = processes.Process(target=hold_on, args=(port, asked, closed))
        opened = Path(f"/proc/{server.pid}/fd")
        try:
            print("nobody else asks:")
            probe(port, trust, asked.seconds / 4)
            clients.start()
            print(f"{asked.clients} clients ({asked.how}) from {asked.hosts} addresses:")
            probe(port, trust, asked.seconds)
            held = len(list(opened.iterdir()))
            print(
                f"  {closed.value} of their connections were closed meanwhile, {held} descriptors"
            )
            clients.kill()
            clients.join()
            time.sleep(1)
            print(f"they are gone: {len(list(opened.iterdir()))} descriptors")
        finally:
            for process in (clients, server):
                process.terminate()
                process.join()


if __name__ == "__main__":
    main()
