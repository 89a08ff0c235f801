"""Accesses tables' files on S3 with few requests; pyiceberg's ``FileIO`` for ``s3://``.

Every written name contains a UUID, so no request checks whether it exists. Files that describe a
table (metadata, manifest lists, manifests) never change under their name: they are cached when
written or read, and not requested again. Data files are read by pyarrow, in ranges.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from typing import Any
from uuid import uuid4

from pyarrow.fs import FileSystem
from pyiceberg.io import (
    AWS_ACCESS_KEY_ID,
    AWS_REGION,
    AWS_ROLE_ARN,
    AWS_ROLE_SESSION_NAME,
    AWS_SECRET_ACCESS_KEY,
    AWS_SESSION_TOKEN,
    S3_ACCESS_KEY_ID,
    S3_ANONYMOUS,
    S3_CONNECT_TIMEOUT,
    S3_FORCE_VIRTUAL_ADDRESSING,
    S3_PROXY_URI,
    S3_REGION,
    S3_REQUEST_TIMEOUT,
    S3_RESOLVE_REGION,
    S3_ROLE_ARN,
    S3_ROLE_SESSION_NAME,
    S3_SECRET_ACCESS_KEY,
    S3_SESSION_TOKEN,
    InputFile,
    InputStream,
    OutputFile,
)
from pyiceberg.io.pyarrow import PyArrowFileIO, _cached_resolve_s3_region
from pyiceberg.typedef import Properties
from pyiceberg.utils.properties import get_first_property_value, property_as_bool, property_as_int

from headgate.tables.storage.file_io import SCHEMES
from headgate.tables.storage.local_file_io import DESCRIBES
from headgate.tables.storage.s3_client import TIMEOUT_S, Keys, Place, S3Store, Tail, endpoint_of
from headgate.tables.storage.s3_upload import PART_BYTES, S3Upload
from headgate.tables.storage.stored_file import StoredFile

S3_PART_BYTES = "s3.multipart.part-size-bytes"
"""Iceberg's own property, which pyiceberg does not know."""

KEPT_BYTES_MAX = 64 * 1024 * 1024


class KeptFiles:
    """Caches immutable small files of this process; the least recently used are dropped first."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._files: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, cache_key: tuple[str, str]) -> bytes | None:
        with self._lock:
            if (data := self._files.get(cache_key)) is not None:
                self._files.move_to_end(cache_key)
            return data

    def keep(self, cache_key: tuple[str, str], data: bytes) -> None:
        self.forget(cache_key)
        if len(data) > self._bytes_max // 4:
            return
        with self._lock:
            self._files[cache_key] = data
            self._bytes += len(data)
            while self._bytes > self._bytes_max:
                self._bytes -= len(self._files.popitem(last=False)[1])

    def forget(self, cache_key: tuple[str, str]) -> None:
        with self._lock:
            self._bytes -= len(self._files.pop(cache_key, b""))


KEPT = KeptFiles()


class S3Files(PyArrowFileIO):
    """Accesses tables' files on S3 if no ``py-io-impl`` is set. Other schemes are pyarrow's."""

    def new_input(self, location: str) -> Any:
        if not location.startswith(_PREFIXES) or not location.endswith(DESCRIBES):
            return super().new_input(location)
        return S3Object(self, location)

    def new_output(self, location: str) -> Any:
        if not location.startswith(_PREFIXES):
            return super().new_output(location)
        return S3Object(self, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        if not path.startswith(_PREFIXES):
            super().delete(path)
            return
        KEPT.forget(self.cache_key(path))
        bucket, key = bucket_and_key(path)
        self.open_store(bucket).delete(bucket, key)

    def delete_many_and_return_refused(self, locations: Iterable[str]) -> dict[str, str]:
        """Delete a thousand per request; return the refused locations, each with the reason."""
        per_bucket: dict[str, dict[str, str]] = {}
        for location in locations:
            KEPT.forget(self.cache_key(location))
            bucket, key = bucket_and_key(location)
            per_bucket.setdefault(bucket, {})[key] = location
        refused: dict[str, str] = {}
        for bucket, keys in per_bucket.items():
            found = self.open_store(bucket).delete_many_and_return_refused(bucket, list(keys))
            refused |= {keys[key]: why for key, why in found.items()}
        return refused

    def list_files(self, folder: str) -> list[StoredFile]:
        """Return the locations of all objects below the folder, and their write times.

        Folder markers are left out.
        """
        bucket, key = bucket_and_key(folder.rstrip("/") + "/")
        root = folder.rstrip("/") + "/"
        found = self.open_store(bucket).list_objects(bucket, key)
        return [
            StoredFile(root + name[len(key) :], at) for name, at in found if not name.endswith("/")
        ]

    def list_folder_names(self, folder: str) -> list[str]:
        """Return the names of the folders directly below this one."""
        bucket, key = bucket_and_key(folder.rstrip("/") + "/")
        found = self.open_store(bucket).list_common_prefixes(bucket, key)
        return [name[len(key) :].rstrip("/") for name in found]

    def probe_conditional_puts(self, folder: str) -> bool:
        """Try below the folder whether the store honours conditional puts."""
        bucket, key = bucket_and_key(f"{folder}/headgate-trial-{uuid4()}")
        store = self.open_store(bucket)
        store.put(bucket, key, b"1")
        try:
            return not store.put_if_absent(bucket, key, b"2")
        finally:
            with suppress(OSError):
                store.delete(bucket, key)

    def read_tail(self, location: str, count: int) -> Tail:
        """Return the last ``count`` bytes of an object, or all, and its size: one request."""
        bucket, key = bucket_and_key(location)
        return self.open_store(bucket).read_tail(bucket, key, count)

    def open_store(self, bucket: str) -> S3Store:
        return S3Store(
            _client_settings_of(self.properties, bucket), _credential_settings_of(self.properties)
        )

    @property
    def part_bytes(self) -> int:
        """Return the size of a large object's parts; Amazon accepts none below 5 MiB."""
        return property_as_int(self.properties, S3_PART_BYTES, PART_BYTES) or PART_BYTES

    def cache_key(self, location: str) -> tuple[str, str]:
        return (endpoint_of(self.properties) or "", location)

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        """Return pyarrow's client, one for all tables with the same properties."""
        if scheme not in SCHEMES:
            return super()._initialize_fs(scheme, netloc)
        texts = {k: v for k, v in self.properties.items() if isinstance(v, str)}
        options = tuple(
            sorted((k, v) for k, v in texts.items() if k.startswith(("s3.", "client.")))
        )
        return _arrow_client(options, netloc)


