"""From one transaction to the next: what is new in the sources begins with its START (C4)."""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.identifiers import TransactionNumber
from headgate.coordinator.actions import SourcesDescribed
from headgate.coordinator.ageing import issued
from headgate.coordinator.capacity import refuse_too_many
from headgate.coordinator.growth import admitted, held_back, not_read
from headgate.coordinator.log_ends import ends_of
from headgate.coordinator.moves import Step, move, recover, term_of
from headgate.coordinator.recovery import fitted, refuse_shared
from headgate.coordinator.speech import say
from headgate.coordinator.starving import STAMPS_KEPT
from headgate.coordinator.state import State
from headgate.coordinator.transitions import Phase


def end_and_start(state: State, sources: SourcesDescribed, now_ms: int) -> Step:
    """C4: append END(n) with START(n+1) right behind it, which names what is new in the sources."""
    term = term_of(state)
    fit = fitted(term.offsets, term.topic_ids, sources.topics, state.settings)
    state, held = held_back(state, term.offsets, term.topic_ids, sources.topics, now_ms=now_ms)
    ids = {topic: now.topic_id for topic, now in sources.topics.items()}
    refuse_shared(term.view, ids, state.identity.shared_with)
    # a re-created topic whose offsets fit by chance: work on the old one may still arrive
    anew = any(term.topic_ids.get(topic, id_) != id_ for topic, id_ in ids.items())
    if anew or any(fit.get(partition) != offset for partition, offset in term.offsets.items()):
        return recover(state, "a source lost stored offsets: claims again as the policy says")
    state, generations, told = admitted(state, sources.topics)
    fit = fit.restricted(fit.keys() - not_read(state))
    known = {**term.topic_ids, **ids}
    if len(fit) > len(term.offsets):
        refuse_too_many(fit.restricted(p for p in fit if p.topic in sources.topics), known)
    number = TransactionNumber(term.number + 1)
    past = tuple(filter(None, (term.closing_stamp, *term.past_stamps)))
    closing = replace(
        term,
        offsets=fit,
        topic_ids=known,
        number=number,
        ends=ends_of(sources.topics, known),
        issued=issued(term.issued, number, now_ms, state.settings.claim_age_max_ms),
        stamp=sources.stamp,
        closing_stamp=term.stamp,
        past_stamps=past[:STAMPS_KEPT],
        generations=generations,
    )
    topics = frozenset(sources.topics)
    moved = move(state, Phase.CLOSING, term=closing, topics=topics, failures=0)
    return moved, (*held, *told, *say(moved))
