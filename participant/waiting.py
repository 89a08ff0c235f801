"""What a participant waits for, as text and as partitions (S4)."""

from __future__ import annotations

from headgate.control_protocol.columns import Struct, changes
from headgate.control_protocol.events import Proposal
from headgate.control_protocol.identifiers import TopicPartition
from headgate.participant.state import State

_NAMED_MAX = 5


def words(proposal: Proposal) -> str:
    """Return text like ``waits for lake.orders: +pax, +tip``."""
    return f"waits for {_asked(proposal)}"


def waited_for(state: State) -> str | None:
    """Return text on everything that proposals wait for; ``None`` where there are none."""
    if not state.needs:
        return None
    asked = [_asked(need.proposal) for need in state.needs]
    more = f" and {len(asked) - _NAMED_MAX} more tables" if len(asked) > _NAMED_MAX else ""
    return f"waits for {'; '.join(asked[:_NAMED_MAX])}{more}"


def _asked(proposal: Proposal) -> str:
    wanted = list(changes(Struct(), proposal.columns))
    more = f" and {len(wanted) - _NAMED_MAX} more" if len(wanted) > _NAMED_MAX else ""
    named = f"{', '.join(wanted[:_NAMED_MAX])}{more}"
    if not proposal.uuid:
        return f"table {proposal.table}" + (f" ({named})" if named else "")
    return f"{proposal.table}: {named}"


def waiting(state: State) -> frozenset[TopicPartition]:
    """S4: return the partitions for which a status says that there is more."""
    first = (need.proposal.first for need in state.needs)
    return frozenset(at for offsets in first for at in offsets) & state.owned.keys()
