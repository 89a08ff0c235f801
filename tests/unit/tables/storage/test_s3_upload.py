"""An object that is written in parts: what is sent, what is left behind, and lost answers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from headgate.tables.storage import s3_upload
from headgate.tables.storage.file_io import THREADS
from headgate.tables.storage.s3_client import UploadUnknown
from headgate.tables.storage.s3_upload import PART_BYTES, S3Upload


class Store:
    """Of one object. ``fails`` names the call that fails, and ``there`` is what it holds then."""

    def __init__(self, fails: str = "", there: int = 0) -> None:
        self.fails = fails
        self.there = there
        self.whole = b""
        self.parts: dict[int, bytes] = {}
        self.called: list[str] = []

    def put(self, bucket: str, key: str, data: bytes) -> None:
        self._called("put")
        self.whole = data

    def begin_upload(self, bucket: str, key: str) -> str:
        self._called("begin")
        return "upload"

    def upload_part(
        self, bucket: str, key: str, upload_id: str, number_and_data: tuple[int, bytes]
    ) -> str:
        number, data = number_and_data
        self._called("part")
        self.parts[number] = data
        return f"tag-{number}"

    def complete_upload(self, bucket: str, key: str, upload_id: str, etags: Sequence[str]) -> None:
        if self.fails == "complete":
            raise UploadUnknown("no such upload")
        self._called("complete")
        assert etags == [f"tag-{number}" for number in sorted(self.parts)]
        self.whole = b"".join(self.parts[number] for number in sorted(self.parts))

    def object_size(self, bucket: str, key: str) -> int:
        return self.there

    def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        self._called("abort")

    def _called(self, name: str) -> None:
        self.called.append(name)
        if name == self.fails:
            raise OSError(f"{name} failed")


class Hanging(Store):
    """Whoever makes this call waits for ``answers``."""

    def __init__(self, hangs: str, fails: str = "") -> None:
        super().__init__(fails)
        self.hangs = hangs
        self.answers = threading.Event()

    def _called(self, name: str) -> None:
        super()._called(name)
        if name == self.hangs:
            self.answers.wait()


def uploading(store: Store) -> S3Upload:
    found: Any = store
    return S3Upload(found, "bucket", "key")


def test_a_small_object_is_one_request() -> None:
    store = Store()
    with uploading(store) as stream:
        stream.write(b"sm")
        stream.write(b"all")
        assert (stream.tell(), store.called) == (5, [])
    assert (store.whole, store.called, stream.tell()) == (b"small", ["put"], 5)


def test_a_large_one_goes_in_parts_in_their_order() -> None:
    store = Store()
    data = b"".join(bytes([number]) * PART_BYTES for number in range(9)) + b"end"
    with uploading(store) as stream:
        stream.write(data)
    assert store.whole == data
    assert stream.tell() == len(data)


@pytest.mark.parametrize("fails", ["part", "begin"])
def test_a_part_that_fails_fails_the_object_and_ends_its_upload(fails: str) -> None:
    store = Store(fails)
    stream = uploading(store)
    stream.write(bytes(PART_BYTES + 1))
    with pytest.raises(OSError, match=f"{fails} failed"):
        stream.close()
    assert ("abort" in store.called) == (fails == "part")
    assert "complete" not in store.called


def test_an_upload_that_the_store_has_forgotten_is_done_if_the_object_is_there() -> None:
    store = Store("complete", there=PART_BYTES + 1)
    with uploading(store) as stream:
        stream.write(bytes(PART_BYTES + 1))
    assert "abort" not in store.called


def test_and_lost_if_it_is_not() -> None:
    store = Store("complete", there=7)
    stream = uploading(store)
    stream.write(bytes(PART_BYTES + 1))
    with pytest.raises(UploadUnknown):
        stream.close()


def test_what_is_given_up_is_not_written() -> None:
    store = Store()
    with pytest.raises(ZeroDivisionError), uploading(store) as stream:
        stream.write(b"half")
        raise ZeroDivisionError
    stream.write(b"more")
    stream.close()
    assert store.called == []


def test_an_object_that_failed_waits_for_no_store_that_does_not_end_its_upload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else whoever writes it would wait for a part, and then as long once more."""
    monkeypatch.setattr(s3_upload, "_MOMENT_S", 0.01)
    store = Hanging("abort", fails="part")
    stream = uploading(store)
    stream.write(bytes(PART_BYTES + 1))
    with pytest.raises(OSError, match="part failed"):
        stream.close()
    given_up = uploading(store)
    given_up.write(bytes(PART_BYTES + 1))
    given_up.abort()
    store.answers.set()
    given_up.abort_in_background().result()
    assert "complete" not in store.called


def test_of_many_objects_that_are_given_up_those_that_have_not_begun_never_do() -> None:
    """A store that hangs would be asked for each of them, a few at a time."""
    store = Hanging("put")
    streams = [uploading(store) for _ in range(100)]
    for stream in streams:
        stream.write(b"small")
        stream.close_in_background()
    given_up = [stream.abort_in_background() for stream in streams]
    store.answers.set()
    for ending in given_up:
        ending.result()
    assert len(store.called) <= THREADS
