"""What a sink keeps beside a Hudi table: its instants, and a copy of its newest record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from headgate.control_protocol.filled_tables import filled_of, filled_property
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.record import CommitRecord
from headgate.control_protocol.record_codec import decode, encode
from headgate.tables.hudi.places import HudiPlace
from headgate.tables.stores.local import write_whole

REMEMBERED = timedelta(hours=4)
"""Longer than any participant writes behind the end of its transaction."""

_MARKER = ".marker."


@dataclass(frozen=True, slots=True)
class Kept:
    """The sink's newest commit as it landed: a restore takes it from the timeline alone.

    ``tag`` is 0 of one that is about to land.
    """

    instant: str
    tag: int
    record: CommitRecord
    filled: Mapping[str, str] = field(default_factory=dict)

    @property
    def said(self) -> Mapping[str, str]:
        """What the commit says of itself; no commit of a ledger forgets what the one before
        remembered (N5)."""
        sink = self.record.sink
        filled = {filled_property(sink, name): uuid for name, uuid in self.filled.items()}
        return {**filled, **encode(self.record)}


class Reservations:
    """Small files below the table's own; an instant's is empty and called like it."""

    def __init__(self, place: HudiPlace, sink: SinkName) -> None:
        self._place = place
        self._sink = sink
        self._notes = place.reserved(sink)
        self._dead = place.aux / sink / "condemned"
        self._newest = place.aux / sink / "newest.json"
        self._coming = place.aux / sink / "coming.json"
        self._markers = place.folder / ".hoodie" / ".temp"

    def note(self, instant: str) -> None:
        """From now on what bears the instant is this sink's."""
        _note(self._notes, instant)

    def condemn(self, instant: str) -> None:
        """From now on nobody completes it: called within Hudi's lock, and read there."""
        _note(self._dead, instant)

    def condemned(self) -> frozenset[str]:
        return _names(self._dead)

    def noted(self) -> frozenset[str]:
        return _names(self._notes)

    def marked(self) -> frozenset[str]:
        """Instants, of whomever, under which files were begun and not committed."""
        folders = (self._markers / name for name in _names(self._markers))
        return frozenset(f.name for f in folders if any(f.rglob(f"*{_MARKER}*")))

    def remove_late(self, instant: str, brought: frozenset[str]) -> None:
        """Remove what was begun under an instant, and is not among what its commit brought.

        A marker without its file stays: the file is still to come.
        """
        marked = self._markers / instant
        for marker in marked.rglob(f"*{_MARKER}*"):
            inside = str(marker.relative_to(marked)).partition(_MARKER)[0]
            file = self._place.folder / inside
            if inside not in brought and file.exists():
                file.unlink()
                marker.unlink()

    def forget_old(self, newest: str) -> None:
        """Forget instants of long ago: they are called by their times, as the newest is."""
        now = datetime.strptime(newest[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
        oldest = (now - REMEMBERED).strftime("%Y%m%d%H%M%S")
        for folder in (self._notes, self._dead):
            for instant in _names(folder):
                if instant < oldest:
                    (folder / instant).unlink(missing_ok=True)

    def keep(self, newest: Kept) -> None:
        _keep(self._newest, newest)

    def kept(self) -> Kept | None:
        """Raises ``RecordUnreadable``, ``OSError``, ``ValueError``."""
        return self._read(self._newest)

    def announce(self, coming: Kept) -> None:
        """Say within Hudi's lock what is completed next: the archive tells no records."""
        _keep(self._coming, coming)

    def announced(self) -> Kept | None:
        """Raises as ``kept``."""
        return self._read(self._coming)

    def _read(self, path: Path) -> Kept | None:
        try:
            told = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        said = told["record"]
        record, filled = decode(self._sink, said), filled_of(self._sink, said)
        return Kept(told["instant"], told["tag"], record, filled) if record else None


def _keep(path: Path, kept: Kept) -> None:
    told = {"instant": kept.instant, "tag": kept.tag, "record": kept.said}
    write_whole(path, json.dumps(told))


def _note(folder: Path, instant: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / instant).touch()


def _names(folder: Path) -> frozenset[str]:
    with suppress(FileNotFoundError):
        return frozenset(each.name for each in folder.iterdir())
    return frozenset()
