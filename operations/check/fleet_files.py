"""Asks of each sink file that a fleet would begin to follow what ``headgate check`` asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from headgate.config.load import parse
from headgate.control_protocol.errors import HeadgateError, OtherConfiguration
from headgate.control_protocol.identifiers import SinkName
from headgate.operations.check.check import Check, State, check

_AT_ONCE = 8


def check_sink_files(texts: Mapping[SinkName, str]) -> Mapping[SinkName, tuple[Check, ...]]:
    """Return the answers by sink, of the texts as their processes read them (FLEET-11).

    References must be readable here, as they are to workers.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(texts, pool.map(_check_sink_file, texts.values()), strict=True))


def _check_sink_file(text: str) -> tuple[Check, ...]:
    try:
        settings = parse(text)
    except HeadgateError as error:
        wrong = (State.WRONG, error.message, error.hint, error.code, error.exit_code)
        return (Check("settings", *wrong),)
    return tuple(map(_with_other_configuration_accepted, check(settings)))


def _with_other_configuration_accepted(answer: Check) -> Check:
    """Let those at work have another file: they are about to get this one."""
    if answer.code != OtherConfiguration.code:
        return answer
    detail = "those at work have the file of before, and get this one"
    return replace(answer, state=State.OK, detail=detail, hint="", code="", exit_code=0)
