"""Asks a schema registry over HTTP: the REST API that Confluent's and others have in common.

What an answer means is decided by what helps: a schema that the registry says it does not have
makes bad records, since no retry would; a refusal is for a person to mend; anything else, also an
answer that no registry gives, is a registry that is away, and is asked again. Nothing is read
without a bound, no redirection is followed, and no text of an answer is repeated without redaction.
"""

from __future__ import annotations

import base64
import json
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

from headgate.control_protocol.errors import MissingRights, Unreachable
from headgate.control_protocol.redaction import Redaction, to_printable_line
from headgate.data_plane.formats.format_registry import did_you_mean_suffix
from headgate.kafka.bounded_http_body import AnswerTooLong, AnswerTooSlow, read_bounded_body
from headgate.kafka.token_keeper import TokenKeeper, keeper_of
from headgate.kafka.token_providers import is_loopback_host

if TYPE_CHECKING:
    import requests

AUTH = "auth"
"""The option with the description of ``[format.auth]``; it names secrets, and holds none."""

SCHEMA_BYTES_MAX = 4 * 1024 * 1024
_QUOTED_CHARACTERS = 200
_DENIED = (401, 403)
_NOT_FOUND = 404
_AGAIN = (408, 429)
_SERVER_FAULT = 500
_SCHEMA_NOT_FOUND = range(40400, 40500)
"""What a registry says when it has looked; another server's 404 means a wrong address."""
_APICURIO_NOT_FOUND = frozenset(
    {"ArtifactNotFoundException", "ContentNotFoundException", "VersionNotFoundException"}
)

NUMBERS = {
    "timeout": 10.0,
    "max.retries": 2.0,
    "retries.wait.ms": 200.0,
    "retries.max.wait.ms": 2000.0,
    "cache.capacity": 1000.0,
    "check.interval": 600.0,
}
_TEXTS = frozenset(
    {
        *("url", AUTH, "context", "basic.auth.user.info", "bearer.auth.token"),
        *("bearer.auth.logical.cluster", "bearer.auth.identity.pool.id"),
        *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
    }
)
OPTIONS = frozenset({*_TEXTS, *NUMBERS})


class NoSuchSchema(ValueError):
    """Says that the registry answered, and has no schema of this kind under the id."""


class _AskAgain(Exception):
    """Says why a try had no answer that counts."""


class _Useless(Exception):
    """Says why there is no answer, and that another try just now would have the same."""


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked for, in words, and what makes something of the answer."""

    what: str
    read: Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options ``registry.*``, checked. Its ``repr`` is never shown: it holds secrets."""

    urls: tuple[str, ...]
    texts: Mapping[str, str]
    numbers: Mapping[str, float]

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> ClientOptions:
        """Raises ``ValueError``."""
        unknown = sorted(settings.keys() - OPTIONS)
        if unknown:
            near = did_you_mean_suffix(unknown[0], sorted(OPTIONS - {AUTH}))
            raise ValueError(f"there is no option registry.{unknown[0]}{near}")
        urls = tuple(filter(None, (url.strip() for url in settings.get("url", "").split(","))))
        if not urls:
            raise ValueError("its address is missing: set registry.url")
        texts = {name: settings[name] for name in _TEXTS & settings.keys() if settings[name]}
        for url in urls:
            _require_valid_url_and_auth(url, texts)
        numbers = {
            name: parse_number_option(name, settings.get(name, d)) for name, d in NUMBERS.items()
        }
        return cls(urls, texts, numbers)


