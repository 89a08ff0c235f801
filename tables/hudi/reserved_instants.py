"""Stores what a sink keeps next to a Hudi table: its instants, and a copy of its newest record."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import (
    decode_record,
    encode_record,
    filled_table_property,
    filled_table_uuids,
)
from headgate.control_protocol.errors import LogUnreadable
from headgate.control_protocol.identifiers import SinkName
from headgate.tables.hudi.base_files import MARKERS, NOTE, NOTED, instant_of_file
from headgate.tables.hudi.table_properties import AUX, HudiLocation

REMEMBERED = timedelta(hours=4)
"""Longer than any participant writes after the end of its transaction."""

_JSON = ".json"
_MARKER = ".marker."


@dataclass(frozen=True, slots=True)
class StoredCommit:
    """The sink's newest commit as it landed: a restore only removes it from the timeline.

    ``tag`` is 0 for one that is about to land. ``follows``: the tag of the one that it continues,
    0 for none.
    """

    instant: str
    tag: int
    record: CommitRecord
    filled: Mapping[str, str] = field(default_factory=dict)
    follows: int | None = None

    @property
    def commit_metadata(self) -> Mapping[str, str]:
        """Return the commit's metadata; a ledger's commits carry on what was known (LEDGER-2)."""
        sink = self.record.sink
        filled = {filled_table_property(sink, name): uuid for name, uuid in self.filled.items()}
        return {**filled, **encode_record(self.record)}


class Reservations:
    """Small files below the table's folder; an instant's is empty and named like it."""

    def __init__(self, place: HudiLocation, sink: SinkName) -> None:
        self._folder = place.folder
        self._sink = sink
        self._notes = f"{AUX}/{sink}/reserved"
        self._dead = f"{AUX}/{sink}/condemned"
        self._landed = f"{AUX}/{sink}/landed"
        self._formerly = f"{AUX}/{sink}/newest.json"
        self._coming = f"{AUX}/{sink}/coming"
        self._formerly_coming = f"{AUX}/{sink}/coming.json"

    def note_reserved_instant(self, instant: str) -> None:
        """Note that everything with this instant belongs to this sink from now on."""
        self._folder.put(f"{self._notes}/{instant}", b"")

    def forbid_completion(self, instant: str) -> None:
        """Forbid its completion from now on: written and read within Hudi's lock."""
        self._folder.put(f"{self._dead}/{instant}", b"")
        self._folder.remove_quietly([self._announced_file_name(instant)])

    def forbidden_instants(self) -> frozenset[str]:
        return self._instants_in(self._dead)

    def reserved_instants(self) -> frozenset[str]:
        return self._instants_in(self._notes)

    def instants_with_markers(self) -> frozenset[str]:
        """Return all writers' instants under which files were begun and not committed."""
        inside = (marker.removeprefix(f"{MARKERS}/") for marker in self._marker_names(MARKERS))
        return frozenset(name.partition("/")[0] for name in inside)

    def remove_uncommitted_files(self, instant: str, committed_paths: frozenset[str]) -> None:
        """Remove files that were begun under an instant and are not in its commit.

        A marker without its file stays: the file may still appear.
        """
        marked = f"{MARKERS}/{instant}"
        for marker in self._marker_names(marked):
            inside = marker.removeprefix(f"{marked}/").partition(_MARKER)[0]
            if inside not in committed_paths:
                self._remove_if_present_with_reference(inside, marker)

    def remove_late_uncommitted_files(
        self, find_committed_files: Callable[[str], Collection[str] | None]
    ) -> None:
        """Remove files that appeared after their markers had been removed.

        On S3 a file appears once all of it is sent, however long ago a commit or a rollback
        removed its marker. ``find_committed_files``: the files of an instant's commit, empty if it
        was rolled back; ``None`` if that is unknown.
        """
        there = []
        for note, _ in self._folder.files_below(NOTED):
            file = _file_name_of(note).removesuffix(NOTE)
            if (theirs := find_committed_files(instant_of_file(file))) is None:
                continue
            if file in map(_file_name_of, theirs):
                there.append(note)
            else:
                self._remove_if_present_with_reference(self._folder.read(note).decode(), note)
        self._folder.remove_quietly(there)

    def _remove_if_present_with_reference(self, file: str, reference: str) -> None:
        """Remove a file, if it exists, and then what refers to it."""
        if next(self._folder.file_sizes([file])) is not None:
            self._folder.remove_quietly([file])
            self._folder.remove_quietly([reference])

    def forget_old_instants(self, newest_instant: str) -> None:
        """Forget old instants: like the newest one, their names are times."""
        now = datetime.strptime(newest_instant[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
        oldest = (now - REMEMBERED).strftime("%Y%m%d%H%M%S")
        for folder in (self._notes, self._dead):
            old = [each for each in self._instants_in(folder) if each < oldest]
            self._folder.remove_quietly([f"{folder}/{instant}" for instant in old])
        notes = (name for name, _ in self._folder.files_below(NOTED))
        self._folder.remove_quietly(
            [n for n in notes if instant_of_file(n.removesuffix(NOTE)) < oldest]
        )
        coming = (name for name, _ in self._folder.files_below(self._coming))
        self._folder.remove_quietly(
            [n for n in coming if _file_name_of(n).removesuffix(_JSON) < oldest]
        )

    def store_landed_commit(self, newest: StoredCommit) -> None:
        """Keep it until a later one is kept, in a file named like its tag.

        No lock is held here: a process that was suspended after its commit may be late, but cannot
        replace a later copy.
        """
        self._write_stored_commit(self._landed_file_name(newest.tag), newest)
        earlier = [
            self._landed_file_name(tag)
            for tag in self._tags_of_stored_landed_commits()
            if tag < newest.tag
        ]
        announced = self._announced_file_name(newest.instant)
        self._folder.remove_quietly([*earlier, self._formerly, self._formerly_coming, announced])

    def read_stored_landed_commit(self) -> StoredCommit | None:
        """Raises ``RecordUnreadable``, ``LogUnreadable``, ``OSError``."""
        while tags := self._tags_of_stored_landed_commits():
            with suppress(FileNotFoundError):  # a later one was kept meanwhile
                return self._read_stored_commit(self._landed_file_name(max(tags)))
        with suppress(FileNotFoundError):  # of a version that had one file for all
            return self._read_stored_commit(self._formerly)
        return None

    def announce_commit(self, coming: StoredCommit) -> None:
        """Note within Hudi's lock what is completed next, because the archive has no records.

        Each instant has a file of its own: whoever has lost the lock in here must not hide what
        others have announced and completed since.
        """
        self._write_stored_commit(self._announced_file_name(coming.instant), coming)

    def read_announced_commits(self) -> list[StoredCommit]:
        """Return commits that are announced, but not stored as landed yet.

        Raises as ``read_stored_landed_commit``.
        """
        commits = []
        announced = [name for name, _ in self._folder.files_below(self._coming)]
        # The last one is of a version that had one file for all.
        for name in [*announced, self._formerly_coming]:
            with suppress(FileNotFoundError):  # it was kept meanwhile
                if coming := self._read_stored_commit(name):
                    commits.append(coming)
        return commits

    def find_landed_commits(
        self, archived_tag_of: Callable[[str], int | None]
    ) -> list[StoredCommit]:
        """Return the commits known to have landed, even if archived before they were kept.

        The newest is first. ``archived_tag_of``: returns the tag of an instant of the archive.
        Raises as ``read_stored_landed_commit``.
        """
        announced = self.read_announced_commits()  # first: what leaves here is kept by then
        kept = self.read_stored_landed_commit()
        landed = {kept.instant: kept} if kept else {}
        for coming in announced:
            if coming.instant not in landed and (tag := archived_tag_of(coming.instant)):
                landed[coming.instant] = replace(coming, tag=tag)
        return sorted(landed.values(), key=lambda each: -each.tag)

    def _write_stored_commit(self, name: str, kept: StoredCommit) -> None:
        content = {
            "instant": kept.instant,
            "tag": kept.tag,
            "follows": kept.follows,
            "record": kept.commit_metadata,
        }
        self._folder.put(name, json.dumps(content).encode())

    def _read_stored_commit(self, name: str) -> StoredCommit | None:
        try:
            content = json.loads(self._folder.read(name))
        except ValueError as error:
            raise LogUnreadable(
                f"a copy of the record of sink {self._sink} is damaged: "
                f"{self._folder.location}/{name}: {error}",
                "restore it from a backup; or remove it, if the table was not restored to an older "
                "state: the table's timeline has the record",
            ) from error
        record_texts = content["record"]
        record, filled = (
            decode_record(self._sink, record_texts),
            filled_table_uuids(self._sink, record_texts),
        )
        if record is None:
            return None
        return StoredCommit(
            content["instant"], content["tag"], record, filled, content.get("follows")
        )

    def _tags_of_stored_landed_commits(self) -> list[int]:
        names = (_file_name_of(name) for name, _ in self._folder.files_below(self._landed))
        return [int(name.removesuffix(_JSON)) for name in names]

    def _landed_file_name(self, tag: int) -> str:
        return f"{self._landed}/{tag}{_JSON}"

    def _announced_file_name(self, instant: str) -> str:
        return f"{self._coming}/{instant}{_JSON}"

    def _instants_in(self, folder: str) -> frozenset[str]:
        return frozenset(_file_name_of(name) for name, _ in self._folder.files_below(folder))

    def _marker_names(self, folder: str) -> list[str]:
        return [name for name, _ in self._folder.files_below(folder) if _MARKER in name]


def _file_name_of(path: str) -> str:
    return path.rpartition("/")[2]
