"""Models Hudi in memory, whose lock is a lease: a process that sleeps too long loses it.

The timeline, the metadata table and the lock are values; files and their markers are small files
below a folder. Steps and their order are those of Hudi's write client, as far as commits go.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.control_protocol.events import WrittenFile
from headgate.tables.hudi.file_slices import Slice
from headgate.tables.hudi.table_properties import HudiLocation
from headgate.tables.hudi.write_client import HudiJava, Instant, Statistics

if TYPE_CHECKING:
    from simulation.leased_world import Process

LEASE_MS = 5_000
KEPT_MIN, KEPT_MAX = 3, 4
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Failed(Exception):
    """What Java raises."""


@dataclass(frozen=True)
class Moment:
    """An instant on the timeline. ``done`` is its commit, once it is complete."""

    inflight: bool = True
    done: Instant | None = None


@dataclass
class LeasedHudi:
    """One table. ``metadata``: what the metadata table was told, in order: an instant and what
    it brought; an instant that is rolled back brings ``None``."""

    folder: Path
    now_ms: int = 0
    timeline: dict[str, Moment] = field(default_factory=dict)
    archived: dict[str, Instant] = field(default_factory=dict)
    metadata: list[tuple[str, tuple[str, ...] | None]] = field(default_factory=list)
    rollbacks: set[str] = field(default_factory=set)
    holder: Process | None = None
    landed_late: set[str] = field(default_factory=set)
    """Instants that were completed by somebody who had lost the lock."""

    def tick(self) -> str:
        self.now_ms += 1
        at = _BEGIN + timedelta(milliseconds=self.now_ms)
        return at.strftime("%Y%m%d%H%M%S%f")[:17]

    def markers(self, instant: str) -> Path:
        return self.folder / ".hoodie" / ".temp" / instant

    def begin(self, instant: str) -> None:
        if instant in self.timeline:
            raise Failed(f"{instant} is on the timeline")
        self.timeline[instant] = Moment()

    def reconcile(self, instant: str, brought: Sequence[str]) -> None:
        """What was begun under the instant, and is not brought, goes."""
        for path in self.begun(instant):
            if path not in brought:
                (self.folder / path).unlink(missing_ok=True)
        self.forget_markers(instant)

    def begun(self, instant: str) -> list[str]:
        found = sorted(self.markers(instant).glob("*.marker.CREATE"))
        return [each.name.removesuffix(".marker.CREATE") for each in found]

    def forget_markers(self, instant: str) -> None:
        shutil.rmtree(self.markers(instant), ignore_errors=True)

    def archive(self) -> None:
        """Never past what is pending."""
        done = [each for each in sorted(self.timeline) if self.timeline[each].done]
        pending = min((each for each in self.timeline if not self.timeline[each].done), default="9")
        for instant in done[:-KEPT_MIN] if len(done) > KEPT_MAX else ():
            moment = self.timeline[instant]
            if instant < pending and moment.done:
                self.archived[instant] = moment.done
                del self.timeline[instant]

    @property
    def first(self) -> str:
        return min(self.timeline, default="")

    def rows(self, *, gone: bool = False) -> list[int]:
        """What a reader finds: it takes instants of before the timeline for complete ones.

        Raises ``FileNotFoundError`` as readers do, unless files may be ``gone``.
        """
        live: dict[str, tuple[str, ...]] = {}
        for instant, brought in self.metadata:
            moment = self.timeline.get(instant)
            complete = bool(moment.done) if moment else instant < self.first
            complete |= instant in self.archived
            if brought is None:
                live.pop(instant, None)
            elif complete:
                live[instant] = brought
        files = [self.folder / path for brought in live.values() for path in brought]
        there = [file for file in files if not gone or file.exists()]
        return [row for file in there for row in json.loads(file.read_text())]


class LeasedJava(HudiJava):
    """``HudiJava`` of one process: before and after each step it may be struck."""

    def __init__(
        self, hudi: LeasedHudi, process: Process, place: HudiLocation, schema: str
    ) -> None:
        super().__init__(place, schema)
        self._table, self._process = hudi, process

    # ----------------------------------------------------------------------------------- timeline

    def load_meta_client(self) -> Any:
        self._process.strike("timeline")
        return dict(self._table.timeline)

    def completed_commits(self, meta: Any) -> Iterator[Instant]:
        done = [moment.done for moment in meta.values() if moment.done]
        return iter(sorted(done, key=lambda each: -each.completed))

    def pending_instants(self, meta: Any) -> frozenset[str]:
        return frozenset(instant for instant, moment in meta.items() if not moment.done)

    def is_completed_on_active_timeline(self, meta: Any, instant: str) -> bool:
        return instant in meta and bool(meta[instant].done)

    def file_statistics(self, meta: Any, instant: str) -> list[Statistics]:
        brought = [paths for at, paths in self._table.metadata if at == instant and paths]
        return [Statistics(path, 0, 0, 0) for paths in brought for path in paths]

    def archived_completion_time(self, meta: Any, instant: str) -> int | None:
        found = self._table.archived.get(instant)
        return found.completed if found else None

    def completion_time(self, meta: Any, instant: str) -> int | None:
        moment = meta.get(instant)
        return (
            moment.done.completed
            if moment and moment.done
            else self.archived_completion_time(meta, instant)
        )

    def is_older_than_active_timeline(self, meta: Any, instant: str) -> bool:
        return bool(meta) and instant < min(meta)

    def read_ghost_instants(self, meta: Any, condemned: Collection[str] = ()) -> frozenset[str]:
        last = dict(self._table.metadata)
        left = {each for each in last if last[each] is not None and each not in meta}
        return frozenset(
            each for each in left if each >= min(meta, default="") or each in condemned
        )

    def is_being_rolled_back(self, meta: Any, instant: str) -> bool:
        return instant in self._table.rollbacks

    def latest_slices(self, meta: Any) -> list[Slice]:
        return []  # nobody here cuts the table into buckets

    # ------------------------------------------------------------------------------------- writing

    def reserve_instant(self) -> str:
        return self._table.tick()

    def begin_instant(self, meta: Any, instant: str) -> None:
        self._process.strike("register")
        self._table.begin(instant)
        self._process.strike("registered")

    def start_heartbeat(self, instant: str) -> None:
        self._process.strike("go on")

    def commit(
        self,
        instant: str,
        files: Sequence[WrittenFile],
        told: Mapping[str, str],
        check: Callable[[], None],
    ) -> None:
        table, strike = self._table, self._process.strike
        paths = tuple(file.path.rpartition("/")[2] for file in files)
        with self._holding_lock():
            check()
            strike("behind the hook")
            table.reconcile(instant, paths)
            table.metadata.append((instant, paths))
            strike("metadata written")
            if instant not in table.timeline or table.timeline[instant].done:
                raise Failed(f"{instant} is not pending")
            strike("behind the last look")
            if table.holder is not self._process:
                table.landed_late.add(instant)
            done = Instant(instant, int(table.tick()), "BULK_INSERT", False, dict(told))
            table.timeline[instant] = replace(table.timeline.get(instant, Moment()), done=done)
            strike("completed")
        table.archive()
        strike("archived")

    def close(self) -> None:
        pass

    @contextmanager
    def _holding_lock(self) -> Iterator[None]:
        self._process.strike("lock")
        self._process.acquire()
        try:
            self._process.strike("locked")
            yield
        finally:
            if self._table.holder is self._process and not self._process.dead:
                self._table.holder = None

    def _request_and_start_instant(self, meta: Any, instant: str) -> None:
        self._table.begin(instant)

    def _roll_back(self, instant: str) -> None:
        """As Hudi does: it looks, then locks to plan, and removes files without the lock."""
        table, strike = self._table, self._process.strike
        found = table.timeline.get(instant)
        strike("rollback")
        with self._holding_lock():
            if found is None:
                return
            planned = table.begun(instant)
            table.rollbacks.add(instant)
        for path in planned:
            (table.folder / path).unlink(missing_ok=True)
            strike("rolling back")
        with self._holding_lock():
            table.metadata.append((instant, None))
            moment = table.timeline.get(instant)
            if moment and (found.done or not moment.done):
                del table.timeline[instant]
            table.forget_markers(instant)
            table.rollbacks.discard(instant)
