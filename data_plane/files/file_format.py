"""Defines the port of data file formats, and what they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa
from pyiceberg.io import OutputStream
from pyiceberg.utils.properties import property_as_bool

from headgate.control_protocol.errors import ConfigurationError

STORED_BYTES_MAX = 64 * 1024 * 1024
"""The limit, in Arrow memory, of what one call of ``Encoder.write`` adds to a process."""


class Encoder(Protocol):
    """Writes one file; whoever opened its stream closes it."""

    def write(self, rows: pa.Table) -> None:
        """Append rows of the table's Arrow schema."""

    def close(self) -> None:
        """Write what follows the rows."""

    def row_count_and_statistics(self) -> tuple[int, dict[str, Any]]:
        """Return the rows written, and ``FileDetail``'s statistics of them; after ``close``."""


class Encoding(Protocol):
    """Makes the files of one table. ``name`` is the format's, and the files' extension.

    A call of ``Encoder.write`` takes ``write_bytes_max`` of Arrow memory at most, and
    ``write_rows_max`` rows.
    """

    @property
    def name(self) -> str: ...

    @property
    def write_bytes_max(self) -> int: ...

    @property
    def write_rows_max(self) -> int: ...

    def can_hold_rows(self, rows: pa.Table) -> bool:
        """Return whether such a file can hold every value, so that it is read as it was."""

    def begin_file(self, stream: OutputStream, rows: pa.Table) -> Encoder:
        """Begin a file; ``rows`` are the first that it will hold."""


def read_positive_number(properties: Mapping[str, str], name: str, default: int) -> int:
    """Return the property as a number above zero. Raises ``ConfigurationError``."""
    text = properties.get(name)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) == 0:
        raise ConfigurationError(f"the table's {name} is {text!r}", "it is a whole number above 0")
    return int(text)


def read_boolean(properties: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return the property as true or false. Raises ``ConfigurationError``."""
    try:
        return bool(property_as_bool(dict(properties), name, default))
    except ValueError:
        raise ConfigurationError(
            f"the table's {name} is {properties[name]!r}", "it is true or false"
        ) from None


def read_choice(
    properties: Mapping[str, str], name: str, known: Mapping[str, str], default: str
) -> str:
    """Return the value of ``known`` for the property. Raises ``ConfigurationError``."""
    word = properties.get(name, default).strip().lower()
    if word not in known:
        raise ConfigurationError(
            f"the table's {name} is {word!r}, which cannot be written",
            f"use one of {', '.join(known)}",
        )
    return known[word]
