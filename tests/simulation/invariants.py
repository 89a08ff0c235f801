"""What holds of every state of a coordinator, as ``coordinator.state`` says above each field."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.coordinator.commit_tokens import MARKS_KEPT
from headgate.coordinator.phases import Phase
from headgate.coordinator.secondary_tables import SUSPENDED_MAX
from headgate.coordinator.state import State, Term, Timer

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


def broken(before: State, after: State) -> list[str]:
    """Return what does not hold after a step, or between the two states."""
    found = [*_of_phases(after)]
    if after.term is not None:
        found += [*_progress(after.term), *_collection(after.term), *_primary(after.term)]
        found += [*_delivery(after), *_suspensions(after.term), *_changes(after)]
        found += [*_tokens(after.term), *_sources(after.term)]
        if before.term is not None and before.term.epoch == after.term.epoch:
            found += _in_one_epoch(before.term, after.term)
    if after.highest_epoch < before.highest_epoch:
        found.append("the highest epoch heard fell")
    return found


def _of_phases(state: State) -> Iterator[str]:
    if (state.term is None) != (state.phase in WITHOUT_TERM):
        yield f"phase {state.phase} with{'out' if state.term is None else ''} a term"
    if (state.attempt is not None) != (state.phase in OPEN_OUTCOME):
        yield f"phase {state.phase}: an attempt is set exactly while its outcome is open"
    if state.asked is not None and state.phase not in ASKING:
        yield f"phase {state.phase} waits for no answer"
    if state.recovery is not None and state.phase not in (Phase.RECOVERING, Phase.CLAIMING):
        yield f"phase {state.phase} with what an epoch begins with"


def _progress(term: Term) -> Iterator[str]:
    progress = term.progress
    if progress.settled_to > progress.heard_to:
        yield "L is beyond what was heard"
    if any(topic.topic not in term.sources.topic_ids for topic in progress.offsets):
        yield "C has offsets of a topic without id"


def _collection(term: Term) -> Iterator[str]:
    heard = term.collection.statuses
    if [each.offset for each in heard] != sorted(each.offset for each in heard):
        yield "statuses are not in log order"
    if len({(each.sender, each.status.status_number) for each in heard}) < len(heard):
        yield "a status is there twice"
    if any(each.offset < term.progress.settled_to for each in heard):
        yield "a status lies before L"


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
    if suspensions.suspended.keys() & suspensions.refusals.keys():
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
    if any(each.answer in changes.answered for each in changes.proposals):
        yield "a proposal waits that was answered"


def _tokens(term: Term) -> Iterator[str]:
    tokens = term.tokens
    if len(set(tokens.marks)) < len(tokens.marks) or len(tokens.marks) > MARKS_KEPT:
        yield "marks repeat, or are too many"
    if list(tokens.starts) != sorted(tokens.starts):
        yield "starts are not in their order"
    if any(times < 1 for times in tokens.late.values()):
        yield "a sender was late less than once"


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
    if not before.collection.awaited <= after.collection.awaited:
        yield "a partition is awaited no more"
