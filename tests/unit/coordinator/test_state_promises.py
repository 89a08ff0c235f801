"""Each promise above a value of the state can be broken, and the check of all states notices it.

What is planted breaks one value each; a test of the protocol brings it about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from protocol import test_key_8_added_partitions as added
from protocol import test_pending_7_acknowledged as acknowledged
from protocol import test_schema_evolution as evolution
from protocol import test_suspend_isolation as isolation
from protocol.coordinating import EPOCH, Coordinator
from protocol.values import ALICE, BOB, P0, P1, gain, status

from headgate.control_protocol.identifiers import ControlOffset, TopicPartition
from headgate.coordinator import (
    epoch_claim,
    machine,
    phase_steps,
    schema_changes,
    table_suspension,
)
from headgate.coordinator.file_admission import Tokens
from headgate.coordinator.inputs_and_actions import Looked
from headgate.coordinator.phases import Phase
from headgate.coordinator.state import (
    Call,
    Delivery,
    EpochWatch,
    PauseState,
    PrimaryState,
    Progress,
    Recovery,
    SourceState,
    StatusCollection,
    Suspicion,
)

STRANGER = TopicPartition("stranger", 0)


def commits() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    answer = status(1, {P0: (10, 15), P1: (20, 22)}, written_in=(EPOCH, 1))
    coordinator.hears(answer, ALICE, transaction=1)
    coordinator.waits(0)
    coordinator.until(Phase.OPEN)


def gains() -> None:
    Coordinator.at(Phase.OPEN).hears(gain(STRANGER), BOB)


def hears_a_higher_epoch() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(gain(P0), BOB, epoch=EPOCH + 3)


def leads() -> None:
    Coordinator.at(Phase.OPEN)


def _kept(self: Any, *_: Any, **__: Any) -> Any:
    """Nothing of it changes."""
    return self


def _planted_call(attempt: Any = None, **counts: Any) -> Call:
    return Call(None, **counts)


def _with_recovery(state: Any, phase: Phase, **changes: Any) -> Any:
    entered = phase_steps.enter_phase(state, phase, **changes)
    return replace(entered, recovery=Recovery(Looked()))


def _with_two_marks(self: Tokens, number: Any, mark: str, *_: Any) -> Tokens:
    return replace(self, marks=("one", "one"))


PLANTED: dict[str, tuple[Any, str, Any, Callable[[], None], str]] = {
    "C moves, and L does not": (
        Progress,
        "with_settlement_applied",
        lambda self, done: replace(self, offsets=done.offsets, settlement=done),
        commits,
        "are not those of the settlement",
    ),
    "L is ahead of the log": (
        Progress,
        "with_settled_to_first_start",
        lambda self: replace(self, settled_to=ControlOffset(self.heard_to + 1)),
        leads,
        "L is beyond what was heard",
    ),
    "the log is heard backwards": (
        Progress,
        "with_heard_offset",
        lambda self, offset: replace(self, heard_to=ControlOffset(1_000 - offset)),
        commits,
        "went back",
    ),
    "what was judged is kept": (
        StatusCollection,
        "without_judged",
        _kept,
        commits,
        "a status lies before L",
    ),
    "statuses in another order": (
        StatusCollection,
        "with_status",
        lambda self, heard, named: replace(
            self, statuses=(heard, replace(heard, offset=ControlOffset(heard.offset - 1)))
        ),
        commits,
        "not in log order",
    ),
    "a gained partition is not awaited": (
        StatusCollection,
        "with_gain",
        lambda self, gained: replace(self, named_by_presence=gained),
        gains,
        "is not awaited",
    ),
    "a commit that landed is not the newest": (
        PrimaryState,
        "with_landed",
        lambda self, view: replace(self, view=replace(view, record=None)),
        commits,
        "not of this epoch",
    ),
    "ends of a topic that nobody reads": (
        SourceState,
        "with_known_ends",
        lambda sources, ends: replace(sources, ends={**sources.ends, **ends, STRANGER: 1}),
        commits,
        "a log end of a topic without id",
    ),
    "what is held is read": (
        machine,
        "held_partitions",
        lambda state: frozenset[TopicPartition](),
        added.test_that_it_is_younger_is_in_the_commit_that_first_names_it,
        "exactly when it was admitted",
    ),
    "a mark is issued twice": (Tokens, "with_start", _with_two_marks, leads, "marks repeat"),
    "an answer to PAUSE that did not land": (
        PauseState,
        "with_request_answered_in",
        lambda self, answered: replace(self, answered=answered + 5),
        commits,
        "did not land",
    ),
    "an attempt is lost while its outcome is open": (
        phase_steps,
        "Call",
        _planted_call,
        leads,
        "an attempt is set exactly",
    ),
    "the epoch that was heard is forgotten": (
        EpochWatch,
        "with_claim_landed",
        lambda self, epoch: replace(self, highest_epoch=epoch - 1),
        leads,
        "its own epoch was not heard",
    ),
    "a higher epoch lowers what was heard": (
        EpochWatch,
        "with_heard_epoch",
        lambda self, epoch: replace(self, highest_epoch=EPOCH - 1),
        hears_a_higher_epoch,
        "the highest epoch heard fell",
    ),
    "it takes itself for another": (
        EpochWatch,
        "with_replay_windows",
        lambda self, windows: replace(self, peers={"worker-1": 1}),
        gains,
        "takes itself for another",
    ),
    "drafts outlive their decision": (
        Delivery,
        "with_decided_commits",
        lambda self, primary, pending, now_ms: replace(self, pending=pending),
        acknowledged.test_a_read_does_and_the_next_decision_names_what_is_left,
        "with drafts",
    ),
    "more tables are suspended than a record names": (
        table_suspension,
        "require_not_too_many_suspended",
        lambda suspended: None,
        isolation.test_suspend_4_trouble_of_all_tables_is_not_theirs,
        "more tables are suspended",
    ),
    "a proposal is remembered twice": (
        schema_changes,
        "_newest_proposals_in_bounds",
        lambda waiting: (*waiting, *waiting),
        evolution.test_schema_3_proposals_gather_for_a_moment_and_one_update_serves_them_all,
        "a proposal waits twice",
    ),
    "an epoch keeps what it began with": (
        epoch_claim,
        "enter_phase",
        _with_recovery,
        leads,
        "with what an epoch begins with",
    ),
    "an epoch keeps what its claim looked into": (
        epoch_claim,
        "Suspicion",
        lambda: Suspicion("something"),
        leads,
        "with what its claim looks into",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_broken_promise_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, planted, done, said = PLANTED[name]
    done()
    monkeypatch.setattr(where, what, planted)

    with pytest.raises(AssertionError, match=f"a coordinator's state: .*{said}"):
        done()
