"""Reads what a sink file refers to instead of holding it: environment variables and files.

It is read where it is used: by the process that loads the sink file, and again by one that needs a
secret as it is now, such as a task on another machine.
"""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path

REFERENCE = re.compile(r"\$\{(env|file|base64):([^}]+)\}")
"""A reference: its kind, and the name of a variable or the path of a file."""

WITHHELD: dict[str, str] = {}
"""Variables that are missing in the environment for a moment, while a child process starts that
must not inherit them."""


class ReferenceUnreadable(ValueError):
    """Says that what a reference names is not there: ``what`` it is, ``why``, and more of that or a
    cure.
    """

    def __init__(self, what: str, why: str, hint: str) -> None:
        super().__init__(f"{what} {why}")
        self.what, self.why, self.hint = what, why, hint


def read_environment_variable(name: str) -> str | None:
    """Return an environment variable, also while it is withheld from a child that starts."""
    found = os.environ.get(name)
    return WITHHELD.get(name) if found is None else found


def read_reference(kind: str, name: str) -> str:
    """Return what the parts of a ``REFERENCE`` stand for now. Raises ``ReferenceUnreadable``."""
    if kind == "env":
        if (found := read_environment_variable(name)) is None:
            raise ReferenceUnreadable(
                f"the environment variable {name}", "is not set", f"export {name}=..."
            )
        return found
    try:
        if kind == "base64":
            return base64.b64encode(Path(name).read_bytes()).decode()
        return Path(name).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ReferenceUnreadable(
            f"the file {name}",
            "cannot be read",
            getattr(error, "strerror", None) or "it is not text",
        ) from None
