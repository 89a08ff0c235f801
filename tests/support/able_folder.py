"""A kind of table with branches and new columns: the page's folder, and what it lacks for them.

Each branch has a log of its own. A version may say ``columns``, which hold from there on.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import folder_kind

from headgate.control_protocol.columns import (
    Struct,
    describe_schema_growth,
    struct_from_json,
    struct_to_json_without_ids,
)
from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.ports import EvolvedTable, TableView
from headgate.control_protocol.schema_evolution import grow_columns
from headgate.control_protocol.table_format import Capability
from headgate.control_protocol.table_history import ONLY_BRANCH, History, Newest


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install the page's package with this kind in its place; return its module."""
    return enable(folder_kind.install(folder, monkeypatch))


def enable(page: Any) -> Any:
    """Put this kind in the place of the page's; return the module."""
    page.FolderFormat.capabilities = frozenset({Capability.BRANCHES, Capability.EVOLUTION})
    for make in (_folder, _table, _reader):
        made = make(page)
        setattr(page, made.__name__, made)
    return page


def _folder(page: Any) -> Any:
    class Folder(page.Folder):  # type: ignore[misc]
        def __init__(self, wanted: Any) -> None:
            super().__init__(wanted)
            self.branch = wanted.branch
            if self.branch != ONLY_BRANCH:
                self.log = self.root / f"log-{self.branch}"

        def versions(self) -> Any:
            found = super().versions()
            said = [version["columns"] for version in found if "columns" in version]
            if said:
                self.columns = struct_from_json(said[-1])
                self.schema_id = zlib.crc32(said[-1].encode()) >> 1
            return found

    return Folder


def _table(page: Any) -> Any:
    class FolderTable(page.FolderTable):  # type: ignore[misc]
        def evolve(self, base: TableView, columns: Struct) -> EvolvedTable:
            now = self.read()
            if (now.uuid, now.tag) != (base.uuid, base.tag):
                return EvolvedTable(now)
            before = self.folder.columns
            growth = grow_columns(before, columns)
            done = describe_schema_growth(before, growth.columns)
            if done:
                version = {
                    "files": [],
                    "record": {},
                    "columns": struct_to_json_without_ids(growth.columns),
                }
                try:
                    self.folder.put((now.head or 0) + 1, version, self.link)
                except OSError as error:
                    raise Unreachable(f"{', '.join(done)}: {error}") from error
            return EvolvedTable(self.read(), done, growth.refused)

    return FolderTable


def _reader(page: Any) -> Any:
    class FolderReader(page.FolderReader):  # type: ignore[misc]
        def history(self, newest: Newest | None = None) -> History:
            return replace(super().history(newest), branch=self.folder.branch)

    return FolderReader
