"""Decides a sink's life under a worker: ``step(life, given, now_ms) -> (life, actions)``, pure.

The worker executes the actions and feeds back what it sees; time is monotonic milliseconds. The
table of transitions is data: ``TRANSITIONS``; docs/guides/workers.md has its picture. Nothing here
is needed for correctness: a sink that runs twice, or nowhere for a while, loses and doubles
nothing, because its table is the lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from headgate.control_protocol.errors import SinkHangs
from headgate.control_protocol.machine_io import backoff_ms

# --------------------------------------------------------------------------------------- states


class LifeState(StrEnum):
    """Says what a worker sees of a sink."""

    IDLE = "idle"
    """It is wanted, and has no process yet."""
    STARTING = "starting"
    """It has a process that has made no turn."""
    RUNNING = "running"
    """Its loop turns."""
    PAUSED = "paused"
    """Its loop turns and fetches nothing: a person paused it."""
    STOPPING = "stopping"
    """It was asked to leave in order."""
    STOPPED = "stopped"
    """A person stopped it: by a spec, then it has no process; or in its table, then that waits."""
    ERROR = "error"
    """Its process ended unasked, or could not be started; ``due_ms`` is the next try."""
    LOST = "lost"
    """Said by a reader only: no worker has told of it for ``LOST_AFTER_MS``."""


class LifeEvent(StrEnum):
    """Names what changes the state."""

    STARTED = "process started"
    TURNED = "turn"
    TURNED_PAUSED = "turn, paused"
    TURNED_STOPPED = "turn, stopped"
    UNSTARTED = "start failed"
    ASKED = "asked to leave"
    ENDED = "process ended"
    SPEC_CHANGED = "spec changed"
    STOP_REQUESTED = "stop requested"
    START_REQUESTED = "start requested"


_S, _E = LifeState, LifeEvent
_TURNING = (_S.STARTING, _S.RUNNING, _S.PAUSED, _S.STOPPED)

TRANSITIONS: Mapping[tuple[LifeState, LifeEvent], LifeState] = MappingProxyType(
    {
        (_S.IDLE, _E.STARTED): _S.STARTING,
        (_S.ERROR, _E.STARTED): _S.STARTING,
        (_S.IDLE, _E.UNSTARTED): _S.ERROR,
        (_S.ERROR, _E.SPEC_CHANGED): _S.IDLE,
        (_S.IDLE, _E.STOP_REQUESTED): _S.STOPPED,
        (_S.ERROR, _E.STOP_REQUESTED): _S.STOPPED,
        (_S.STOPPED, _E.START_REQUESTED): _S.IDLE,
        (_S.STOPPING, _E.ENDED): _S.IDLE,
        **{(state, _E.TURNED): _S.RUNNING for state in _TURNING},
        **{(state, _E.TURNED_PAUSED): _S.PAUSED for state in _TURNING},
        **{(state, _E.TURNED_STOPPED): _S.STOPPED for state in _TURNING},
        **{(state, _E.ASKED): _S.STOPPING for state in _TURNING},
        **{(state, _E.ENDED): _S.ERROR for state in _TURNING},
    }
)
"""Where an event leads; in any other state it changes nothing."""

FIRST_PAUSE_MS, PAUSE_MS_MAX = 1_000, 600_000
"""First and longest pause before the next try; it doubles with each error."""
PERSONS_PAUSE_MS = 60_000
"""First pause after an error that needs a person. It is tried again all the same: the cure is often
elsewhere, such as a right or a table."""
GOOD_MS = 600_000
"""A sink that has worked for so long begins with the first pause again."""
SILENT_MS_MAX = 120_000
"""A process whose loop made no turn for so long hangs. Brokers or a catalog that do not answer hold
a turn up for less."""
OPENING_MS_MAX = 300_000
"""So long may a process take until its first turn; it asks brokers, catalog and store meanwhile."""
LEAVING_MS_MAX = 30_000
"""So long may a process take to leave in order; then it is killed, which harms nothing."""
DISAGREES_MS = 5_000
"""So long must a table disagree with the spec before it is asked: the first turns do not tell."""
ASKED_AGAIN_MS = 30_000
"""So long after a request to its table, which may take a commit to land, the next one comes."""
HOLDS_START_MS = 10_000
"""So long does a process that has made no turn count as one that starts (FLEET-12)."""
LOST_AFTER_MS = 30_000

# --------------------------------------------------------------------------------------- inputs


class DesiredState(StrEnum):
    """Says what a person wants of a sink."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Says that somebody wants the sink, as in this revision of its file.

    Without a ``state`` its table alone says whether it is paused or stopped. ``restarts`` counts up
    with each start anew that a person wants, ``number`` with each spec. ``jvm_mib``: the memory
    that its process and its JVM are promised; 0: it has no JVM of its own.
    """

    revision: str
    state: DesiredState | None = None
    restarts: int = 0
    number: int = 0
    jvm_mib: int = 0


@dataclass(frozen=True, slots=True)
class Unwanted:
    """Says that the sink shall leave in order, and be forgotten."""


@dataclass(frozen=True, slots=True)
class Started:
    """Says that its process exists."""

    pid: int


@dataclass(frozen=True, slots=True)
class Unstarted:
    """Says that no process could be started; ``draw`` as in ``Ended``."""

    code: str
    text: str
    draw: float = 0.0


@dataclass(frozen=True, slots=True)
class Turned:
    """Says that its loop made a turn; ``doing`` says in words what it does."""

    pid: int
    state: LifeState = LifeState.RUNNING
    doing: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Brings the last words of its process: the error that ends it."""

    pid: int
    code: str
    text: str
    needs_person: bool = False


