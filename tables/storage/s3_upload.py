"""Writes one object: small ones with one request, large ones in parts as they grow.

Threads of the process send the parts, a few at a time, while rows are being decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Self

from headgate.tables.storage.file_io import storage_thread_pool
from headgate.tables.storage.s3_client import S3Store, UploadUnknown

PART_BYTES = 8 * 1024 * 1024
_PARTS_WAITING_MAX = 3
_MOMENT_S = 1.0
"""A store that answers has this long to end an upload; nobody waits for one that hangs."""


class S3Upload:
    """An output stream. Nothing is visible before ``close``; ``abort`` leaves nothing behind.

    ``written`` is called with the whole of a small object, once it exists.
    """

    def __init__(
        self,
        store: S3Store,
        bucket: str,
        key: str,
        *,
        written: Callable[[bytes], None] | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._key = key
        self._written = written
        self._part_bytes = part_bytes
        self._waiting = bytearray()
        self._count = 0
        self._upload: Future[str] | None = None
        self._parts: list[Future[str]] = []
        self._under_way: deque[Future[str]] = deque()
        self._ending: Future[None] | None = None
        self._aborted = False
        self._failure: BaseException | None = None

    @property
    def closed(self) -> bool:
        return self._ending is not None or self._aborted

    def write(self, data: bytes) -> int:
        count = len(data)
        if self._aborted:
            return count
        self._count += count
        self._waiting += data
        while len(self._waiting) >= self._part_bytes:
            self._submit_part(bytes(memoryview(self._waiting)[: self._part_bytes]))
            del self._waiting[: self._part_bytes]
        return count

    def tell(self) -> int:
        return self._count

    def flush(self) -> None:
        """Do nothing: an object cannot be read before it is whole."""

    def close(self) -> None:
        """Wait until the object exists."""
        if not self._aborted:
            self.close_in_background().result()

    def close_in_background(self) -> Future[None]:
        """Begin to finish the object; the future is done once it exists or has failed."""
        if self._ending is None:
            last, self._waiting = bytes(self._waiting), bytearray()
            if self._upload is not None and last:
                self._submit_part(last, wait_for_room=False)
            # The same threads send the parts: waiting for parts means waiting for ones that have
            # begun, however many uploads end at once.
            self._ending = storage_thread_pool().submit(self._finish, last)
        return self._ending

    def abort(self) -> None:
        """Discard what was written, and wait briefly until its upload is ended."""
        wait([self.abort_in_background()], _MOMENT_S)

    def abort_in_background(self) -> Future[None]:
        """Discard what was written; the future is done when nothing of it is under way any more.

        An object whose finishing was requested but has not begun is never finished.
        """
        self._aborted = True
        self._waiting = bytearray()
        if self._ending is None:
            self._ending = (
                storage_thread_pool().submit(self._abort_upload)
                if self._upload
                else _completed_future()
            )
        return self._ending

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _submit_part(self, data: bytes, *, wait_for_room: bool = True) -> None:
        if self._upload is None:
            self._upload = storage_thread_pool().submit(
                self._store.begin_upload, self._bucket, self._key
            )
        upload, number = self._upload, len(self._parts) + 1
        part = storage_thread_pool().submit(self._send_part, upload, number, data)
        self._parts.append(part)
        self._under_way.append(part)
        while wait_for_room and len(self._under_way) > _PARTS_WAITING_MAX:
            self._under_way.popleft().result()

    def _send_part(self, upload: Future[str], number: int, data: bytes) -> str:
        if self._failure is not None:  # the others would only delay it
            raise self._failure
        try:
            return self._store.upload_part(self._bucket, self._key, upload.result(), (number, data))
        except BaseException as error:
            self._failure = error
            raise

    def _finish(self, last_bytes: bytes) -> None:
        if self._aborted:
            self._abort_upload()
            return
        if self._upload is None:
            self._store.put(self._bucket, self._key, last_bytes)
            if self._written is not None:
                self._written(last_bytes)
            return
        try:
            parts = [part.result() for part in self._parts]
            self._complete(self._upload.result(), parts)
        except BaseException:
            wait([storage_thread_pool().submit(self._abort_upload)], _MOMENT_S)
            raise

    def _complete(self, upload_id: str, etags: list[str]) -> None:
        try:
            self._store.complete_upload(self._bucket, self._key, upload_id, etags)
        except UploadUnknown:
            # The first answer was lost, and the second request found the upload done. The name is
            # unique: an object of this size there is ours.
            if self._store.object_size(self._bucket, self._key) != self._count:
                raise

    def _abort_upload(self) -> None:
        if self._upload is None:
            return
        for part in self._parts:
            with suppress(Exception):
                part.result()
        with suppress(OSError):  # the bucket's lifecycle removes what stays of it
            self._store.abort_upload(self._bucket, self._key, self._upload.result())


def _completed_future() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done
