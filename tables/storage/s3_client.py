"""Accesses S3 with botocore: one client per store and process, which keeps its connections.

pyarrow's client asks before each upload whether it may send it (``Expect: 100-continue``), cannot
delete many objects at once, and opens a new pool of connections with each table that is loaded.
Keys resolve by pyiceberg's properties and as in pyarrow's client: those given, else a role, else
environment, profile, container or instance. Callers bring their own keys: a catalog that vends new
ones with each table needs no new connection.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    Credentials,
    DeferredRefreshableCredentials,
)
from botocore.exceptions import BotoCoreError, ClientError
from botocore.handlers import add_expect_header
from botocore.session import Session
from urllib3.exceptions import HTTPError

from headgate.tables.storage.stored_file import StoredFile

TRIES = 5
DELETED_AT_ONCE = 1000
_CONNECTIONS = 32
TIMEOUT_S = 3.0
_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
_THERE_STATUSES = (409, 412)
_REFUSED_STATUSES = (401, 403)

_CHUNK_BYTES = 64 * 1024
_BODY_S = 15.0
_SLOWEST_BYTES_S = 64 * 1024
"""A slower body, after some seconds of grace, is treated as hanging."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Place:
    """How a store is reached; the same for all of its callers."""

    endpoint: str | None
    region: str | None
    proxy: str | None = None
    connect_s: float = TIMEOUT_S
    read_s: float = TIMEOUT_S
    anonymous: bool = False
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that sign: these, else the role's, else those of this machine."""

    access: str | None = None
    secret: str | None = None
    token: str | None = None
    role: str | None = None
    role_session: str | None = None


class _CallersKeys(Credentials):  # type: ignore[misc] # botocore is not typed
    """The keys of the thread that is signing a request."""

    def __init__(self) -> None:
        super().__init__("", "")
        self._here = threading.local()

    def set_credentials_of_thread(self, keys: Credentials | None) -> None:
        self._here.keys = keys

    def get_frozen_credentials(self) -> Any:
        keys: Credentials | None = getattr(self._here, "keys", None)
        return keys.get_frozen_credentials() if keys is not None else None


class _Provider(CredentialProvider):  # type: ignore[misc] # botocore is not typed
    METHOD = "callers-keys"

    def __init__(self, keys: _CallersKeys) -> None:
        super().__init__()
        self._keys = keys

    def load(self) -> Credentials:
        return self._keys


@dataclass(frozen=True, slots=True)
class Waiting:
    """The time of a store's calls: a clock that never jumps, and pauses."""

    monotonic_s: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


class Tail(NamedTuple):
    """The last bytes of an object, and the size of all of it."""

    data: bytes
    object_size: int


