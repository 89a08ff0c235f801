"""D1 to D9: the lead decides, followers are paid. Six of these broke the design's model too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family, Planted

from headgate.control_protocol import record_codec
from headgate.control_protocol.ports import CommitOutcome
from headgate.control_protocol.testing import FakeTable
from headgate.coordinator import claim, commitment, debts, drafting, machine, routed
from headgate.coordinator.actions import Drafted
from headgate.coordinator.moves import term_of

FAMILY = Family()

COMMIT = (FakeTable, "commit")


@FAMILY.replaces("D2", (machine, "drafted"))
def decides_without_its_drafts(right: Any, state: Any, given: Drafted, now_ms: int) -> Any:
    """The decision does not name the manifests that were written for it."""
    return right(state, Drafted(()), now_ms)


@FAMILY.replaces("D3", COMMIT)
def decides_on_a_fresh_read(right: Any, self: FakeTable, attempt: Any) -> CommitOutcome:
    """What was judged is decided on the lead as it is now, whoever has claimed it since."""
    decides = attempt.record.lead is None and not attempt.record.claim
    return right(self, replace(attempt, base=self.read()) if decides else attempt)


@FAMILY.replaces("D3", (claim, "debts_carried_on"))
def claim_forgets_debts(right: Any, owed: Any, claims: Any, followers: Any) -> Any:
    """A claim does not carry on what is owed."""
    return right((), claims, followers)


@FAMILY.replaces("D3", (commitment, "with_what_is_owed"))
def decision_forgets_debts(right: Any, state: Any, record: Any, now_ms: int) -> Any:
    """A decision names what it owes itself, and nothing that is left."""
    return replace(right(state, record, now_ms), debts=())


@FAMILY.replaces("D4", (machine, "lead_read"))
def pays_from_memory(right: Any, state: Any, view: Any, now_ms: int) -> Any:
    """What a fresh read of the lead shows is not looked at."""
    return right(state, term_of(state).view, now_ms)


@FAMILY.replaces("D5", COMMIT)
def pays_without_compare_and_set(right: Any, self: FakeTable, attempt: Any) -> CommitOutcome:
    """A payment is made on the follower as it is by then."""
    return right(self, replace(attempt, base=self.read()) if attempt.debts else attempt)


@FAMILY.replaces("D5", (debts, "_payment"))
def newest_debt_first(right: Any, lead: Any, owed: Any, follower: Any) -> Any:
    """Of what a follower is owed only the newest transaction is paid."""
    newest = owed[-1].transaction
    return right(lead, tuple(debt for debt in owed if debt.transaction == newest), follower)


@FAMILY.replaces("D6", (debts, "paid"))
def paid_by_equality(right: Any, debt: Any, follower: Any, lead: str) -> bool:
    """Paid is what the follower's record names, and nothing older."""
    record = follower.settled if follower else None
    return bool(right(debt, follower, lead)) and record.transaction == debt.transaction


@FAMILY.replaces("D7", (machine, "payments_answered"))
def unknown_answer_believed(right: Any, state: Any, given: Any, now_ms: int) -> Any:
    """What was asked for counts as paid, whatever was answered."""
    term = term_of(state)
    asked = {name for name in given.outcomes if name in term.followers}
    left = tuple(debt for debt in term.debts if debt.table not in asked)
    return right(replace(state, term=replace(term, debts=left)), given, now_ms)


@FAMILY.patches("D8")
def lapses_unnamed() -> tuple[Planted, ...]:
    """What a decision leaves owed lapses, and the record does not say so."""
    encode = record_codec.encode
    return (
        (drafting, "overdue", lambda owed, *_: tuple(debt for debt in owed if debt.manifest)),
        (record_codec, "encode", lambda record: encode(replace(record, lapsed=()))),
    )


@FAMILY.replaces("D8", (drafting, "unfenced"))
def lapses_unfenced(_right: Any, *_: object) -> bool:
    """Whoever slept through a lapse may pay it still."""
    return False


@FAMILY.replaces("D9", (claim, "claimed"))
def followers_of_the_past_unclaimed(right: Any, *given: Any) -> Any:
    """A lead that went back claims no follower."""
    return ()


@FAMILY.replaces("D8", (routed, "_lapsed"))
def heirs_know_of_no_lapse(_right: Any, _term: Any) -> frozenset[str]:
    """A coordinator leaves routed tables alone whose debts the one before let lapse."""
    return frozenset()


@FAMILY.replaces("R5", (commitment, "judge"))
def routed_not_owed(right: Any, statuses: Any, by: Any) -> Any:
    """What went to tables that START does not name is let in, and owed to nobody."""
    verdict = right(statuses, by)
    named = {name for name, follower in by.followers.items() if not follower.uuid}
    files = {name: each for name, each in verdict.follower_files.items() if name in named}
    return replace(verdict, follower_files=files)


@FAMILY.replaces("R5", (commitment, "with_tables"))
def routed_as_once_seen(right: Any, state: Any, given: Any, now_ms: int) -> Any:
    """A routed table that was read is taken for one that is named, whose rows are quarantined."""
    after, tells = right(state, given, now_ms)
    named = tuple(dict.fromkeys((*state.identity.followers, *given.views)))
    return replace(after, identity=replace(state.identity, followers=named)), tells
