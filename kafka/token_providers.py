"""Fetches tokens: from token endpoints, files, AWS keys and the metadata servers of clouds.

Nothing here waits longer than ``REQUEST_S`` for a connection or for the next bytes, goes on reading
an answer after that time, follows a redirection, or reads more than a token may be. Errors never
repeat an answer's body, except for the two texts that OAuth defines, redacted.
"""

from __future__ import annotations

import base64
import binascii
import calendar
import ipaddress
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from headgate.control_protocol.errors import (
    AuthenticationUnfit,
    ConfigurationError,
    HeadgateError,
    TokenAway,
    TokenServerRefused,
    TokenUnfit,
)
from headgate.control_protocol.redaction import Redaction, to_printable_line
from headgate.control_protocol.secret_references import (
    REFERENCE,
    ReferenceUnreadable,
    read_reference,
)
from headgate.kafka.bounded_http_body import AnswerTooLong, AnswerTooSlow, read_bounded_body
from headgate.kafka.signed_assertions import build_signed_assertion

if TYPE_CHECKING:
    import requests

REQUEST_S = 5.0
_BODY_BYTES_MAX = 256 * 1024
_TOKEN_CHARACTERS_MAX = 128 * 1024
_QUOTED_CHARACTERS = 200
_JWT_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_SECTION = "kafka.auth"


@dataclass(frozen=True, slots=True)
class Token:
    """A token and when it expires, in seconds of the epoch by this machine's clock."""

    text: str = field(repr=False)
    expires_at_s: float
    principal: str = "headgate"
    extensions: Mapping[str, str] = field(default_factory=dict)


Fetch = Callable[[], Token]


class TokenProvider(NamedTuple):
    """What fetches a token, and what messages call its source."""

    fetch: Fetch
    name: str


class _GoogleToken(NamedTuple):
    """Google's own token, and the address of the account that it is of."""

    token: Token
    account: str


def provider_of(settings: Mapping[str, Any], servers: str) -> TokenProvider:
    """Return what fetches a token, and what to call it."""
    # Each type of ``AuthType`` that is a token; a type that is missing here fails at the start.
    make = {
        "oidc": _oidc_provider,
        "token-file": _token_file_provider,
        "aws-msk-iam": _msk_iam_provider,
        "azure": _azure_provider,
        "google": _google_provider,
    }[settings["type"]]
    fetch, where = make(settings, servers)
    section = settings.get("section", _SECTION)
    return TokenProvider(
        fetch if section == _SECTION else _with_section_in_errors(section, fetch), where
    )


def _with_section_in_errors(section: str, fetch: Fetch) -> Fetch:
    """Return what names another section than ours in its errors."""

    def fetch_with_section() -> Token:
        try:
            return fetch()
        except HeadgateError as error:
            texts = (text.replace(_SECTION, section) for text in (error.message, error.hint))
            raise type(error)(*texts) from None

    return fetch_with_section


# ---------------------------------------------------------------------------------- token endpoints


def _oidc_provider(settings: Mapping[str, Any], _: str) -> TokenProvider:
    url = settings["token_url"]
    asked = {name: settings[name] for name in ("scope", "audience") if name in settings}
    endpoint = _Endpoint(url, settings, asked, ca=settings.get("ca", ""))
    return TokenProvider(endpoint.fetch_token, f"the token server {_host_of(url)}")


