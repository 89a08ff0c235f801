"""PostgreSQL servers to be killed, restarted and promoted; from Debian's package."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import psycopg2
import pytest

from headgate.operations.child_process import WITH_LIFELINE
from headgate.operations.local_kafka.broker import find_free_port

DEBIAN = Path("/usr/lib/postgresql")
PROGRAMS = ("initdb", "postgres", "pg_basebackup", "pg_dump", "pg_restore")
ACCOUNTS = ("postgres", "nobody")
START_SECONDS_MAX = 60


def postgres_programs() -> Path:
    """The folder of the ``PROGRAMS``; skips where they are not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(DEBIAN.glob("*/bin"), reverse=True)
    for folder in folders:
        if all((folder / program).exists() for program in PROGRAMS):
            return folder
    pytest.skip("no PostgreSQL here: neither initdb in PATH nor Debian's package postgresql")


class PostgresServer:
    """One server on a port of its own. As a context manager it leaves nothing behind.

    ``kill`` and ``start`` keep data and port. It dies with this process in every case.
    ``settings`` are further ones of the server.
    """

    def __init__(
        self, primary: PostgresServer | None = None, *, settings: Sequence[str] = ()
    ) -> None:
        """``primary``: the server whose streaming replica this one is, until ``promote``."""
        self._primary = primary
        self._settings = settings
        self._programs = postgres_programs()
        self._account = _account()
        self._port = find_free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """As SQLAlchemy wants it."""
        return self._uri("postgres")

    @property
    def host(self) -> str:
        """Its part of an address that names several."""
        return f"127.0.0.1:{self._port}"

    def new_database(self) -> str:
        """The address of one that holds nothing yet, not even a catalog's own tables."""
        name = f"db_{uuid.uuid4().hex}"
        with closing(self.connect()) as connection:
            connection.autocommit = True
            connection.cursor().execute(f"CREATE DATABASE {name}")
        return self._uri(name)

    def connect(self) -> psycopg2.extensions.connection:
        return psycopg2.connect(self._uri("postgres").replace("+psycopg2", ""))

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return cursor.fetchall()

    def set(self, name: str, value: str) -> None:
        """Change a setting that can be changed while it runs; it outlives a restart."""
        with closing(self.connect()) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            cursor.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            cursor.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Make the replica a primary; returns when it is one."""
        with closing(self.connect()) as connection:
            connection.cursor().execute("SELECT pg_promote()")

    def _uri(self, database: str) -> str:
        return f"postgresql+psycopg2://headgate@{self.host}/{database}"

    def __enter__(self) -> Self:
        # Not below pytest's folders: those are closed to the account that has to run it.
        self._home = Path(tempfile.mkdtemp(prefix="headgate-postgres-"))
        if self._account:
            shutil.chown(self._home, self._account)
        if self._primary:
            origin = self._primary.uri.replace("+psycopg2", "")
            self._run("pg_basebackup", "-D", "data", "-R", "-N", "-c", "fast", "-d", origin)
        else:
            self._run("initdb", "-D", "data", "-U", "headgate", "-A", "trust", "-E", "UTF8", "-N")
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        shutil.rmtree(self._home)

    def start(self) -> None:
        """Returns when it answers, which after a crash is when its log has been replayed."""
        server = [self._programs / "postgres", "-D", "data", "-p", str(self._port)]
        # A killed process leaves its writes with the system; syncing is for power cuts.
        ours = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off")
        for setting in (*ours, *self._settings):
            server += ["-c", setting]
        with (self._home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", WITH_LIFELINE, "sh", *server],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._home,
                user=self._account,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            ended = self._process.poll() is not None
            assert not ended and time.monotonic() < deadline, self._log()
            time.sleep(0.05)

    def kill(self) -> None:
        """As ``kill -9`` of the server and of every process that serves a client."""
        process, self._process = self._process, None
        if process is None:
            return
        server = psutil.Process(process.pid)
        # Stopped first: a server that sees a child die ends the others in good order.
        server.suspend()
        victims = [*server.children(recursive=True), server]
        for victim in victims:
            victim.kill()
        process.wait()
        psutil.wait_procs(victims)
        if process.stdin:
            process.stdin.close()

    def restore(self, other: PostgresServer) -> None:
        """Fill this server, which is empty, from a dump of the other one's database."""
        dumped, filled = (each.uri.replace("+psycopg2", "") for each in (other, self))
        self._run("pg_dump", "--format", "custom", "--file", "dump", "--dbname", dumped)
        self._run("pg_restore", "--exit-on-error", "--dbname", filled, "dump")

    def pause(self) -> None:
        """As ``kill -STOP`` of all of it: its sockets stay open, and nothing answers.

        The kernel goes on accepting connections for it.
        """
        for process in self._processes():
            process.suspend()

    def resume(self) -> None:
        for process in self._processes():
            process.resume()

    def _processes(self) -> list[psutil.Process]:
        assert self._process is not None, "it runs"
        server = psutil.Process(self._process.pid)
        # Not the shell beside it, which would end it with this process.
        every = (server, *server.children(recursive=True))
        return [process for process in every if process.name().startswith("postgres")]

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg2.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        command = [self._programs / program, *arguments]
        ran = subprocess.run(command, cwd=self._home, user=self._account, capture_output=True)
        assert ran.returncode == 0, ran.stderr.decode(errors="replace")

    def _log(self) -> str:
        return (self._home / "server.log").read_text(errors="replace")


def _account() -> str | None:
    """Who runs it: PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ACCOUNTS if name in known)
