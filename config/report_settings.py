"""Defines the settings for what a sink tells others: ``[lineage]`` and ``[signal]``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from headgate.config.setting_types import Secret, Text, holds_stand_in
from headgate.control_protocol.errors import ReportUnfit

_EVERY_MS_MIN = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageSettings:
    """OpenLineage events of the sink's epochs; docs/guides/lineage-and-signals.md describes
    them."""

    url: Text = field(default="", repr=False)  # its path may be a secret
    """Where events are sent by POST, such as http://HOST:5000/api/v1/lineage."""
    token: Secret = Secret()
    """Bearer token of those requests, as ${file:PATH} or ${env:NAME}."""
    topic: Text = ""
    """Instead of url: a topic that takes each event as a record; it must exist."""
    file: Text = ""
    """Instead of url: a file to which each event is added as a line."""
    namespace: Text = "headgate"
    """Namespace of the job, whose name is the sink's."""
    cluster: Text = ""
    """HOST:PORT by which others know the Kafka cluster; empty: the first of bootstrap.servers."""
    every_ms: int = 60_000
    """How often a running epoch is told of, at most."""

    def __bool__(self) -> bool:
        return bool(self.url or self.topic or self.file)


class SignalEvery(StrEnum):
    """What valid-through has to pass, in UTC."""

    HOUR = "hour"
    DAY = "day"

    @property
    def unit_ms(self) -> int:
        return 3_600_000 if self is SignalEvery.HOUR else 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSettings:
    """A message to others once the table is complete up to an hour or a day."""

    url: Text = field(default="", repr=False)  # its path may be a secret
    """A web hook: where each signal is sent by POST."""
    token: Secret = Secret()
    """Bearer token of those requests, as ${file:PATH} or ${env:NAME}."""
    topic: Text = ""
    """Instead of url: a topic that takes each signal as a record; it must exist."""
    every: SignalEvery = SignalEvery.HOUR
    """What is signalled: that the table is complete up to the end of an hour, or of a day, in UTC.
    """

    def __bool__(self) -> bool:
        return bool(self.url or self.topic)


def require_valid_reports(lineage: LineageSettings, signal: SignalSettings) -> None:
    """Raises ``ReportUnfit``."""
    for section, given in (("lineage", lineage), ("signal", signal)):
        named = [key for key in ("url", "topic", "file") if getattr(given, key, "")]
        if len(named) > 1:
            raise ReportUnfit(
                f"{section}.{named[0]} and {section}.{named[1]} are both set", "keep one of them"
            )
        if given.token and not given.url:
            raise ReportUnfit(
                f"{section}.token is set without {section}.url", "only requests carry it"
            )
        if given.url and not holds_stand_in(given.url):
            _require_valid_url(section, given.url)
    if lineage.every_ms < _EVERY_MS_MIN:
        raise ReportUnfit(
            f"lineage.every_ms cannot be {lineage.every_ms}", f"use {_EVERY_MS_MIN} or more"
        )


def require_receiver_named(
    sections_in_file: Collection[str], lineage: LineageSettings, signal: SignalSettings
) -> None:
    """Raise ``ReportUnfit`` for one of the ``sections_in_file`` of a file that names no receiver.

    Its values do not tell: those that it may set are the defaults.
    """
    for section, given in (("lineage", lineage), ("signal", signal)):
        if section in sections_in_file and not given:
            file = f" or {section}.file" if section == "lineage" else ""
            raise ReportUnfit(
                f"[{section}] says nothing of a receiver",
                f"set {section}.url or {section}.topic{file}",
            )


def _require_valid_url(section: str, url: str) -> None:
    """Refuse what is no URL of HTTP, without showing it."""
    try:
        found = urlsplit(url)
        _ = found.port
    except ValueError:
        found = urlsplit("")
    if found.scheme not in ("http", "https") or not found.hostname:
        raise ReportUnfit(
            f"{section}.url is no URL of HTTP", "write https://HOST:PORT/PATH, or a reference to it"
        )
    if found.username or found.password:
        raise ReportUnfit(
            f"{section}.url holds a user or a password", f"leave it out; set {section}.token"
        )