def _azure_provider(settings: Mapping[str, Any], servers: str) -> TokenProvider:
    """Ask Entra ID for a token of the cluster: by a secret, a federated token, or the machine."""
    resource = f"https://{servers.split(',', maxsplit=1)[0].strip().rpartition(':')[0]}"
    federated = os.environ.get("AZURE_FEDERATED_TOKEN_FILE", "")
    assertion = settings.get("assertion_file") or federated
    tenant = settings.get("tenant") or os.environ.get("AZURE_TENANT_ID", "")
    client = settings.get("client_id") or os.environ.get("AZURE_CLIENT_ID", "")
    if "client_secret" in settings or (assertion and tenant and client):
        authority = os.environ.get("AZURE_AUTHORITY_HOST", "https://login.microsoftonline.com")
        url = f"{authority.rstrip('/')}/{tenant}/oauth2/v2.0/token"
        if not url.startswith(("https://", "http://127.0.0.1:")):
            raise AuthenticationUnfit("AZURE_AUTHORITY_HOST is not https", "correct the variable")
        given = {**settings, "client_id": client}
        if "client_secret" not in settings:
            given["assertion_file"] = assertion
        endpoint = _Endpoint(url, given, {"scope": f"{resource}/.default"}, in_form=True)
        return TokenProvider(endpoint.fetch_token, f"Entra ID at {_host_of(url)}")
    base = os.environ.get("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://169.254.169.254")
    asked = {"api-version": "2018-02-01", "resource": resource}
    if client:
        asked["client_id"] = client
    url = f"{base.rstrip('/')}/metadata/identity/oauth2/token?{urlencode(asked)}"

    def fetch() -> Token:
        answer = _get_json_from_metadata_server(url, {"Metadata": "true"})
        return _parse_token_answer(answer, time.time(), {})

    return TokenProvider(fetch, "the machine's metadata server")


class _Endpoint:
    """A token endpoint, asked with client credentials (RFC 6749, RFC 7523)."""

    def __init__(
        self,
        url: str,
        settings: Mapping[str, Any],
        asked: Mapping[str, str],
        *,
        ca: str = "",
        in_form: bool = False,
    ) -> None:
        self._url = url
        self._settings = settings
        self._asked = asked
        self._ca = ca
        self._in_form = in_form

    def fetch_token(self) -> Token:
        settings, headers = self._settings, {}
        client = settings["client_id"]
        form = {"grant_type": "client_credentials", **self._asked}
        if "client_secret" in settings:
            secret = _resolve_secret(settings["client_secret"], "client_secret")
            if self._in_form:
                form |= {"client_id": client, "client_secret": secret}
            else:
                pair = f"{_form_encode_text(client)}:{_form_encode_text(secret)}".encode()
                headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        else:
            secret = self._read_or_sign_assertion(client)
            form |= {"client_id": client, "client_assertion_type": _JWT_BEARER}
            form["client_assertion"] = secret
        began_s = time.time()
        answer = _request_json(
            "POST", self._url, headers, form, ca=self._ca, secret_to_redact=secret
        )
        return _parse_token_answer(answer, began_s, settings.get("extensions", {}))

    def _read_or_sign_assertion(self, client: str) -> str:
        """Return the newest assertion of the file; or one that is signed for this request."""
        settings = self._settings
        if "private_key" not in settings:
            return _read_token_file(settings["assertion_file"], "kafka.auth.assertion_file")
        pem = _resolve_secret(settings["private_key"], "private_key")
        claims = {"iss": client, "sub": client, "aud": self._url}
        return build_signed_assertion(
            pem, claims, "kafka.auth.private_key", key_id=settings.get("key_id", "")
        )


def _form_encode_text(text: str) -> str:
    """RFC 6749 2.3.1: client and secret are encoded as in a form before they are joined."""
    return urlencode({"": text})[1:]


def _parse_token_answer(answer: Any, asked_at_s: float, extensions: Mapping[str, str]) -> Token:
    """Return the token of an OAuth answer; it lives as long as its claims and the answer say."""
    text = answer.get("access_token") if isinstance(answer, dict) else None
    if not isinstance(text, str) or not text or len(text) > _TOKEN_CHARACTERS_MAX:
        raise TokenUnfit("the token server's answer holds no access_token", "correct its address")
    claims = unverified_claims_of(text)
    ends = [claims["exp"]] if isinstance(claims.get("exp"), int | float) else []
    for name, since_s in (("expires_in", asked_at_s), ("expires_on", 0.0)):
        try:
            ends.append(since_s + float(answer[name]))
        except (KeyError, TypeError, ValueError):
            continue
    if not ends:
        raise TokenUnfit(
            "the token server does not say how long its token lives",
            "let it answer expires_in, or give a JWT with exp",
        )
    return Token(text, min(ends), _token_subject_or_default(claims), extensions)


