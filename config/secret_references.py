"""Resolves what a sink file refers to instead of holding it: variables and files."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from headgate.tables.jvm_start import variable, withhold

REFERENCE = re.compile(r"\$\{(env|file|base64):([^}]+)\}")
_LIKE_ONE = re.compile(r"\$\{([\w-]+):[^}]*\}?")


class Refused(ValueError):
    """What one setting cannot be; the loader puts the setting's name before the message.

    ``key``: the name inside of a section of properties.
    """

    def __init__(self, message: str, hint: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.key = key


def resolved(text: str, *, key: str | None = None) -> str:
    """Replace ``${env:NAME}``, ``${file:PATH}``, and ``${base64:PATH}`` for a binary file."""
    if strange := _LIKE_ONE.search(REFERENCE.sub("", text)):
        raise Refused(
            f"refers to {strange[0]!r}, which is no reference that headgate knows",
            "write ${env:NAME}, ${file:PATH}, or ${base64:PATH} for a binary file",
            key=key,
        )
    return REFERENCE.sub(lambda match: _referred(match, key), text)


def _referred(match: re.Match[str], key: str | None) -> str:
    kind, name = match[1], match[2]
    if kind == "env":
        if (found := variable(name)) is None:
            raise Refused(
                f"refers to the environment variable {name}, which is not set",
                f"export {name}=...",
                key=key,
            )
        return found
    try:
        if kind == "base64":
            return base64.b64encode(Path(name).read_bytes()).decode()
        return Path(name).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(
            f"refers to the file {name}, which cannot be read",
            getattr(error, "strerror", None) or "it is not text",
            key=key,
        ) from None


def withhold_variables(text: str) -> None:
    """Let no JVM inherit the variables that the text refers to."""
    for kind, name in REFERENCE.findall(text):
        if kind == "env":
            withhold(name)
