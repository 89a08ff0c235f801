"""Derives a sink's condition from its table, its control topic and its brokers. Pure.

docs/reference/status.md lists the conditions with their exit codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from headgate.control_protocol.errors import (
    CODE,
    HeadgateError,
    ParticipantStarves,
    StatusRefused,
    WriteFailed,
)
from headgate.control_protocol.events import (
    AckCommit,
    EndCommit,
    Envelope,
    Event,
    Notice,
    NoticeKind,
    Presence,
    PresenceKind,
    Settlement,
    StartCommit,
    WriteStatus,
)
from headgate.control_protocol.identifiers import Sender, TopicPartition, TransactionId

_OF_A_PROCESS = (NoticeKind.STARTED, NoticeKind.STOPPED)


class Condition(StrEnum):
    """What an operator wants to know first."""

    NEVER_STARTED = "never started"
    STARTING = "starting"
    RUNNING = "running"
    IDLE = "idle"
    PAUSED = "paused"
    DRAINING = "draining"
    STALLED = "stalled"
    FAILING = "failing"
    FAILED = "failed"
    STOPPED = "stopped"
    NOT_RUNNING = "not running"
    NOT_HEARD = "not heard"
    UNKNOWN = "not known"


EXIT_CODES: Mapping[Condition, int] = {
    Condition.NEVER_STARTED: 0,
    Condition.STARTING: 0,
    Condition.RUNNING: 0,
    Condition.IDLE: 0,
    Condition.PAUSED: 0,
    Condition.DRAINING: 0,
    Condition.STALLED: 1,
    Condition.FAILING: 1,
    Condition.FAILED: 1,
    Condition.STOPPED: 0,
    Condition.NOT_RUNNING: 1,
    Condition.NOT_HEARD: 1,
    Condition.UNKNOWN: 3,
}


@dataclass(frozen=True, slots=True)
class Unwell:
    """What ``headgate status`` says when it does not exit with 0, or before it could say anything.

    ``code`` is that of an error that is not over, if there is one.
    """

    condition: Condition
    why: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.condition.value}: {self.why}" if self.why else self.condition.value


@dataclass(frozen=True, slots=True)
class LastError:
    """The newest error that the sink reported, or that its table or source shows.

    ``past``: the sink has committed without errors since, so it is history. ``next_try_ms``: when
    it will be retried, if a participant announced that (epoch milliseconds).
    """

    code: str
    text: str
    member: str = ""
    time_ms: int | None = None
    past: bool = False
    next_try_ms: int | None = None

    @classmethod
    def from_error(cls, error: HeadgateError, redact: Callable[[str], str]) -> LastError:
        """Return the error as it is shown to people."""
        text = f"{error.message} ({error.hint})" if error.hint else error.message
        return cls(error.code, redact(text))


@dataclass(frozen=True, slots=True)
class Heard:
    """What the end of the control topic shows. ``alive``: participants by their last sign of life.

    ``since_ms``: since when some participant has been alive. ``ended``: whether all that spoke
    lately announced their end; ``None`` if none spoke at all. ``silent``: nobody has spoken for as
    long as makes one count as dead.
    """

    alive: Mapping[Sender, Envelope]
    since_ms: int | None
    ended: bool | None
    error: LastError | None
    silent: bool


def summarize_heard_events(
    envelopes: Sequence[Envelope], now_ms: int, silence_ms_max: int
) -> Heard:
    """Return what the envelopes of one sink, oldest first, show of it.

    A participant that has been silent for longer than ``silence_ms_max`` counts as dead.
    """
    last: dict[Sender, Envelope] = {}
    signs: dict[Sender, Envelope] = {}
    first_ms: dict[Sender, int] = {}
    for envelope in envelopes:
        if _is_by_participant(envelope.event):
            last[envelope.sender] = envelope
            first_ms.setdefault(envelope.sender, envelope.time_ms)
            if isinstance(envelope.event, Presence):
                signs[envelope.sender] = envelope
    alive = {
        sender: signs[sender]
        for sender, envelope in last.items()
        if sender in signs and _is_alive(envelope, signs[sender], now_ms, silence_ms_max)
    }
    return Heard(
        alive=alive,
        since_ms=min((first_ms[sender] for sender in alive), default=None),
        ended=have_last_heard_stopped_in_order(last.values(), silence_ms_max),
        error=_find_last_error(envelopes, frozenset(alive)),
        silent=all(now_ms - each.time_ms > silence_ms_max for each in last.values()),
    )


def _is_by_participant(event: Event) -> bool:
    ours = isinstance(event, Notice) and event.kind in _OF_A_PROCESS
    return ours or isinstance(event, Presence | WriteStatus)


def _is_end_notice(event: Event) -> bool:
    return isinstance(event, Notice) and event.kind is NoticeKind.STOPPED


def _is_alive(newest: Envelope, last_presence: Envelope, now_ms: int, silence_ms_max: int) -> bool:
    if _is_end_notice(newest.event) or now_ms - newest.time_ms > silence_ms_max:
        return False
    presence = last_presence.event
    assert isinstance(presence, Presence)  # only a Presence is kept
    return presence.kind is not PresenceKind.LOST or bool(presence.owned)


def have_last_heard_stopped_in_order(last: Iterable[Envelope], silence_ms_max: int) -> bool | None:
    """Return whether the last participants heard said goodbye, ignoring any killed long before."""
    newest = sorted(last, key=lambda envelope: envelope.time_ms)
    if not newest:
        return None
    lately = newest[-1].time_ms - silence_ms_max
    return all(_is_end_notice(e.event) for e in newest if e.time_ms >= lately)


def last_error_from_batch_failure(failure: str, base: LastError) -> LastError:
    """Return a participant's report of a failed batch, with its own code unless storage failed."""
    code, _, text = failure.partition(" ")
    if not CODE.fullmatch(code):
        code, text = WriteFailed.code, failure
    return replace(base, code=code, text=f"a batch could not be written: {text}")


