"""Translates what Java's Iceberg throws into pyiceberg's exceptions."""

from __future__ import annotations

from typing import Any

from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    UnauthorizedError,
)

from headgate.control_protocol.errors import HiveClientUnfit

_SAME: dict[str, type[Exception]] = {
    "CommitFailedException": CommitFailedException,
    "CommitStateUnknownException": CommitStateUnknownException,
    "NoSuchTableException": NoSuchTableError,
    "NoSuchNamespaceException": NoSuchNamespaceError,
    "AlreadyExistsException": TableAlreadyExistsError,
    "ForbiddenException": ForbiddenError,
    "NotAuthorizedException": UnauthorizedError,
    "BadRequestException": BadRequestError,
    "ValidationException": ValueError,
    "IllegalArgumentException": ValueError,
}
_CAUSES_MAX = 3
_UNKNOWN_METHOD = "Invalid method name"


class JavaError(Exception):
    """Anything else that Java threw. Its stack trace stays in Java: it may quote settings."""


def failure_of(error: Exception) -> Exception:
    """Return what to raise instead of an error of py4j; any other error is returned as it is."""
    thrown = getattr(error, "java_exception", None)
    if thrown is not None:
        return _translated(thrown)
    if type(error).__module__.startswith("py4j"):
        return JavaError(str(error).strip().partition("\n")[0])
    return error


def _translated(thrown: Any) -> Exception:
    said = _said(thrown)
    if _UNKNOWN_METHOD in said:
        return HiveClientUnfit(
            f"the Hive client in Spark's JVM asks for what this metastore does not know: {said}",
            "Spark's own client is Hive 2.3's; for Hive 4 put its hive-standalone-metastore-common "
            "into spark.driver.extraClassPath, as docs/catalogs.md shows",
        )
    kind = thrown.getClass()
    while kind is not None:
        if same := _SAME.get(kind.getSimpleName()):
            return same(said)
        kind = kind.getSuperclass()
    return JavaError(said)


def _said(thrown: Any) -> str:
    """Return the first line of it and of its causes."""
    lines: list[str] = []
    while thrown is not None and len(lines) < _CAUSES_MAX:
        text = str(thrown.getMessage() or "").strip().partition("\n")[0]
        line = f"{thrown.getClass().getSimpleName()}: {text}"
        if not lines or line not in lines[-1]:
            lines.append(line)
        thrown = thrown.getCause()
    return "; ".join(lines)
