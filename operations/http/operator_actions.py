"""Runs an operator's requests over HTTP: the functions behind the commands, each with a dry run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import ConfigurationError
from headgate.operations.access.tables import open_primary
from headgate.operations.control import rollback
from headgate.operations.control import stop as stopping
from headgate.operations.control.pause import is_paused, pause_sink, resume_sink
from headgate.operations.control.set_offsets import carry_out_offset_plan, plan_offset_moves

Given = Mapping[str, Any]
Move = Callable[[SinkSettings, Given, bool], Mapping[str, Any]]


def _pause(settings: SinkSettings, given: Given, dry_run: bool) -> Mapping[str, Any]:  # noqa: FBT001
    return _pause_or_resume(settings, given, dry_run=dry_run, paused=True)


def _resume(settings: SinkSettings, given: Given, dry_run: bool) -> Mapping[str, Any]:  # noqa: FBT001
    return _pause_or_resume(settings, given, dry_run=dry_run, paused=False)


def _pause_or_resume(
    settings: SinkSettings, given: Given, *, dry_run: bool, paused: bool
) -> Mapping[str, Any]:
    _require_known_keys(given, frozenset())
    changes = is_paused(settings) is not paused
    if not dry_run:
        record: CommitRecord | None = (pause_sink if paused else resume_sink)(settings)
    else:
        with open_primary(settings) as table:
            record = table.read().record
    return {
        "dry_run": dry_run,
        "changes": changes,
        "paused": paused if not dry_run else bool(record and record.paused),
        "positions": {str(at): offset for at, offset in sorted(record.offsets.items())}
        if record
        else {},
    }


def _stop(settings: SinkSettings, given: Given, dry_run: bool) -> Mapping[str, Any]:  # noqa: FBT001
    """Stop the sink; stored in the table, so that it stays stopped when processes restart."""
    _require_known_keys(given, frozenset())
    before = stopping.read_claimable_record(settings)
    done = None if dry_run else stopping.stop_sink(settings)
    return _stop_or_start_answer(dry_run, before, done)


def _start(settings: SinkSettings, given: Given, dry_run: bool) -> Mapping[str, Any]:  # noqa: FBT001
    _require_known_keys(given, frozenset())
    before = stopping.read_claimable_record(settings)
    done = None if dry_run else stopping.StopResult(stopping.start_sink(settings), ())
    return _stop_or_start_answer(dry_run, before, done, starts=True)


def _restart(settings: SinkSettings, given: Given, dry_run: bool) -> Mapping[str, Any]:  # noqa: FBT001
    _require_known_keys(given, frozenset())
    before = stopping.read_claimable_record(settings)
    done = None if dry_run else stopping.restart_sink(settings)
    return {**_stop_or_start_answer(dry_run, before, done), "changes": True}


def _stop_or_start_answer(
    dry_run: bool,  # noqa: FBT001
    before: CommitRecord,
    done: stopping.StopResult | None,
    *,
    starts: bool = False,
) -> Mapping[str, Any]:
    record = done.record if done else before
    return {
        "dry_run": dry_run,
        "changes": before.stopped is starts,
        "stopped": record.stopped,
        "by": record.actor if record.stopped else None,
        "still_there": done.participants if done else (),
        "positions": {str(at): offset for at, offset in sorted(record.offsets.items())},
    }


def _set_offsets(settings: SinkSettings, given: Given, dry_run: bool) -> Mapping[str, Any]:  # noqa: FBT001
    """Take ``{"offsets": {"topic/0": 17, "topic/1": "earliest"}}``; only for a stopped sink."""
    _require_known_keys(given, frozenset({"offsets"}))
    offsets = given.get("offsets")
    if not isinstance(offsets, dict) or not offsets:
        raise ConfigurationError("no offset is named", 'send {"offsets": {"TOPIC/PARTITION": 17}}')
    plan = plan_offset_moves(settings, [f"{at}={offset}" for at, offset in offsets.items()])
    if not dry_run and plan.moves:
        carry_out_offset_plan(settings, plan)
    return {
        "dry_run": dry_run,
        "changes": bool(plan.moves),
        "moves": [
            {"partition": str(m.partition), "from": m.begin, "to": m.end, "means": str(m)}
            for m in plan.moves
        ],
    }


def _roll_back(settings: SinkSettings, given: Given, dry_run: bool) -> Mapping[str, Any]:  # noqa: FBT001
    """Take ``{"to": "4.17", "drop_foreign": false}``; only for a stopped sink.

    With ``"to_branch": "NAME"`` it only shows the result there, for any sink.
    """
    _require_known_keys(given, frozenset({"to", "drop_foreign", "to_branch"}))
    to, drop_foreign = given.get("to"), given.get("drop_foreign", False)
    branch = given.get("to_branch")
    if not isinstance(to, str) or not isinstance(drop_foreign, bool):
        raise ConfigurationError("the target transaction is missing", 'send {"to": "EPOCH.NUMBER"}')
    if branch is not None and (not isinstance(branch, str) or not branch):
        raise ConfigurationError("to_branch is not a name", 'send {"to_branch": "NAME"}')
    looks = branch is not None
    plan = rollback.plan_rollback(settings, to, drop_foreign=drop_foreign, look_only=looks)
    if branch is not None and not dry_run:
        rollback.make_rollback_branches(settings, plan, branch)
    elif not dry_run:
        rollback.carry_out_rollback(settings, plan)
    return {
        "dry_run": dry_run,
        "changes": True,
        "to": str(plan.record.transaction),
        "snapshot": plan.target_snapshot_id,
        "dropped": plan.dropped,
        "rows": plan.removed_primary_row_count,
        "foreign": plan.foreign_snapshot_texts,
        "tables": [
            {"table": each.table, "snapshot": each.target, "rows": each.rows}
            for each in plan.secondary_rollbacks
        ],
        "kept_as": plan.kept_as,
        "positions": {str(at): offset for at, offset in sorted(plan.record.offsets.items())},
    }


def _require_known_keys(given: Given, known: frozenset[str]) -> None:
    if unknown := sorted(given.keys() - known):
        raise ConfigurationError(
            f"{unknown[0]!r} is not a known key", f"known are: {', '.join(sorted(known)) or 'none'}"
        )


MOVES: Mapping[tuple[str, str], Move] = {
    ("PUT", "pause"): _pause,
    ("PUT", "resume"): _resume,
    ("PUT", "stop"): _stop,
    ("PUT", "start"): _start,
    ("PUT", "restart"): _restart,
    ("PATCH", "offsets"): _set_offsets,
    ("POST", "rollback"): _roll_back,
}