class WholeFiles(S3Files):
    """Does the same for small data files: each is read by one request, and held in memory."""

    def new_input(self, location: str) -> Any:
        return (
            S3Object(self, location)
            if location.startswith(_PREFIXES)
            else super().new_input(location)
        )


_PREFIXES = tuple(f"{scheme}://" for scheme in SCHEMES)


class S3Object(InputFile, OutputFile):
    """One object: read as a whole, or written once. ``overwrite`` needs no request here."""

    def __init__(self, files: S3Files, location: str) -> None:
        super().__init__(location=location)
        self._files = files
        self._bucket, self._key = bucket_and_key(location)

    @property
    def _cache_key(self) -> tuple[str, str]:
        return self._files.cache_key(self.location)

    def __len__(self) -> int:
        if (kept := KEPT.get(self._cache_key)) is not None:
            return len(kept)
        return self._files.open_store(self._bucket).object_size(self._bucket, self._key)

    def exists(self) -> bool:
        try:
            return len(self) >= 0
        except FileNotFoundError:
            return False

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002, FBT001, FBT002 - pyiceberg's
        kept = KEPT.get(self._cache_key)
        if kept is None:
            kept = self._files.open_store(self._bucket).get(self._bucket, self._key)
            if self.location.endswith(DESCRIBES):
                KEPT.keep(self._cache_key, kept)
        return io.BytesIO(kept)

    def create(self, overwrite: bool = False) -> Any:  # noqa: ARG002, FBT001, FBT002 - pyiceberg's
        keep = self._keep_content if self.location.endswith(DESCRIBES) else None
        store, part_bytes = self._files.open_store(self._bucket), self._files.part_bytes
        return S3Upload(store, self._bucket, self._key, written=keep, part_bytes=part_bytes)

    def to_input_file(self) -> S3Object:
        return self

    def forget_content(self) -> None:
        KEPT.forget(self._cache_key)

    def _keep_content(self, data: bytes) -> None:
        KEPT.keep(self._cache_key, data)


def bucket_and_key(location: str) -> tuple[str, str]:
    bucket, _, key = location.partition("://")[2].partition("/")
    return bucket, key


@lru_cache(maxsize=16)
def _arrow_client(properties: tuple[tuple[str, str], ...], bucket: str | None) -> FileSystem:
    return PyArrowFileIO(dict(properties))._initialize_s3_fs(bucket)  # noqa: SLF001 - as its own would


def _client_settings_of(properties: Properties, bucket: str) -> Place:
    region = get_first_property_value(properties, S3_REGION, AWS_REGION)
    if region is None or property_as_bool(properties, S3_RESOLVE_REGION, default=False):
        region = _cached_resolve_s3_region(bucket=bucket) or region
    return Place(
        endpoint=endpoint_of(properties),
        region=None if region is None else str(region),
        proxy=properties.get(S3_PROXY_URI),
        connect_s=float(properties.get(S3_CONNECT_TIMEOUT, TIMEOUT_S)),
        read_s=float(properties.get(S3_REQUEST_TIMEOUT, TIMEOUT_S)),
        anonymous=bool(property_as_bool(properties, S3_ANONYMOUS, default=False)),
        virtual=bool(property_as_bool(properties, S3_FORCE_VIRTUAL_ADDRESSING, default=False)),
    )


def _credential_settings_of(properties: Properties) -> Keys:
    def first_property_of(*names: str) -> str | None:
        found = get_first_property_value(properties, *names)
        return None if found is None else str(found)

    return Keys(
        access=first_property_of(S3_ACCESS_KEY_ID, AWS_ACCESS_KEY_ID),
        secret=first_property_of(S3_SECRET_ACCESS_KEY, AWS_SECRET_ACCESS_KEY),
        token=first_property_of(S3_SESSION_TOKEN, AWS_SESSION_TOKEN),
        role=first_property_of(S3_ROLE_ARN, AWS_ROLE_ARN),
        role_session=first_property_of(S3_ROLE_SESSION_NAME, AWS_ROLE_SESSION_NAME),
    )
