"""What holds of every state of a coordinator, as ``coordinator.state`` says above each field.

The tests of the protocol check each state that they bring about, and the simulation those of some
seeds (simulation/test_invariants.py); what is planted in unit/coordinator/test_state_promises.py
breaks each of the values once.
"""

from __future__ import annotations

from collections.abc import Iterator

from support.commit_records import broken_promises

from headgate.control_protocol.identifiers import LEAP_MAX
from headgate.coordinator.file_admission import MARKS_KEPT
from headgate.coordinator.machine import PEERS_MAX, WINDOWS_MAX
from headgate.coordinator.phases import Phase
from headgate.coordinator.state import State, Suspicion, Term, Timer
from headgate.coordinator.table_suspension import SUSPENDED_MAX

OPEN_OUTCOME = (Phase.CLAIMING, Phase.COMMITTING)
ASKING = (
    *OPEN_OUTCOME,
    Phase.RECOVERING,
    Phase.PREPARING,
    Phase.COLLECTING,
    Phase.DRAFTING,
    Phase.DELIVERING,
)
WITHOUT_TERM = (Phase.FOLLOWING, Phase.RECOVERING, Phase.CLAIMING, Phase.STOPPED)


def check_step(before: State, after: State) -> None:
    """Raises ``AssertionError`` with what does not hold of the state after a step."""
    if after is not before:
        found = broken_invariants(before, after)
        assert not found, f"a coordinator's state: {'; '.join(found)}"


def broken_invariants(before: State, after: State) -> list[str]:
    """Return what does not hold after a step, or between the two states."""
    found = [*_of_phases(after), *_watch(before, after), *_recovery(after)]
    if after.call.attempt is not None:
        found += broken_promises(after.call.attempt.record)
    if after.term is not None:
        found += [*_progress(after.term), *_collection(after.term), *_primary(after.term)]
        found += [*_delivery(after), *_suspensions(after.term), *_changes(after)]
        found += [*_tokens(after.term), *_sources(after.term), *_of_an_epoch(after)]
        found += _of_settlement(after)
        if before.term is not None and before.term.epoch == after.term.epoch:
            found += _in_one_epoch(before.term, after.term)
    return found


def _of_phases(state: State) -> Iterator[str]:
    if (state.term is None) != (state.phase in WITHOUT_TERM):
        yield f"phase {state.phase} with{'out' if state.term is None else ''} a term"
    if (state.call.attempt is not None) != (state.phase in OPEN_OUTCOME):
        yield f"phase {state.phase}: an attempt is set exactly while its outcome is open"
    if state.call.asked is not None and state.phase not in ASKING:
        yield f"phase {state.phase} waits for no answer"
    if state.call.unanswered_since_ms is not None and state.phase is Phase.FOLLOWING:
        yield "nothing is asked for, and an answer lacks"
    if state.recovery is not None and state.phase not in (Phase.RECOVERING, Phase.CLAIMING):
        yield f"phase {state.phase} with what an epoch begins with"


def _watch(before: State, after: State) -> Iterator[str]:
    then, now = before.watch, after.watch
    incredible = then.highest_epoch > now.table_epoch + LEAP_MAX
    if now.highest_epoch < then.highest_epoch and not incredible:
        yield "the highest epoch heard fell"
    if len(now.windows) > WINDOWS_MAX or len(now.peers) > PEERS_MAX:
        yield "more is remembered of participants than is bounded"
    if after.identity.sender.member in now.peers:
        yield "it takes itself for another participant"


def _recovery(state: State) -> Iterator[str]:
    recovery = state.recovery
    if recovery is not None and recovery.forgotten & recovery.suspended.keys():
        yield "a claim forgets a table that it suspends"


def _of_an_epoch(state: State) -> Iterator[str]:
    """What a claim looks into is looked into once it has landed."""
    assert state.term is not None
    if state.suspicion != Suspicion():
        yield "an epoch has begun with what its claim looks into"
    if state.watch.superseded_ms is not None or state.pause_asked is not None:
        yield "an epoch has begun, and it waits for its claim"
    if state.watch.highest_epoch < state.term.epoch:
        yield "its own epoch was not heard"
    for added in state.held:
        if any((at in state.term.progress.offsets) != added.admitted for at in added.partitions):
            yield "a partition is in C exactly when it was admitted"


