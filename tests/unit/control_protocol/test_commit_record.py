"""The record of one commit: who changes it, and what every change keeps."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commit_records import broken_promises

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.commit_record import (
    OPERATOR,
    REPLAY,
    CommitRecord,
    KeyCounts,
    PendingCommit,
    Replayed,
    Suspended,
)
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets

ROOT = Path(__file__).parents[3]
PRODUCT = (
    *("coordinator", "participant", "control_protocol", "tables", "operations", "runtime"),
    *("data_plane", "spark", "kafka"),
)
NAMES = {"record", "claim", "fence", "decided", "before", "bare", "stored", "newest", "said"}
"""What variables that hold a commit record are called."""

SINK, ALICE = SinkName("rides"), Sender("alice", "c1")
PERSON = Sender(OPERATOR, "p1")
P0 = TopicPartition("trips", 0)
COUNTS = KeyCounts(inserted=3, updated=2)


def at(epoch: int, number: int) -> TransactionId:
    return TransactionId(Epoch(epoch), TransactionNumber(number))


def pending(number: int, table: str = "lake.orders") -> PendingCommit:
    return PendingCommit(at(7, number), ALICE, f"uuid-{table}", table, f"{number}.avro", 9, 2)


def record(**more: object) -> CommitRecord:
    facts = {"records": 5, "keys": COUNTS, "quarantined": 1, "skipped": 1, **more}
    topics = {"trips": TopicId("id-1")}
    return CommitRecord(SINK, "group", at(7, 4), ALICE, Offsets({P0: 9}), topics, **facts)  # type: ignore[arg-type]


def test_a_persons_claim_counts_nothing_of_the_commit_before_it() -> None:
    """The audit adds up what the commits of a keyed table count (KEY-10)."""
    claim = record().next_operator_claim(PERSON, "pause", "ann", paused=True)

    assert (claim.records, claim.quarantined, claim.skipped, claim.keys) == (0, 0, 0, None)
    assert (claim.transaction, claim.paused, claim.actor) == (at(8, 0), True, "ann")
    assert claim.is_operator_claim
    assert claim.offsets == record().offsets


def test_rows_given_back_count_nothing_of_the_delivery_before_them() -> None:
    delivered = record(primary="uuid-1")

    back = delivered.with_missed_rows_replayed(0, Replayed(), command=REPLAY, actor="ann")

    assert (back.records, back.keys, back.gives_back_missed_rows) == (0, None, True)


_pending = st.lists(st.integers(1, 4), max_size=4).map(
    lambda numbers: tuple(pending(n) for n in sorted(set(numbers)))
)
_suspended = st.sets(st.sampled_from(["lake.a", "lake.b"])).map(
    lambda names: tuple(Suspended(name, "HG-102 gone") for name in sorted(names))
)


@given(
    decided=st.builds(record, pending_commits=_pending, suspended=_suspended),
    owed=_pending,
    wants=st.sampled_from([{}, {"paused": True}, {"stopped": True}, {"going_back": "7.2"}]),
    counts=st.builds(KeyCounts, inserted=st.integers(0, 9), updated=st.integers(0, 9)),
)
def test_every_change_keeps_what_is_promised_and_is_read_as_it_was_written(
    decided: CommitRecord,
    owed: tuple[PendingCommit, ...],
    wants: dict[str, object],
    counts: KeyCounts,
) -> None:
    lost = tuple(each for each in decided.pending_commits if each not in owed)
    left = decided.with_pending(owed, lost)
    claim = left.next_operator_claim(PERSON, "stop", "ann", **wants)
    delivered = record(primary="uuid-1")
    for made in (
        decided,
        left,
        claim,
        claim.next_operator_claim(PERSON, "offsets set", None),
        decided.with_key_counts(counts),
        claim.with_operator_command("resume --accept", "bob"),
        delivered.with_missed_rows_replayed(3, Replayed(), command=REPLAY, actor=None),
    ):
        assert list(broken_promises(made)) == []
        assert (
            commit_record_codec.decode_record(SINK, commit_record_codec.encode_record(made)) == made
        )


@pytest.mark.parametrize(
    ("facts", "promise"),
    [
        ({"transaction": at(8, 0)}, "a claim brings"),
        ({"actor": "ann"}, "an actor without a command"),
        ({"stopped": True}, "stopped, and not by a person"),
        ({"primary": "uuid-1", "pending_commits": (pending(1),)}, "decides for others"),
        ({"replayed": Replayed()}, "given back"),
        ({"pending_commits": (pending(2), pending(1))}, "order"),
        ({"pending_commits": (pending(9),)}, "later transaction"),
        ({"pending_commits": (pending(1),), "expired": (pending(1),)}, "pending and expired"),
        ({"suspended": (Suspended("lake.a", "x"), Suspended("lake.a", "y"))}, "twice"),
        ({"topic_ids": {}}, "without an id"),
    ],
)
def test_each_promise_can_be_broken(facts: dict[str, object], promise: str) -> None:
    assert promise in "; ".join(broken_promises(replace(record(), **facts)))  # type: ignore[arg-type]


def test_a_record_is_changed_by_its_owner_only() -> None:
    known = {each.name for each in fields(CommitRecord)}
    strangers = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "commit_record.py" and "testing" not in path.parts
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "replace"
        and ast.unparse(call.args[0]).rpartition(".")[2] in NAMES
        and {each.arg for each in call.keywords if each.arg} <= known
    ]

    assert strangers == []