def parse_number_option(name: str, text: str | float) -> float:
    """Return an option's number. Raises ``ValueError``."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    is_above_0 = name in ("timeout", "cache.capacity")
    if not 0 <= found < 1e9 or (is_above_0 and not found):
        least = "above 0" if is_above_0 else "of at least 0"
        raise ValueError(f"registry.{name} cannot be {text!r}: it is a number {least}")
    return found


def _require_valid_url_and_auth(url: str, texts: Mapping[str, str]) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("registry.url is no address: write https://HOST or https://HOST/PATH")
    if parts.query or parts.fragment:
        raise ValueError("registry.url holds more than an address: write https://HOST/PATH")
    ways = [name for name in (AUTH, "basic.auth.user.info", "bearer.auth.token") if name in texts]
    named = ["[format.auth]" if way == AUTH else f"registry.{way}" for way in ways]
    named += ["a password in registry.url"] if parts.password else []
    if len(named) > 1:
        raise ValueError(f"{named[0]} and {named[1]} are both set: keep one of them")
    if AUTH in texts and parts.scheme != "https" and not is_loopback_host(parts.hostname):
        raise ValueError("registry.url is not https: the token would travel on an open line")
    if "basic.auth.user.info" in texts and ":" not in texts["basic.auth.user.info"]:
        raise ValueError("registry.basic.auth.user.info is not of the form USER:PASSWORD")
    if "ssl.key.location" in texts and "ssl.certificate.location" not in texts:
        raise ValueError("registry.ssl.key.location needs registry.ssl.certificate.location")


class _HeadersWithSecrets(NamedTuple):
    """Headers of a request, and what in them no message may repeat."""

    secrets: frozenset[str]
    headers: dict[str, str]


class _HeaderWithSecrets(NamedTuple):
    """A header's value, and what in it no message may repeat."""

    secrets: frozenset[str]
    header: str


