"""Answers requests about a fleet: its pages, what is known of it as JSON, and specs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from headgate.config.load import parse
from headgate.config.setting_types import Reading
from headgate.config.sink_settings import SinkSettings
from headgate.config.worker_settings import WorkerSettings
from headgate.control_protocol.errors import ConfigurationError, HeadgateError, RetryLater
from headgate.control_protocol.identifiers import SinkName
from headgate.operations.http import fleet_page, status_page
from headgate.operations.http.fleet_knowledge import FollowedFleet, Known
from headgate.operations.http.page_parts import SEARCH_POLICY
from headgate.operations.http.responses import (
    Answer,
    html_answer,
    is_flag_set,
    json_answer,
    json_error_answer,
    method_not_allowed_answer,
)
from headgate.operations.http.sink_status_cache import ServedSink
from headgate.operations.status.fleet_documents import sink_document, worker_document
from headgate.runtime.fleet.fleet_changes import (
    FleetPlanner,
    Plan,
    SinkUnknown,
    Wanting,
    plan_apply,
    plan_desired_state,
    plan_drain,
    plan_pinned_move,
    plan_remove,
    plan_restart,
    plan_scale,
)
from headgate.runtime.fleet.fleet_records import sink_of_key
from headgate.runtime.fleet.fleet_topics import change_fleet
from headgate.runtime.fleet.fleet_view import SinkView
from headgate.runtime.fleet.sink_files import (
    require_memory_for_jvm_per_sink,
    require_valid_sink_file,
    with_fleet_defaults,
)
from headgate.runtime.fleet.sink_life import DesiredState
from headgate.runtime.wall_clock import wall_ms

API = "/api/v1/fleet"
_SINKS_API = "/api/v1/sinks"
_ASKED_MAX = 16
"""Sinks that somebody asked for, whose last answers are kept."""
_CHANGED_WITHIN_S = 30.0
PARTICIPANTS_MAX = 1_000

Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request by somebody who may look. ``refuse_act``: the answer if he may not act."""

    method: str
    parts: tuple[str, ...]
    """Of the path, each as it is meant."""
    query: Mapping[str, list[str]]
    body: bytes
    actor: str
    refuse_act: Answer | None

    @property
    def is_dry_run(self) -> bool:
        return is_flag_set(self.query, "dry_run")

    @property
    def choice(self) -> fleet_page.Choice:
        number = self._last_query_value("page", "1")
        return fleet_page.Choice(
            self._last_query_value("q", "").strip()[:200],
            self._last_query_value("show", ""),
            int(number) if number.isdecimal() and len(number) < 9 else 1,
        )

    def _last_query_value(self, name: str, otherwise: str) -> str:
        return self.query.get(name, [otherwise])[-1]


class ServedFleet:
    """A fleet that is shown and changed over HTTP."""

    def __init__(self, followed: FollowedFleet) -> None:
        self.followed = followed
        self._sinks: dict[tuple[str, str], ServedSink] = {}
        self._lock = threading.Lock()
        self._changing = threading.Lock()

    @property
    def name(self) -> str:
        return self.followed.settings.fleet.name

    def served_sink_of(self, seen: SinkView) -> ServedSink:
        """Return the sink itself, to be asked. Raises ``ConfigurationError`` for its file."""
        if seen.spec is None:
            raise ConfigurationError(f"nobody wants sink {seen.key}", "its file is not known")
        at = (seen.key, seen.spec.revision)
        with self._lock:
            if at not in self._sinks:
                while len(self._sinks) >= _ASKED_MAX:
                    del self._sinks[next(iter(self._sinks))]
                read = partial(_parse_desired_file, seen, self.followed.settings)
                self._sinks[at] = ServedSink(read(), read)
            return self._sinks[at]

    def redact(self, text: str) -> str:
        """Mask the secrets of the worker's file and of each sink that was asked."""
        text = self.followed.settings.redact(text)
        for sink in tuple(self._sinks.values()):  # no lock: who holds it may log
            text = sink.settings.redact(text)
        return text

    def change_specs(
        self, plan_change: FleetPlanner, asked: Asked, *, creates_topics: bool = False
    ) -> Plan:
        """Change the specs, or show how; return once it is seen here, too.

        One after the other: two of one server would end each other. Raises as ``change_fleet``.
        """
        settings = self.followed.settings
        if not self._changing.acquire(timeout=_CHANGED_WITHIN_S):
            raise RetryLater("others change the fleet over this server", "ask again")
        try:
            plan = change_fleet(
                settings, plan_change, asked.actor, dry_run=asked.is_dry_run, creates=creates_topics
            )
        except HeadgateError as error:
            raise settings.redaction.redact_in_place(error) from None
        finally:
            self._changing.release()
        if not asked.is_dry_run and plan.changes:
            self.followed.wait_briefly_for_changes(plan.changes)
        return plan


