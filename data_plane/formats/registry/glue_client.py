"""Asks AWS Glue's schema registry by botocore: for one version of a schema, by its UUID."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from headgate.control_protocol.errors import ConfigurationError, MissingRights, Unreachable
from headgate.control_protocol.redaction import Redaction, to_printable_line
from headgate.data_plane.formats.format_registry import did_you_mean_suffix
from headgate.data_plane.formats.registry.client import (
    NUMBERS,
    SCHEMA_BYTES_MAX,
    NoSuchSchema,
    parse_number_option,
)

_QUOTED_CHARACTERS = 200
_REGION, _ENDPOINT, _PROFILE = "glue.region", "glue.endpoint", "glue.profile-name"
_KEYS = ("glue.access-key-id", "glue.secret-access-key", "glue.session-token")
_TEXTS = frozenset({_REGION, _ENDPOINT, _PROFILE, *_KEYS})
"""Named as the properties of a Glue catalog are."""

_NUMBERS = ("timeout", "max.retries", "cache.capacity", "check.interval")
_UNKNOWN = "EntityNotFoundException"
_DENIED = frozenset(
    {
        *("AccessDenied", "AccessDeniedException", "ExpiredToken", "ExpiredTokenException"),
        *("IncompleteSignature", "IncompleteSignatureException", "InvalidClientTokenId"),
        *("InvalidSignatureException", "MissingAuthenticationToken", "NotAuthorized"),
        *("MissingAuthenticationTokenException", "OptInRequired", "SignatureDoesNotMatch"),
        *("UnrecognizedClientException", "UnrecognizedClient"),
    }
)
_DENIED_STATUSES = (401, 403)
_MISCONFIGURED = frozenset(
    {"NoRegionError", "ProfileNotFound", "ConfigParseError", "PartialCredentialsError"}
)
_READABLE = "AVAILABLE"
_QUESTION = "GetSchemaVersion"
_RIGHTS = "allow glue:GetSchemaVersion, and see which identity the AWS credentials here have"
_ROLE = "see which role the process or the profile names, and whom its trust policy allows"


@dataclass(frozen=True, slots=True)
class GlueOptions:
    """The options of the registry, checked. Its ``repr`` is never shown: it holds secrets."""

    texts: Mapping[str, str]
    numbers: Mapping[str, float]

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> GlueOptions:
        """Raises ``ValueError``."""
        known = {*_TEXTS, *(f"registry.{name}" for name in _NUMBERS)}
        unknown = sorted(settings.keys() - known)
        if unknown:
            near = did_you_mean_suffix(unknown[0], known)
            raise ValueError(f"there is no option {unknown[0]!r}{near}")
        texts = {name: settings[name] for name in _TEXTS & settings.keys() if settings[name]}
        endpoint = urlsplit(texts.get(_ENDPOINT, "https://glue"))
        if endpoint.scheme not in ("http", "https") or not endpoint.hostname:
            raise ValueError(f"{_ENDPOINT} is no address: write https://HOST")
        own = [name for name in _KEYS if name in texts]
        if own and own[:2] != [*_KEYS[:2]]:
            raise ValueError(f"{_KEYS[0]} and {_KEYS[1]} belong together: set both, or neither")
        if own and _PROFILE in texts:
            raise ValueError(f"{_PROFILE} and {_KEYS[0]} are both set: keep one of them")
        numbers = {
            name: parse_number_option(name, settings.get(f"registry.{name}", NUMBERS[name]))
            for name in _NUMBERS
        }
        return cls(texts, numbers)


class SchemaVersion(NamedTuple):
    """Holds what Glue has for one version of a schema."""

    data_format: str
    text: str


class GlueClient:
    """Answers of Glue in one region. Any thread may ask. It does not survive a fork."""

    def __init__(self, options: GlueOptions) -> None:
        """Asks nobody yet, and loads nothing."""
        self._options = options
        self._lock = threading.Lock()
        self._client: Any = None
        self._credentials: Any = None

    def fetch_schema_version(self, uuid: str, what: str) -> SchemaVersion:
        """Raises ``NoSuchSchema``, ``MissingRights``, ``ConfigurationError``, ``Unreachable``."""
        said = self._request_schema_version(uuid, what)
        status, kind, text = (said.get(k) for k in ("Status", "DataFormat", "SchemaDefinition"))
        if not isinstance(text, str) or not isinstance(kind, str):
            raise Unreachable(
                f"Glue's answer for {what} holds no schema", self._describe_where_asked()
            )
        if status != _READABLE:
            # Glue still compares it with the versions before, or has begun to delete it.
            raise Unreachable(
                f"{what} is {to_printable_line(str(status))[:20]} in Glue",
                self._describe_where_asked(),
            )
        if len(text) > SCHEMA_BYTES_MAX:
            raise NoSuchSchema(f"{what} is longer than {SCHEMA_BYTES_MAX} bytes")
        return SchemaVersion(kind, text)

    def _request_schema_version(self, uuid: str, what: str) -> Mapping[str, Any]:
        client = self._get_or_open_client()
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
        from botocore.parsers import ResponseParserError

        try:
            said: Mapping[str, Any] = client.get_schema_version(SchemaVersionId=uuid)
        except ClientError as error:
            if error.operation_name != _QUESTION:  # the role was asked for first
                raise _role_error(error.operation_name, error.response) from None
            raise self._translate_error(error.response, what) from None
        except NoCredentialsError:
            raise MissingRights(
                f"Glue is not asked for {what}: AWS's chain finds no credentials",
                "give the process a profile, a role of its machine or pod, or AWS_ACCESS_KEY_ID",
            ) from None
        except (BotoCoreError, ResponseParserError, OSError, ValueError) as error:
            raise Unreachable(
                f"Glue does not give {what}: {type(error).__name__}", self._describe_where_asked()
            ) from None
        return said

    def _translate_error(self, answer: Mapping[str, Any], what: str) -> Exception:
        """Return what an error of Glue's is here."""
        error = answer.get("Error", {})
        code, text = str(error.get("Code", "")), str(error.get("Message", ""))
        if code == _UNKNOWN:
            return NoSuchSchema(f"the registry does not know {what}")
        # Cut last: a secret that a cut divides would not be found.
        words = self._redact(to_printable_line(f"{code}: {text}"))[:_QUOTED_CHARACTERS]
        if _is_denied(answer):
            return MissingRights(f"Glue refuses {what}: {words}", _RIGHTS)
        return Unreachable(f"Glue does not give {what}: {words}", self._describe_where_asked())

    def _redact(self, text: str) -> str:
        """Mask the credentials that signed the question, which a role renews."""
        keys = self._credentials.get_frozen_credentials()
        own = (keys.access_key, keys.secret_key, keys.token)
        return Redaction(frozenset(filter(None, own)))(text)

    def _describe_where_asked(self) -> str:
        meta = self._client.meta
        return f"asked at {meta.endpoint_url} in {meta.region_name}"

    def _get_or_open_client(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._new_client()
            return self._client

    def _new_client(self) -> Any:
        try:
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
            from botocore.session import Session
        except ImportError as error:
            raise ConfigurationError(
                f"glue-registry needs a library that is not installed: {error.name}",
                "pip install 'headgate[s3]', on Spark's workers too",
            ) from error
        texts, numbers = self._options.texts, self._options.numbers
        limits = Config(
            connect_timeout=numbers["timeout"],
            read_timeout=numbers["timeout"],
            retries={"total_max_attempts": 1 + int(numbers["max.retries"]), "mode": "legacy"},
        )
        try:
            session = Session(profile=texts.get(_PROFILE))
            session.set_default_client_config(limits)  # also for whoever gives a profile's role
            if _KEYS[0] in texts:
                session.set_credentials(*(texts.get(name) for name in _KEYS))
            self._credentials = session.get_credentials()
            return session.create_client(
                "glue", region_name=texts.get(_REGION), endpoint_url=texts.get(_ENDPOINT)
            )
        except (BotoCoreError, ValueError) as error:
            name = type(error).__name__
            if name in _MISCONFIGURED:
                why = to_printable_line(str(error))[:_QUOTED_CHARACTERS]
                raise ConfigurationError(
                    f"Glue's registry cannot be asked: {why}",
                    f'set AWS_REGION, or "{_REGION}" in format.options (init --format)',
                ) from None
            raise Unreachable(f"AWS gives no credentials for Glue: {name}") from None


def _is_denied(answer: Mapping[str, Any]) -> bool:
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = str(answer.get("Error", {}).get("Code", ""))
    return code in _DENIED or status in _DENIED_STATUSES


def _role_error(question: str, answer: Mapping[str, Any]) -> Exception:
    """Return the error for a role that AWS does not give.

    Its text is not repeated: no credentials are known that could be masked in it.
    """
    code = to_printable_line(str(answer.get("Error", {}).get("Code", "")))[:_QUOTED_CHARACTERS]
    said = f"AWS gives no credentials for Glue: {question}: {code}"
    return MissingRights(said, _ROLE) if _is_denied(answer) else Unreachable(said)