class RegistryClient:
    """Answers of one registry. Any thread may ask. It does not survive a fork."""

    def __init__(self, options: ClientOptions) -> None:
        """Asks nobody yet. Raises ``ValueError`` for certificates that cannot be read."""
        self._options = options
        self._urls = [_without_credentials(url) for url in options.urls]
        self.where = ", ".join(self._urls)
        self._lock = threading.Lock()
        self._session: requests.Session | None = None
        self._own = _authorization_headers(options)
        self._keeper: TokenKeeper | None = None
        if AUTH in options.texts:
            self._keeper = keeper_of(options.texts[AUTH], "")
        if options.urls[0].startswith("https") or "ssl.certificate.location" in options.texts:
            self._load_tls_context()

    def get_json(self, path: Sequence[str], what: str, **query: str) -> Any:
        """Return the JSON under this path.

        Raises ``NoSuchSchema``, ``MissingRights`` and ``Unreachable``, which ``what`` begins.
        """
        return self._get_with_retries(path, query, _Question(what, _decode_json))

    def get_text(self, path: Sequence[str], what: str) -> str:
        """Return the text under this path. Raises as ``get_json``."""
        found: str = self._get_with_retries(path, {}, _Question(what, _decode_text))
        return found

    def _get_with_retries(
        self, path: Sequence[str], query: Mapping[str, str], asked: _Question
    ) -> Any:
        tail = "/".join(quote(part, safe="") for part in path)
        if query:
            tail = f"{tail}?{urlencode(query)}"
        retries = int(self._options.numbers["max.retries"])
        reason = ""
        for number in range(retries + 1):
            if number:
                self._wait_before_retry(number)
            try:
                return self._ask_addresses_until_answered(tail, asked)
            except _AskAgain as error:
                reason = str(error)
            except _Useless as error:
                reason = str(error)
                break
        raise Unreachable(
            f"the schema registry does not give {asked.what}: {reason}", f"asked at {self.where}"
        )

    def _wait_before_retry(self, number: int) -> None:
        numbers = self._options.numbers
        wait_ms = min(
            numbers["retries.max.wait.ms"], numbers["retries.wait.ms"] * 2 ** (number - 1)
        )
        time.sleep(wait_ms / 1000 * random.uniform(0.8, 1.2))

    def _ask_addresses_until_answered(self, tail: str, asked: _Question) -> Any:
        """Ask one address after the other, until one gives an answer that counts."""
        *others, last = zip(self._urls, self._own, strict=True)
        for url, own in others:
            try:
                return self._ask_address(url, own, tail, asked)
            except (_AskAgain, _Useless):
                continue
        return self._ask_address(*last, tail, asked)

    def _ask_address(self, url: str, own: _HeaderWithSecrets, tail: str, asked: _Question) -> Any:
        what = asked.what
        secrets, headers = self._headers_and_secrets(own)
        status, body = self._get_status_and_body(f"{_root_url_of(url, tail)}/{tail}", headers, what)
        if status == 200:
            return asked.read(body)
        said, code = _error_text_and_code_in(body)
        words = f"{status} {Redaction(secrets)(said)[:_QUOTED_CHARACTERS]}".strip()
        if status == _NOT_FOUND and code in _SCHEMA_NOT_FOUND:
            raise NoSuchSchema(f"the registry does not know {what}")
        if status in _DENIED:
            raise MissingRights(
                f"the schema registry refuses {what}: {words}",
                "check format.auth, or format.options registry.basic.auth.user.info and its like, "
                "and the rights there",
            )
        if status >= _SERVER_FAULT or status in _AGAIN:
            raise _AskAgain(words)
        raise _Useless(f"{words}: no registry answers so; is registry.url right?")

    def _headers_and_secrets(self, own: _HeaderWithSecrets) -> _HeadersWithSecrets:
        """Return what is sent: the keeper's token, or ``own``. Raises what the keeper raises."""
        headers = {
            "Accept": "application/vnd.schemaregistry.v1+json, application/json",
            "Accept-Encoding": "identity",
        }
        for name, option in (
            ("target-sr-cluster", "bearer.auth.logical.cluster"),
            ("Confluent-Identity-Pool-Id", "bearer.auth.identity.pool.id"),
        ):
            if option in self._options.texts:
                headers[name] = self._options.texts[option]
        if self._keeper is not None:
            token = self._keeper.require_token().text
            sent = {**headers, "Authorization": f"Bearer {token}"}
            return _HeadersWithSecrets(frozenset((token,)), sent)
        secrets, authorization = own
        if authorization:
            headers["Authorization"] = authorization
        return _HeadersWithSecrets(secrets, headers)

    def _get_status_and_body(
        self, url: str, headers: Mapping[str, str], what: str
    ) -> tuple[int, bytes]:
        import requests

        timeout_s = self._options.numbers["timeout"]
        deadline_s = time.monotonic() + timeout_s
        session = self._get_or_open_session()
        try:
            with session.get(
                url,
                headers=headers,
                auth=_add_no_auth,
                timeout=timeout_s,
                allow_redirects=False,
                stream=True,
                verify=self._options.texts.get("ssl.ca.location") or None,
            ) as answer:
                return answer.status_code, read_bounded_body(answer, SCHEMA_BYTES_MAX, deadline_s)
        except AnswerTooLong:
            raise NoSuchSchema(f"{what} is longer than {SCHEMA_BYTES_MAX} bytes") from None
        except AnswerTooSlow:
            raise _AskAgain(f"its answer took longer than {timeout_s:g} s") from None
        except (requests.RequestException, OSError, ValueError) as error:
            # Certificates are read again with the next question: they may have been renewed.
            self._close_session(session)
            raise _AskAgain(_describe_failure(error, timeout_s)) from None
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "urllib3":
                raise
            self._close_session(session)
            raise _AskAgain(_describe_failure(error, timeout_s)) from None

    def _get_or_open_session(self) -> requests.Session:
        with self._lock:
            if self._session is None:
                self._session = self._new_session()
            return self._session

    def _close_session(self, session: requests.Session) -> None:
        with self._lock:
            if self._session is session:
                self._session = None
        session.close()

    def _new_session(self) -> requests.Session:
        import requests
        from requests.adapters import HTTPAdapter

        session = requests.Session()
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        try:
            context = self._load_tls_context()
        except ValueError as error:
            raise Unreachable(str(error)) from None

        class Adapter(HTTPAdapter):
            def init_poolmanager(self, *args: Any, **kwargs: Any) -> Any:
                return super().init_poolmanager(*args, **kwargs, ssl_context=context)

            def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
                return super().proxy_manager_for(proxy, **kwargs, ssl_context=context)

        session.mount("https://", Adapter())
        return session

    def _load_tls_context(self) -> ssl.SSLContext:
        """Return what proves who asks. Raises ``ValueError``."""
        texts = self._options.texts
        context = ssl.create_default_context()
        certificate = texts.get("ssl.certificate.location")
        try:
            if "ssl.ca.location" in texts:
                context = ssl.create_default_context(cafile=texts["ssl.ca.location"])
            if certificate:
                # With a password of its own: without, OpenSSL would ask for one at the terminal.
                context.load_cert_chain(
                    certificate,
                    texts.get("ssl.key.location"),
                    lambda: texts.get("ssl.key.password", ""),
                )
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or type(error).__name__
            raise ValueError(
                f"registry.ssl.*: the certificates or the key cannot be read: {what}"
            ) from None
        return context


