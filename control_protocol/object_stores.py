"""What clients of object stores need, and what is made of their refusals.

No client is imported: errors are told by what they say, since each client says it in its own class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_FOR_FILES = ("s3.", "gcs.", "adls.", "hdfs.", "client.", "oss.")
_FOR_FILES_TOO = frozenset({"py-io-impl"})
_SIGNER = ("s3.signer", "s3.remote-signing-enabled")

_CAUSES_MAX = 10

_ARROW = re.compile(r"AWS Error (\w+)(?: \(HTTP status (\d+)\))? during (\w+) operation")
_BOTO = re.compile(r"\((\w+)\) when calling the (\w+) operation")
_REFUSALS = re.compile(
    r"access.?denied|expired.?token|invalid.?(access.?key|client.?token|signature|token)|"
    r"signature.?does.?not.?match|missing.?authentication|unrecognized.?client|not.?authorized|"
    r"authentication.?failed|authorization.?(failure|permission)|permission.?denied|"
    r"unauthenticated|unable to locate credentials|nocredentials",
    re.IGNORECASE,
)
_STATUSES = ("401", "403")


def for_files(properties: Mapping[str, object]) -> dict[str, str]:
    """Return the properties that reading and writing files takes, and none of the catalog's own.

    They travel to executors: a catalog's address, password, token or client secret does not.
    """
    return {
        name: value
        for name, value in properties.items()
        if isinstance(value, str)
        and (name in _FOR_FILES_TOO or name.startswith(_FOR_FILES))
        and not name.startswith(_SIGNER)
    }


def refused_operation(error: BaseException) -> str | None:
    """Return what a store or a catalog's service refused for lack of rights, else ``None``.

    The operation by its own name (``PutObject``, ``GetTable``), or ``access`` where it has none.
    """
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if cause is None:
            return None
        if (found := _operation(cause)) is not None:
            return found
        cause = cause.__cause__
    return None


def _operation(error: BaseException) -> str | None:
    text = str(error)
    if (arrow := _ARROW.search(text)) is not None:
        code, status, operation = arrow.groups()
        refused = status in _STATUSES or _REFUSALS.search(f"{code} {text}") is not None
        return operation if refused else None
    if (boto := _BOTO.search(text)) is not None:
        return boto[2] if _REFUSALS.search(boto[1]) else None
    foreign = isinstance(error, OSError) or type(error).__module__.startswith(("boto", "azure"))
    if isinstance(error, PermissionError) or (foreign and _REFUSALS.search(text)):
        return "access"
    return None
