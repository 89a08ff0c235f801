"""Histories of queries from seeds: crashes, zombies, checkpoints lost, copied, restored and torn,
lying catalogs, tables that go back, and others that commit in between.

Spark is played: its offset log is written as Spark writes it. Batches, writers, table and catalog
are real. Each record up to the stored offsets must be in the table once; a keyed table must be the
fold of its records. As a script, ``histories.py --seeds 100 [--keyed]`` plays many.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from integration.readers import read_with_duckdb
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from headgate.config.load import load
from headgate.control_protocol.commit_record import OPERATOR
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import CommitAttempt, Landed, TopicState
from headgate.control_protocol.spark_batch_decision import ProposedBatch, Take
from headgate.data_plane.spark.query_rows import RowsWritten
from headgate.runtime.sink_tables import SinkTables
from headgate.spark import batches, query_batch_commits
from headgate.spark.query_batch_commits import QueryTable

PARTITIONS = 3
LIVES_MAX = 100
SINK = """\
name = "orders"
[source]
topics = ["t"]
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[catalog]
name = "lake"
[catalog.properties]
type = "sql"
uri = "sqlite:///{folder}/catalog.db"
warehouse = "file://{folder}/warehouse"
[coordinator]
on_rollback = "follow-table"
[table]
identifier = "s.orders"
create = true
columns = [
  {{ name = "id", type = "long", required = true }},
  {{ name = "kafka_partition", type = "int", from_record = true }},
  {{ name = "kafka_offset", type = "long", from_record = true }},
]
[table.record_columns]
partition = "kafka_partition"
offset = "kafka_offset"
"""
KEYED = ("id", "seen", "kafka_partition", "kafka_offset")
"""The columns of a keyed table's rows: its key, and the offset that its last record has."""


class Crash(BaseException):
    """The process is gone: nothing below may clean up after it."""