def _add_no_auth(request: Any) -> Any:
    """Add nothing: without an ``auth``, requests would take a password from a .netrc file."""
    return request


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")


def _authorization_headers(options: ClientOptions) -> list[_HeaderWithSecrets]:
    """Return the ``Authorization`` header for each address, which is empty without credentials.

    An address without a password of its own has that of the first with one.
    """
    token = options.texts.get("bearer.auth.token")
    if token:
        return [_HeaderWithSecrets(frozenset((token,)), f"Bearer {token}")] * len(options.urls)
    told = options.texts.get("basic.auth.user.info")
    pairs = [told or _user_and_password_in(url) for url in options.urls]
    first = next(filter(None, pairs), None)
    return [_basic_header(pair or first) for pair in pairs]


def _user_and_password_in(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.username is None:
        return None
    return f"{unquote(parts.username)}:{unquote(parts.password or '')}"


def _basic_header(pair: str | None) -> _HeaderWithSecrets:
    if pair is None:
        return _HeaderWithSecrets(frozenset(), "")
    encoded = base64.b64encode(pair.encode()).decode()
    password = pair.partition(":")[2]
    secrets = frozenset(filter(None, (pair, password, encoded)))
    return _HeaderWithSecrets(secrets, f"Basic {encoded}")


def _root_url_of(url: str, tail: str) -> str:
    """Return where the path begins: Apicurio's own API is beside the one that ``url`` is of."""
    return url.partition("/apis/")[0] if tail.startswith("apis/") else url


def _decode_text(body: bytes) -> str:
    return body.decode(errors="surrogateescape")


def _decode_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise _Useless("its answer is not JSON; is registry.url right?") from None


def _error_text_and_code_in(body: bytes) -> tuple[str, int]:
    """Return the text and the code of an error, if it has the form of a registry's."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return "", 0
    said = said if isinstance(said, dict) else {}
    text, code = said.get("message"), said.get("error_code")
    if str(said.get("name")) in _APICURIO_NOT_FOUND:
        text, code = said.get("title"), _SCHEMA_NOT_FOUND.start
    # Cut once more when it was redacted: a secret that a cut divides would not be found.
    words = to_printable_line(text)[: 50 * _QUOTED_CHARACTERS] if isinstance(text, str) else ""
    return words, code if isinstance(code, int) else 0


def _describe_failure(error: Exception, timeout_s: float) -> str:
    """Return what failed, in words without anything that was sent."""
    import requests

    if isinstance(error, requests.Timeout):
        return f"timed out after {timeout_s:g} s"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not accepted, or it does not accept ours (registry.ssl.*)"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return type(error).__name__
