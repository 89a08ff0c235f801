"""Asks of each sink file that a fleet would begin to follow what ``headgate check`` asks of it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

from headgate.config.catalog_settings import Backend
from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import HeadgateError, OtherConfiguration
from headgate.control_protocol.identifiers import SinkName
from headgate.operations.check.check import Check, State, check

_AT_ONCE = 8
_SPARK = threading.Lock()


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
    # A process has one Spark session: the first check that ends would stop it under the others.
    with _SPARK if _uses_spark(settings) else nullcontext():
        return tuple(map(_with_other_configuration_accepted, check(settings)))


def _uses_spark(settings: SinkSettings) -> bool:
    in_java = settings.catalog.backend is Backend.JAVA
    return settings.spark.is_writer or bool(settings.transform) or in_java


def _with_other_configuration_accepted(answer: Check) -> Check:
    """Let those at work have another file: they are about to get this one."""
    if answer.code != OtherConfiguration.code:
        return answer
    detail = "those at work have the file of before, and get this one"
    return replace(answer, state=State.OK, detail=detail, hint="", code="", exit_code=0)
