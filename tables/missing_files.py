"""Checks whether the files of a commit still exist, and are whole."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.ports import Refused
from headgate.tables.storage.file_store import Folder, name_relative_to


def find_refusal_for_lost_files(folder: Folder, files: Sequence[WrittenFile]) -> Refused | None:
    """Refuse files for good if one is gone, or has another size."""
    sizes = folder.file_sizes([name_relative_to(folder.location, file.path) for file in files])
    for file, size in zip(files, sizes, strict=True):
        if size != file.size_bytes:
            return Refused(f"{file.path} is gone, or of another size", for_good=True)
    return None
