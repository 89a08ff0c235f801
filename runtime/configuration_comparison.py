"""Compares a participant's sink file with those of the participants that run (rule CONFIG-1).

One that differs does not join: whoever is given the election partition coordinates, and the others
would have to end, though they may be right. Only what participants say now counts: one that was
killed looks alive until it has missed some signs of life.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from headgate.config.configuration_fingerprint import configuration_digest, settings_to_agree_on
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import OtherConfiguration, RetryLater
from headgate.control_protocol.events import Envelope, Notice, NoticeKind, StartCommit
from headgate.control_protocol.identifiers import Sender, TopicId
from headgate.kafka.cluster_queries import Cluster, read_newest_control_values
from headgate.participant.heard_coordinator import describe_configuration_differences
from headgate.runtime.health import summarize_heard_events
from headgate.runtime.wall_clock import wall_ms

RECORDS_READ = 2_000
SIGNS_MISSED = 3
"""A participant that missed more signs of life is not at work."""
_LOOK_AGAIN_S = 1.0


class OtherParticipants(NamedTuple):
    """Participants at work with another file: the error that says so, and when each was heard."""

    error: OtherConfiguration | None = None
    heard_ms: Mapping[Sender, int] = MappingProxyType({})


def find_participants_with_other_file(
    settings: SinkSettings, envelopes: Sequence[Envelope], now_ms: int, own: Sender | None = None
) -> OtherParticipants:
    """Return the participants at work with a file that differs, and the error that names them.

    START tells what differs. The digest of
    a participant that differs from ours proves nothing, for versions digest other things; the same
    digest proves that it has our file.
    """
    started = next((e for e in reversed(envelopes) if isinstance(e.event, StartCommit)), None)
    if started is None or not isinstance(started.event, StartCommit):
        return OtherParticipants()
    settled = {"table.identifier": settings.table.identifier, **settings_to_agree_on(settings)}
    differences = describe_configuration_differences(started.event, settled)
    if not differences:
        return OtherParticipants()
    ours, digests = configuration_digest(settings), dict[Sender, str]()
    for each in envelopes:
        notice = each.event
        if isinstance(notice, Notice) and notice.kind in (NoticeKind.STARTED, NoticeKind.RELOADED):
            digests[each.sender] = notice.configuration
    alive = summarize_heard_events(
        envelopes, now_ms, SIGNS_MISSED * settings.participant.presence_interval_ms
    ).alive
    others = {
        sender: envelope.time_ms
        for sender, envelope in alive.items()
        if sender != own and digests.get(sender) != ours
    }
    if not others:
        return OtherParticipants()
    names = ", ".join(sorted(sender.member for sender in others)[:5])
    error = OtherConfiguration(
        f"sink {settings.name!r} is run by {names} with another sink file: {differences}",
        "give all participants the same file; docs/guides/deployment.md (Changing the sink file) "
        "says how to change it while they run; or give this one another name and group",
    )
    return OtherParticipants(error, others)


def find_operator_started_with_other_file(
    settings: SinkSettings, envelopes: Sequence[Envelope]
) -> str:
    """Return who started the sink last with another sink file than this one; else nothing."""
    for each in reversed(envelopes):
        notice = each.event
        if isinstance(notice, Notice) and (notice.kind, notice.text) == (NoticeKind.ASKED, "start"):
            ours = configuration_digest(settings)
            return notice.actor if notice.configuration not in ("", ours) else ""
    return ""


def require_same_configuration(
    settings: SinkSettings,
    read_envelopes: Callable[[], Sequence[Envelope]],
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Raise ``OtherConfiguration`` if participants with another sink file are at work.

    Waits, for some signs of life at most, until one of them says something new.
    """
    known: Mapping[Sender, int] | None = None
    interval_s = settings.participant.presence_interval_ms / 1000
    until_s = time.monotonic() + (SIGNS_MISSED + 1) * interval_s
    while time.monotonic() < until_s:
        error, others = find_participants_with_other_file(settings, read_envelopes(), wall_ms())
        if error is None:
            return
        known = others if known is None else known
        if any(time_ms != known.get(sender) for sender, time_ms in others.items()):
            raise error
        wait(min(_LOOK_AGAIN_S, interval_s))


def try_read_recent_envelopes(settings: SinkSettings) -> list[Envelope]:
    """Return this sink's envelopes at the end of the control topic, oldest first.

    Empty if they cannot be read now: joining the group will show more.
    """
    topic = settings.control.topic
    try:
        messages = read_newest_control_values(
            settings.kafka, topic, settings.source.group_id, RECORDS_READ
        )
        signed = bool(messages and settings.control.signing_keys)
        topic_id = Cluster(settings.kafka).topic_id(topic) if signed else TopicId("")
    except RetryLater:
        return []
    read = [settings.event_wire.verify_and_decode(message, topic_id) for message in messages]
    return [e for e in read if isinstance(e, Envelope) and e.sink == settings.name]
