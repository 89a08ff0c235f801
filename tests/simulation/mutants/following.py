"""PENDING-1 to PENDING-9: the primary table decides, secondary tables are delivered to. Six of
these broke the design's model too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family, Planted

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.ports import CommitOutcome
from headgate.control_protocol.testing import FakeTable
from headgate.coordinator import (
    epoch_claim,
    machine,
    secondary_delivery,
    secondary_pending_commits,
    table_suspension,
)
from headgate.coordinator.inputs_and_actions import ManifestsStaged
from headgate.coordinator.phase_steps import term_of

FAMILY = Family()

COMMIT = (FakeTable, "commit")


@FAMILY.replaces("PENDING-2", (machine, "on_staged"))
def decides_without_its_drafts(right: Any, state: Any, given: ManifestsStaged, now_ms: int) -> Any:
    """The decision does not name the manifests that were written for it."""
    return right(state, ManifestsStaged(()), now_ms)


@FAMILY.replaces("PENDING-3", COMMIT)
def decides_on_a_fresh_read(right: Any, self: FakeTable, attempt: Any) -> CommitOutcome:
    """What was judged is decided on the primary table as it is now, whoever has claimed it
    since."""
    decides = attempt.record.primary is None and not attempt.record.is_claim
    return right(self, replace(attempt, base=self.read()) if decides else attempt)


@FAMILY.replaces("PENDING-3", (epoch_claim, "split_pending_at_claim"))
def claim_forgets_pending_commits(right: Any, pending: Any, claims: Any, secondaries: Any) -> Any:
    """A claim does not carry on what is pending."""
    return right((), claims, secondaries)


@FAMILY.replaces("PENDING-3", (machine, "record_with_pending_and_expired"))
def decision_forgets_pending_commits(right: Any, state: Any, record: Any, now_ms: int) -> Any:
    """A decision names what it has pending itself, and nothing that is left."""
    return replace(right(state, record, now_ms), pending_commits=())


@FAMILY.replaces("PENDING-4", (machine, "recover_unless_primary_as_decided"))
def delivers_from_memory(right: Any, state: Any, view: Any, now_ms: int) -> Any:
    """What a fresh read of the primary table shows is not looked at."""
    return right(state, term_of(state).primary.view, now_ms)


@FAMILY.replaces("PENDING-5", COMMIT)
def delivers_without_compare_and_set(right: Any, self: FakeTable, attempt: Any) -> CommitOutcome:
    """A delivery is made on the secondary table as it is by then."""
    return right(self, replace(attempt, base=self.read()) if attempt.pending_commits else attempt)


@FAMILY.replaces("PENDING-5", (secondary_pending_commits, "_build_delivery"))
def newest_pending_commit_first(right: Any, primary: Any, pending: Any, secondary: Any) -> Any:
    """Of what a secondary table is pending only the newest transaction is delivered."""
    newest = pending[-1].transaction
    return right(
        primary,
        tuple(pending_commit for pending_commit in pending if pending_commit.transaction == newest),
        secondary,
    )


@FAMILY.replaces("PENDING-6", (secondary_pending_commits, "is_delivered"))
def delivered_by_equality(right: Any, pending_commit: Any, secondary: Any, primary: str) -> bool:
    """Delivered is what the secondary table's record names, and nothing older."""
    record = secondary.current_record if secondary else None
    return (
        bool(right(pending_commit, secondary, primary))
        and record.transaction == pending_commit.transaction
    )


@FAMILY.replaces("PENDING-7", (machine, "on_deliveries_answered"))
def unknown_answer_believed(right: Any, state: Any, given: Any, now_ms: int) -> Any:
    """What was asked for counts as delivered, whatever was answered."""
    term = term_of(state)
    asked = {name for name in given.outcomes if name in term.delivery.secondaries}
    left = tuple(
        pending_commit
        for pending_commit in term.delivery.pending
        if pending_commit.table not in asked
    )
    return right(
        replace(state, term=replace(term, delivery=replace(term.delivery, pending=left))),
        given,
        now_ms,
    )


@FAMILY.patches("PENDING-8")
def expires_unnamed() -> tuple[Planted, ...]:
    """What a decision leaves pending expires, and the record does not say so."""
    encode = commit_record_codec.encode_record
    return (
        (
            secondary_delivery,
            "find_overdue_commits",
            lambda pending, *_: tuple(
                pending_commit for pending_commit in pending if pending_commit.manifest
            ),
        ),
        (commit_record_codec, "encode_record", lambda record: encode(replace(record, expired=()))),
    )


@FAMILY.replaces("PENDING-8", (secondary_delivery, "is_unfenced_against_expired"))
def expires_unfenced(_right: Any, *_: object) -> bool:
    """Whoever slept through a expire may deliver to it still."""
    return False


@FAMILY.replaces("PENDING-9", (epoch_claim, "claims_needed_of_secondaries"))
def secondaries_of_the_past_unclaimed(right: Any, *given: Any) -> Any:
    """A primary table that went back claims no secondary table."""
    return ()


@FAMILY.replaces("PENDING-8", (table_suspension, "_unread_tables_with_expired_commits"))
def heirs_know_of_no_expire(_right: Any, _term: Any) -> frozenset[str]:
    """A coordinator leaves routed tables alone whose pending commits the one before let expire."""
    return frozenset()


@FAMILY.replaces("LEDGER-1", (machine, "validate_statuses"))
def routed_not_pending(right: Any, statuses: Any, by: Any) -> Any:
    """What went to tables that START does not name is let in, and pending for nobody."""
    verdict = right(statuses, by)
    named = {name for name, secondary in by.secondaries.items() if not secondary.uuid}
    files = {name: each for name, each in verdict.secondary_files.items() if name in named}
    return replace(verdict, secondary_files=files)


@FAMILY.replaces("LEDGER-1", (machine, "suspend_or_take_in_read_tables"))
def routed_as_once_seen(right: Any, state: Any, given: Any, now_ms: int) -> Any:
    """A routed table that was read is taken for one that is named, whose rows are quarantined."""
    after, tells = right(state, given, now_ms)
    named = tuple(dict.fromkeys((*state.identity.secondaries, *given.views)))
    return replace(after, identity=replace(state.identity, secondaries=named)), tells
