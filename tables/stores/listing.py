"""Lists what a store holds below a folder."""

from __future__ import annotations

from pyiceberg.io import FileIO

from headgate.tables.stores.files import client_of, on_s3
from headgate.tables.stores.local import local_path


def folders_in(files: FileIO, root: str) -> list[str]:
    """Return the names of the folders directly below this one, on S3 and on this machine."""
    if on_s3(files):
        return files.folders(root)
    folder = local_path(root)
    if folder is None or not folder.is_dir():
        return []
    return [each.name for each in folder.iterdir() if each.is_dir()]


def files_below(files: FileIO, root: str) -> list[tuple[str, int]]:
    """Return each file's location, and when it was written by the store's clock (epoch ms).

    Empty if the store cannot be listed.
    """
    if on_s3(files) and root.startswith("s3"):
        return files.under(root)
    from pyarrow.fs import FileSelector, FileType
    from pyiceberg.io.pyarrow import PyArrowFileIO  # imports pandas: not for every command

    client = client_of(files)
    if not isinstance(client, PyArrowFileIO):
        return []
    scheme, netloc, path = PyArrowFileIO.parse_location(root)
    selector = FileSelector(path, allow_not_found=True, recursive=True)
    found = client.fs_by_scheme(scheme, netloc).get_file_info(selector)
    return [
        (root + info.path[len(path) :], info.mtime_ns // 1_000_000)
        for info in found
        if info.type is FileType.File and info.mtime_ns is not None
    ]
