"""Reads a Delta table's log: the content of each version, and their order.

delta-rs knows the state that the log adds up to. Who committed what is read here, one file per
version, and only as many of them as a question needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from deltalake import Schema
from pyiceberg.io import FileIO

from headgate.control_protocol.first_line import first_line
from headgate.control_protocol.kind_errors import LogUnreadable


@dataclass(frozen=True)
class LogEntry:
    """One version. ``text`` is the whole file at ``path``, a JSON object per line.

    Its properties raise ``LogUnreadable`` if it is not JSON.
    """

    version: int
    text: str
    path: str = ""

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """Return the writer's commitInfo; empty if there is none."""
        return next(iter(self._actions("commitInfo")), {})

    @property
    def properties(self) -> Mapping[str, str]:
        """Return the string properties of the commitInfo, headgate's record among them."""
        return {key: value for key, value in self.info.items() if isinstance(value, str)}

    @property
    def committed_ms(self) -> int:
        at_ms = self.info.get("timestamp")
        return at_ms if isinstance(at_ms, int) else 0

    @property
    def operation(self) -> str:
        return str(self.info.get("operation", "")).lower()

    @property
    def restores(self) -> bool:
        return self.operation == "restore"

    @property
    def restored(self) -> int | None:
        """Return the version that was restored; ``None`` if it names a time instead."""
        version = (self.info.get("operationParameters") or {}).get("version")
        return int(str(version)) if str(version).isdecimal() else None

    @cached_property
    def added(self) -> list[Mapping[str, Any]]:
        return self._actions("add")

    @cached_property
    def removed(self) -> list[Mapping[str, Any]]:
        return self._actions("remove")

    @property
    def layouts(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return columns and partitioning that it gave the table, as delta-rs writes them."""
        said = self._actions("metaData")
        return [
            (Schema.from_json(each["schemaString"]).to_json(), tuple(each["partitionColumns"]))
            for each in said
        ]

    def _actions(self, kind: str) -> list[Mapping[str, Any]]:
        named = f'"{kind}"'
        lines = (line for line in self.text.splitlines() if named in line[: len(named) + 8])
        try:
            found = [json.loads(line).get(kind) for line in lines]
        except ValueError as error:
            raise log_unreadable(self.path, error) from error
        return [action for action in found if action is not None]


def log_unreadable(path: str, why: Exception) -> LogUnreadable:
    return LogUnreadable(
        f"the log of a Delta table is damaged: {path}: {first_line(why)}",
        "restore its files from a backup, or drop the table; docs/delta.md says more",
    )


class Log:
    """The log below a table's location."""

    def __init__(self, files: FileIO, location: str) -> None:
        self._files = files
        self._folder = f"{location}/_delta_log"

    def entry(self, version: int) -> LogEntry | None:
        """Return one version; ``None`` if it does not exist, or was cleaned up."""
        path = f"{self._folder}/{version:020}.json"
        try:
            with self._files.new_input(path).open() as stream:
                return LogEntry(version, stream.read().decode(), path)
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise log_unreadable(path, error) from error

    def line(self, head: int) -> Iterator[LogEntry | None]:
        """Yield versions from the head to the first, without those that a restore undid.

        The last one is ``None`` if the way back is not known any more.
        """
        return line(self.entry, head)


def line(read: Callable[[int], LogEntry | None], head: int) -> Iterator[LogEntry | None]:
    """Do the same as ``Log.line``, with any way to read an entry."""
    version: int | None = head
    while version is not None and version >= 0:
        entry = read(version)
        yield entry
        if entry is None:
            return
        version = entry.restored if entry.restores else version - 1
    if version is None:
        yield None
