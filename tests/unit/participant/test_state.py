"""Each value of the state has one owner, and what its fields say holds after any inputs."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol.participating import Participant
from protocol.values import P0, P1, offsets
from support.participant_states import check_step, without_checks

import headgate.participant
from headgate.control_protocol.machine_io import LogTruncated
from headgate.control_protocol.ports import BatchFailed
from headgate.participant import state
from headgate.participant.inputs_and_actions import (
    BatchEnded,
    EndOffsetsRead,
    ReleaseRequested,
    ReleaseTimedOut,
)
from headgate.participant.state import State

FOLDER = Path(headgate.participant.__path__[0])
OWNERS = {
    "Term": "heard_coordinator",
    "Announced": "heard_coordinator",
    "Work": "batches",
    "BatchRun": "batches",
    "SourceEnds": "batches",
    "SchemaNeeds": "schema_proposals",
}
ATTRIBUTES = {
    name: kind.__name__ for name, kind in get_type_hints(State).items() if isinstance(kind, type)
}


def changed_values(module: Path) -> set[str]:
    """The values of which a module makes a new or changed copy."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id in OWNERS:
            found.add(node.func.id)
        if node.func.id == "replace":
            found |= {ATTRIBUTES.get(word.arg or "", "") for word in node.keywords} & OWNERS.keys()
    return found


@pytest.mark.parametrize("module", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_only_the_owner_of_a_value_makes_a_changed_copy(module: Path) -> None:
    others = {name for name in changed_values(module) if OWNERS[name] != module.stem}
    assert others == set() or module.stem == "state"


def test_the_owner_is_named_at_the_value() -> None:
    for name, owner in OWNERS.items():
        assert f"Only ``{owner}`` makes a changed copy." in getattr(state, name).__doc__


OFFSETS = st.integers(0, 40)
PARTITIONS = st.sets(st.sampled_from([P0, P1]))
INPUTS = st.one_of(
    st.tuples(st.just("owns"), PARTITIONS),
    st.tuples(st.just("releases"), PARTITIONS),
    st.tuples(st.just("waits no longer")),
    st.tuples(st.just("waits"), st.sampled_from([1, 500, 5_000, 900_000])),
    st.tuples(st.just("hears itself")),
    st.tuples(st.just("append fails")),
    st.tuples(st.just("log is truncated")),
    st.tuples(st.just("source ends"), OFFSETS, OFFSETS),
    st.tuples(st.just("batch ends")),
    st.tuples(st.just("batch fails"), st.booleans()),
    st.tuples(st.just("start"), st.integers(1, 3), st.integers(1, 4), OFFSETS, st.booleans()),
    st.tuples(st.just("end"), st.integers(1, 3), st.integers(1, 4)),
    st.tuples(st.just("ack"), st.integers(1, 3), st.integers(1, 4), OFFSETS, st.booleans()),
)


@given(st.lists(INPUTS, max_size=60))
def test_what_the_fields_say_holds_whatever_it_is_told(told: list[tuple[Any, ...]]) -> None:
    """Also where no coordinator, source or group would speak so: ``given`` checks every state."""
    participant = Participant.writing(offsets(10, 20))
    for what, *more in told:
        tell(participant, what, *more)


def tell(participant: Participant, what: str, *more: Any) -> None:
    if what.startswith("batch"):
        if participant.state.run.batch:
            batch_ends(participant, *more)
    elif what in ("start", "end", "ack"):
        coordinator_says(participant, what, *more)
    elif what in ("owns", "releases", "waits no longer"):
        group_says(participant, what, *more)
    elif what == "source ends":
        participant.given(EndOffsetsRead(dict(zip((P0, P1), more, strict=True))))
    elif what == "waits":
        participant.waits(*more)
    elif what == "hears itself":
        participant.hears_itself()
    elif what == "append fails":
        participant.append_fails()
    else:
        participant.given(LogTruncated("re-created"))


def batch_ends(participant: Participant, *unforeseen: bool) -> None:
    if not unforeseen:
        participant.batch_written()
        return
    number = participant.batch.number
    participant.given(BatchEnded(BatchFailed(number, "disk full", unforeseen=unforeseen[0])))


def group_says(participant: Participant, what: str, *more: Any) -> None:
    if what == "owns":
        participant.owns(*more[0])
    elif what == "releases":
        participant.given(ReleaseRequested(frozenset(more[0])))
    else:
        participant.given(ReleaseTimedOut())


def coordinator_says(
    participant: Participant, what: str, epoch: int, number: int, *more: Any
) -> None:
    if what == "end":
        participant.end(number, epoch=epoch)
        return
    offset, early = more
    at, here = offsets(offset, offset), participant.next_offset
    if what == "start":
        settled_to = None if early else max(here - 1, 0)
        participant.start(number, at, epoch=epoch, settled_to=settled_to)
    else:
        participant.ack(number, at, max(here - 3, 0) if early else here, epoch=epoch)


def test_a_state_that_breaks_what_its_fields_say_is_found() -> None:
    before = Participant.writing(offsets(10, 20)).state
    broken = replace(before, work=replace(before.work, troubles={"lake.orders": "dropped"}))
    with pytest.raises(AssertionError, match="files or troubles without a claim"):
        check_step(before, broken)
    with without_checks():
        check_step(before, broken)