class S3Store:
    """Objects in buckets. Raises ``OSError``: ``FileNotFoundError``, ``PermissionError``, others.

    Each call is tried five times, with doubling pauses, and so is a body that breaks off. A body
    that trickles is given up.
    """

    def __init__(self, place: Place, keys: Keys, waiting: Waiting = Waiting()) -> None:
        self._place = place
        self._keys = keys
        self._waiting = waiting

    def put(self, bucket: str, key: str, data: bytes) -> None:
        self._call_translating_errors(
            (bucket, key), lambda s3: s3.put_object(Bucket=bucket, Key=key, Body=data)
        )

    def put_if_absent(self, bucket: str, key: str, data: bytes) -> bool:
        """Return whether the object was absent; else it stays, if the store supports that."""

        def put_unless_present(s3: Any) -> bool:
            try:
                s3.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] in _THERE_STATUSES:
                    return False
                raise
            return True

        return self._call_translating_errors((bucket, key), put_unless_present)

    def get(self, bucket: str, key: str) -> bytes:
        return self._get_object(bucket, key)[0]

    def read_tail(self, bucket: str, key: str, count: int) -> Tail:
        """Return the last ``count`` bytes, or all, and the object's size."""
        try:
            data, reply = self._get_object(bucket, key, Range=f"bytes=-{count}")
        except _RangeUnfit:  # Amazon's answer for an object without bytes
            return Tail(b"", self.object_size(bucket, key))
        total = str(reply.get("ContentRange", "")).rpartition("/")[2]
        return Tail(data, int(total) if total.isdecimal() else len(data))

    def object_size(self, bucket: str, key: str) -> int:
        return int(
            self._call_translating_errors(
                (bucket, key),
                lambda s3: s3.head_object(Bucket=bucket, Key=key)["ContentLength"],
            )
        )

    def delete(self, bucket: str, key: str) -> None:
        """Delete an object; a missing one is not an error, since S3 does not report it."""
        self._call_translating_errors(
            (bucket, key), lambda s3: s3.delete_object(Bucket=bucket, Key=key)
        )

    def delete_many_and_return_refused(self, bucket: str, keys: Sequence[str]) -> dict[str, str]:
        """Delete a thousand at once; return the refused keys, each with the reason."""
        refused: dict[str, str] = {}
        for begin in range(0, len(keys), DELETED_AT_ONCE):
            some = keys[begin : begin + DELETED_AT_ONCE]
            asked = {"Objects": [{"Key": key} for key in some], "Quiet": True}
            answer = self._call_translating_errors(
                (bucket, some[0]), partial(_delete_objects, bucket=bucket, asked=asked)
            )
            for error in answer.get("Errors", ()):
                refused[error["Key"]] = f"{error.get('Code')}: {error.get('Message')}"
        return refused

    def list_objects(self, bucket: str, prefix: str) -> Iterator[StoredFile]:
        """Yield keys with this prefix and their write times, a thousand per request."""
        more: dict[str, str] = {}
        while True:
            page = self._call_translating_errors(
                (bucket, prefix), partial(_list_page, Bucket=bucket, Prefix=prefix, **more)
            )
            for entry in page.get("Contents", ()):
                written_at_ms = int(entry["LastModified"].timestamp() * 1000)
                yield StoredFile(entry["Key"], written_at_ms)
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def list_common_prefixes(self, bucket: str, prefix: str) -> Iterator[str]:
        """Yield the prefixes directly below this one, up to a slash, a thousand per request."""
        more: dict[str, str] = {}
        while True:
            asked = partial(_list_page, Bucket=bucket, Prefix=prefix, Delimiter="/", **more)
            page = self._call_translating_errors((bucket, prefix), asked)
            for entry in page.get("CommonPrefixes", ()):
                yield entry["Prefix"]
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def begin_upload(self, bucket: str, key: str) -> str:
        """Begin an upload in parts; return its id."""
        return str(
            self._call_translating_errors(
                (bucket, key),
                lambda s3: s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"],
            )
        )

    def upload_part(
        self, bucket: str, key: str, upload_id: str, number_and_data: tuple[int, bytes]
    ) -> str:
        number, data = number_and_data
        of = {"Bucket": bucket, "Key": key, "UploadId": upload_id, "PartNumber": number}
        return str(
            self._call_translating_errors(
                (bucket, key), lambda s3: s3.upload_part(Body=data, **of)["ETag"]
            )
        )

    def complete_upload(self, bucket: str, key: str, upload_id: str, etags: Sequence[str]) -> None:
        """Complete an upload.

        Raises ``UploadUnknown`` if there is none: it may be complete already.
        """
        listed = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(etags, 1)]
        of = {"Bucket": bucket, "Key": key, "UploadId": upload_id}
        whole = {"Parts": listed}
        self._call_translating_errors(
            (bucket, key),
            lambda s3: s3.complete_multipart_upload(MultipartUpload=whole, **of),
        )

    def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        of = {"Bucket": bucket, "Key": key, "UploadId": upload_id}
        self._call_translating_errors((bucket, key), lambda s3: s3.abort_multipart_upload(**of))

    def _get_object(self, bucket: str, key: str, **asked: str) -> tuple[bytes, Mapping[str, Any]]:
        """Return a whole body, with its headers. botocore's own retries end before the body."""

        def get_whole_body(s3: Any) -> tuple[bytes, Mapping[str, Any]]:
            for tried in range(1, TRIES + 1):
                reply = s3.get_object(Bucket=bucket, Key=key, **asked)
                try:
                    return self._read_body(reply), reply
                except BodyBroken:
                    if tried == TRIES or self._waiting.monotonic_s() > ends_s:
                        raise
                self._waiting.pause(random.random() * 2 ** (tried - 1))
            raise AssertionError("the last try returns or raises")

        ends_s = self._waiting.monotonic_s() + _BODY_S
        return self._call_translating_errors((bucket, key), get_whole_body)

    def _read_body(self, reply: Mapping[str, Any]) -> bytes:
        body, count = reply["Body"], int(reply["ContentLength"])
        ends_s = self._waiting.monotonic_s() + _BODY_S + count / _SLOWEST_BYTES_S
        # botocore's own read returns only when it has everything that was asked for.
        stream = body._raw_stream  # noqa: SLF001
        data = bytearray()
        try:
            while part := stream.read1(_CHUNK_BYTES):
                data += part
                if self._waiting.monotonic_s() > ends_s:
                    raise BodyBroken(f"after {len(data)} of {count} bytes time was over")
        except HTTPError as error:
            raise BodyBroken(f"after {len(data)} of {count} bytes: {error}") from error
        finally:
            body.close()
        if len(data) != count:
            raise BodyBroken(f"after {len(data)} of {count} bytes the connection ended")
        return bytes(data)

    def _call_translating_errors(
        self, bucket_and_key: tuple[str, str], call: Callable[[Any], _Answer]
    ) -> _Answer:
        bucket, key = bucket_and_key
        try:
            client, signing = _cached_client(os.getpid(), self._place)
            if not self._place.anonymous:
                signing.set_credentials_of_thread(
                    _cached_credentials(os.getpid(), self._keys, self._place)
                )
            try:
                return call(client)
            finally:
                signing.set_credentials_of_thread(None)
        except ClientError as error:
            raise _store_error(f"s3://{bucket}/{key}", error) from error
        except (BotoCoreError, BodyBroken) as error:
            raise OSError(f"s3://{bucket}/{key}: {type(error).__name__}: {error}") from error