def _progress(term: Term) -> Iterator[str]:
    progress = term.progress
    if progress.settled_to > progress.heard_to:
        yield "L is beyond what was heard"
    if any(topic.topic not in term.sources.topic_ids for topic in progress.offsets):
        yield "C has offsets of a topic without id"
    if term.pause.answered > term.previous_transaction_number:
        yield "a transaction that did not land has answered PAUSE or RESUME"


def _of_settlement(state: State) -> Iterator[str]:
    assert state.term is not None
    progress, said = state.term.progress, state.term.progress.settlement
    if state.phase is Phase.SETTLING and said is not None:
        known = progress.offsets, progress.settled_to, progress.valid_through_ms
        if known != (said.offsets, said.settled_to, said.valid_through_ms):
            yield "C, L or valid-through are not those of the settlement"


def _collection(term: Term) -> Iterator[str]:
    heard = term.collection.statuses
    if [each.offset for each in heard] != sorted(each.offset for each in heard):
        yield "statuses are not in log order"
    if any(each.offset < term.progress.settled_to for each in heard):
        yield "a status lies before L"
    if not term.collection.named_by_presence <= term.collection.awaited:
        yield "a partition was gained, and is not awaited"


def _primary(term: Term) -> Iterator[str]:
    record = term.primary.view.record
    if record is None or record.transaction.epoch != term.epoch:
        yield "the primary table's record is not of this epoch"


def _delivery(state: State) -> Iterator[str]:
    assert state.term is not None
    delivery = state.term.delivery
    if (delivery.decision is not None) != (state.phase is Phase.DRAFTING):
        yield f"phase {state.phase}: a decision waits exactly in DRAFTING"
    if (Timer.DELIVERY in state.deadlines) != (state.phase is Phase.DELIVERING):
        yield f"phase {state.phase}: deliveries are waited for exactly in DELIVERING"
    if delivery.drafts and state.phase not in (Phase.DRAFTING, Phase.COMMITTING):
        yield f"phase {state.phase} with drafts"
    order = [each.transaction for each in delivery.pending]
    if order != sorted(order):
        yield "pending commits are not in the order of their decisions"


def _suspensions(term: Term) -> Iterator[str]:
    suspensions = term.suspensions
    if len(suspensions.suspended) > SUSPENDED_MAX:
        yield "more tables are suspended than can be named"
    refused = suspensions.refused_access
    shut = {name for name, each in suspensions.suspended.items() if not each.resuming}
    if shut & {*refused.reads, *refused.deliveries, *refused.stagings}:
        yield "refusals of a suspended table are counted"
    if suspensions.forgotten & term.delivery.secondaries.keys():
        yield "a forgotten table is among the secondary tables"


def _changes(state: State) -> Iterator[str]:
    assert state.term is not None
    changes = state.term.changes
    if bool(changes.proposals) != (Timer.CHANGES in state.deadlines):
        yield "the tables are asked for changes exactly while some are proposed"
    if changes.tables is not None and state.phase is not Phase.EVOLVING:
        yield f"phase {state.phase} with an answer that was not heard"
    if len({each.answer for each in changes.proposals}) < len(changes.proposals):
        yield "a proposal waits twice"
    if len({each.path for each in changes.refused}) < len(changes.refused):
        yield "a field is refused twice"


def _tokens(term: Term) -> Iterator[str]:
    tokens = term.tokens
    if len(set(tokens.marks)) < len(tokens.marks) or len(tokens.marks) > MARKS_KEPT:
        yield "marks repeat, or are too many"
    if list(tokens.starts) != sorted(tokens.starts):
        yield "starts are not in their order"
    if any(times < 1 for times in tokens.stale.values()):
        yield "a sender was stale less than once"


def _sources(term: Term) -> Iterator[str]:
    if any(at.topic not in term.sources.topic_ids for at in term.sources.ends):
        yield "a log end of a topic without id"


def _in_one_epoch(before: Term, after: Term) -> Iterator[str]:
    then, now = before.progress, after.progress
    if now.settled_to < then.settled_to or now.heard_to < then.heard_to or now.number < then.number:
        yield "L, the log or the transactions went back"
    if now.valid_through_ms is None and then.valid_through_ms is not None:
        yield "valid-through is forgotten"
    if (now.valid_through_ms or 0) < (then.valid_through_ms or 0):
        yield "valid-through fell"
    if before.primary.overtaken and not after.primary.overtaken:
        then_record, now_record = before.primary.view.record, after.primary.view.record
        if now_record is None or now_record.is_same_commit(then_record):
            yield "the table is not overtaken any more, and nothing has landed"
    if not before.collection.awaited <= after.collection.awaited:
        yield "a partition is awaited no more"