def unverified_claims_of(token: str) -> Mapping[str, Any]:
    """Return the claims of a JWT, unchecked; empty for any other token."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return {}
    return found if isinstance(found, dict) else {}


def _token_subject_or_default(claims: Mapping[str, Any]) -> str:
    subject = claims.get("sub")
    return subject if isinstance(subject, str) and subject.isprintable() and subject else "headgate"


# ------------------------------------------------------------------------------------------- files


def _token_file_provider(settings: Mapping[str, Any], _: str) -> TokenProvider:
    path = settings["path"]

    def fetch() -> Token:
        text = _read_token_file(path, "kafka.auth.path")
        claims = unverified_claims_of(text)
        if not isinstance(claims.get("exp"), int | float):
            raise TokenUnfit(
                f"{path} holds no JWT with exp",
                "name the file with the token itself, and nothing else",
            )
        return Token(
            text,
            float(claims["exp"]),
            _token_subject_or_default(claims),
            settings.get("extensions", {}),
        )

    return TokenProvider(fetch, f"the file {path}")


def _read_token_file(path: str, setting: str) -> str:
    try:
        with Path(path).open(encoding="ascii") as file:
            return file.read(_TOKEN_CHARACTERS_MAX).strip()
    except OSError as error:
        raise TokenAway(f"{setting}: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TokenUnfit(f"{setting}: {path} holds no token", "correct the path") from None


def _resolve_secret(reference: str, setting: str) -> str:
    """Return what a reference of the sink file stands for now, where this process runs."""
    match = REFERENCE.fullmatch(reference)
    assert match is not None, "the settings take nothing else"
    try:
        return read_reference(*match.groups())
    except ReferenceUnreadable as error:
        raise TokenAway(f"kafka.auth.{setting}: {error} ({error.hint})") from None


# -------------------------------------------------------------------------------------------- AWS


_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?(?::|,|$)")
_MSK_S = 900
_MSK_AGENT = "headgate"


def aws_region_of(servers: str) -> str:
    """Return the AWS region in the brokers' names; empty if there is none."""
    found = _REGION.search(servers)
    return found[1] if found else ""


def _msk_iam_provider(settings: Mapping[str, Any], servers: str) -> TokenProvider:
    region = settings.get("region") or aws_region_of(servers)
    role = settings.get("role_arn", "")

    def fetch() -> Token:
        return build_msk_token(region, role)

    return TokenProvider(fetch, "AWS's chain of credentials")


def build_msk_token(region: str, role: str = "") -> Token:
    """Return MSK's token: a presigned request for ``kafka-cluster:Connect``. botocore signs it."""
    try:
        import botocore.session
        from botocore.auth import SigV4QueryAuth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise ConfigurationError(
            f"aws-msk-iam needs a library that is not installed: {error.name}",
            "pip install 'headgate[s3]'",
        ) from error

    try:
        session = botocore.session.get_session()
        keys = _assume_role(session, region, role) if role else session.get_credentials()
        if keys is None:
            raise TokenServerRefused(
                "AWS's chain finds no credentials",
                "give the process a profile, a role of its machine or pod, or AWS_ACCESS_KEY_ID",
            )
        asked = {"Action": "kafka-cluster:Connect"}
        request = AWSRequest("GET", f"https://kafka.{region}.amazonaws.com/", params=asked)
        frozen = keys.get_frozen_credentials()
        SigV4QueryAuth(frozen, "kafka-cluster", region, expires=_MSK_S).add_auth(request)
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))[:_QUOTED_CHARACTERS]
        kind = TokenServerRefused if code in ("AccessDenied", "InvalidClientTokenId") else TokenAway
        raise kind(
            f"AWS refuses the role: {to_printable_line(code)}", "check kafka.auth.role_arn"
        ) from None
    except BotoCoreError as error:
        raise TokenAway(f"AWS gives no credentials: {type(error).__name__}") from None
    url = f"{request.url}&User-Agent={_MSK_AGENT}"
    signed = re.search(r"X-Amz-Date=(\d{8}T\d{6}Z)", url)
    assert signed is not None
    at_s = calendar.timegm(time.strptime(signed[1], "%Y%m%dT%H%M%SZ"))
    text = base64.urlsafe_b64encode(url.encode()).rstrip(b"=").decode()
    return Token(text, float(at_s + _MSK_S))


