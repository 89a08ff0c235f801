"""Takes specs from a folder: each of its sink files is one; states are told in a file."""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headgate.control_protocol.errors import SinksClash
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.runtime.fleet.fleet_records import revision_of
from headgate.runtime.fleet.sink_files import require_folder
from headgate.runtime.fleet.sink_life import Life, LifeState, Wanted
from headgate.runtime.fleet.spec_source import DesiredSink, ToldSink
from headgate.runtime.wall_clock import wall_ms

_log = redacted_logger("headgate.worker")

_RESTS_NS = 2_000_000_000
"""A file that changed less than so long ago is read at each look: clocks of files are coarse."""
GONE_AFTER_LOOKS = 2
"""A file is gone once so many looks in a row have missed it: an editor may take it away briefly."""
TELL_S = 5.0
"""How often the state file is written although nothing changed: its age shows that somebody is."""
STATE_FILE = ".headgate-worker.json"


class _Stamp(NamedTuple):
    """Identifies a file's content without reading it, as the file system does: another content has
    another one.
    """

    changed_ns: tuple[int, int]
    """Of its content as anybody may set it, and of the entry as the system does."""
    size: int
    inode: int


@dataclass(frozen=True, slots=True)
class _File:
    """Keeps what was read of a file; without a stamp it is read again."""

    stamp: _Stamp | None
    revision: str
    sink: str


class Folder:
    """Implements ``SpecSource``: looks at a folder's sink files, ``*.toml``, again and again."""

    def __init__(self, folder: Path, state_file: Path | None = None) -> None:
        self._folder = folder
        self._state_file = state_file or folder / STATE_FILE
        self._known: dict[Path, _File] = {}
        self._missed: dict[Path, int] = {}
        self._told, self._told_s = "", 0.0
        self._state_refused = False
        self._folder_refused = False
        require_folder(folder)

    def read_desired_sinks(self) -> Mapping[str, DesiredSink]:
        """Return what is wanted now, by the file's name. What cannot be read now is as before.

        Of two files that name one sink the first one by name runs, the other is refused.
        """
        seen = self._list_sink_files()
        for path in seen:
            self._missed.pop(path, None)
            known = self._known.get(path)
            try:
                stamp = _file_stamp(path)
                if known and known.stamp == stamp:
                    continue
                text = path.read_bytes()
            except OSError:
                if known:
                    continue
                stamp, text = None, b""  # its process says why it cannot be read
            if stamp and time.time_ns() - max(stamp.changed_ns) < _RESTS_NS:
                stamp = None
            self._known[path] = _File(stamp, revision_of(text), _sink_name_or_empty(text))
        for path in self._known.keys() - seen:
            self._missed[path] = self._missed.get(path, 0) + 1
            if self._missed[path] >= GONE_AFTER_LOOKS:
                del self._known[path], self._missed[path]
        first: dict[str, Path] = {}
        specs = {}
        for path, file in sorted(self._known.items()):
            owner = first.setdefault(file.sink, path) if file.sink else path
            refused = None if owner == path else _clash_error(path, owner)
            specs[path.stem] = DesiredSink(path, Wanted(file.revision), refused=refused)
        return specs

    def _list_sink_files(self) -> set[Path]:
        """Return the folder's sink files; those known so far where it cannot be listed."""
        try:
            found = {*self._folder.iterdir()}  # a glob takes what it may not list for empty
        except OSError as error:
            if not self._folder_refused:
                _log.warning(
                    "%s cannot be listed, its sinks stay as they are: %s", self._folder, error
                )
            self._folder_refused = True
            return set(self._known)
        self._folder_refused = False
        return {path for path in found if path.suffix == ".toml" and path.name[0] != "."}

    def report_sinks(self, told: Sequence[ToldSink], now_ms: int) -> None:
        """Write the state file when something changed, and now and then: its age counts."""
        at_ms, now_s = wall_ms(), time.monotonic()
        # With monotonic times: the two clocks round apart, and each write would differ by 1 ms.
        digest = json.dumps([{**one, "doing": ""} for one in _sink_states_as_json(told, 0)])
        if digest == self._told and now_s - self._told_s < TELL_S:
            return
        self._told, self._told_s = digest, now_s
        shown = [*_sink_states_as_json(told, at_ms - now_ms)]
        state = {"time_ms": at_ms, "pid": os.getpid(), "sinks": shown}
        try:
            draft = self._state_file.with_suffix(".new")
            draft.write_text(json.dumps(state))
            draft.replace(self._state_file)
            self._state_refused = False
        except OSError as error:
            if not self._state_refused:
                _log.warning("%s cannot be written: %s", self._state_file, error)
            self._state_refused = True

    def begin_leaving_and_has_left(self) -> bool:
        """Return at once: a folder is nobody's."""
        return True

    def close(self) -> None:
        with suppress(OSError):
            self._state_file.unlink(missing_ok=True)


def _file_stamp(path: Path) -> _Stamp:
    found = path.stat()
    return _Stamp((found.st_mtime_ns, found.st_ctime_ns), found.st_size, found.st_ino)


def _sink_name_or_empty(text: bytes) -> str:
    """Return the name of the file's sink; nothing where it has none: its process says so."""
    try:
        name = tomllib.loads(text.decode("utf-8-sig")).get("name", "")
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return ""
    return name if isinstance(name, str) else ""


def _clash_error(file: Path, other: Path) -> SinksClash:
    return SinksClash(f"{file.name} and {other.name} name the same sink", "give each sink one file")


def _sink_states_as_json(told: Iterable[ToldSink], to_wall_ms: int) -> Iterable[Mapping[str, Any]]:
    for each in told:
        refused = each.wanted.refused if each.wanted else None
        if each.life is not None:
            yield sink_state_as_json(each.name, each.life, to_wall_ms)
        elif refused is not None:
            yield {
                "sink": each.name,
                "state": LifeState.ERROR.value,
                "code": refused.code,
                "text": f"{refused.message} ({refused.hint})",
            }


def sink_state_as_json(name: str, life: Life, to_wall_ms: int) -> Mapping[str, Any]:
    """Return what is told of a sink. Times are of the wall clock."""
    shown: dict[str, Any] = {
        "sink": name,
        "state": life.state.value,
        "since_ms": life.since_ms + to_wall_ms,
        "pid": life.pid,
        "doing": life.doing,
    }
    if life.state is LifeState.ERROR:
        shown |= {"code": life.code, "text": life.text, "tries": life.tries}
        shown |= {"next_try_ms": (life.due_ms + to_wall_ms) // 1_000 * 1_000}
    return shown
