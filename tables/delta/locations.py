"""Checks the location of a Delta table, and translates storage keys to delta-rs's names."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.control_protocol.errors import ConfigurationError
from headgate.tables.storage.file_io import SCHEMES
from headgate.tables.storage.local_file_io import local_path_of_encoded_uri

_S3_OPTIONS = {
    "s3.endpoint": "AWS_ENDPOINT_URL",
    "s3.region": "AWS_REGION",
    "s3.access-key-id": "AWS_ACCESS_KEY_ID",
    "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
    "s3.session-token": "AWS_SESSION_TOKEN",
}

_REQUEST_S, _CONNECT_S = 15.0, 3.0
"""By default, delta-rs lets a commit hang for three minutes if the store does not answer."""


def require_supported_location(location: str) -> None:
    """Raise ``ConfigurationError`` unless a version can be put there if absent."""
    folder = local_path_of_encoded_uri(location)
    if folder is None and location.partition("://")[0] not in SCHEMES:
        raise ConfigurationError(
            f"table.location cannot be {location!r} for a Delta table",
            "write an absolute path, file:///... or s3://...",
        )
    if ".." in location.split("/"):
        raise ConfigurationError(f"table.location {location!r} has .. in it", "write it out")
    if folder is None and "" in location.partition("://")[2].rstrip("/").split("/"):
        raise ConfigurationError(
            f"table.location {location!r} has an empty part between slashes, which delta-rs "
            "does not read",
            "write one slash between its parts",
        )
    if odd := next((sign for sign in "%?#" if sign in location), None):
        raise ConfigurationError(
            f"table.location {location!r} has {odd} in it, which not all clients read alike",
            "the log and the data files would be in two places; use another folder",
        )


def storage_options(location: str, storage: Mapping[str, str]) -> dict[str, str]:
    """Return delta-rs's options; on S3 versions are put by conditional writes, with time limits."""
    if local_path_of_encoded_uri(location) is not None:
        return {}
    options = {ours: storage[name] for name, ours in _S3_OPTIONS.items() if name in storage}
    if storage.get("s3.endpoint", "").startswith("http://"):
        options["AWS_ALLOW_HTTP"] = "true"
    request_s = float(storage.get("s3.request-timeout", _REQUEST_S))
    connect_s = float(storage.get("s3.connect-timeout", _CONNECT_S))
    bounds_s = {"connect_timeout": connect_s, "timeout": request_s, "retry_timeout": request_s}
    bounds = {name: f"{round(1_000 * seconds)}ms" for name, seconds in bounds_s.items()}
    return {**options, **bounds, "aws_conditional_put": "etag"}