def _assume_role(session: Any, region: str, role: str) -> Any:
    from botocore.config import Config
    from botocore.credentials import Credentials

    quick = Config(connect_timeout=REQUEST_S, read_timeout=REQUEST_S, retries={"max_attempts": 0})
    sts = session.create_client("sts", region_name=region, config=quick)
    given = sts.assume_role(RoleArn=role, RoleSessionName="headgate")["Credentials"]
    return Credentials(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])


# ----------------------------------------------------------------------------------------- Google


_GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_GOOGLE_LIFE_S = 3600


def _google_provider(settings: Mapping[str, Any], _: str) -> TokenProvider:
    """Ask by a key file, or the metadata server; wrap the token: brokers refuse a bare one."""
    path = settings.get("key_file") or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS", "")
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    base = f"http://{host}/computeMetadata/v1/instance/service-accounts/default"
    flavor = {"Metadata-Flavor": "Google"}

    def ask() -> _GoogleToken:
        if path:
            return _fetch_google_token_by_key(path)
        given = _parse_token_answer(
            _get_json_from_metadata_server(f"{base}/token", flavor), time.time(), {}
        )
        account = _get_from_metadata_server(f"{base}/email", flavor).decode().strip()
        return _GoogleToken(given, account)

    def fetch() -> Token:
        began_s = time.time()
        given, address = ask()
        principal = settings.get("principal") or address
        claims = {"exp": int(given.expires_at_s), "iat": int(began_s), "iss": "Google"}
        claims |= {"scope": "kafka", "sub": principal}
        parts = ({"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}, claims)
        texts = [*(json.dumps(part).encode() for part in parts), given.text.encode()]
        wrapped = ".".join(base64.urlsafe_b64encode(t).rstrip(b"=").decode() for t in texts)
        return Token(wrapped, given.expires_at_s, principal)

    name = f"Google, by the key file {path}" if path else "Google's metadata server"
    return TokenProvider(fetch, name)


def _fetch_google_token_by_key(path: str) -> _GoogleToken:
    """Return an access token for the key of a service account, and the account's address."""
    try:
        found = json.loads(_read_token_file(path, "kafka.auth.key_file"))
        names = ("type", "client_email", "private_key", "private_key_id", "token_uri")
        kind, address, pem, key_id, url = (str(found[name]) for name in names)
    except (KeyError, TypeError, ValueError):
        kind = address = pem = key_id = url = ""
    if kind != "service_account":
        raise TokenUnfit(
            f"{path} is no key of a service account",
            'name the JSON file of a key, with "type": "service_account"',
        )
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback_host(parts.hostname):
        raise TokenUnfit(f"{path}: its token_uri is not https", "take the file as Google wrote it")
    began_s = time.time()
    claims = {"iss": address, "sub": address, "aud": url, "scope": _GOOGLE_SCOPE}
    assertion = build_signed_assertion(
        pem, claims, f"kafka.auth.key_file {path}", key_id=key_id, life_s=_GOOGLE_LIFE_S
    )
    form = {"grant_type": _JWT_GRANT, "assertion": assertion}
    answer = _request_json("POST", url, {}, form, ca="", secret_to_redact=assertion)
    return _GoogleToken(_parse_token_answer(answer, began_s, {}), address)


# ------------------------------------------------------------------------------------------- HTTP


def _add_no_auth(request: Any) -> Any:
    """Add nothing: without an ``auth``, requests would take a password from a .netrc file."""
    return request


def _get_json_from_metadata_server(url: str, headers: Mapping[str, str]) -> Any:
    return _parse_json(_get_from_metadata_server(url, headers))


def _get_from_metadata_server(url: str, headers: Mapping[str, str]) -> bytes:
    """Ask a metadata server of this machine: never through a proxy."""
    return _fetch_answer_body(
        "GET", url, headers, None, ca="", secret_to_redact="", of_metadata_server=True
    )


def _request_json(
    method: str,
    url: str,
    headers: Mapping[str, str],
    form: Mapping[str, str],
    *,
    ca: str,
    secret_to_redact: str,
) -> Any:
    return _parse_json(
        _fetch_answer_body(
            method,
            url,
            headers,
            form,
            ca=ca,
            secret_to_redact=secret_to_redact,
            of_metadata_server=False,
        )
    )


def _parse_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise TokenUnfit(
            "the token server's answer is not JSON", "correct kafka.auth.token_url"
        ) from None


def _fetch_answer_body(
    method: str,
    url: str,
    headers: Mapping[str, str],
    form: Mapping[str, str] | None,
    *,
    ca: str,
    secret_to_redact: str,
    of_metadata_server: bool,
) -> bytes:
    import requests  # not for those who only read settings

    deadline_s = time.monotonic() + REQUEST_S
    with requests.Session() as session:
        session.trust_env = not of_metadata_server
        try:
            with session.request(
                method,
                url,
                data=form,
                headers={"Accept": "application/json", **headers},
                auth=_add_no_auth,
                timeout=REQUEST_S,
                allow_redirects=False,
                stream=True,
                verify=ca or None,
            ) as answer:
                body = read_bounded_body(answer, _BODY_BYTES_MAX, deadline_s)
                status = answer.status_code
        except AnswerTooLong:
            raise TokenUnfit(
                "the token server's answer is too long", "correct its address"
            ) from None
        except AnswerTooSlow:
            raise TokenAway(f"its answer took longer than {REQUEST_S:.0f} s") from None
        except requests.RequestException as error:
            raise TokenAway(_describe_error(error)) from None
        except OSError as error:  # a file of authorities that is not there
            raise TokenAway(
                f"{type(error).__name__}: {error.strerror or 'no connection'}"
            ) from None
    if status != requests.codes.ok:
        raise _refusal_error(status, body, secret_to_redact)
    return body


def _refusal_error(status: int, body: bytes, secret_to_redact: str) -> HeadgateError:
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    said = said if isinstance(said, dict) else {}
    code = said.get("error") if isinstance(said.get("error"), str) else ""
    words = f"HTTP {status}" + "".join(
        f", {to_printable_line(str(text))[:_QUOTED_CHARACTERS]}"
        for text in (code, said.get("error_description"))
        if isinstance(text, str) and text
    )
    words = Redaction(frozenset(filter(None, (secret_to_redact,))))(words)
    if status in (401, 403) or code in ("invalid_client", "invalid_grant", "unauthorized_client"):
        return TokenServerRefused(words, "check kafka.auth.client_id, the secret and the scope")
    return TokenAway(words, "")


def _describe_error(error: requests.RequestException) -> str:
    """Return what failed, in words without the address's query."""
    import requests

    if isinstance(error, requests.Timeout):
        return f"timed out after {REQUEST_S:.0f} s"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not accepted (kafka.auth.ca names other authorities)"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return type(error).__name__


def is_loopback_host(host: str | None) -> bool:
    """Return whether nothing that is sent to this host leaves the machine."""
    host = (host or "").strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _host_of(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]
