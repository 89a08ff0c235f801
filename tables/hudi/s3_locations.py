"""Translates Hudi table locations and S3 keys between headgate's and Hadoop's names."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.control_protocol.commit_tokens import ANY
from headgate.control_protocol.errors import ConfigurationError
from headgate.tables.storage.file_io import SCHEMES
from headgate.tables.storage.local_file_io import local_path_of_encoded_uri

_LOCAL = "file://"
_S3, _HADOOPS_S3 = "s3://", "s3a://"

_A = "fs.s3a."
_KEYS = {
    "s3.access-key-id": f"{_A}access.key",
    "s3.secret-access-key": f"{_A}secret.key",
    "s3.session-token": f"{_A}session.token",
    "s3.region": f"{_A}endpoint.region",
}
_BOUNDS = {
    "s3.connect-timeout": f"{_A}connection.establish.timeout",
    "s3.request-timeout": f"{_A}connection.timeout",
}
_PARTICIPANTS = ("s3.multipart.part-size-bytes",)
_VIRTUAL = "s3.force-virtual-addressing"
STORAGE = frozenset({*_KEYS, *_BOUNDS, *_PARTICIPANTS, _VIRTUAL, "s3.endpoint"})
"""Keys that both clients understand: the participants' and Java's."""

_PROVIDERS = "org.apache.hadoop.fs.s3a."


def require_supported_location(location: str) -> str:
    """Return where a table lies: ``file:///...`` or ``s3://...``. Raises ``ConfigurationError``."""
    if (folder := local_path_of_encoded_uri(location)) is not None:
        if ANY not in location and ".." not in folder.parts:
            return f"{_LOCAL}{folder}"
    elif location.partition("://")[0] in SCHEMES:
        parts = location.partition("://")[2].rstrip("/").split("/")
        if len(parts) > 1 and all(parts) and ANY not in location and ".." not in parts:
            return _S3 + "/".join(parts)
    raise ConfigurationError(
        f"table.location cannot be {location!r} for a Hudi table",
        "write an absolute path, or file:///..., of a folder that every participant sees, or "
        "s3://bucket/path",
    )


def is_on_s3(location: str) -> bool:
    return location.startswith(_S3)


def to_hadoop_address(address: str) -> str:
    """Return one of our addresses in Hadoop's spelling, whose S3 client is s3a."""
    if is_on_s3(address):
        return _HADOOPS_S3 + address.removeprefix(_S3)
    return address.removeprefix(_LOCAL)


def select_store_properties(location: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of [catalog.properties] that belong to the store."""
    return {key: given[key] for key in STORAGE & given.keys()} if is_on_s3(location) else {}


def hadoop_settings(location: str, storage: Mapping[str, str]) -> dict[str, str]:
    """Return how Hadoop reaches the store; empty for a folder of this machine.

    Without keys, Hadoop looks for them itself: in the environment, then the instance.
    """
    if not is_on_s3(location):
        return {}
    from headgate.tables.storage.s3_client import TIMEOUT_S, endpoint_of  # imports botocore

    settings = {theirs: storage[ours] for ours, theirs in _KEYS.items() if ours in storage}
    for ours, theirs in _BOUNDS.items():
        settings[theirs] = str(round(1_000 * float(storage.get(ours, TIMEOUT_S))))
    if endpoint := endpoint_of(storage):
        settings[f"{_A}endpoint"] = endpoint
        settings[f"{_A}connection.ssl.enabled"] = str(endpoint.startswith("https")).lower()
        in_path = storage.get(_VIRTUAL, "false").lower() != "true"
        settings[f"{_A}path.style.access"] = str(in_path).lower()
    if "s3.access-key-id" in storage:
        provider = "Temporary" if "s3.session-token" in storage else "Simple"
        settings[f"{_A}aws.credentials.provider"] = f"{_PROVIDERS}{provider}AWSCredentialsProvider"
    return settings