def _parse_desired_file(seen: SinkView, settings: WorkerSettings) -> SinkSettings:
    assert seen.spec is not None
    session_ms = settings.worker.session_timeout_ms
    return parse(with_fleet_defaults(seen.spec.file, sink_of_key(seen.key), session_ms))


def answer_fleet_request(fleet: ServedFleet, asked: Asked) -> Answer:
    """Return the answer. Raises ``HeadgateError``."""
    known = fleet.followed.latest()
    match asked.parts:
        case ():
            return _refusal_unless_get(asked) or _answer_front_page(fleet, known, asked)
        case ("sinks", key):
            return _refusal_unless_get(asked) or _answer_about_sink(
                fleet, known, key, _answer_fleet_sink_page
            )
        case ("sinks", key, "status"):
            return _refusal_unless_get(asked) or _answer_about_sink(
                fleet, known, key, _answer_status_page
            )
        case ("api", "v1", "sinks"):
            return _refusal_unless_get(asked) or _answer_sink_names(fleet, known)
        case ("api", "v1", "sinks", key):
            return _refusal_unless_get(asked) or _answer_about_sink(
                fleet, known, key, _answer_sink_status
            )
        case ("api", "v1", "sinks", key, "offsets"):
            return _refusal_unless_get(asked) or _answer_about_sink(
                fleet, known, key, _answer_offsets
            )
        case ("api", "v1", "sinks", _, _):
            return json_error_answer(404, "a fleet's sinks are changed by specs", f"see {API}")
        case ("api", "v1", "fleet"):
            return _refusal_unless_get(asked) or _answer_fleet_document(fleet, known)
        case ("api", "v1", "fleet", "sinks", key):
            return _answer_sink_api(fleet, known, asked, key)
        case ("api", "v1", "fleet", "sinks", key, move):
            return _change_specs_and_answer(fleet, asked, _MOVES.get(move), key)
        case ("api", "v1", "fleet", "workers", worker, "drain"):
            return _change_specs_and_answer(fleet, asked, _plan_drain, worker)
    return json_error_answer(404, "there is nothing at this path")


def _refusal_unless_get(asked: Asked) -> Answer | None:
    return None if asked.method == "GET" else method_not_allowed_answer("GET")


# ----------------------------------------------------------------------------------- who looks


def _answer_front_page(fleet: ServedFleet, known: Known | None, asked: Asked) -> Answer:
    if known is None:
        problem = fleet.followed.why_not_current() or "ask again"
        return html_answer(
            503, fleet_page.unread_fleet_page(fleet.name, problem, wall_ms()), SEARCH_POLICY
        )
    return html_answer(200, fleet_page.fleet_page(known, asked.choice), SEARCH_POLICY)


def _answer_about_sink(
    fleet: ServedFleet,
    known: Known | None,
    key: str,
    show: Callable[[ServedFleet, Known, SinkView], Answer],
) -> Answer:
    if known is None:
        return _unknown_yet_answer(fleet)
    if (seen := known.fleet.sinks.get(key)) is None:
        return _no_such_sink_answer()
    return show(fleet, known, seen)


def _unknown_yet_answer(fleet: ServedFleet) -> Answer:
    return json_error_answer(
        503, "nothing is known yet", fleet.followed.why_not_current() or "ask again"
    )