class PlayedFrame:
    """A batch's rows, which ``mapInArrow`` hands to a writer in some tasks."""

    columns = ("id", "kafka_partition", "kafka_offset")

    def __init__(self, ranges: dict[int, tuple[int, int]], tasks: int) -> None:
        self._ranges = ranges
        self._tasks = tasks
        self.is_computed = False
        settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10000"}
        conf = SimpleNamespace(get=settings.__getitem__, set=settings.__setitem__)
        context = SimpleNamespace(master="local[2]")
        self.sparkSession = SimpleNamespace(conf=conf, sparkContext=context)

    def mapInArrow(self, writer: Any, _schema: str) -> PlayedFrame:  # noqa: N802 - Spark's name
        self._writer = writer
        return self

    @property
    def write(self) -> PlayedFrame:
        return self

    def format(self, name: str) -> PlayedFrame:
        assert name == "noop"
        return self

    def mode(self, _: str) -> PlayedFrame:
        return self

    def save(self) -> None:
        self.is_computed = True

    def collect(self) -> list[dict[str, Any]]:
        self.is_computed = True
        rows = self._places()
        return [
            {"outcome": value.as_py()}
            for task in range(self._tasks)
            for out in self._writer(iter([self._rows(rows[task :: self._tasks])]))
            for value in out.column(0)
        ]

    def _places(self) -> list[tuple[int, int]]:
        return [(p, o) for p, (a, b) in sorted(self._ranges.items()) for o in range(a, b)]

    def _rows(self, places: list[tuple[int, int]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {
                "id": pa.array([p * 1_000_000 + o for p, o in places], pa.int64()),
                "kafka_partition": pa.array([p for p, _ in places], pa.int32()),
                "kafka_offset": pa.array([o for _, o in places], pa.int64()),
            }
        )


@dataclass(frozen=True)
class Changes:
    """What the records of a keyed history say: each a key of its partition, and some delete it."""

    seed: int

    def of(self, partition: int, offset: int) -> tuple[int, bool]:
        """Return the record's key, and whether it deletes it."""
        dice = random.Random(f"{self.seed} {partition} {offset}")
        return partition * 1_000 + dice.randrange(9), dice.random() < 0.2

    def fold(self, begins: dict[int, int], ends: dict[int, int]) -> dict[int, tuple[int, int]]:
        """Return each key's last record among these, as partition and offset."""
        return {self.of(p, o)[0]: (p, o) for p in ends for o in range(begins.get(p, 0), ends[p])}


class KeyedFrame(PlayedFrame):
    """A batch's rows of keys. ``folded``: a stateful query makes one row of each key."""

    def __init__(
        self, ranges: dict[int, tuple[int, int]], tasks: int, changes: Changes, *, folded: bool
    ) -> None:
        super().__init__(ranges, tasks)
        self._changes, self._folded = changes, folded
        places = [] if folded else ["kafka_partition", "kafka_offset"]
        self.columns = ("id", "seen", *places, "_deleted")

    def _places(self) -> list[tuple[int, int]]:
        if not self._folded:
            return super()._places()
        begins = {p: a for p, (a, _) in self._ranges.items()}
        return sorted(
            self._changes.fold(begins, {p: b for p, (_, b) in self._ranges.items()}).values()
        )

    def _rows(self, places: list[tuple[int, int]]) -> pa.RecordBatch:
        changes = [self._changes.of(p, o) for p, o in places]
        seen = [None if gone else o for (_, o), (_, gone) in zip(places, changes, strict=True)]
        columns = {
            "id": pa.array([key for key, _ in changes], pa.int64()),
            "seen": pa.array(seen, pa.int64()),
            "kafka_partition": pa.array([p for p, _ in places], pa.int32()),
            "kafka_offset": pa.array([o for _, o in places], pa.int64()),
            "_deleted": pa.array([gone for _, gone in changes], pa.bool_()),
        }
        return pa.RecordBatch.from_pydict({name: columns[name] for name in self.columns})


class PlayedCheckpoint:
    """Spark's folder: metadata, the first offsets, the log of planned and of committed batches."""

    def __init__(self, root: Path, start: dict[int, int]) -> None:
        self.root = root
        if not (root / "metadata").exists():
            for name in ("offsets", "commits", "sources/0"):
                (root / name).mkdir(parents=True)
            (root / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
            (root / "sources/0/0").write_text("\0v1\n" + self._text(start))

    @staticmethod
    def _text(offsets: dict[int, int]) -> str:
        return json.dumps({"t": {str(p): o for p, o in offsets.items()}})

    def planned(self, number: int) -> dict[int, int]:
        path = self.root / (f"offsets/{number}" if number >= 0 else "sources/0/0")
        return {int(p): o for p, o in json.loads(path.read_text().splitlines()[-1])["t"].items()}

    def newest(self, kind: str) -> int:
        return max((int(p.name) for p in (self.root / kind).iterdir()), default=-1)

    def plan(self, number: int, end: dict[int, int]) -> None:
        path = self.root / "offsets" / str(number)
        if path.exists():  # Spark: "concurrent update to the log"
            raise RuntimeError("another run planned this batch")
        path.write_text("v1\n{}\n" + self._text(end))

    def commit(self, number: int) -> None:
        (self.root / "commits" / str(number)).write_text("v1\n{}")


class History:
    """One history; ``stateful``: of a query that remembers earlier rows."""

    def __init__(self, seed: int, folder: Path, *, keyed: bool = False) -> None:
        self.random = random.Random(seed)
        self.stateful = seed % 4 == 0
        self.changes = Changes(seed) if keyed else None
        self.folder = folder
        self.sink = folder / "orders.toml"
        text = SINK.format(folder=folder)
        if keyed:
            version = 2 + seed % 2
            keyed_table = f'key = ["id"]\nproperties = {{ format-version = "{version}" }}'
            text = text.replace("create = true", f"create = true\n{keyed_table}")
            text = text.replace("columns = [", 'columns = [\n  { name = "seen", type = "long" },')
        self.sink.write_text(text)
        self.settings = load(self.sink)
        self.log = [self.random.randrange(40, 120) for _ in range(PARTITIONS)]
        self.told: Counter[str] = Counter()
        self._depth = 0
        self._faults_left = self.random.randrange(2, 9)
        self._backups: list[Path] = []
        self._checkpoint = folder / "checkpoint-0"
        self._has_ended = False
        self._catalog().create_namespace("s")  # so that nobody asks a broker about former tables
        with ExitStack() as opening:
            tables = SinkTables(self.settings, opening)
            tables.primary_format.create(tables.table_spec_of(tables.name))

    # ----------------------------------------------------------------------------- Spark, played

    def run(self, root: Path, steps: int) -> str:
        """Run the query until it has read everything, fails, crashes, or has made its steps."""
        checkpoint = PlayedCheckpoint(root, self._start())
        query = batches.Batches(self.sink, str(root), stateful=self.stateful)
        try:
            for _ in range(steps):
                if not self._step(checkpoint, query):
                    return "ended"
        except Crash:
            self.told["crash"] += 1
            return "crash"
        except HeadgateError as error:
            self.told[error.code] += 1
            return error.code
        except RuntimeError:
            self.told["spark: concurrent update"] += 1
            return "spark"
        finally:
            query.close()
        return "steps"

    def _step(self, checkpoint: PlayedCheckpoint, query: batches.Batches) -> bool:
        number, done = checkpoint.newest("offsets"), checkpoint.newest("commits")
        if number == done:
            begin = checkpoint.planned(number)
            if all(begin[p] >= self.log[p] for p in begin):
                return False
            checkpoint.plan(number + 1, {p: self._reach(p, o) for p, o in begin.items()})
            number += 1
            self.strike(checkpoint.root / "offsets" / str(number))
        try:
            begin, end = checkpoint.planned(number - 1), checkpoint.planned(number)
        except ValueError:  # torn, which the query is to say
            begin = end = {}
        ranges = {p: (begin[p], max(begin[p], end[p])) for p in end}
        frame = self.frame(ranges, self.random.randrange(1, 4))
        query(frame, number)
        assert frame.is_computed or not self.stateful, "Spark lacks the state after this batch"
        checkpoint.commit(number)
        self.strike()
        if self.random.random() < 0.15:
            copy = self.folder / f"backup-{len(self._backups)}"
            shutil.copytree(checkpoint.root, copy)
            self._backups.append(copy)
        return True

    def frame(
        self, ranges: dict[int, tuple[int, int]], tasks: int, *, folded: bool | None = None
    ) -> PlayedFrame:
        """Return a batch's rows. ``folded``: as of a stateful query, if this one is."""
        if self.changes is None:
            return PlayedFrame(ranges, tasks)
        is_folded = self.stateful if folded is None else folded
        return KeyedFrame(ranges, tasks, self.changes, folded=is_folded)

    def _reach(self, partition: int, offset: int) -> int:
        if self.random.random() < 0.2:
            return offset
        return max(offset, min(self.log[partition], offset + self.random.randrange(1, 40)))

    def _start(self) -> dict[int, int]:
        if self.random.random() < 0.5:
            return dict.fromkeys(range(PARTITIONS), 0)
        text = batches.starting_offsets(self.sink)
        found = json.loads(text)["t"] if text != "earliest" else {}
        return {p: max(0, int(found.get(str(p), 0))) for p in range(PARTITIONS)}

    # ----------------------------------------------------------------------------------- trouble

    def strike(self, written: Path | None = None) -> None:
        """Crash here, or let somebody else go on before this run does. ``written``: what may be
        torn by a crash."""
        if self._faults_left <= 0 or self.random.random() > 0.2:
            return
        self._faults_left -= 1
        if self._depth or self.random.random() < 0.5:
            if written and self.random.random() < 0.1:
                self.told["torn"] += 1
                written.write_text(written.read_text()[:9])
            raise Crash
        self._depth += 1
        try:
            self._let_others()
        finally:
            self._depth -= 1

    def _let_others(self) -> None:
        kind = self.random.choice(("same", "same", "copy", "own", "headgate run", "claim", "back"))
        if kind == "headgate run" and self.changes and self.stateful:
            kind = "claim"  # its rows are ordered by their records, which are of other partitions
        self.told[f"meanwhile: {kind}"] += 1
        if kind in ("headgate run", "claim"):
            self._commit_as_other(claims=kind == "claim")
        elif kind == "back":
            self._roll_back()
        else:
            root = self._checkpoint
            if kind != "same":
                root = self.folder / f"{kind}-{uuid.uuid4().hex[:6]}"
            if kind == "copy":
                shutil.copytree(self._checkpoint, root)
            self.run(root, self.random.randrange(1, 5))

    def _commit_as_other(self, *, claims: bool) -> None:
        """Commit as somebody who knows nothing of queries, as ``headgate run``, or as a person."""
        member = OPERATOR if claims else "host"
        sender = Sender(member, uuid.uuid4().hex[:12])
        with QueryTable(self.settings, PlayedSources(self), sender) as table:
            now = table.read_and_require_resumable()
            if now.record is None:
                return
            stored = {p: now.record.offsets[TopicPartition("t", p)] for p in range(PARTITIONS)}
            end = dict(stored) if claims else {p: self._reach(p, o) for p, o in stored.items()}
            written = RowsWritten()
            if not claims:
                begins, ends = (
                    Offsets({TopicPartition("t", p): o for p, o in some.items()})
                    for some in (stored, end)
                )
                planned = table.plan_batch(ProposedBatch("", 0, begins, ends), now, Take())
                frame = self.frame({p: (o, end[p]) for p, o in stored.items()}, 1, folded=False)
                places = {"partition": "kafka_partition", "offset": "kafka_offset"}
                written = planned.rows_writer(places).write([frame._rows(frame._places())])
            epoch = Epoch(now.next_transaction(sender).epoch)
            record = replace(
                now.record,
                transaction=TransactionId(epoch, TransactionNumber(0 if claims else 1)),
                coordinator=sender,
                records=written.rows,
                skipped=0,
                command="claim" if claims else None,
                offsets=now.record.offsets.with_offsets(
                    {TopicPartition("t", p): offset for p, offset in end.items()}
                ),
            )
            for _ in range(20):
                outcome = table._table.commit(CommitAttempt(now.view, record, written.files))
                now = table.read_and_require_resumable()
                if isinstance(outcome, Landed) or record.is_same_commit(now.record):
                    return

    def _roll_back(self) -> None:
        """Take the branch back by one or two of its snapshots, behind everybody's back."""
        catalog = self._catalog()
        table = catalog.load_table("s.orders")
        line = table.history()
        back = self.random.randrange(1, 3)
        if len(line) > back:
            target = line[-1 - back].snapshot_id
            with real_catalog(), table.manage_snapshots() as snapshots:
                snapshots.rollback_to_snapshot(target)

    # ---------------------------------------------------------------------------- a whole history

    def play(self) -> None:
        for life in range(1, LIVES_MAX):
            how = self.run(self._checkpoint, 1_000)
            if how == "ended" and self._faults_left > 0 and self.random.random() < 0.5:
                self._faults_left -= 1
                self.log = [end + self.random.randrange(40) for end in self.log]
                continue
            if how == "ended":
                self._has_ended = True
                return
            if self.stateful and how in ("HG-270", "HG-271", "HG-274"):
                self.told["refused for good"] += 1
                return
            lost = how == "crash" and self.random.random() < 0.25
            if how in ("HG-271", "HG-274") or lost:
                self.told["checkpoint lost"] += 1
                self._checkpoint = self.folder / f"checkpoint-{life}"
            elif how == "crash" and self._backups and self.random.random() < 0.25:
                self.told["checkpoint restored"] += 1
                self._checkpoint = self.folder / f"checkpoint-{life}"
                shutil.copytree(self.random.choice(self._backups), self._checkpoint)
        raise AssertionError("it does not end")

    def _catalog(self) -> SqlCatalog:
        return SqlCatalog(
            "lake",
            uri=f"sqlite:///{self.folder}/catalog.db",
            warehouse=f"file://{self.folder}/warehouse",
        )

    def judge(self) -> int:
        """Assert that each record up to the stored offsets is there once; return how many."""
        table = self._catalog().load_table("s.orders")
        with QueryTable(self.settings, PlayedSources(self), Sender("judge", "judge")) as reading:
            record = reading.read_and_require_resumable().record
        offsets = record.offsets if record else {}
        stored = [offsets.get(TopicPartition("t", p), 0) for p in range(PARTITIONS)]
        wanted = {(p, o) for p in range(PARTITIONS) for o in range(stored[p])}
        if self.changes is None:
            self._judge_rows(table, wanted)
        else:
            self._judge_fold(table, self.changes, dict(enumerate(stored)))
        if self._has_ended and not self.told["meanwhile: back"]:  # nobody may look after that
            assert stored == self.log, "the query ended before its source"
        epochs = [
            int(snapshot.summary.additional_properties["headgate.orders.epoch"])
            for snapshot in table.snapshots()
            if snapshot.summary
        ]
        assert epochs == sorted(epochs), "epochs fell"
        return len(wanted)

    @staticmethod
    def _judge_rows(table: Table, wanted: set[tuple[int, int]]) -> None:
        columns = ("kafka_partition", "kafka_offset")
        rows = table.scan(selected_fields=columns).to_arrow()
        found = Counter(zip(*(rows.column(n).to_pylist() for n in columns), strict=True))
        twice = sorted(at for at, times in found.items() if times > 1)
        assert not twice, f"{len(twice)} records are there twice, as {twice[:3]}"
        lost = sorted(wanted - found.keys())
        assert not lost, f"{len(lost)} records are lost, as {lost[:3]}"
        assert found.keys() <= wanted, "rows beyond the stored offsets"

    @staticmethod
    def _judge_fold(table: Table, changes: Changes, stored: dict[int, int]) -> None:
        """By a reader that is not ours, which knows deletion vectors."""
        rows = read_with_duckdb(table.metadata_location)
        found = sorted(zip(*(rows.column(n).to_pylist() for n in ("id", "seen")), strict=True))
        last = changes.fold({}, stored)
        wanted = [(key, o) for key, (p, o) in sorted(last.items()) if not changes.of(p, o)[1]]
        assert found == wanted, f"the table is not the fold: {sorted({*found} ^ {*wanted})[:4]}"


class PlayedSources:
    """Implements ``SourceTopics`` over a history's log."""

    def __init__(self, history: History) -> None:
        self._history = history

    def describe(self) -> dict[str, TopicState]:
        log = {p: OffsetRange(0, end) for p, end in enumerate(self._history.log)}
        return {"t": TopicState(TopicId("id-t"), log)}

    def close(self) -> None: ...


class NoCopies:
    """Copies no offsets: there is no broker."""

    def __init__(self, *_: object) -> None: ...

    def copy_offsets_to_group(self, _offsets: object, _metadata: str) -> None: ...

    def close(self) -> None: ...


# -------------------------------------------------------------------------------------- the world


_REAL_COMMIT = SqlCatalog.commit_table


@contextmanager
def real_catalog() -> Iterator[None]:
    with patch.object(SqlCatalog, "commit_table", _REAL_COMMIT):
        yield


def lying_commit(history: History) -> Callable[..., Any]:
    """Answer some commits with an error: before they took effect, or after."""

    def commit_table(self: Any, table: Any, requirements: Any, updates: Any) -> Any:
        chance = history.random.random()
        if chance < 0.06:
            history.told["catalog: lost"] += 1
            raise OSError("connection reset before the commit")
        answer = _REAL_COMMIT(self, table, requirements, updates)
        if chance < 0.12:
            history.told["catalog: landed, no answer"] += 1
            raise OSError("connection reset after the commit")
        if chance < 0.15:
            history.told["catalog: landed, refused"] += 1
            raise CommitFailedException("409 after it landed")
        return answer

    return commit_table


@contextmanager
def world_of(history: History) -> Iterator[None]:
    """Put the history's trouble around the product's functions, as they are now."""
    write_frame, commit = batches.write_frame, QueryTable.commit

    def striking_write(*given: Any) -> Any:
        history.strike()
        return write_frame(*given)

    def striking_commit(*given: Any) -> Any:
        history.strike()
        result = commit(*given)
        history.strike()
        return result

    with ExitStack() as stack:
        for owner, name, instead in (
            (batches, "write_frame", striking_write),
            (QueryTable, "commit", striking_commit),
            (batches, "open_source_topics", lambda _: PlayedSources(history)),
            (query_batch_commits, "OffsetCopies", NoCopies),
            (query_batch_commits, "_PAUSE_S", 0.0),
            (SqlCatalog, "commit_table", lying_commit(history)),
        ):
            stack.enter_context(patch.object(owner, name, instead))
        yield


def play(seed: int, folder: Path, *, keyed: bool = False) -> tuple[int, Counter[str]]:
    """Play one history; return its records and what happened. Raises ``AssertionError``."""
    history = History(seed, folder, keyed=keyed)
    with world_of(history):
        history.play()
    with patch.object(query_batch_commits, "OffsetCopies", NoCopies):
        return history.judge(), history.told


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--seeds", type=int, default=50)
    asked.add_argument("--first", type=int, default=1)
    asked.add_argument("--keyed", action="store_true")
    given = asked.parse_args()
    total: Counter[str] = Counter()
    for seed in range(given.first, given.first + given.seeds):
        with tempfile.TemporaryDirectory() as folder:
            try:
                records, told = play(seed, Path(folder), keyed=given.keyed)
                total += told
                total["records"] += records
            except Exception as error:  # noqa: BLE001 - the next seed is played all the same
                total["bad"] += 1
                print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
    print(dict(sorted(total.items())))


if __name__ == "__main__":
    main()
