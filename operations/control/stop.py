"""Stops a sink until it is started again, and starts it: a claim that says so (EPOCH-1).

No process needs to be running for either. Running processes leave the group in order and wait;
those that are started meanwhile wait as well.
"""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Literal

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import HeadgateError, RetryLater
from headgate.operations.access.tables import open_primary
from headgate.operations.control.operator_claim import (
    commit_claim_or_raise,
    make_claim,
    try_announce_command,
)
from headgate.operations.control.pause import pause_sink, resume_sink
from headgate.operations.control.set_offsets import require_claimable_record
from headgate.operations.status.report import StatusReport
from headgate.operations.status.status import read_status
from headgate.runtime.health import Condition
from headgate.runtime.sink_tables import SinkTables, open_tables_creating_nothing

_PATIENCE_S = 30.0
_LOOKED_AT_S = 0.5
_SAID_AGAIN_S = 5.0
_TRIES = 5


@dataclass(frozen=True, slots=True)
class StopResult:
    """``record`` is what the table says; ``participants`` had not left when patience ran out.

    They are ``None`` if it is not known who is there.
    """

    record: CommitRecord
    participants: tuple[str, ...] | None


def stop_sink(settings: SinkSettings, patience_s: float = _PATIENCE_S) -> StopResult:
    """Stop the sink, and wait for a while until its participants have left.

    If the sink is working, it commits what is written first. Raises ``ConfigurationError`` for a
    sink without a record, ``StopSink`` for a table that is not in order, ``RetryLater`` if the
    request was not stored.
    """
    record = _pause_and_store_stop(settings, read_claimable_record(settings))
    return StopResult(record, _wait_and_find_remaining_members(settings, patience_s))


def start_sink(settings: SinkSettings) -> CommitRecord:
    """End a stop; waiting processes continue within seconds. Raises as ``stop_sink``."""
    before = read_claimable_record(settings)
    return (
        _commit_request_with_retries(settings, "start", stopped=False) if before.stopped else before
    )


def restart_sink(settings: SinkSettings) -> StopResult:
    """Make every participant leave and come again. Raises as ``stop_sink``.

    A sink that was stopped is started.
    """
    before = read_claimable_record(settings)
    try:
        _pause_and_store_stop(settings, before)
        members = _wait_and_find_remaining_members(settings, _PATIENCE_S)
    finally:  # nobody asked for a stop that outlives this command, however it ends
        started = _undo_stop_or_pause(settings, "start")
    return StopResult(started, members)


def read_claimable_record(settings: SinkSettings) -> CommitRecord:
    """Return the sink's record, as its table says now."""
    with open_primary(settings) as table:
        return require_claimable_record(settings, table.read())


def _pause_and_store_stop(settings: SinkSettings, before: CommitRecord) -> CommitRecord:
    """Return the record that stops the sink; a sink that is not stopped is not left paused."""
    if before.stopped:
        return before
    works = read_status(settings).condition in (Condition.RUNNING, Condition.IDLE)
    try:
        if works:
            with suppress(RetryLater):  # it stops all the same, and reads again what was under way
                pause_sink(settings)
        return _commit_request_with_retries(settings, "stop", stopped=True, paused=before.paused)
    except BaseException:
        if works and not before.paused:
            _undo_stop_or_pause(settings, "resume")
        raise


def _undo_stop_or_pause(
    settings: SinkSettings, command: Literal["start", "resume"]
) -> CommitRecord:
    """Return the record after ``command``. Raises ``RetryLater`` that says what the sink may be."""
    undo, state = (start_sink, "stopped") if command == "start" else (resume_sink, "paused")
    try:
        return undo(settings)
    except (HeadgateError, KeyboardInterrupt) as error:
        raise RetryLater(
            f"sink {settings.name} may be {state} now, and was not told to {command}: "
            f"{str(error) or 'interrupted'}",
            f"headgate {command} SINK",
        ) from error


def _commit_request_with_retries(
    settings: SinkSettings, command: str, **wanted: bool
) -> CommitRecord:
    """Store the request in the table's record; try again if the running sink commits first."""
    failed = RetryLater(f"sink {settings.name}: {command} was not stored", "try again")
    for tries_left in reversed(range(_TRIES)):
        with (
            open_tables_creating_nothing(settings) as tables,
            closing(tables.open_primary()) as table,
        ):
            view = table.read()
            record = _without_delivered_if_single_table(
                tables, require_claimable_record(settings, view)
            )
        claim = make_claim(record, command, **wanted)
        try:
            commit_claim_or_raise(settings, view, claim, failed)
        except RetryLater:
            if not tries_left:
                raise
        else:
            return claim
    raise AssertionError("the last try returns or raises")


def _without_delivered_if_single_table(tables: SinkTables, record: CommitRecord) -> CommitRecord:
    """PENDING-7: acknowledge what the quarantine shows as delivered: it may be another one at the
    next start.

    A sink with many tables carries all on, for its coordinator strikes key files off as well.
    """
    if tables.settings.tables or not record.pending_commits:
        return record
    return record.with_pending(tables.read_undelivered_commits(record))


def _wait_and_find_remaining_members(
    settings: SinkSettings, patience_s: float
) -> tuple[str, ...] | None:
    """Return who is still there, and tell them again: one notice may not have been confirmed.

    ``None``: nobody could say who is there.
    """
    until_s = time.monotonic() + patience_s
    again_s = time.monotonic() + _SAID_AGAIN_S
    status: StatusReport | None = None
    while True:
        with suppress(RetryLater):  # the request is stored, whether or not this is answered
            status = read_status(settings)
        nobody = status and status.participants_known and not status.participants
        if nobody or time.monotonic() > until_s:
            break
        if time.monotonic() > again_s:
            try_announce_command(settings, "stop")
            again_s = time.monotonic() + _SAID_AGAIN_S
        time.sleep(_LOOKED_AT_S)
    if status is None or not status.participants_known:
        return None
    return tuple(each.member for each in status.participants)
