"""Tries whether files can be written, read and removed at a place, with a small file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar
from uuid import uuid4

from pyiceberg.io import FileIO

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    MissingRights,
    Unreachable,
    type_and_first_line_of,
)
from headgate.tables.storage.call_with_timeout import call_with_timeout
from headgate.tables.storage.file_io import open_file_io
from headgate.tables.storage.object_stores import (
    missing_client_hint,
    refused_operation_of,
    unreachable_store_hint,
)

ANSWER_S_MAX = 10.0
"""A store that answers at all does so within this time, its keys' own service included."""

_REMOVAL_S_MAX = 2.0
"""How long a file is removed that may not be there."""

_Answer = TypeVar("_Answer")

_TEXT = b"headgate check wrote this, and removes it at once\n"


def require_writable_store(
    properties: Mapping[str, str], location: str, answer_s: float = ANSWER_S_MAX
) -> str:
    """Write a file under ``location``, read it back, remove it; return its path.

    Raises ``MissingRights`` with the operation that was refused, ``ConfigurationError`` if the
    store's client is not installed, ``Unreachable`` for all else, also if one of these steps takes
    longer than ``answer_s``: some clients go on for minutes, and say nothing.
    """
    path = f"{location.rstrip('/')}/headgate-check-{uuid4()}"

    def ask_in_time(participle: str, step: Callable[[], _Answer]) -> _Answer:
        try:
            return call_with_timeout(answer_s, "the store", step)
        except HeadgateError:
            raise
        except Exception as error:
            raise translate_store_error(
                error, f"{path} cannot be {participle}", location
            ) from error

    io = ask_in_time("opened", lambda: open_file_io(properties, path))
    try:
        ask_in_time("written", lambda: _write_trial_file(io, path))
        ask_in_time("read", lambda: _require_trial_file_readable(io, path))
    except HeadgateError:
        with suppress(Exception):
            call_with_timeout(_REMOVAL_S_MAX, path, lambda: io.delete(path))
        raise
    ask_in_time("removed", lambda: io.delete(path))
    return path


def _write_trial_file(io: FileIO, path: str) -> None:
    with io.new_output(path).create() as stream:
        stream.write(_TEXT)


def _require_trial_file_readable(io: FileIO, path: str) -> None:
    with io.new_input(path).open() as stream:
        if (result := stream.read()) != _TEXT:
            raise OSError(f"{len(result)} bytes came back of the {len(_TEXT)} that were written")


def translate_store_error(error: Exception, what: str, location: str) -> HeadgateError:
    """Translate an error of a store's client into ours."""
    if operation := refused_operation_of(error):
        return MissingRights(
            f"{what}: the store refuses {operation}: {type_and_first_line_of(error)}",
            "check the keys, the role and the bucket's policy: it takes reading, writing and "
            "removing below the table's location",
        )
    if hint := missing_client_hint(error, location):
        return ConfigurationError(f"{what}: {type_and_first_line_of(error)}", hint)
    text = str(error) if isinstance(error, TimeoutError) else type_and_first_line_of(error)
    return Unreachable(f"{what}: {text}", unreachable_store_hint(location))