def _no_such_sink_answer() -> Answer:
    return json_error_answer(404, "the fleet has no such sink", f"GET {API} lists them")


def _answer_fleet_sink_page(_: ServedFleet, known: Known, seen: SinkView) -> Answer:
    return html_answer(200, fleet_page.fleet_sink_page(known, seen), SEARCH_POLICY)


def _answer_status_page(fleet: ServedFleet, _: Known, seen: SinkView) -> Answer:
    now_ms = wall_ms()
    try:
        report = fleet.served_sink_of(seen).status_report()
    except HeadgateError as error:
        status = 503 if isinstance(error, RetryLater) else 500
        return html_answer(
            status, status_page.index_page({seen.key: str(error)}, now_ms), SEARCH_POLICY
        )
    return html_answer(200, status_page.sink_page(report, now_ms), SEARCH_POLICY)


def _answer_sink_status(fleet: ServedFleet, _: Known, seen: SinkView) -> Answer:
    return json_answer(200, fleet.served_sink_of(seen).status_report().as_json())


def _answer_offsets(fleet: ServedFleet, _: Known, seen: SinkView) -> Answer:
    return json_answer(
        200, [asdict(each) for each in fleet.served_sink_of(seen).status_report().partitions]
    )


def _answer_sink_names(fleet: ServedFleet, known: Known | None) -> Answer:
    if known is None:
        return _unknown_yet_answer(fleet)
    return json_answer(200, sorted({sink_of_key(key) for key in known.fleet.sinks}))


def _answer_fleet_document(fleet: ServedFleet, known: Known | None) -> Answer:
    if known is None:
        return _unknown_yet_answer(fleet)
    return json_answer(
        200,
        {
            **_freshness_json(known),
            "slots": known.slots,
            "unowned_slots": sorted(known.unowned_slots),
            "sinks": [sink_document(each) for each in known.fleet.sinks.values()],
            "workers": [worker_document(each) for each in known.fleet.workers.values()],
        },
    )


def _freshness_json(known: Known) -> Mapping[str, Any]:
    return {
        "fleet": known.name,
        "as_of_ms": known.now_ms,
        "age_ms": known.age_ms,
        "problem": known.problem,
    }


def _answer_sink_api(fleet: ServedFleet, known: Known | None, asked: Asked, key: str) -> Answer:
    match asked.method:
        case "GET":
            return _answer_about_sink(
                fleet, known, key, lambda _, known, seen: _answer_sink_document(known, seen, asked)
            )
        case "PUT":
            return _change_specs_and_answer(fleet, asked, _plan_apply, key)
        case "DELETE":
            return _change_specs_and_answer(fleet, asked, _plan_remove, key)
    return method_not_allowed_answer("DELETE", "GET", "PUT")


def _answer_sink_document(known: Known, seen: SinkView, asked: Asked) -> Answer:
    """Show the file to operators only: who wrote it by hand may have put a secret into it."""
    file = {"file": seen.spec.file} if seen.spec and asked.refuse_act is None else {}
    return json_answer(200, {**_freshness_json(known), **sink_document(seen), **file})


# ----------------------------------------------------------------------------------- who acts

MakePlan = Callable[[str, Given], FleetPlanner]


def _change_specs_and_answer(
    fleet: ServedFleet, asked: Asked, make_plan: MakePlan | None, name: str
) -> Answer:
    if make_plan is None:
        return json_error_answer(
            404, "a sink has nothing of that name", f"known are: {', '.join(_MOVES)}"
        )
    method = "DELETE" if make_plan is _plan_remove else "PUT"
    if asked.method != method:
        return method_not_allowed_answer(method)
    if asked.refuse_act is not None:
        return asked.refuse_act
    try:
        plan_change = make_plan(name, _parse_json_or_sink_file(asked.body))
    except ConfigurationError as error:  # also of a file: what was sent is wrong
        return json_answer(400, {"code": error.code, "error": error.message, "hint": error.hint})
    try:
        plan = fleet.change_specs(plan_change, asked, creates_topics=make_plan is _plan_apply)
    except SinkUnknown:
        return _no_such_sink_answer()
    return json_answer(
        200,
        {"dry_run": asked.is_dry_run, "changes": bool(plan.changes), "lines": list(plan.lines)},
    )


