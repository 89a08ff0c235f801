"""Answers a request: what each path serves, and who may ask for it. It knows no socket."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from urllib.parse import parse_qs, unquote, urlsplit

from headgate.config.telemetry_and_http_settings import HttpSettings
from headgate.control_protocol.errors import HeadgateError, Unreachable
from headgate.kafka.token_providers import is_loopback_host
from headgate.operations.control.operator_claim import acting_as_operator
from headgate.operations.http import operator_actions, status_page
from headgate.operations.http.fleet_routes import (
    Asked,
    ServedFleet,
    answer_fleet_request,
    path_parts,
)
from headgate.operations.http.page_parts import POLICY
from headgate.operations.http.responses import (
    Answer,
    error_answer,
    html_answer,
    is_flag_set,
    json_answer,
    json_error_answer,
    method_not_allowed_answer,
    text_answer,
)
from headgate.operations.http.sink_status_cache import ServedSink
from headgate.operations.status.report import StatusReport
from headgate.runtime.wall_clock import wall_ms

# Decides who may do what over HTTP. Pure.
#
# A viewer may look, an operator may also act. Tokens are compared in constant time. A browser sends
# one as the password of HTTP's basic login, which only permits looking: requests that act need
# ``Authorization: Bearer``, which no page of another site can make a browser send.


class Role(IntEnum):
    NOBODY = 0
    VIEWER = 1
    OPERATOR = 2


def role_of(authorization: str, http: HttpSettings) -> Role:
    """Return the role that the header grants; without a viewer token all (on loopback) may look."""
    scheme, _, given = authorization.strip().partition(" ")
    bearer = scheme.lower() == "bearer"
    token = given.strip() if bearer else _basic_password_of(scheme, given)
    operator = _is_equal_secret(token, http.operator_token.text)
    viewer = _is_equal_secret(token, http.viewer_token.text)
    if operator and bearer:
        return Role.OPERATOR
    if viewer or operator or not http.viewer_token:
        return Role.VIEWER
    return Role.NOBODY


def _basic_password_of(scheme: str, given: str) -> str:
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except ValueError:  # no base64, or no UTF-8: bytes of the header beyond ASCII, too
        return ""


def _is_equal_secret(given: str, secret: str) -> bool:
    equal = hmac.compare_digest(given.encode(), secret.encode())
    return equal and bool(secret)


def is_host_allowed(headers: Mapping[str, str], http: HttpSettings) -> bool:
    """Return whether the request names this machine.

    Without tokens, a foreign name that resolves to this machine gets no answer: a page under that
    name could read it.
    """
    if http.viewer_token:
        return True
    host = headers.get("Host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return is_loopback_host(name.removeprefix("[").removesuffix("]"))


_API = "/api/v1/sinks"
_PROBES = ("/livez", "/readyz")
Why = Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class Request:
    """A request. ``headers`` have names spelled like ``Host``.

    ``peer`` is the address that asks.
    """

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    peer: str = ""


def _no_problem() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Site:
    """Holds what a server shows.

    ``not_live`` and ``not_ready`` return why a probe should fail, or ``None``.
    """

    sinks: Mapping[str, ServedSink]
    http: HttpSettings
    fleet: ServedFleet | None = None
    metrics: Callable[[], tuple[bytes, str]] | None = None
    not_live: Why = _no_problem
    not_ready: Why = _no_problem


def answer_request(site: Site, request: Request) -> Answer:
    """Return the answer; what a sink cannot tell is an answer too."""
    path = _path_of(request)
    if is_probe(request):
        why = site.not_live() if path == "/livez" else site.not_ready()
        return text_answer(503, why) if why else text_answer(200, "ok")
    if not is_host_allowed(request.headers, site.http):
        return json_error_answer(421, "this server does not know that name", "ask it as 127.0.0.1")
    role = role_of(request.headers.get("Authorization", ""), site.http)
    if role is Role.NOBODY:
        login = {"WWW-Authenticate": 'Basic realm="headgate", charset="UTF-8"'}
        answer = json_error_answer(401, "a token is needed", "send Authorization: Bearer TOKEN")
        return Answer(answer.status, answer.body, answer.content_type, login)
    try:
        query = parse_qs(request.target.partition("?")[2], keep_blank_values=True)
        return _answer_for_path(site, request, path, role, query=query)
    except HeadgateError as error:
        return error_answer(error)


def is_probe(request: Request) -> bool:
    """Return whether a kubelet asks: anybody may, and nothing is asked in turn."""
    return request.method in ("GET", "HEAD") and _path_of(request) in _PROBES


def _path_of(request: Request) -> str:
    try:
        return urlsplit(request.target).path.rstrip("/") or "/"
    except ValueError:  # a stranger's host in brackets
        return request.target


def _answer_for_path(
    site: Site, request: Request, path: str, role: Role, *, query: Mapping[str, list[str]]
) -> Answer:
    if path == "/metrics":
        return (
            _answer_metrics_if_kept(site)
            if request.method == "GET"
            else method_not_allowed_answer("GET")
        )
    if site.fleet is not None:
        refused = _refusal_unless_operator(role, site.http, "the worker's file")
        parts, actor = path_parts(path), _actor_of(request)
        asked = Asked(request.method, parts, query, request.body, actor, refused)
        return answer_fleet_request(site.fleet, asked)
    if path == "/" or path.startswith("/sinks/"):
        return (
            _answer_status_page(site, path)
            if request.method == "GET"
            else method_not_allowed_answer("GET")
        )
    if path == _API:
        return (
            json_answer(200, sorted(site.sinks))
            if request.method == "GET"
            else method_not_allowed_answer("GET")
        )
    if path.startswith(f"{_API}/"):
        name, _, what = path.removeprefix(f"{_API}/").partition("/")
        sink = site.sinks.get(unquote(name))
        if sink is None:
            return json_error_answer(404, "there is no such sink here", f"GET {_API} lists them")
        return _answer_sink_api(sink, request, what, role, dry_run=is_flag_set(query, "dry_run"))
    return json_error_answer(404, "there is nothing at this path")


def _refusal_unless_operator(role: Role, http: HttpSettings, file: str) -> Answer | None:
    if role is Role.OPERATOR:
        return None
    hint = "send Authorization: Bearer with http.operator_token"
    if not http.operator_token:
        hint = f"set http.operator_token in {file}"
    return json_error_answer(403, "only an operator may do that", hint)


def _actor_of(request: Request) -> str:
    return f"http {request.peer}".rstrip()


def _answer_metrics_if_kept(site: Site) -> Answer:
    if site.metrics is None:
        return json_error_answer(404, "no metrics are kept", 'pip install "headgate[metrics]"')
    body, content_type = site.metrics()
    return Answer(200, body, content_type)


def _answer_status_page(site: Site, path: str) -> Answer:
    now_ms = wall_ms()
    if path == "/" and len(site.sinks) > 1:
        shown = status_page.index_page(
            {name: _status_report_or_error(s) for name, s in site.sinks.items()}, now_ms
        )
        return html_answer(200, shown, POLICY)
    name = next(iter(site.sinks)) if path == "/" else unquote(path.removeprefix("/sinks/"))
    sink = site.sinks.get(name)
    if sink is None:
        return text_answer(404, "there is no such sink here")
    try:
        report = sink.status_report()
    except HeadgateError as error:
        status = 503 if isinstance(error, Unreachable) else 500
        return html_answer(status, status_page.index_page({name: str(error)}, now_ms), POLICY)
    return html_answer(200, status_page.sink_page(report, now_ms), POLICY)


def _status_report_or_error(sink: ServedSink) -> StatusReport | str:
    try:
        return sink.status_report()
    except HeadgateError as error:
        return str(error)


def _answer_sink_api(
    sink: ServedSink, request: Request, what: str, role: Role, *, dry_run: bool
) -> Answer:
    if request.method == "GET" and what == "":
        return json_answer(200, sink.status_report().as_json())
    if request.method == "GET" and what == "offsets":
        return json_answer(
            200, [asdict(partition) for partition in sink.status_report().partitions]
        )
    move = operator_actions.MOVES.get((request.method, what))
    if move is None:
        known = sorted(
            method for method, name in {*operator_actions.MOVES, *_LOOKS} if name == what
        )
        return (
            method_not_allowed_answer(*known)
            if known
            else json_error_answer(404, "a sink has nothing of that name")
        )
    settings = sink.settings
    if refused := _refusal_unless_operator(role, settings.http, "the sink file"):
        return refused
    try:
        given = json.loads(request.body) if request.body.strip() else {}
    except (ValueError, RecursionError):
        return json_error_answer(400, "the body is not JSON")
    if not isinstance(given, dict):
        return json_error_answer(400, "the body is not a JSON object")
    try:
        with acting_as_operator(_actor_of(request)):
            return json_answer(200, move(settings, given, dry_run))
    except HeadgateError as error:
        raise settings.redaction.redact_in_place(error) from None
    finally:
        sink.forget_report()


_LOOKS = {("GET", ""), ("GET", "offsets")}
