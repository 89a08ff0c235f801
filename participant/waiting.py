"""What a participant waits for, in words and partitions (S4)."""

from __future__ import annotations

from headgate.control_protocol.columns import Struct, changes
from headgate.control_protocol.events import Proposal
from headgate.control_protocol.identifiers import TopicPartition
from headgate.participant.state import State

_NAMED_MAX = 5


def words(proposal: Proposal) -> str:
    """Say what is waited for: ``waits for lake.orders: +pax, +tip``."""
    wanted = list(changes(Struct(), proposal.columns))
    more = f" and {len(wanted) - _NAMED_MAX} more" if len(wanted) > _NAMED_MAX else ""
    return f"waits for {proposal.table}: {', '.join(wanted[:_NAMED_MAX])}{more}"


def waiting(state: State) -> frozenset[TopicPartition]:
    """S4: of which a status says that more is there."""
    return frozenset(state.need.proposal.first) & state.owned.keys() if state.need else frozenset()
