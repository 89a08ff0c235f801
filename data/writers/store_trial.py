"""Tries whether files can be written, read and removed at a place, with a small file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar
from uuid import uuid4

from pyiceberg.io import FileIO

from headgate.control_protocol.errors import HeadgateError, MissingRights, Unreachable
from headgate.control_protocol.first_line import first_line
from headgate.tables.stores.files import open_files
from headgate.tables.stores.object_stores import refused_operation

_Answer = TypeVar("_Answer")

_TEXT = b"headgate check wrote this, and removes it at once\n"


def try_store(properties: Mapping[str, str], location: str) -> str:
    """Write a file under ``location``, read it back, remove it; return its path.

    Raises ``MissingRights`` with the operation that was refused, ``Unreachable`` for all else.
    """
    path = f"{location.rstrip('/')}/headgate-check-{uuid4()}"
    io = _asked("opened", path, lambda: open_files(properties, path))
    try:
        _asked("written", path, lambda: _write(io, path))
        _asked("read", path, lambda: _read(io, path))
    except HeadgateError:
        with suppress(Exception):
            io.delete(path)
        raise
    _asked("removed", path, lambda: io.delete(path))
    return path


def _write(io: FileIO, path: str) -> None:
    with io.new_output(path).create() as stream:
        stream.write(_TEXT)


def _read(io: FileIO, path: str) -> None:
    with io.new_input(path).open() as stream:
        if (found := stream.read()) != _TEXT:
            raise OSError(f"{len(found)} bytes came back of the {len(_TEXT)} that were written")


def _asked(done: str, path: str, ask: Callable[[], _Answer]) -> _Answer:
    try:
        return ask()
    except Exception as error:
        raise store_failure(error, f"{path} cannot be {done}") from error


def store_failure(error: Exception, what: str) -> HeadgateError:
    """Translate an error of a store's client into ours."""
    if operation := refused_operation(error):
        return MissingRights(
            f"{what}: the store refuses {operation}: {first_line(error)}",
            "check the keys, the role and the bucket's policy: it takes reading, writing and "
            "removing below the table's location",
        )
    return Unreachable(f"{what}: {first_line(error)}", "check endpoint, region and bucket")
