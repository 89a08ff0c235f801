"""Resolves a sink's stop once, through a claim that a person makes (rule EPOCH-1).

The policies of a sink file apply to every start; a choice made here applies to this one claim. Each
choice names the code of the error that it answers, so it cannot answer another one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.config.configuration_fingerprint import configuration_digest
from headgate.config.keyed_table_checks import KeysByRoute
from headgate.config.routed_tables import require_no_routed_tables
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import OPERATOR, CommitRecord
from headgate.control_protocol.errors import (
    ConfigurationError,
    RetryLater,
    StopSink,
    TablesUnfit,
)
from headgate.control_protocol.identifiers import Sender
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    AllSecondaryTables,
    CommitAttempt,
    Landed,
    PrimaryTable,
    SourceTopics,
    TableView,
    Unknown,
)
from headgate.control_protocol.redaction import Redaction
from headgate.coordinator.driver import StartAt, answer_look
from headgate.coordinator.epoch_claim import (
    on_look_before_claim,
    on_primary_read_before_claim,
    required_secondaries_unread,
)
from headgate.coordinator.inputs_and_actions import Look
from headgate.coordinator.phases import Phase
from headgate.coordinator.recovery import Resolution, judge_attempt
from headgate.coordinator.settings import (
    CoordinatorSettings,
    OffsetPolicy,
    RollbackPolicy,
    TableRecreatedPolicy,
    TagMissingPolicy,
)
from headgate.coordinator.state import Identity, State
from headgate.data_plane.cdc.policy import OnDelete
from headgate.operations.access.kafka_connection import open_reachable_source_topics
from headgate.operations.access.tables import open_tables_for_claim
from headgate.operations.control.deleted_rows_guard import (
    raise_deletions_unknown,
    require_deleted_not_read_again,
)
from headgate.operations.control.operator_claim import current_actor, try_announce_command
from headgate.runtime.sink_tables import quarantine_as_secondary_tables
from headgate.runtime.wall_clock import wall_ms

_BACK = (RollbackPolicy.KEEP_OFFSETS, RollbackPolicy.FOLLOW_TABLE)
_PLACES = (OffsetPolicy.EARLIEST, OffsetPolicy.LATEST)

_GOING_BACK = (
    RollbackPolicy.FOLLOW_TABLE,
    TableRecreatedPolicy.RESTART,
    TagMissingPolicy.FOLLOW_TABLE,
)

CHOICES: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "HG-201": ("on_rollback", _BACK),
    "HG-202": ("on_table_recreated", (TableRecreatedPolicy.RESTART,)),
    "HG-203": ("on_tag_missing", (TagMissingPolicy.FOLLOW_TABLE,)),
    "HG-204": ("on_rollback", (RollbackPolicy.KEEP_OFFSETS,)),
    "HG-205": ("on_offset_out_of_range", _PLACES),
    "HG-206": ("on_topic_recreated", _PLACES),
    "HG-215": ("on_table_recreated", (TableRecreatedPolicy.RESTART,)),
}
"""For each error code, the setting that decides what to do then, and its possible values."""

_OF_DELETES = "HG-297"
"""What the table itself answers, at the claim: no coordinator knows what deletes did (KEY-13)."""

_WORDS: Mapping[str, tuple[Any, ...]] = {
    **{code: words for code, (_, words) in CHOICES.items()},
    _OF_DELETES: (OnDelete.MARK, OnDelete.REMOVE),
}

ResolvedErrors = list[str]
"""What a choice has resolved, each with the message of the error."""


@dataclass(frozen=True, slots=True)
class ClaimedSink:
    """The sink whose claim it is, and the state that it is based on.

    ``changes_deletes``: as in ``CommitAttempt``.
    """

    identity: Identity
    table: PrimaryTable
    topics: SourceTopics
    start_at: StartAt
    secondaries: AllSecondaryTables | None = None
    changes_deletes: bool = False
    redaction: Redaction = field(default_factory=Redaction)


def resolve_stop_of_sink(
    settings: SinkSettings, choices: Iterable[str], *, deleted_back: bool = False
) -> ResolvedErrors:
    """Resolve the stop, and return the errors that the choices (``HG-201=follow-table``) resolved.

    ``deleted_back``: records whose rows people deleted may be read again; else they stand in the
    way (``DeletedBack``).

    Raises ``ConfigurationError`` for a choice that is invalid or does not apply, the ``StopSink``
    that no choice answers, and ``RetryLater`` if it is unknown whether the claim landed.
    """
    choices = tuple(choices)
    chosen = _parse_choices(choices)
    deletes = chosen.pop(_OF_DELETES, None)
    if deletes is not None:
        _require_same_on_delete(settings, deletes)
    if settings.changes.history and "HG-206" in chosen:
        raise ConfigurationError(
            f"--accept HG-206={chosen['HG-206']}: changes.history is set, and versions of a key "
            "have the order of their offsets, which begin anew (KEY-16)",
            "fill a new table: drop this one, and start with "
            'coordinator.on_table_recreated = "restart"',
        )
    if settings.has_keyed_table and chosen.get("HG-201") is RollbackPolicy.KEEP_OFFSETS:
        raise ConfigurationError(
            "--accept HG-201=keep-offsets: the table has a key, and what its rows would lack is "
            "what later changes build upon (KEY-12)",
            "--accept HG-201=follow-table reads again what the rollback removed",
        )
    for code, choice in chosen.items():
        if choice in _GOING_BACK:
            require_no_routed_tables(settings, f"{code}={choice}")
    start_ms = settings.source.start_at_ms
    operator = Sender(OPERATOR, uuid.uuid4().hex[:12])
    with ExitStack() as opening:
        primary, secondaries = opening.enter_context(open_tables_for_claim(settings))
        topics = opening.enter_context(open_reachable_source_topics(settings))
        world = ClaimedSink(
            Identity(
                settings.name,
                settings.source.group_id,
                operator,
                frozenset(settings.table.shared_with),
                secondaries=quarantine_as_secondary_tables(settings.quarantine),
                routing=configuration_digest(settings),
                routed=bool(settings.tables),
                keyed=settings.replaces_primary_rows,
                routed_keys=KeysByRoute.from_settings(settings),
                growth_ms=settings.changes.added_partitions_hold_ms,
                multiples_only=settings.changes.refuses_uneven_partition_growth,
                deleted_back=deleted_back,
            ),
            primary,
            topics,
            StartAt(settings.source.start_at if start_ms is None else start_ms),
            secondaries,
            changes_deletes=deletes is not None,
            redaction=settings.redaction,
        )

        def require_deleted_stay_deleted(view: TableView, record: CommitRecord) -> None:
            if deleted_back:
                return
            if view.current_record is None:
                if "HG-202" in chosen:
                    raise_deletions_unknown(view.table)
                return
            before = view.record.offsets if view.record else Offsets()
            require_deleted_not_read_again(settings, before, record.offsets, record.topic_ids)

        answered = resolve_stop(world, settings.coordinator, chosen, require_deleted_stay_deleted)
        try_announce_command(
            settings, " ".join(["resume", *(f"--accept {text}" for text in choices)])
        )
        return answered


def resolve_stop(
    claimed_sink: ClaimedSink,
    settings: CoordinatorSettings,
    chosen: Mapping[str, Any],
    require_allowed: Callable[[TableView, CommitRecord], None] = lambda *_: None,
) -> ResolvedErrors:
    """Resolve the stop of a given sink, and return the messages of the errors that were resolved.

    ``require_allowed`` raises what stands in the way.
    """
    view = claimed_sink.table.read()
    answered: list[str] = []
    words = ["resume"]
    if claimed_sink.changes_deletes:
        answered.append("deletes do from now on what the settings say")
        words.append(f"--accept {_OF_DELETES}")
    left = dict(chosen)
    while True:
        try:
            attempt = _judge_and_build_attempt(claimed_sink, settings, view)
            break
        except StopSink as error:
            if error.code not in left:
                raise
            choice = left.pop(error.code)
            settings = replace(settings, **{CHOICES[error.code][0]: choice})
            answered.append(str(error.message))
            words.append(f"--accept {error.code}={choice.value}")
    if left:
        raise ConfigurationError(
            f"nothing of sink {claimed_sink.identity.sink} is stopped by "
            f"{', '.join(sorted(left))}; nothing was changed",
            "accept only what the sink's own error names",
        )
    require_allowed(view, attempt.record)
    claim = attempt.record.with_operator_command(" ".join(words), current_actor())
    attempt = replace(attempt, record=claim, changes_deletes=claimed_sink.changes_deletes)
    _commit_claim(claimed_sink.table, attempt)
    return answered


def _require_same_on_delete(settings: SinkSettings, choice: OnDelete) -> None:
    if settings.tables:
        raise TablesUnfit(
            f"--accept {_OF_DELETES}={choice} is for a sink with one table",
            "put changes.on_delete back, or let routes lead to new tables",
        )
    if not settings.table.key or settings.changes.on_delete is not choice:
        raise ConfigurationError(
            f"--accept {_OF_DELETES}={choice}: the sink file says something else; nothing was "
            "changed",
            f'set changes.on_delete = "{choice}" in the sink file first, beside table.key',
        )


def _judge_and_build_attempt(
    claimed_sink: ClaimedSink, settings: CoordinatorSettings, view: TableView
) -> CommitAttempt:
    """Judge and claim like a coordinator, which looks a second time at what seems wrong
    (PENDING-9)."""
    state = State(claimed_sink.identity, settings, phase=Phase.RECOVERING)
    for _ in range(2):
        state, (asked,) = on_primary_read_before_claim(state, view)
        assert isinstance(asked, Look)
        answered = answer_look(asked, claimed_sink, claimed_sink.start_at, wall_ms)
        if answered.secondaries and (
            missing := required_secondaries_unread(state, answered.secondaries)
        ):
            what = f"{', '.join(sorted(missing))} cannot be read"
            raise RetryLater(f"nothing was accepted: {what}", "try again")
        state, _ = on_look_before_claim(state, answered, 0)
        if state.call.attempt is not None:
            return state.call.attempt
    raise AssertionError("a second look at the same tables decides")


def _commit_claim(table: PrimaryTable, attempt: CommitAttempt) -> None:
    outcome = table.commit(attempt)
    if isinstance(outcome, Landed):
        return
    if isinstance(outcome, Unknown) and judge_attempt(attempt, table.read()) is Resolution.LANDED:
        return
    raise RetryLater(f"nothing was accepted: {outcome.reason}", "try again")


def _parse_choices(texts: Iterable[str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for text in texts:
        code, _, word = text.partition("=")
        if code not in _WORDS or code in chosen:
            raise ConfigurationError(
                f"--accept {text}: {code!r} "
                + ("is named twice" if code in chosen else "cannot be accepted"),
                f"write CODE=CHOICE, with one of {', '.join(_WORDS)}",
            )
        choices = _WORDS[code]
        if word not in choices:
            raise ConfigurationError(
                f"--accept {text}: {word!r} is not a choice",
                "write " + " or ".join(f"{code}={choice.value}" for choice in choices),
            )
        chosen[code] = next(choice for choice in choices if choice == word)
    return chosen
