"""Leaves the lead to another participant where the coordinator's own calls are not answered (E2).

While it leads nobody else can, and what hangs or fails may be its own way to catalog and store.
"""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.errors import LeadershipReleased
from headgate.control_protocol.events import Envelope, Presence, PresenceKind, WriteStatus
from headgate.coordinator.outgoing_events import patience_ms
from headgate.coordinator.state import State

PEERS_MAX = 256
"""Of so many, some are alive; what anybody may say takes bounded memory (G6)."""


def with_peer(state: State, said: Envelope, now_ms: int) -> State:
    """Remember when another participant was heard; one that gave up all it had is no heir.

    Only where the primary table may be released soon: at all other times it does not matter who is
    there.
    """
    since_ms, name = state.unanswered_since_ms, said.sender.member
    if since_ms is None or now_ms - since_ms < patience_ms(state.settings) // 2:
        return state
    if name == state.identity.sender.member or not isinstance(said.event, Presence | WriteStatus):
        return state
    peers = {known: at_ms for known, at_ms in state.peers.items() if known != name}
    if not _left(said.event):
        peers[name] = now_ms
    while len(peers) > PEERS_MAX:
        del peers[next(iter(peers))]
    return replace(state, peers=peers)


def _left(event: Presence | WriteStatus) -> bool:
    return isinstance(event, Presence) and event.kind is PresenceKind.LOST and not event.owned


def lacks_answers(state: State, now_ms: int) -> bool:
    """Return whether to release the primary table: nothing is answered for long, and others are
    there."""
    since_ms, patient_ms = state.unanswered_since_ms, patience_ms(state.settings)
    if since_ms is None or now_ms - since_ms < patient_ms:
        return False
    return any(now_ms - at_ms < patient_ms for at_ms in state.peers.values())


def released(state: State, now_ms: int) -> LeadershipReleased:
    """Return the error that ends this participant's part for a while."""
    since_ms, away_ms = state.unanswered_since_ms, patience_ms(state.settings)
    assert since_ms is not None
    return LeadershipReleased(
        f"catalog and store have not done what the coordinator in {state.identity.sender.member} "
        f"asks for {(now_ms - since_ms) // 1000} s: it leaves the lead to others, and the group",
        f"it comes back after {away_ms // 1000} s, once the table can be read from there; check "
        "whether catalog and store answer this machine",
        away_ms,
    )
