"""Keeps one token per process and provider, and renews it ahead of time.

A thread asks at half of a token's life: a token server may be away for as long as the other half.
It then asks once per second, and never gives up. Clients get the token from memory, because their
callbacks run in threads that carry memberships and reads, which must not wait for a network.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    TokenAway,
    TokenServerRefused,
    TokenUnfit,
)
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.kafka.token_providers import Token, provider_of

log = redacted_logger("headgate.kafka")

FIRST_S_MAX = 6.0
"""How long the first client of a process waits for a token."""

_RENEWED_AT = 0.5
_TOLD = 0.5
_AGAIN_S = 1.0
_LOOKS_EACH_S = 1.0
_WAIT_S_MIN = 0.1
_IDLE_S = 60.0
"""Beyond two lives of its token, an unused keeper still lives as long; then it asks no more."""


class TokenKeeper:
    """The newest token of one provider. Any thread may use it."""

    def __init__(self, fetch: Callable[[], Token], where: str) -> None:
        self._fetch = fetch
        self._where = where
        self._changed = threading.Condition()
        self._token: Token | None = None
        self._life_s = 0.0
        self._failures = 0
        self._failure: HeadgateError | None = None
        self._failing_since_s: float | None = None
        self._thread: threading.Thread | None = None
        self._used_s = 0.0

    def require_token(self, timeout_s: float = FIRST_S_MAX) -> Token:
        """Return a token, and wait for this process's first one.

        Raises ``TokenServerRefused`` and ``ConfigurationError`` if there never was one, else
        ``TokenAway``.
        """
        with self._changed:
            self._note_use_and_ensure_running()
            # Who was told that there is none tries again later, and is not held up for it here.
            self._changed.wait_for(
                lambda: self._has_valid_token() or self._failure is not None, timeout_s
            )
            return self._require_valid_token()

    def current_token(self) -> Token:
        """Return the newest token, without waiting. Raises as ``require_token``."""
        with self._changed:
            self._note_use_and_ensure_running()
            return self._require_valid_token()

    def current_token_expiring_early(self) -> Token:
        """Return ``current_token``, as a client is to see it: with half of the life that is left.

        A client asks again at 80 % of that. By its true end it would connect with tokens of whose
        life a tenth is left; brokers end such a session within the second in which they refuse to
        have it renewed (with tokens of 6 s they did).
        """
        token = self.current_token()
        now_s = time.time()
        return replace(token, expires_at_s=now_s + (token.expires_at_s - now_s) * _TOLD)

    @property
    def renewal_trouble(self) -> str:
        """Return why no new token comes; empty if all is well. The text stays while it fails."""
        failure, since_s = self._failure, self._failing_since_s
        if failure is None or since_s is None:
            return ""
        clock = datetime.fromtimestamp(since_s, UTC).strftime("%H:%M:%S")
        return f"{self._where} gives no token since {clock} UTC: {failure.message}"

    @property
    def expires_at_s(self) -> float:
        """Return until when the newest token is valid, in seconds of the epoch; 0 without one."""
        return self._token.expires_at_s if self._token else 0.0

    @property
    def failure_count(self) -> int:
        """Return how many tries have failed since the newest token came."""
        return self._failures

    @property
    def life_share_left(self) -> float | None:
        """Return which share of the newest token's life is left, 0 to 1; ``None`` without one."""
        with self._changed:
            if self._token is None:
                return None
            return max(0.0, (self._token.expires_at_s - time.time()) / self._life_s)

    def _require_valid_token(self) -> Token:
        if self._token is not None and self._has_valid_token():
            return self._token
        # Who had a token is known to the server: whatever it says now, it is asked again.
        if self._token is None and isinstance(
            self._failure, TokenServerRefused | ConfigurationError
        ):
            raise self._failure
        reason = self.renewal_trouble or f"{self._where} has not answered"
        raise TokenAway(reason, "check that the token server can be reached; it is asked again")

    def _has_valid_token(self) -> bool:
        return self._token is not None and self._token.expires_at_s > time.time()

    def _note_use_and_ensure_running(self) -> None:
        self._used_s = time.monotonic()
        if self._thread is None:
            self._failure = self._failing_since_s = None  # said before it went idle
            self._thread = threading.Thread(
                target=self._renew_until_idle, name="headgate-token-keeper", daemon=True
            )
            self._thread.start()

    def _renew_until_idle(self) -> None:
        pause = threading.Event()  # never set; whoever replaces time.sleep replaces it for all
        while True:
            self._wait_at_most_while_fresh(pause, self._renew_and_return_delay())
            if self._stop_if_idle():
                return

    def _wait_at_most_while_fresh(self, pause: threading.Event, delay_s: float) -> None:
        """Wait, but not beyond the time when a fresh token is no longer fresh.

        By the clock that says whether it is valid: the one that is waited by stands still while a
        machine is suspended. In short waits, of which none is too long for an event.
        """
        until_s = time.monotonic() + delay_s
        was_fresh = self._is_fresh()
        while (left_s := until_s - time.monotonic()) > 0:
            if was_fresh and not self._is_fresh():
                return
            pause.wait(min(_LOOKS_EACH_S, left_s))

    def _is_fresh(self) -> bool:
        return (self.life_share_left or 0.0) > _RENEWED_AT

    def _renew_and_return_delay(self) -> float:
        """Ask once; return how long to wait before the next time."""
        try:
            token = self._fetch()
            life_s = _require_remaining_life(token)
        except HeadgateError as error:
            self._note_failure(error)
            return _AGAIN_S * random.uniform(0.8, 1.2)
        except Exception as error:  # noqa: BLE001 - a keeper that ends would be an outage for ever
            # Its text is unknown, and may hold a secret.
            self._note_failure(TokenAway(f"{type(error).__name__} while a token was fetched"))
            return _AGAIN_S * random.uniform(0.8, 1.2)
        with self._changed:
            renewed, self._failing_since_s, self._failure = self._failing_since_s, None, None
            self._token, self._life_s, self._failures = token, life_s, 0
            self._changed.notify_all()
        if renewed is not None:
            log.info(
                "%s gives tokens again", self._where, extra=event_extra(LogEvent.TOKEN_RENEWED)
            )
        return max(_WAIT_S_MIN, life_s * _RENEWED_AT)

    def _note_failure(self, error: HeadgateError) -> None:
        with self._changed:
            first, self._failure = self._failing_since_s is None, error
            self._failures += 1
            self._failing_since_s = time.time() if first else self._failing_since_s
            left_s = self.expires_at_s - time.time()
            self._changed.notify_all()
        if first:  # the first failure, not the expiry: until then somebody can mend it
            valid = (
                f"the current one is valid for {left_s:.0f} s" if left_s > 0 else "there is none"
            )
            log.warning(
                "%s; %s", self.renewal_trouble, valid, extra=event_extra(LogEvent.TOKEN_NOT_RENEWED)
            )

    def _stop_if_idle(self) -> bool:
        """Return whether nobody needs it any more; then the thread ends, and a later use begins
        one."""
        with self._changed:
            life_s = max(0.0, self.expires_at_s - time.time())
            idle = time.monotonic() - self._used_s > 2 * life_s + _IDLE_S
            if idle:
                self._thread = None
            return idle


def _require_remaining_life(token: Token) -> float:
    now_s = time.time()
    if token.expires_at_s <= now_s:
        raise TokenUnfit(
            f"a token came that had expired at {_format_time(token.expires_at_s)}; this machine's "
            f"clock says {_format_time(now_s)}",
            "compare the clocks of this machine and of the token server",
        )
    return token.expires_at_s - now_s


def _format_time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")


_keepers: dict[tuple[int, str, str], TokenKeeper] = {}
"""By process first: a forked child inherits the keepers, but none of their threads."""

_lock = threading.Lock()


def keeper_of(auth_json: str, servers: str) -> TokenKeeper:
    """Return this process's keeper for a provider; the first call makes it."""
    settings = json.loads(auth_json)
    # Only some providers ask for a token of one cluster.
    of_cluster = servers if settings["type"] in ("aws-msk-iam", "azure") else ""
    key = (os.getpid(), auth_json, of_cluster)
    with _lock:
        keeper = _keepers.get(key)
        if keeper is None:
            fetch, where = provider_of(settings, servers)
            keeper = _keepers[key] = TokenKeeper(fetch, where)
        return keeper


# Nobody holds the lock in the child, whoever held it when the parent forked.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
