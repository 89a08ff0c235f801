"""Builds HTTP answers, with headers that keep a browser from doing anything else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    RetryLater,
    TableMissing,
)

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
HTML = "text/html; charset=utf-8"

CAREFUL: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Sent with every answer; a page's own policy also allows its one style sheet."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; ``headers`` are sent in addition to ``CAREFUL``."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


def text_answer(status: int, text: str) -> Answer:
    return Answer(status, f"{text}\n".encode(), TEXT)


def json_answer(status: int, content: Any) -> Answer:
    return Answer(status, json.dumps(content, indent=2, default=str).encode() + b"\n")


def html_answer(status: int, html: str, content_security_policy: str) -> Answer:
    """Answer a page, with what its policy lets a browser do."""
    return Answer(status, html.encode(), HTML, {"Content-Security-Policy": content_security_policy})


def is_flag_set(query: Mapping[str, list[str]], name: str) -> bool:
    """Return whether a query sets the flag; the name alone does. Raises ``ConfigurationError``."""
    text = query.get(name, ["false"])[-1]
    if text.lower() in ("true", "1", ""):
        return True
    if text.lower() in ("false", "0"):
        return False
    # Somebody who asks for a rehearsal must not get the real thing.
    raise ConfigurationError(f"{name} cannot be {text!r}", "it is true or false")


def json_error_answer(status: int, error: str, hint: str = "") -> Answer:
    """Answer an invalid request, in the same form as an error of headgate."""
    return json_answer(status, {"error": error, "hint": hint})


def method_not_allowed_answer(*methods: str) -> Answer:
    """Refuse a method, and name those that the path takes."""
    answer = json_error_answer(405, "that method is not for this path", f"use {', '.join(methods)}")
    return Answer(answer.status, answer.body, answer.content_type, {"Allow": ", ".join(methods)})


def error_answer(error: HeadgateError) -> Answer:
    """Answer with an error's code: 503 to try again, 404 for a missing table, else 409."""
    status = 409
    if isinstance(error, RetryLater):
        status = 503
    elif isinstance(error, TableMissing):
        status = 404
    elif type(error) is ConfigurationError:
        status = 400
    return json_answer(status, {"code": error.code, "error": error.message, "hint": error.hint})