def _delete_objects(s3: Any, *, bucket: str, asked: Mapping[str, Any]) -> Any:
    return s3.delete_objects(Bucket=bucket, Delete=asked)


def _list_page(s3: Any, **asked: str) -> Any:
    return s3.list_objects_v2(**asked)


class BodyBroken(OSError):
    """An object's bytes broke off, or came too slowly."""


class UploadUnknown(OSError):
    """The store does not know an upload that it has begun."""


class _RangeUnfit(OSError):
    """An object has none of the bytes that were asked for."""


def _store_error(what: str, error: Any) -> OSError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if code == "NoSuchUpload":
        return UploadUnknown(f"{what}: {error}")
    if code == "InvalidRange":
        return _RangeUnfit(f"{what}: {error}")
    if code in _MISSING:
        return FileNotFoundError(f"{what} does not exist: {error}")
    if status in _REFUSED_STATUSES:
        return PermissionError(f"{what}: {error}")
    return OSError(f"{what}: {error}")


@lru_cache(maxsize=16)
def _cached_client(_process: int, place: Place) -> tuple[Any, _CallersKeys]:
    """Return the client of this process: a forked process must not share connections."""
    keys = _CallersKeys()
    session = Session()
    session.register_component("credential_provider", CredentialResolver([_Provider(keys)]))
    config = Config(
        **_client_limits(place),
        max_pool_connections=_CONNECTIONS,
        tcp_keepalive=True,
        proxies={"http": place.proxy, "https": place.proxy} if place.proxy else None,
        signature_version=UNSIGNED if place.anonymous else None,
        # Every body is signed with its SHA-256; not every store knows other checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={
            "addressing_style": "virtual"
            if place.virtual
            else ("path" if place.endpoint else "auto"),
            "payload_signing_enabled": True,
        },
    )
    client = session.create_client(
        "s3", endpoint_url=place.endpoint, region_name=place.region, config=config
    )
    client.meta.events.unregister("before-call.s3", add_expect_header)
    return client, keys


def _client_limits(place: Place) -> Mapping[str, Any]:
    return {
        "connect_timeout": place.connect_s,
        "read_timeout": place.read_s,
        "retries": {"total_max_attempts": TRIES, "mode": "legacy"},
    }


@lru_cache(maxsize=64)
def _cached_credentials(_process: int, keys: Keys, place: Place) -> Credentials:
    """Return cached credentials, so that a role's or an instance's are renewed only in time.

    The provider of a role, from our properties or a profile, has as long to answer as the store.
    """
    if keys.access and keys.secret:
        return Credentials(keys.access, keys.secret, keys.token)
    session = Session()
    session.set_default_client_config(Config(**_client_limits(place)))
    credentials = session.get_credentials()
    if credentials is None:
        missing = "no keys to assume the role with" if keys.role else "no keys, no role, no profile"
        raise OSError(f"unable to locate credentials for S3: {missing}")
    if keys.role is None:
        return credentials
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=partial(session.create_client, region_name=place.region),
        source_credentials=credentials,
        role_arn=keys.role,
        extra_args={"RoleSessionName": keys.role_session} if keys.role_session else {},
    )
    return DeferredRefreshableCredentials(
        method="assume-role", refresh_using=fetcher.fetch_credentials
    )


def endpoint_of(properties: Mapping[str, str]) -> str | None:
    """Return the store's address with its scheme, or ``None`` for Amazon's own."""
    named = (
        properties.get("s3.endpoint")
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
    )
    return named if not named or "://" in named else f"https://{named}"
