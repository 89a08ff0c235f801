"""Measures probes while slow clients hold on to a participant's port beside a busy interpreter.

    python benchmarks/slow_clients.py [--clients 1000] [--hosts 1] [--seconds 20] [--tls]

The server runs in a process of its own, whose other thread never leaves Python's interpreter, and
which may have ``--descriptors`` (1,024 to begin with, which the server may raise). Each client
sends a head without its end, then a byte each two seconds, and comes again when it was closed (with
``--tls``: it never shakes hands). Ten probes a second ask ``/livez`` on new connections. Printed:
how many failed, and how long the others took, also before any client.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import multiprocessing
import resource
import ssl
import statistics
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headgate.config.http_settings import HttpSettings
from headgate.operations.http.routes import Face
from headgate.operations.http.server import serving

HEAD = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
PROBES_EACH_S = 10
BYTE_EACH_S = 2.0


def serve(told: Connection, descriptors: int, certificate: str, key: str) -> None:
    """Serve beside a busy thread, until somebody ends this process."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1_024, descriptors), descriptors))
    settings = HttpSettings(certificate=certificate, key=key)
    threading.Thread(target=busy, daemon=True).start()
    with serving("127.0.0.1:0", settings, Face({}, settings)) as url:
        told.send(url)
        told.recv()


def busy() -> None:
    while True:
        sum(range(1_000))


async def slow(port: int, host: str, *, speaks: bool, closed: Any) -> None:
    """Hold on as one client, for ever."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        except OSError:
            await asyncio.sleep(0.1)
            continue
        try:
            writer.write(HEAD if speaks else b"")
            while True:
                try:
                    async with asyncio.timeout(BYTE_EACH_S):
                        if not await reader.read(1_000):
                            break
                except TimeoutError:
                    writer.write(b"x" if speaks else b"")
        except OSError:
            pass
        finally:
            closed.value += 1
            writer.close()


def hold_on(port: int, clients: int, hosts: int, *, speaks: bool, closed: Any) -> None:
    """Hold on with all clients, in a process of their own."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for n in range(clients):
                host = f"127.0.{n % hosts // 250}.{1 + n % hosts % 250}"
                group.create_task(slow(port, host, speaks=speaks, closed=closed))

    asyncio.run(all_of_them())


def probe(port: int, trust: ssl.SSLContext | None, seconds: float) -> None:
    took_ms: list[float] = []
    failed = 0
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        asked = (
            http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=trust)
            if trust
            else http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        )
        try:
            asked.request("GET", "/livez")
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
        f"{slowest:.1f} ms, {over} over 100 ms",
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
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--descriptors", type=int, default=20_000)
    parser.add_argument("--tls", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = certified(Path(folder)) if asked.tls else ("", "")
        trust = ssl.create_default_context(cafile=files[0]) if asked.tls else None
        processes = multiprocessing.get_context("spawn")
        ours, theirs = processes.Pipe()
        server = processes.Process(target=serve, args=(theirs, asked.descriptors, *files))
        server.start()
        port = int(ours.recv().rpartition(":")[2])
        closed = processes.Value("l", 0)
        many = (port, asked.clients, asked.hosts)
        how = {"speaks": not asked.tls, "closed": closed}
        clients = processes.Process(target=hold_on, args=many, kwargs=how)
        try:
            print("nobody else asks:")
            probe(port, trust, asked.seconds / 4)
            clients.start()
            print(f"{asked.clients} slow clients from {asked.hosts} addresses:")
            probe(port, trust, asked.seconds)
            print(f"  {closed.value} of their connections were closed meanwhile")
        finally:
            for process in (clients, server):
                process.terminate()
                process.join()


if __name__ == "__main__":
    main()