def without_code(code: str, text: str) -> str:
    """Return the text without the code that coordinators put in front."""
    return text.removeprefix(f"{code} ")


def marked_past_if_resolved(error: LastError, newer_event: StartCommit | Settlement) -> LastError:
    """Return a coordinator's error, as past unless its START or settlement leaves it.

    That a participant starves, or is refused, is resolved by a settlement without it.
    """
    lasts = error.code in (ParticipantStarves.code, StatusRefused.code)
    stays = lasts and not _is_clean_ack(newer_event)
    return error if stays else replace(error, past=True)


def _is_clean_ack(event: StartCommit | Settlement) -> bool:
    return isinstance(event, AckCommit) and not event.reason


def _find_last_error(envelopes: Sequence[Envelope], alive: frozenset[Sender]) -> LastError | None:
    """Return the newest error that counts; if none does, the newest of all, as past.

    An error that ended a process counts until a transaction settles without errors. A batch's error
    counts until its participant writes again or leaves its work to others. A coordinator's failed
    attempt counts until a coordinator opens or settles a transaction.
    """
    ends: list[LastError] = []
    troubles: list[LastError] = []
    batches: dict[Sender, LastError] = {}
    for envelope in envelopes:
        uncoded = LastError("", "", envelope.sender.member, envelope.time_ms)
        match envelope.event:
            case Notice(kind=NoticeKind.STOPPED, code=code, text=text) if code:
                ends.append(replace(uncoded, code=code, text=text))
            case WriteStatus(failure=str(failure)) if failure:
                batches[envelope.sender] = last_error_from_batch_failure(failure, uncoded)
            case WriteStatus(part=part) if part == 0 and envelope.sender in batches:
                batches[envelope.sender] = replace(batches[envelope.sender], past=True)
            case Notice(kind=NoticeKind.ERROR, code=code, text=text, next_try_ms=after_ms):
                again_ms = None if after_ms is None else envelope.time_ms + after_ms
                bare = without_code(code, text)
                troubles = [replace(uncoded, code=code, text=bare, next_try_ms=again_ms)]
            case StartCommit() | AckCommit() as goes_on if envelope.epoch > 0:
                troubles = [marked_past_if_resolved(error, goes_on) for error in troubles]
                if _is_clean_ack(goes_on):
                    ends = [replace(error, past=True) for error in ends]
    errors = [
        *ends,
        *troubles,
        *(
            replace(error, past=error.past or (bool(alive) and sender not in alive))
            for sender, error in batches.items()
        ),
    ]
    return max(errors, key=lambda error: (not error.past, error.time_ms or 0), default=None)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that determine a condition. ``reachable``: the brokers answered.

    ``stalled``: partitions whose records have waited for longer than a commit can take;
    ``draining``: this process was asked to end and is finishing its work; ``stopped``: an operator
    stopped the sink; ``unheard``: how many members the group has while nobody has spoken for long;
    ``of_query``: a Spark query fills the table, which never speaks (QUERY-22).
    """

    reachable: bool
    epoch: int
    paused: bool
    lag: int | None
    alive: int
    ended: bool | None
    error: LastError | None
    stalled: Sequence[TopicPartition] = ()
    overdue: bool = False
    draining: bool = False
    stopped: bool = False
    unheard: int = 0
    of_query: bool = False


def condition_from(facts: Facts) -> Condition:
    """Return the condition: problems before health, and what cannot be asked before what is absent.

    An operator's stop comes before both, once nobody is working any more.
    """
    if facts.stopped and facts.reachable and not facts.alive:
        return Condition.STOPPED
    if facts.error and not facts.error.past:
        return Condition.FAILING if facts.alive else Condition.FAILED
    if not facts.reachable:
        return Condition.UNKNOWN
    if facts.draining or facts.stopped:
        return Condition.DRAINING
    if facts.alive or facts.of_query:
        return _condition_if_at_work(facts)
    return _condition_if_silent(facts)


def _condition_if_silent(facts: Facts) -> Condition:
    """Return what it means that nobody is heard; of those who were killed, the group may know."""
    never = facts.ended is None and not facts.epoch
    if not (facts.ended or never):
        return Condition.NOT_RUNNING
    if facts.unheard:
        return Condition.NOT_HEARD
    return Condition.NEVER_STARTED if never else Condition.STOPPED


def _condition_if_at_work(facts: Facts) -> Condition:
    if facts.paused:
        return Condition.PAUSED
    if facts.stalled or facts.overdue:
        return Condition.STALLED
    if not facts.epoch:
        return Condition.STARTING
    return Condition.IDLE if facts.lag == 0 else Condition.RUNNING


def describe_open_transaction(envelopes: Sequence[Envelope]) -> str | None:
    """Return the newest transaction and whether it is closing; nothing if it is settled."""
    settled: set[TransactionId] = set()
    for envelope in reversed(envelopes):
        transaction = TransactionId(envelope.epoch, envelope.transaction)
        match envelope.event:
            case Settlement():
                settled.add(transaction)
            case StartCommit() | EndCommit() as event:
                if transaction in settled:
                    return None
                return f"{transaction}{' (closing)' if isinstance(event, EndCommit) else ''}"
    return None
