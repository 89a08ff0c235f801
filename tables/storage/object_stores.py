"""Selects what clients of object stores need, and interprets their refusals.

No client is imported: errors are recognized by their text, since each client has its own classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from headgate.control_protocol.errors import ConfigurationError, RemoteSigning

_FOR_FILES = ("s3.", "gcs.", "adls.", "hdfs.", "client.", "oss.")
_FOR_FILES_TOO = frozenset({"py-io-impl"})
_BY_SCHEME: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("", "file"), ()),
    **dict.fromkeys(("s3", "s3a", "s3n"), ("s3.", "client.")),
    **dict.fromkeys(("gs", "gcs"), ("gcs.",)),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), ("adls.",)),
    **dict.fromkeys(("hdfs", "viewfs"), ("hdfs.",)),
}
_SIGNER = ("s3.signer", "s3.remote-signing-enabled")

_TEMPORARY = ("s3.session-token", "client.session-token", "gcs.oauth2.token", "adls.sas-token")
_LONG_LIVED = (
    "s3.secret-access-key",
    "client.secret-access-key",
    "adls.account-key",
    "adls.client-secret",
    "adls.connection-string",
)
_ENDS = (
    "s3.session-token-expires-at-ms",
    "gcs.oauth2.token-expires-at",
    "adls.sas-token-expires-at-ms",
)
_EARLY_S = 300.0

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

_GCS = (
    "set GOOGLE_APPLICATION_CREDENTIALS, or gcs.oauth2.token; can storage.googleapis.com, or "
    "gcs.service.host, be reached from here?"
)
_ADLS = "check adls.account-name and its key or token; can the account be reached from here?"
_HDFS = "check the warehouse's host and port; can the name node be reached from here?"
_WHERE_TO_LOOK: Mapping[str, str] = {
    **dict.fromkeys(("gs", "gcs"), _GCS),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), _ADLS),
    **dict.fromkeys(("hdfs", "viewfs"), _HDFS),
}


def file_io_properties(
    properties: Mapping[str, object], location: str | None = None
) -> dict[str, str]:
    """Return the properties that reading and writing files takes, and none of the catalog's own.

    They travel to executors; a catalog's address, password, token or client secret must not. With a
    ``location``, those of other stores stay behind unless the sink file brings its own client. Keys
    for all of AWS do wherever S3 has its own.
    """
    prefixes: tuple[str, ...] = _FOR_FILES
    if location is not None and "py-io-impl" not in properties:
        scheme, separator, _ = location.partition(":")
        prefixes = _BY_SCHEME.get(scheme.lower() if separator else "", _FOR_FILES)
    return {
        name: value
        for name, value in properties.items()
        if isinstance(value, str)
        and (name in _FOR_FILES_TOO or name.startswith(prefixes))
        and not name.startswith(_SIGNER)
        and not (name.startswith("client.") and f"s3.{name[7:]}" in properties)
    }


def refused_operation_of(error: BaseException) -> str | None:
    """Return what a store or a catalog's service refused for lack of rights, else ``None``.

    This is the operation's own name (``PutObject``, ``GetTable``), or ``access`` if it has none.
    """
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if cause is None:
            return None
        if (operation := _refused_operation_in(cause)) is not None:
            return operation
        cause = cause.__cause__
    return None


def missing_client_hint(error: BaseException, location: str) -> str:
    """Return what to install if the store's client cannot be loaded here, else nothing."""
    if "libjvm" in str(error) or "libhdfs" in str(error):
        return (
            "install Java and Hadoop's client here, and set JAVA_HOME, HADOOP_HOME and CLASSPATH "
            "(hadoop classpath --glob)"
        )
    if isinstance(error, ImportError):
        adls = _BY_SCHEME.get(location.partition(":")[0].lower()) == ("adls.",)
        return "pip install 'headgate[adls]'" if adls else "install what this store needs"
    return ""


def unreachable_store_hint(location: str) -> str:
    """Return what a person checks when the store at ``location`` does not answer."""
    scheme = location.partition(":")[0].lower()
    return _WHERE_TO_LOOK.get(scheme, "check endpoint, region and bucket")


def _refused_operation_in(error: BaseException) -> str | None:
    text = str(error)
    if (arrow := _ARROW.search(text)) is not None:
        code, status, operation = arrow.groups()
        refused = status in _STATUSES or _REFUSALS.search(f"{code} {text}") is not None
        return operation if refused else None
    if (boto := _BOTO.search(text)) is not None:
        return boto[2] if boto[1] in _STATUSES or _REFUSALS.search(boto[1]) else None
    foreign = isinstance(error, OSError) or type(error).__module__.startswith(("boto", "azure"))
    if isinstance(error, PermissionError) or (foreign and _REFUSALS.search(text)):
        return "access"
    return None


def renewal_age_s(life_s: float) -> float:
    """Return the age at which a credential is renewed: half of its life, or five minutes early."""
    return max(life_s / 2, life_s - _EARLY_S)


def has_temporary_credentials(properties: Mapping[str, str]) -> bool:
    """Return whether the keys for files are temporary, so that new ones can be had."""
    return any(name.startswith(_TEMPORARY) for name in properties)


def has_long_lived_credentials(properties: Mapping[str, str]) -> bool:
    """Return whether these are keys that stay valid: who reads an executor's memory has them."""
    return not has_temporary_credentials(properties) and any(
        name in properties for name in _LONG_LIVED
    )


def credential_time_left_s(properties: Mapping[str, str], now_ms: int) -> float:
    """Return how long the keys for files are valid: forever if nothing says so."""
    ends = [
        int(text)
        for name, text in properties.items()
        if name.startswith(_ENDS) and text.isdecimal() and int(text)
    ]
    return (min(ends) - now_ms) / 1000 if ends else float("inf")


def require_usable_timeouts(properties: Mapping[str, str]) -> None:
    """Raise ``ConfigurationError`` for a time-out that is no number of seconds."""
    for key in ("s3.connect-timeout", "s3.request-timeout"):
        text = properties.get(key, "1")
        with suppress(ValueError):
            if 0 < float(text) < float("inf"):
                continue
        raise ConfigurationError(
            f"catalog.properties.{key} is {text!r}, which is no number of seconds",
            "write it like 20 or 2.5",
        )


def require_no_remote_signing(table: str, properties: Mapping[str, object]) -> None:
    """Raise ``RemoteSigning`` if the catalog wants to sign requests, and gives no keys."""
    is_signed = str(properties.get("s3.remote-signing-enabled", "")).lower() == "true"
    if (is_signed or "s3.signer" in properties) and "s3.access-key-id" not in properties:
        raise RemoteSigning(
            f"table {table}: its catalog signs requests to the store itself (remote signing) and "
            "gives no keys, which headgate cannot use",
            "let the catalog vend credentials for this table, or set s3.access-key-id and "
            "s3.secret-access-key in catalog.properties",
        )
