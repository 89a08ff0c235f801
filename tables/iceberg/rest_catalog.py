"""Bounds pyiceberg's REST catalog in time, and renews its tokens before they expire.

It keeps requests on the server that they are for, and knows the call that commits to several tables
at once, which pyiceberg lacks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import urljoin, urlsplit

import requests
from pyiceberg.catalog.rest import (
    DEFAULT_ENDPOINTS,
    SNAPSHOT_LOADING_MODE,
    VIEW_ENDPOINTS,
    Endpoint,
    HttpMethod,
    RestCatalog,
)
from pyiceberg.catalog.rest.auth import (
    AuthManager,
    LegacyOAuth2AuthManager,
    OAuth2AuthManager,
    OAuth2TokenProvider,
)
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    OAuthError,
)
from pyiceberg.table import CommitTableRequest
from pyiceberg.typedef import RecursiveDict
from requests import HTTPError, Session
from requests.adapters import HTTPAdapter

from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.tables.storage.object_stores import renewal_age_s

_log = redacted_logger("headgate.catalog")

JOINT_COMMIT = Endpoint(http_method=HttpMethod.POST, path="/v1/{prefix}/transactions/commit")

_JOINT_ANSWERS: Mapping[int, type[Exception]] = {
    405: NotImplementedError,
    409: CommitFailedException,
    **dict.fromkeys((500, 502, 504), CommitStateUnknownException),
}

_CONNECTIONS_MAX = 32
"""Above the number of threads that ask at once: by default ten connections are kept, and each
further one is opened for one request."""
_AGAIN_S = 5.0
_LIFE_UNSAID_S = 3600.0


class BoundedRestCatalog(RestCatalog):
    """Bounds the calls of ``requests``, which waits for ever by default, as pyiceberg leaves it."""

    def __init__(self, name: str, properties: RecursiveDict, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        super().__init__(name, **cast("dict[str, str]", properties))
        # Whoever sets it, also the server: where a snapshot is kept and not shown, files that only
        # it needs look like nobody's, and are deleted.
        self.properties.pop(SNAPSHOT_LOADING_MODE, None)

    def _create_session(self) -> Session:
        session = super()._create_session()
        _bound_session(session, self._timeout_s)
        for scheme in ("http://", "https://"):  # a request signer has mounted a longer one
            session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS_MAX))
        if isinstance(self._auth_manager, OAuth2AuthManager):
            unbounded = self._auth_manager.token_provider
            self._auth_manager.token_provider = BoundedTokens(unbounded, self._timeout_s)
        return session

    def _create_legacy_oauth2_auth_manager(self, session: Session) -> AuthManager:
        _bound_session(session, self._timeout_s)  # the first token is requested in here
        credential = self.properties.get("credential")
        return RenewedToken(
            session=session,
            auth_url=self.auth_url if credential is not None else None,
            credential=credential,
            initial_token=self.properties.get("token"),
            optional_oauth_params=self._extract_optional_oauth_params(),
        )

    @property
    def may_support_multi_table_commits(self) -> bool:
        """Return whether its server says that it has them; one that lists nothing may have them."""
        listed = self._supported_endpoints
        return JOINT_COMMIT in listed or listed <= DEFAULT_ENDPOINTS | VIEW_ENDPOINTS

    def commit_tables(self, changes: Sequence[CommitTableRequest]) -> None:
        """Commit to all of these tables, or to none.

        Raises what ``commit_table`` raises, ``NoSuchTableError`` for a table that is gone, and
        ``NotImplementedError`` where the server has no such call.
        """
        asked = ",".join(change.model_dump_json() for change in changes)
        response = self._session.post(
            self.url("transactions/commit", prefixed=True),
            data=f'{{"table-changes":[{asked}]}}'.encode(),
        )
        try:
            response.raise_for_status()
        except HTTPError as error:
            _handle_non_200_response(
                error, {404: _missing_or_unsupported_error_type(response), **_JOINT_ANSWERS}
            )


def _missing_or_unsupported_error_type(response: requests.Response) -> type[Exception]:
    """Tell the errors apart: a server names the missing table; one without the call cannot."""
    return NoSuchTableError if "NoSuch" in response.text else NotImplementedError


class RedirectedElsewhere(requests.RequestException):
    """Says that a server refers to another one."""


class RenewedToken(LegacyOAuth2AuthManager):
    """The token for ``credential``, renewed after half of its life, or five minutes before its end.

    While renewal fails the current token is used: it may still be good, and a refusal makes
    pyiceberg ask for another one.
    """

    def __init__(
        self, *, monotonic_s: Callable[[], float] = time.monotonic, **settings: Any
    ) -> None:
        self._monotonic_s = monotonic_s
        self._renew_at_s = float("inf")
        self._renewing = threading.Lock()
        super().__init__(**settings)

    def auth_header(self) -> str:
        due = self._monotonic_s() >= self._renew_at_s
        if due and self._renewing.acquire(blocking=False):  # the renewal passes here too
            try:
                self._refresh_token()
            except Exception as error:  # noqa: BLE001 - servers and networks fail in many ways
                self._renew_at_s = self._monotonic_s() + _AGAIN_S
                _log.warning("the catalog's token was not renewed yet: %s", type(error).__name__)
            finally:
                self._renewing.release()
        return super().auth_header()

    def _fetch_access_token(self, credential: str) -> str:
        """Fetch as pyiceberg does, which ignores how long the token lives."""
        client_id, colon, secret = credential.partition(":")
        data = {
            "grant_type": "client_credentials",
            "client_id": client_id if colon else None,
            "client_secret": secret if colon else credential,
            **(self._optional_oauth_params or {}),
        }
        if self._auth_url is None:
            raise ValueError("there is no address to ask for a token")
        form = {"Content-type": "application/x-www-form-urlencoded"}
        response = self._session.post(
            self._auth_url, data=data, headers={**self._session.headers, **form}
        )
        try:
            response.raise_for_status()
        except HTTPError as error:
            _handle_non_200_response(error, {400: OAuthError, 401: OAuthError})
        answer = response.json()
        life_s = float(answer.get("expires_in") or _LIFE_UNSAID_S)
        self._renew_at_s = self._monotonic_s() + renewal_age_s(life_s)
        return str(answer["access_token"])


class BoundedTokens(OAuth2TokenProvider):
    """pyiceberg's provider, bounded in time, and with no margin longer than a token's life."""

    def __init__(self, like: OAuth2TokenProvider, timeout_s: float) -> None:
        super().__init__(
            like.client_id,
            like.client_secret,
            like.token_url,
            like.scope,
            like.refresh_margin,
            like.expires_in,
        )
        self._timeout_s = timeout_s

    def _refresh_token(self) -> None:
        data = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        with Session() as session:
            _bound_session(session, self._timeout_s)
            response = session.post(
                self.token_url, data=data, headers={"Authorization": self._client_secret_header}
            )
        response.raise_for_status()
        answer = response.json()
        self._token = answer["access_token"]
        life_s = float(answer.get("expires_in") or self.expires_in or _LIFE_UNSAID_S)
        self._expires_at = int(time.monotonic() + renewal_age_s(life_s))


def _bound_session(session: Session, timeout_s: float) -> None:
    """Let no request of it wait for ever, and none be repeated elsewhere with what it holds."""
    if not isinstance(session.request, partial):
        session.request = partial(session.request, timeout=timeout_s)  # type: ignore[method-assign]
        followed = partial(_redirect_target_on_same_server, session)
        session.get_redirect_target = followed  # type: ignore[method-assign]


def _redirect_target_on_same_server(session: Session, response: requests.Response) -> str | None:
    """Return where to ask instead. Raises ``RedirectedElsewhere``.

    Elsewhere requests leaves out ``Authorization``, but neither a form with the client's secret nor
    headers of the sink file.
    """
    target = type(session).get_redirect_target(session, response)
    if target is not None:
        there = urljoin(response.url, target)
        if session.should_strip_auth(response.url, there):
            to = urlsplit(there)
            raise RedirectedElsewhere(
                f"it redirects to {to.scheme}://{to.netloc.rpartition('@')[2]}, which gets no "
                "credentials: write the address that is meant in the sink file"
            )
    return target
