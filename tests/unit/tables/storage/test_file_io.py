"""Files are deleted beside the work of whoever does not need them any more."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest
from pyiceberg.io import FileIO

from headgate.tables.storage.file_io import delete_in_background, delete_quietly


class Files(FileIO):
    """A store that answers once it may; ``refused`` locations stay."""

    def __init__(self) -> None:
        super().__init__({})
        self.may_answer, self.has_answered = Event(), Event()
        self.refused: set[str] = set()
        self.missing: set[str] = set()

    def new_input(self, location: str) -> Any:
        raise NotImplementedError

    def new_output(self, location: str) -> Any:
        raise NotImplementedError

    def delete(self, location: Any) -> None:
        assert self.may_answer.wait(30)
        if location in self.refused:
            raise PermissionError(location)
        if location in self.missing:
            raise FileNotFoundError(location)
        self.has_answered.set()


@pytest.mark.parametrize("scheme", ["gs", "abfss", "hdfs", "s3"])
def test_a_store_that_hangs_holds_up_nobody(scheme: str) -> None:
    files = Files()
    delete_in_background(files, [f"{scheme}://bucket/a.parquet"])
    assert not files.has_answered.is_set()
    files.may_answer.set()
    assert files.has_answered.wait(30)


def test_files_of_this_machine_are_gone_at_once() -> None:
    files = Files()
    files.may_answer.set()
    delete_in_background(files, ["file:///warehouse/a.parquet"])
    assert files.has_answered.is_set()


def test_what_is_gone_is_counted_and_what_stays_is_an_orphan(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = Files()
    files.may_answer.set()
    files.refused, files.missing = {"b"}, {"c"}
    assert delete_quietly(files, ["a", "b", "c"]) == 2
    assert delete_quietly(files, []) == 0
    assert [each.message.split(" was ")[0] for each in caplog.records] == ["b"]
