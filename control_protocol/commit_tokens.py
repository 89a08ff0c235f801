"""Defines commit tokens: marks of the files that one commit may bring (rule TOKEN-2)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from headgate.control_protocol.ports import SinkTable

ANY = "*"
"""Stands, once in a token, for what distinguishes the files of a transaction."""


def is_path_of_token(token: str, path: str) -> bool:
    """Return whether the path bears this token, and has no ``..``."""
    begin, _, end = token.partition(ANY)
    return (
        bool(begin and end)
        and path.startswith(begin)
        and path.endswith(end)
        and len(path) > len(begin) + len(end)
        and not any(step in ("", ".", "..") for step in path[len(begin) :].split("/"))
    )


@runtime_checkable
class SupportsCommitTokens(SinkTable, Protocol):
    """Describes a table whose files bear the token of the one commit that may bring them (rule
    TOKEN-2).
    """

    def new_token(self) -> str:
        """Return a token that nobody had before, in the form that ``is_path_of_token`` reads.

        It does not promise that files follow. Raises ``Unreachable``, ``TableMissing``.
        """