def _parse_json_or_sink_file(body: bytes) -> Given:
    """Return a JSON object; what does not begin as one is a sink file.

    Raises ``ConfigurationError``.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigurationError("the body is not UTF-8 text") from None
    if not text.strip():
        return {}
    if not text.lstrip().startswith("{"):
        return {"file": text}
    try:
        given: Given = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigurationError("the body is not JSON", "or send a sink file") from None
    return given


def _require_known_keys_and_types(given: Given, **known: type) -> None:
    if unknown := sorted(given.keys() - known.keys()):
        raise ConfigurationError(
            f"{unknown[0]!r} is not a known key", f"known are: {', '.join(sorted(known)) or 'none'}"
        )
    for name, kind in known.items():
        value = given.get(name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise ConfigurationError(
                f"{name} is no {'number' if kind is int else 'text'}", "see docs/guides/http.md"
            )


def _plan_apply(name: str, given: Given) -> FleetPlanner:
    """Take a sink file, or ``{"file": TEXT, "memory_mib": 0}``. Raises as ``apply`` does."""
    _require_known_keys_and_types(given, file=str, memory_mib=int)
    file, memory_mib = given.get("file") or "", given.get("memory_mib") or 0
    if not file:
        raise ConfigurationError("no sink file is given", "send its text as the body")
    if memory_mib < 0:
        raise ConfigurationError(f"memory_mib is {memory_mib}", "0 means as its worker says")
    named = require_valid_sink_file(Path(f"{name}.toml"), file, Reading.NEVER)
    if named != name:
        raise ConfigurationError(
            f"the file names sink {named}, and the path sink {name}", "write one name in both"
        )
    require_memory_for_jvm_per_sink({SinkName(name): file}, memory_mib)
    return plan_apply({SinkName(name): Wanting(file, memory_mib)}, prune=False)


def _plan_remove(name: str, given: Given) -> FleetPlanner:
    _require_known_keys_and_types(given)
    return plan_remove([name])


def _plan_restart(name: str, given: Given) -> FleetPlanner:
    _require_known_keys_and_types(given)
    return plan_restart([name])


def _plan_move(name: str, given: Given) -> FleetPlanner:
    """Take ``{"to": WORKER}``."""
    _require_known_keys_and_types(given, to=str)
    if not given.get("to"):
        raise ConfigurationError("no worker is named", 'send {"to": "WORKER"}')
    return plan_pinned_move([name], given["to"])


def _plan_scale(name: str, given: Given) -> FleetPlanner:
    """Take ``{"participants": 3}``."""
    _require_known_keys_and_types(given, participants=int)
    participants = given.get("participants") or 0
    if not 1 <= participants <= PARTICIPANTS_MAX:
        raise ConfigurationError(
            f"participants is {participants}", f"use 1 to {PARTICIPANTS_MAX:,}"
        )
    return plan_scale(name, participants)


def _plan_drain(worker: str, given: Given) -> FleetPlanner:
    _require_known_keys_and_types(given)
    return plan_drain(worker)


def _make_plan_of_state(state: DesiredState) -> MakePlan:
    def make(name: str, given: Given) -> FleetPlanner:
        _require_known_keys_and_types(given)
        return plan_desired_state([name], state)

    return make


_MOVES: Mapping[str, MakePlan] = {
    "pause": _make_plan_of_state(DesiredState.PAUSED),
    "resume": _make_plan_of_state(DesiredState.RUNNING),
    "stop": _make_plan_of_state(DesiredState.STOPPED),
    "start": _make_plan_of_state(DesiredState.RUNNING),
    "restart": _plan_restart,
    "move": _plan_move,
    "scale": _plan_scale,
}


def path_parts(path: str) -> tuple[str, ...]:
    """Split a path; each part is unquoted afterwards, so that ``%2F`` does not split."""
    return tuple(unquote(part) for part in path.split("/") if part)
