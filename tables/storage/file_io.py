"""Opens files of tables wherever they lie: with our client on S3, with pyiceberg's elsewhere."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, OutputFile, load_file_io

from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.tables.storage.avro_integrity import check_avro_files_of

if TYPE_CHECKING:
    from headgate.tables.storage.s3_file_io import S3Files

PATIENCE = "headgate.tables.iceberg.catalog.StorePatience"
"""The retry strategy for S3 if the sink file has no ``s3.retry-strategy-impl``."""

SCHEMES = ("s3", "s3a", "s3n")

_S3_FILES = "headgate.tables.storage.s3_file_io"
_GCS_FILES = "headgate.tables.storage.bounded_file_io.GcsFiles"
_ARROWS_OWN = ("s3.retry-strategy-impl", "s3.signer")
_AT_ONCE = 8
THREADS = 16

_log = redacted_logger(__name__)


def open_file_io(properties: Mapping[str, Any], location: str | None = None) -> FileIO:
    """Return the client for files at ``location``.

    It is that of ``py-io-impl``, else ours on S3, else pyiceberg's choice. Properties that only
    pyarrow's S3 client knows keep that client.
    """
    if not is_for_our_s3_client(properties, location):
        return with_timeouts(
            load_file_io(_with_bounded_gcs_client(properties, location), location), location
        )
    try:
        from headgate.tables.storage.s3_file_io import S3Files  # imports botocore: only for S3
    except ImportError as error:
        raise ConfigurationError(
            f"files on S3 need a library that is not installed: {error.name}",
            "pip install 'headgate[s3]'",
        ) from error
    return S3Files(dict(properties))


def with_timeouts(files: FileIO, location: str | None) -> FileIO:
    """Return the files with calls that end in time, if their client does not ensure that."""
    if not needs_timeouts(location):
        return files
    from headgate.tables.storage.bounded_file_io import BoundedFiles

    return files if isinstance(files, BoundedFiles) else BoundedFiles(files)


def needs_timeouts(location: str | None) -> bool:
    """Return whether files lie on a store whose client has no time-outs: neither here nor on S3."""
    return bool(location) and _scheme(location or "") not in (*SCHEMES, "file", "")


def unwrapped_file_io(files: FileIO) -> FileIO:
    """Return the files themselves, without the wrapper of ``with_timeouts``."""
    return getattr(files, "files", files) if not is_s3_files(files) else files


def _with_bounded_gcs_client(properties: Mapping[str, Any], location: str | None) -> dict[str, Any]:
    gcs = location is not None and _scheme(location) == "gs" and PY_IO_IMPL not in properties
    return {**properties, **({PY_IO_IMPL: _GCS_FILES} if gcs else {})}


def _scheme(location: str) -> str:
    scheme, apart, _ = location.partition("://")
    return scheme if apart else ""


def is_s3_files(files: FileIO) -> TypeGuard[S3Files]:
    """Return whether these are our S3 files; false if their module was never loaded."""
    module = sys.modules.get(_S3_FILES)
    return module is not None and isinstance(files, module.S3Files)


def with_whole_reads(files: FileIO) -> FileIO:
    """Return the files for reading many small ones: on S3 by one request each."""
    if not is_s3_files(files):
        return files
    from headgate.tables.storage.s3_file_io import WholeFiles

    return check_avro_files_of(WholeFiles(files.properties))


@runtime_checkable
class Unhurried(Protocol):
    """A stream whose object other threads finish, or give up without a trace."""

    def close_in_background(self) -> Future[None]: ...

    def abort_in_background(self) -> Future[None]: ...


def is_for_our_s3_client(properties: Mapping[str, Any], location: str | None) -> bool:
    """Return whether files at ``location`` are for our client of S3."""
    on_s3 = location is not None and location.partition("://")[0] in SCHEMES
    arrows = any(properties.get(name) not in (None, PATIENCE) for name in _ARROWS_OWN)
    return on_s3 and not arrows and PY_IO_IMPL not in properties


def store_files(files: FileIO, written: Mapping[str, bytes]) -> None:
    """Write whole files, all at once if each is a request. Raises the first failure, after all.

    Nothing refers to them yet, so the order does not matter.
    """

    def store(path: str) -> None:
        with files.new_output(path).create(overwrite=True) as stream:
            stream.write(written[path])

    if len(written) < 2 or not _is_any_remote(written):
        for path in written:
            store(path)
        return
    # Not those of ``storage_thread_pool``: a stream that is closed may wait for these.
    with ThreadPoolExecutor(min(_AT_ONCE, len(written)), "headgate-store") as threads:
        for ending in [threads.submit(store, path) for path in written]:
            ending.result()


def delete_quietly(files: FileIO, paths: Collection[str]) -> int:
    """Delete files, a thousand per request if the store can; log what stays as an orphan.

    Returns how many are gone: those that were not there are.
    """
    if not paths:
        return 0
    if not is_s3_files(files) or len(paths) == 1:
        return _delete_each_quietly(files, paths)
    try:
        refused = files.delete_many_and_return_refused(paths)
    except Exception as error:  # noqa: BLE001 - not every store knows how: then one by one
        _log.info("files could not be deleted at once: %r", error)
        return _delete_each_quietly(files, paths)
    for path, why in refused.items():
        _log.warning("%s was not deleted and is an orphan now: %s", path, why)
    return len(paths) - len(refused)


def delete_in_background(files: FileIO, paths: Collection[str]) -> None:
    """Do as ``delete_quietly``, but without waiting for a store, which may be failing now."""
    if _is_any_remote(paths):
        storage_thread_pool().submit(delete_quietly, files, paths)
    else:
        delete_quietly(files, paths)


@lru_cache(maxsize=1)
def _threads_of_process(_process: int) -> ThreadPoolExecutor:
    """Return this process's threads: a forked process does not have its parent's."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="headgate-store")


def storage_thread_pool() -> ThreadPoolExecutor:
    """Return the threads that send to stores, for all tables of this process."""
    return _threads_of_process(os.getpid())


def _delete_each_quietly(files: FileIO, paths: Collection[str]) -> int:
    gone = len(paths)
    for path in paths:
        try:
            files.delete(path)
        except FileNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001 - it stays as an orphan
            _log.warning("%s was not deleted and is an orphan now: %r", path, error)
            gone -= 1
    return gone


def _is_any_remote(paths: Iterable[str]) -> bool:
    schemes = {path.partition("://")[0] for path in paths if "://" in path}
    return bool(schemes - {"file"})


class MemoryFile(OutputFile):
    """A file built in memory; ``whole`` is what was written, once it is closed."""

    def __init__(self, location: str) -> None:
        super().__init__(location=location)
        self.whole = b""

    def __len__(self) -> int:
        return len(self.whole)

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        raise NotImplementedError(f"{self.location} is in memory only")

    def create(self, overwrite: bool = False) -> Any:  # noqa: ARG002, FBT001, FBT002 - pyiceberg's
        return _MemoryStream(self)


class _MemoryStream(io.BytesIO):
    def __init__(self, file: MemoryFile) -> None:
        super().__init__()
        self._file = file

    def close(self) -> None:
        if not self.closed:
            self._file.whole = self.getvalue()
        super().close()
