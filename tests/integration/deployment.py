"""Runs a whole sink like a user: real `headgate run` processes on a real broker, and a judge.

A deployment has a folder, a group and a control topic of its own. Its processes can be killed,
paused and stopped; whatever happened to them, ``judge`` asks the audit and an independent reader.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from integration import warm_start
from integration.oracle import assert_exactly_once, read_source
from integration.readers import IcebergSpark, read_with_duckdb
from integration.sink_file import (
    COORDINATES,
    Sections,
    bad_record,
    default_sections,
    patient,
    record,
    toml,
)
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from support.object_store import ObjectStore

from headgate.config.load import load
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.errors import TableMissing, Unreachable
from headgate.control_protocol.identifiers import tag_name
from headgate.control_protocol.table_history import History
from headgate.operations.access.kafka_connection import open_reachable_source_topics
from headgate.operations.access.tables import (
    open_tables_for_reading,
)
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import AuditReport
from headgate.operations.demo.producer import produce
from headgate.operations.status.status import read_status
from headgate.runtime.sink_tables import open_tables_creating_nothing

HEADGATE = Path(sys.executable).with_name("headgate")
PATIENCE_S = 150.0
"""For what takes seconds on a quiet machine; a test that waits longer fails."""
POLL_S = 0.4
"""A question costs some 50 ms of a processor, which the participants need, too."""
UNREACHABLE = 3
"""The exit code."""


class Participant:
    """One participant's process, ``headgate run`` or another; what it logs is in a file."""

    def __init__(
        self, sink_file: Path, log: Path, command: Sequence[str | Path] = (HEADGATE, "run")
    ) -> None:
        self.log = log
        self.paused = False
        self._process = _started([*command, sink_file], log)
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """As ``kill -9`` does, paused or not."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """As ``kill -STOP`` does: its sockets stay open and nothing answers.

        Never while it holds a lock on SQLite's file: nobody could break that one, and every other
        participant would end. Catalogs behind a server have no such state.
        """
        self._process.send_signal(signal.SIGSTOP)
        while self._locks_a_file():
            self._process.send_signal(signal.SIGCONT)
            time.sleep(0.01)
            self._process.send_signal(signal.SIGSTOP)
        self.paused = True

    def _locks_a_file(self) -> bool:
        """Whether it does, now that it is stopped; Linux alone says so."""
        stopped = psutil.Process(self.pid)
        while stopped.status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        held = Path("/proc/locks")
        lines = held.read_text().splitlines() if held.exists() else []
        return any(f" {self.pid} " in line for line in lines)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.paused = False

    def ask_to_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def ended(self, bound_s: float = PATIENCE_S) -> int:
        """Its exit code, once it has one."""
        return self._process.wait(bound_s)

    def said(self, text: str) -> bool:
        return text in self.log_text()

    def log_text(self) -> str:
        with suppress(FileNotFoundError):  # its process makes it
            return self.log.read_text(errors="replace")
        return ""

    def __str__(self) -> str:
        state = "running" if self.running else f"ended with {self._process.returncode}"
        tail = "\n".join(self.log_text().splitlines()[-25:])
        return f"--- {self.log.name}, pid {self.pid}, {state}\n{tail}"


def _started(
    command: Sequence[str | Path], log: Path
) -> subprocess.Popen[bytes] | warm_start.Forked:
    if command[0] == HEADGATE:
        return warm_start.start(command[1:], log)
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )


class Deployment:
    """Participants of one sink. As a context manager it leaves no process behind.

    ``change`` takes sections of the sink file by their names, such as ``{"coordinator": {...}}``;
    a key that is ``None`` is left out. What runs already keeps what it was started with.
    ``store``: where the warehouse is, if it is not in the folder. With ``restarts``, participants
    that could not reach something are started again while something is waited for.
    """

    def __init__(
        self,
        home: Path,
        bootstrap: str,
        topics: Sequence[str],
        *,
        group: str,
        partitions: int = 2,
        change: Sections | None = None,
        store: ObjectStore | None = None,
    ) -> None:
        self._home = home
        self._store = store
        self.database = home / "catalog.sqlite"
        self.warehouse = home / "warehouse"
        self.bootstrap = bootstrap
        self.topics = tuple(topics)
        self.partitions = partitions
        self._sections = default_sections(home, bootstrap, topics, group)
        self.participants: list[Participant] = []
        self._started = 0
        self.produced = 0
        self.bad_every = 0
        self.restarts = False
        self._wrong: list[str] = []
        self._settings: SinkSettings | None = None
        self.change(change or {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for participant in self.participants:
            participant.kill()

    # ---------------------------------------------------------------------------------- settings

    def change(self, change: Sections) -> None:
        """Write the sink file anew with these keys set."""
        sections = dict(self._sections)
        for name, section in change.items():
            before = sections.get(name, {})
            if isinstance(section, Mapping) and isinstance(before, Mapping):
                merged = {**before, **section}
                sections[name] = {k: v for k, v in merged.items() if v is not None}
            else:
                sections[name] = section
        self._sections = sections
        self._settings = None
        self.sink_file.write_text(toml(patient(sections)))

    @property
    def name(self) -> str:
        return str(self._sections["name"])

    @property
    def sink_file(self) -> Path:
        return self._home / f"{self.name}.toml"

    @property
    def settings(self) -> SinkSettings:
        """Of the sink file as it is now: whoever waits asks many times."""
        if self._settings is None:
            self._settings = load(self.sink_file)
        return self._settings

    # --------------------------------------------------------------------------------- processes

    def start(
        self, number: int = 1, command: Sequence[str | Path] = (HEADGATE, "run")
    ) -> list[Participant]:
        """So many more participants, which may still be on their way when this returns.

        Each has a sink file of its own, as it is now: those at work do not read what changes later.
        """
        started = []
        for _ in range(number):
            self._started += 1
            log = self._home / f"{self.name}-{self._started}.log"
            own = log.with_suffix(".toml")
            own.write_text(self.sink_file.read_text())
            started.append(Participant(own, log, command))
        self.participants += started
        return started

    def kill(self, participant: Participant) -> None:
        participant.kill()
        self.participants.remove(participant)

    def stop(self, *participants: Participant) -> None:
        """An orderly end of these, or of all; fails when one of them does not end well."""
        leaving = participants or tuple(self.participants)
        for participant in leaving:
            participant.ask_to_stop()
        for participant in leaving:
            assert participant.ended() == 0, str(participant)
            self.participants.remove(participant)

    def leader(self) -> Participant:
        """The running participant whose coordinator made the newest commit."""
        found: list[Participant] = []

        def known() -> bool:
            record = self.record()
            pid = int(record.coordinator.member.rpartition("-")[2]) if record else 0
            found[:] = [p for p in self.participants if p.pid == pid and not p.paused]
            return bool(found)

        self.wait_until(known, "a running leader")
        return found[0]

    def stopped_by_itself(self, code: str, bound_s: float = PATIENCE_S) -> str:
        """What the only participant said when it ended; it must name the error's code."""
        (participant,) = self.participants
        exit_code = participant.ended(bound_s)
        self.participants.clear()
        line = participant.log_text().splitlines()[-1]
        assert line.startswith(f"headgate: {code} "), str(participant)
        assert exit_code == (2 if code.startswith("HG-1") else 1), str(participant)
        return line

    # -------------------------------------------------------------------------------- the source

    def produce(self, count: int = 1_000, topic: str | None = None) -> None:
        """So many more records, round the partitions of one topic; all confirmed."""
        records = self._records(count)
        produce(self.bootstrap, topic or self.topics[0], records, partitions=self.partitions)

    def _records(self, count: int) -> Iterator[bytes]:
        for _ in range(count):
            bad = self.bad_every and self.produced % self.bad_every == 0
            yield bad_record(self.produced) if bad else record(self.produced)
            self.produced += 1

    @contextmanager
    def load(self, rate: int = 500) -> Iterator[None]:
        """Records in the background, so many per second, until the block ends."""
        ending = threading.Event()

        def endless() -> Iterator[bytes]:
            while not ending.is_set():
                yield from self._records(min(50, rate))

        def run() -> None:
            to = {"partitions": self.partitions, "rate": rate}
            try:
                produce(self.bootstrap, self.topics[0], endless(), **to)
            except Exception as error:  # noqa: BLE001 - a thread's failure is the test's
                self._wrong.append(f"the load ended: {error}")

        thread = threading.Thread(target=run, name="load")
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()
        assert not self._wrong, self._wrong

    # --------------------------------------------------------------------------------- the table

    def history(self) -> History | None:
        """What the table says now; ``None`` before there is one."""
        try:
            with open_tables_for_reading(self.settings) as tables:
                return tables.reader.history()
        except TableMissing:
            return None

    def record(self) -> CommitRecord | None:
        history = self.history()
        return history.current_record if history else None

    @contextmanager
    def table(self) -> Iterator[Table]:
        """The table as it is now, for somebody else's changes."""
        with open_tables_creating_nothing(self.settings) as tables:
            yield tables.require_catalog_format().load_table(tables.name)

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        with open_tables_creating_nothing(self.settings) as tables:
            yield tables.require_catalog_format().catalog

    def metadata_files(self) -> set[str]:
        """The names of all versions of the table's metadata."""
        if self._store is not None:
            keys = self._store.keys("warehouse/db/rows/metadata/")
            return {key for key in keys if key.endswith(".metadata.json")}
        folder = self.warehouse / "db" / "rows" / "metadata"
        return {file.name for file in folder.glob("*.metadata.json")}

    @property
    def tag(self) -> str:
        return tag_name(self.settings.name)

    def lag(self) -> int | None:
        """Offsets that the source has and the table has not, and rows that are pending.

        ``None`` before the first claim.
        """
        record = self.record()
        if record is None:
            return None
        with open_reachable_source_topics(self.settings) as topics:
            described = topics.describe()
        ends = {
            (topic, number): log.end
            for topic, state in described.items()
            for number, log in state.partitions.items()
        }
        stored = {(at.topic, at.partition): offset for at, offset in record.offsets.items()}
        pending = sum(pending_commit.rows for pending_commit in self.pending())
        return pending + sum(end - stored.get(at, 0) for at, end in ends.items())

    def pending(self) -> tuple[PendingCommit, ...]:
        """What the quarantine has not received yet."""
        with open_tables_for_reading(self.settings) as tables:
            return tables.read_undelivered_commits(tables.reader.history().current_record)

    def shares(self) -> list[int]:
        """How many partitions each living participant says that it owns, ascending."""
        with suppress(TableMissing):
            return sorted(
                len(alive.partitions) for alive in read_status(self.settings).participants
            )
        return []

    def committed(self) -> int:
        """Rows that the sink's own commits brought so far."""
        history = self.history()
        return sum(commit.record.records for commit in history.commits) if history else 0

    def all_share(self) -> bool:
        """Whether the running participants, and nobody else, say that they own all partitions."""
        with suppress(TableMissing):
            alive = read_status(self.settings).participants
            owning = {int(p.member.rpartition("-")[2]): len(p.partitions) for p in alive}
            shares = [owning.get(participant.pid, 0) for participant in self.participants]
            return all(shares) and sum(shares) == self.partitions
        return False

    def call(self, spark: IcebergSpark, procedure: str, arguments: str) -> None:
        """One of Iceberg's own maintenance procedures, run by Spark."""
        table = self.settings.table.identifier
        statement = f"CALL local.system.{procedure}(table => '{table}', {arguments})"
        spark.sql("local", self.database, statement)

    # ----------------------------------------------------------------------------------- waiting

    def wait_until(
        self, condition: Callable[[], bool], what: str, bound_s: float = PATIENCE_S
    ) -> None:
        """Poll; fails early, with the logs, when a participant ended that should run.

        A catalog or a broker that does not answer in time is asked again, as long as time is left.
        """
        deadline = time.monotonic() + bound_s

        def holds() -> bool:
            with suppress(Unreachable):
                return condition()
            return False

        while not holds():
            if self.restarts:
                self._start_again()
            gone = [p for p in self.participants if not p.running]
            late = time.monotonic() > deadline
            if gone or late or self._wrong:
                why = "time is over" if late else "a participant ended" if gone else self._wrong
                logs = "\n".join(map(str, self.participants))
                raise AssertionError(f"no {what}: {why}; {self.record()}\n{logs}")
            time.sleep(POLL_S)

    def _start_again(self) -> None:
        """As a service manager does with participants that found something unreachable."""
        for participant in list(self.participants):
            if not participant.running and participant.ended() == UNREACHABLE:
                self.participants.remove(participant)
                self.start()

    def wait_until_lag_zero(self, bound_s: float = PATIENCE_S) -> None:
        self.wait_until(lambda: self.lag() == 0, "lag of zero", bound_s)

    def wait_for_commits(self, number: int = 1) -> None:
        """So many more commits with rows."""
        seen: list[int] = []

        def came() -> bool:
            seen.append(self._commits())
            return seen[-1] >= seen[0] + number

        self.wait_until(came, f"{number} commits")

    def _commits(self) -> int:
        history = self.history()
        return sum(c.record.records > 0 for c in history.commits) if history else 0

    # ----------------------------------------------------------------------------------- judging

    def rows(self) -> pa.Table:
        """Every row, by a reader that shares no code with the writers."""
        with self.table() as table:
            return read_with_duckdb(table.metadata_location, self._store)

    def own_rows(self) -> pa.Table:
        """Those that came from this sink's topics: others may write into the table, too."""
        rows = self.rows()
        return rows.filter(pc.is_in(rows[COORDINATES[0]], pa.array(self.topics)))

    def judge(
        self,
        *,
        unproven: Sequence[str] = (),
        since: Mapping[tuple[str, int], int] | None = None,
    ) -> AuditReport:
        """All that the source holds is in the table once: by the audit, and by the oracle.

        ``unproven``: beginnings of what the audit may say that it cannot know. ``since``: offsets
        that the sink was told to begin at.
        """
        report = audit(self.settings)
        assert not report.findings, "\n".join(
            [*map(str, report.findings), *map(str, self.participants)]
        )
        surprising = [text for text in report.unproven if not text.startswith(tuple(unproven))]
        assert not surprising, surprising
        source = {
            partition: offsets.filter(pc.greater_equal(offsets, (since or {}).get(partition, 0)))
            for partition, offsets in read_source(self.bootstrap, *self.topics).items()
        }
        assert_exactly_once([self.own_rows(), *self.quarantined()], source, columns=COORDINATES)
        return report

    def quarantined(self) -> list[pa.Table]:
        """The quarantine's coordinates under the table's names, by the independent reader."""
        if not self.settings.quarantine.keeps_rejected_records:
            return []
        with self.catalog() as catalog:
            location = catalog.load_table(self.settings.quarantine.table).metadata_location
        rows = read_with_duckdb(location).select(["topic", "partition", "offset"])
        return [rows.rename_columns(list(COORDINATES))]
