"""Writes what commands answer: unfolded for people, as JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from headgate.runtime.wall_clock import format_utc, wall_ms

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """Return a console that is wide when nobody looks: a file or a pipe must not be folded."""
    from rich.console import Console  # not for headgate --help

    made = Console()
    return made if made.is_terminal else Console(width=200)


def describe_next_try(at_ms: int) -> str:
    """Return when a sink in error is tried again; a time that has passed is now."""
    if at_ms <= wall_ms():
        return "next try now"
    return f"next try {format_utc(at_ms, '%H:%M:%SZ')}"


def print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    click.echo(json.dumps(document, indent=2))