@dataclass(frozen=True, slots=True)
class TakesTooMuch:
    """Says that its process is to be killed for this reason, such as the memory that it takes."""

    pid: int
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Says that its process is gone. ``why`` explains an end without last words; ``draw``, from -1
    to 1, spreads the next tries of sinks that failed together.
    """

    pid: int
    code: str
    why: str
    draw: float = 0.0


@dataclass(frozen=True, slots=True)
class Passed:
    """Says that time has passed. ``may_start``: there is room for one more process that starts.

    ``away_ms``: so long did the worker itself stand still, and heard nobody.
    """

    may_start: bool = False
    away_ms: int = 0


Given = Wanted | Unwanted | Started | Unstarted | Turned | Failed | TakesTooMuch | Ended | Passed

# -------------------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process; answered by ``Started`` or ``Unstarted``."""


@dataclass(frozen=True, slots=True)
class AskToLeave:
    """Ask the process to leave in order."""

    pid: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process and its own processes at once; answered by ``Ended``."""

    pid: int


class Request(StrEnum):
    """Names what its table is asked for, so that it agrees with the spec (FLEET-7)."""

    PAUSE = "pause"
    RESUME = "resume"
    START = "start"


@dataclass(frozen=True, slots=True)
class Ask:
    """Make this request to the sink, as the command of that name does; nobody waits for it."""

    request: Request


LifeAction = Start | AskToLeave | Kill | Ask

# ---------------------------------------------------------------------------------------- state


@dataclass(frozen=True, slots=True)
class Life:
    """Holds what is known of one sink here. Times are monotonic milliseconds."""

    spec: Wanted
    since_ms: int
    state: LifeState = LifeState.IDLE
    wanted: bool = True
    """Whether the spec still stands; if not, it leaves."""
    pid: int = 0
    asked_start: bool = False
    """A start was asked for and not answered yet."""
    jvm_mib: int = 0
    """What its process was promised at its start."""
    turned_ms: int = 0
    leave_by_ms: int = 0
    killed: bool = False
    doing: str = ""
    code: str = ""
    text: str = ""
    needs_person: bool = False
    tries: int = 0
    """Errors since it last worked well; 0: none."""
    due_ms: int = 0
    """When the next try is; counts in ``ERROR``."""
    restarts: int = 0
    """Processes that ended unasked."""
    asked_ms: int | None = None
    """When its table was last asked to agree with the spec."""

    @property
    def has_process(self) -> bool:
        return self.pid > 0

    @property
    def promised_jvm_mib(self) -> int:
        """Return what its process, or the one that is asked for, is promised for its JVM."""
        return self.jvm_mib if self.has_process or self.asked_start else 0

    def counts_as_starting(self, now_ms: int) -> bool:
        """Return whether it takes one of the places for processes that start.

        A process that hangs before its first turn gives its place up: it must not delay others.
        """
        starting = self.state is LifeState.STARTING or self.asked_start
        return starting and now_ms - self.since_ms < HOLDS_START_MS


Step = tuple[Life | None, tuple[LifeAction, ...]]


def step(life: Life, given: Given, now_ms: int) -> Step:
    """Process one input. ``None`` instead of a life: the sink is forgotten."""
    pid = getattr(given, "pid", life.pid)
    if pid != life.pid and not isinstance(given, Started):
        return life, ()  # of a process before this one
    match given:
        case Wanted():
            return _on_wanted(life, given, now_ms)
        case Unwanted():
            return _on_unwanted(life, now_ms)
        case Started():
            return _on_started(life, given, now_ms)
        case Unstarted():
            return _on_unstarted(life, given, now_ms)
        case Turned():
            return _on_turned(life, given, now_ms), ()
        case Failed(_, code, text, needs_person):
            return replace(life, code=code, text=text, needs_person=needs_person), ()
        case TakesTooMuch(_, code, text):
            return _kill_process(life, code, text)
        case Ended():
            return _on_ended(life, given, now_ms)
        case Passed(may_start, away_ms):
            heard = replace(life, turned_ms=life.turned_ms + away_ms) if away_ms else life
            return _on_time_passed(heard, now_ms, may_start=may_start)


def _with_transition(life: Life, event: LifeEvent, now_ms: int) -> Life:
    after = TRANSITIONS.get((life.state, event), life.state)
    return life if after is life.state else replace(life, state=after, since_ms=now_ms)


def _on_wanted(life: Life, spec: Wanted, now_ms: int) -> Step:
    """A changed spec is a new try; a process that works follows its file by itself.

    Not where its JVM may take other memory: that is promised at a start alone (FLEET-13).
    """
    if life.wanted and life.spec == spec:
        return life, ()
    anew = spec.restarts != life.spec.restarts or spec.jvm_mib != life.jvm_mib
    changed = replace(life, wanted=True, spec=spec, tries=0, asked_ms=None)
    changed = _with_transition(changed, LifeEvent.SPEC_CHANGED, now_ms)
    if spec.state is DesiredState.STOPPED:
        if not changed.has_process and not changed.asked_start:
            return _with_transition(changed, LifeEvent.STOP_REQUESTED, now_ms), ()
        return _ask_to_leave(changed, now_ms) if changed.has_process else (changed, ())
    if not changed.has_process:
        return _with_transition(changed, LifeEvent.START_REQUESTED, now_ms), ()
    return _ask_to_leave(changed, now_ms) if anew else (changed, ())


def _on_unwanted(life: Life, now_ms: int) -> Step:
    if life.has_process:
        return _ask_to_leave(replace(life, wanted=False), now_ms)
    # A process may be on its way: it is asked to leave once it is there.
    return (replace(life, wanted=False), ()) if life.asked_start else (None, ())


def _ask_to_leave(life: Life, now_ms: int) -> Step:
    if life.state is LifeState.STOPPING:
        return life, ()
    leaving = _with_transition(life, LifeEvent.ASKED, now_ms)
    return replace(leaving, leave_by_ms=now_ms + LEAVING_MS_MAX), (AskToLeave(life.pid),)


def _on_started(life: Life, given: Started, now_ms: int) -> Step:
    started = _with_transition(life, LifeEvent.STARTED, now_ms)
    started = replace(
        started, pid=given.pid, asked_start=False, turned_ms=now_ms, killed=False, doing=""
    )
    return (started, ()) if _is_process_wanted(started) else _ask_to_leave(started, now_ms)


def _on_unstarted(life: Life, given: Unstarted, now_ms: int) -> Step:
    if not life.wanted:
        return None, ()
    unstarted = replace(life, asked_start=False)
    if life.spec.state is DesiredState.STOPPED:
        return _with_transition(unstarted, LifeEvent.STOP_REQUESTED, now_ms), ()
    failed = replace(
        _with_transition(unstarted, LifeEvent.UNSTARTED, now_ms), code=given.code, text=given.text
    )
    return _with_next_try(failed, given.draw, now_ms), ()


def _is_process_wanted(life: Life) -> bool:
    is_promised = life.jvm_mib == life.spec.jvm_mib
    return life.wanted and life.spec.state is not DesiredState.STOPPED and is_promised


def _on_turned(life: Life, given: Turned, now_ms: int) -> Life:
    event = {
        LifeState.PAUSED: LifeEvent.TURNED_PAUSED,
        LifeState.STOPPED: LifeEvent.TURNED_STOPPED,
    }.get(given.state, LifeEvent.TURNED)
    turned = replace(_with_transition(life, event, now_ms), turned_ms=now_ms, doing=given.doing)
    if turned.tries and now_ms - turned.since_ms >= GOOD_MS:
        return replace(turned, tries=0)
    return turned


def _kill_process(life: Life, code: str, text: str) -> Step:
    if life.killed or not life.has_process:
        return life, ()
    return replace(life, killed=True, code=code, text=text), (Kill(life.pid),)


def _on_ended(life: Life, given: Ended, now_ms: int) -> Step:
    ended = replace(_with_transition(life, LifeEvent.ENDED, now_ms), pid=0, killed=False, doing="")
    if not ended.wanted:
        return None, ()
    if ended.state is not LifeState.ERROR:
        ended = replace(ended, code="", text="", tries=0)
        is_stopped = ended.spec.state is DesiredState.STOPPED
        return _with_transition(
            ended, LifeEvent.STOP_REQUESTED, now_ms
        ) if is_stopped else ended, ()
    failed = replace(
        ended,
        code=ended.code or given.code,
        text=ended.text or given.why,
        restarts=ended.restarts + 1,
    )
    return _with_next_try(failed, given.draw, now_ms), ()


def _with_next_try(failed: Life, draw: float, now_ms: int) -> Life:
    first_ms = PERSONS_PAUSE_MS if failed.needs_person else FIRST_PAUSE_MS
    pause_ms = backoff_ms(failed.tries, first_ms, PAUSE_MS_MAX)
    due_ms = now_ms + round(pause_ms * (1 + 0.2 * draw))
    return replace(failed, tries=failed.tries + 1, due_ms=due_ms)


def _on_time_passed(life: Life, now_ms: int, *, may_start: bool) -> Step:
    match life.state:
        case LifeState.IDLE | LifeState.ERROR if not life.asked_start:
            waits = life.state is LifeState.ERROR and now_ms < life.due_ms
            if waits or not may_start or not life.wanted:
                return life, ()
            fresh = replace(life, asked_start=True, code="", text="", needs_person=False)
            return replace(fresh, since_ms=now_ms, jvm_mib=life.spec.jvm_mib), (Start(),)
        case LifeState.STOPPING if now_ms >= life.leave_by_ms:
            return _kill_process(life, "", "")
        case LifeState.STARTING if now_ms - life.turned_ms >= OPENING_MS_MAX:
            return _kill_process(life, SinkHangs.code, killed_for_hanging_text(OPENING_MS_MAX))
        case LifeState.RUNNING | LifeState.PAUSED | LifeState.STOPPED if (
            now_ms - life.turned_ms >= SILENT_MS_MAX
        ):
            return _kill_process(life, SinkHangs.code, killed_for_hanging_text(SILENT_MS_MAX))
        case LifeState.RUNNING | LifeState.PAUSED | LifeState.STOPPED if life.has_process:
            return _request_state_if_table_disagrees(life, now_ms)
        case _:
            return life, ()


def _request_state_if_table_disagrees(life: Life, now_ms: int) -> Step:
    """Ask the table to agree with the spec: a level, for nobody knows what was heard (FLEET-7)."""
    request = life.spec.state and _REQUESTS.get((life.spec.state, life.state))
    asked_lately = life.asked_ms is not None and now_ms - life.asked_ms < ASKED_AGAIN_MS
    if not request or asked_lately or now_ms - life.since_ms < DISAGREES_MS:
        return life, ()
    return replace(life, asked_ms=now_ms), (Ask(request),)


_REQUESTS = {
    (DesiredState.RUNNING, LifeState.PAUSED): Request.RESUME,
    (DesiredState.RUNNING, LifeState.STOPPED): Request.START,
    (DesiredState.PAUSED, LifeState.RUNNING): Request.PAUSE,
    (DesiredState.PAUSED, LifeState.STOPPED): Request.START,
}


def killed_for_hanging_text(silent_ms: int) -> str:
    """Return the text for a process that was killed because it hung."""
    return f"its loop made no turn for {silent_ms // 1_000} s; it was killed"


def state_or_lost(state: LifeState, told_ms: int, now_ms: int) -> LifeState:
    """Return what a reader shows of what a worker told; both times are of the wall clock."""
    return LifeState.LOST if now_ms - told_ms >= LOST_AFTER_MS else state
