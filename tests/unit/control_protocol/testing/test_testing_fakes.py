"""What the shipped fakes do beyond the ports' contracts: time, faults, and the oracle's records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.control_envelopes import EXAMPLES, envelope

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import AppendUnconfirmed, PoisonRecord, Unreachable
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    ControlOffset,
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import (
    Batch,
    BatchFailed,
    BatchWritten,
    CommitAttempt,
    Landed,
    Lineage,
    PartitionResult,
    Refused,
    TopicState,
    Unknown,
)
from headgate.control_protocol.testing import (
    AppendFault,
    CommitFault,
    FakeBatchWriter,
    FakeCatalog,
    FakeClock,
    FakeGroup,
    FakeLog,
    FakeLogServer,
    FakeMember,
    FakeSource,
    FakeStorage,
    FakeTable,
    FakeTopics,
    SourceRecord,
)

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
SINK = SinkName("sink")
EVENT = envelope(EXAMPLES["pause"])


@pytest.fixture
def source() -> FakeSource:
    source = FakeSource()
    source.create_or_replace("orders", 2)
    source.produce(P0, record_count=2, timestamp_ms=100)
    source.add_offset_gap(P0, offsets=3)
    source.produce(P0, record_count=1, timestamp_ms=200)
    return source


# ------------------------------------------------------------------------------------ clock, log


def test_time_passes_only_when_somebody_waits() -> None:
    clock = FakeClock()
    log = FakeLog(FakeLogServer(clock))
    assert log.read(30) == []
    log.append([EVENT])
    assert len(log.read(30)) == 1
    assert clock.monotonic_ms() == 30
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)


@pytest.mark.parametrize(
    ("fault", "error", "at_once", "late"),
    [
        (AppendFault.ANSWER_LOST, AppendUnconfirmed, 1, 0),
        (AppendFault.LOST, AppendUnconfirmed, 0, 0),
        (AppendFault.LATE, AppendUnconfirmed, 0, 1),
        (AppendFault.UNREACHABLE, Unreachable, 0, 0),
    ],
)
def test_an_append_fails_as_told(
    fault: AppendFault, error: type[Exception], at_once: int, late: int
) -> None:
    server = FakeLogServer()
    server.faults.append(fault)
    log = FakeLog(server)
    with pytest.raises(error):
        log.append([EVENT])
    assert len(log.read(0)) == at_once
    server.land_oldest_in_flight()
    assert len(log.read(0)) == late
    log.append([EVENT])
    assert len(log.read(0)) == 1


def test_a_truncated_log_gives_its_offsets_out_again() -> None:
    server = FakeLogServer()
    log = FakeLog(server)
    log.append([EVENT, EVENT, EVENT])
    server.truncate(to=1)
    assert log.end_offset() == ControlOffset(1)


def test_an_unreachable_log_answers_nothing() -> None:
    server = FakeLogServer(reachable=False)
    log = FakeLog(server)
    for call in (lambda: log.read(0), log.end_offset, lambda: log.append([EVENT])):
        with pytest.raises(Unreachable):
            call()


# ---------------------------------------------------------------------------------------- source


def test_topics_are_described_as_they_are(source: FakeSource) -> None:
    topics = FakeTopics(source, ["orders"])
    source.expire(P0, before=1)
    assert topics.describe() == {
        "orders": TopicState(
            source.topic_ids["orders"], {0: OffsetRange(1, 6), 1: OffsetRange(0, 0)}
        )
    }
    assert topics.offsets_at(150) == Offsets({P0: 5, P1: 0})
    assert topics.offsets_at(999) == Offsets({P0: 6, P1: 0})
    source.add_partitions("orders", 1)
    assert set(topics.describe()["orders"].partitions) == {0, 1, 2}


def test_a_re_created_topic_has_another_id_and_nothing_in_it(source: FakeSource) -> None:
    before = source.topic_ids["orders"]
    source.create_or_replace("orders", 1)
    assert source.topic_ids["orders"] != before
    assert source.partitions.keys() == {P0}
    assert source.end_offsets([P0, P1]) == {P0: 0}


# ----------------------------------------------------------------------------------------- group


def test_partitions_move_after_their_owner_let_them_go(source: FakeSource) -> None:
    group = FakeGroup(source)
    told: list[frozenset[TopicPartition]] = []
    old = FakeMember(group, "old", told.append)
    new = FakeMember(group, "new")
    group.set_target_assignment({"old": [P0, P1]})
    old.poll(0)
    assert old.assignment() == {P0, P1}
    group.set_target_assignment({"old": [P0], "new": [P1]})
    new.poll(0)
    assert new.assignment() == frozenset()
    old.poll(0)
    assert (told, old.assignment()) == ([{P1}], {P0})
    new.poll(0)
    assert new.assignment() == {P1}


def test_an_expelled_member_learns_of_it_late_and_is_not_asked(source: FakeSource) -> None:
    group = FakeGroup(source)
    told: list[frozenset[TopicPartition]] = []
    zombie, heir = FakeMember(group, "zombie", told.append), FakeMember(group, "heir")
    group.set_target_assignment({"zombie": [P0]})
    zombie.poll(0)
    group.expel("zombie")
    group.set_target_assignment({"heir": [P0]})
    heir.poll(0)
    assert zombie.assignment() == heir.assignment() == {P0}
    zombie.copy_offsets_to_group(Offsets({P0: 1}), "stale")
    assert source.committed == {}
    zombie.poll(0)
    assert (told, zombie.assignment()) == ([], frozenset())


def test_a_partition_lost_and_won_again_shows_a_gap(source: FakeSource) -> None:
    group = FakeGroup(source)
    member = FakeMember(group, "member")
    group.set_target_assignment({"member": [P0]})
    member.poll(0)
    group.expel("member")
    group.set_target_assignment({"member": [P0]})
    seen = []
    for _ in range(2):
        member.poll(0)
        seen.append(member.assignment())
    assert seen == [frozenset(), {P0}]


def test_owned_offsets_are_copied_with_their_note(source: FakeSource) -> None:
    group = FakeGroup(source)
    member = FakeMember(group, "member")
    group.set_target_assignment({"member": [P0]})
    member.poll(0)
    member.copy_offsets_to_group(Offsets({P0: 4, P1: 9}), "note")
    assert source.committed == {P0: (4, "note")}
    assert FakeTopics(source, ["orders"]).committed_offset_metadata() == "note"
    member.close()
    assert group.holders == {}


# ---------------------------------------------------------------------------------------- writer


def batch() -> Batch:
    return Batch(
        number=1,
        transaction=TransactionId(Epoch(1), TransactionNumber(1)),
        table=TableStart("lake.records", "uuid-1", 0, 0, "memory://x-"),
        ranges={P0: OffsetRange(1, 6)},
        target_file_bytes=1,
    )


def test_a_batch_takes_its_time_and_its_file_holds_its_records(source: FakeSource) -> None:
    storage, clock = FakeStorage(), FakeClock()
    writer = FakeBatchWriter(source, storage, clock, work_ms=50)
    writer.submit(batch())
    assert writer.wait_for_outcome(20) is None
    written = writer.wait_for_outcome(100)
    assert clock.now_ms == 50
    assert isinstance(written, BatchWritten)
    assert written.partitions == {P0: PartitionResult(OffsetRange(1, 6), 2, 200, 200)}
    topic_id = source.topic_ids["orders"]
    assert storage.files[written.files[0].path] == [
        SourceRecord(topic_id, "orders", 0, 1),
        SourceRecord(topic_id, "orders", 0, 5),
    ]
    assert writer.wait_for_outcome(0) is None


def test_a_batch_waits_for_word_and_fails_as_told(source: FakeSource) -> None:
    writer = FakeBatchWriter(source, FakeStorage(), FakeClock(), work_ms=None)
    writer.submit(batch())
    fatal = PoisonRecord("no number")
    writer.fail_next_outcome("disk full", fatal)
    assert writer.wait_for_outcome(1_000) is None
    writer.make_batch_due()
    assert writer.wait_for_outcome(0) == BatchFailed(1, "disk full", fatal)


def test_a_batch_of_offsets_that_are_gone_fails(source: FakeSource) -> None:
    writer = FakeBatchWriter(source, FakeStorage(), FakeClock())
    source.expire(P0, before=2)
    writer.submit(batch())
    outcome = writer.wait_for_outcome(0)
    assert isinstance(outcome, BatchFailed)
    assert "outside of [2, 6)" in outcome.reason


# --------------------------------------------------------------------------------------- catalog


def attempt(table: FakeTable, number: int, catalog: FakeCatalog | None = None) -> CommitAttempt:
    record = CommitRecord(
        sink=SINK,
        group_id="g",
        transaction=TransactionId(Epoch(1), TransactionNumber(number)),
        coordinator=Sender("m", "1"),
        offsets=Offsets({P0: number}),
    )
    row = SourceRecord(TopicId("id"), "orders", 0, number)
    files = () if catalog is None else (catalog.storage.write("memory://x-", [row]),)
    return CommitAttempt(table.read(), record, files)


def offsets_in(catalog: FakeCatalog) -> list[int]:
    return [record.offset for record in catalog.visible_rows()]


@pytest.mark.parametrize(
    ("fault", "outcome", "offsets"),
    [
        (CommitFault.REFUSED, Refused, []),
        (CommitFault.LANDED_UNKNOWN, Unknown, [1]),
        (CommitFault.LOST_UNKNOWN, Unknown, []),
        (CommitFault.LATE_UNKNOWN, Unknown, []),
    ],
)
def test_a_commit_fails_as_told(
    fault: CommitFault, outcome: type[object], offsets: list[int]
) -> None:
    catalog = FakeCatalog()
    catalog.faults.append(fault)
    table = FakeTable(catalog, SINK)
    assert isinstance(table.commit(attempt(table, 1, catalog)), outcome)
    assert offsets_in(catalog) == offsets
    assert (table.read().record is not None) == bool(offsets)


def test_a_late_commit_lands_or_is_refused_when_it_arrives() -> None:
    catalog = FakeCatalog()
    catalog.faults += [CommitFault.LATE_UNKNOWN] * 2
    table = FakeTable(catalog, SINK)
    tried = attempt(table, 1, catalog)
    assert isinstance(table.commit(tried), Unknown)
    assert isinstance(table.commit(tried), Unknown)
    assert catalog.land_or_return_refusal() is None
    assert catalog.land_or_return_refusal() == "tag headgate-sink has moved"
    assert offsets_in(catalog) == [1]


def test_a_commit_to_another_branch_takes_the_number_once() -> None:
    catalog = FakeCatalog()
    catalog.append_foreign()
    table = FakeTable(catalog, SINK)
    tried = attempt(table, 1)
    catalog.append_foreign(branch="audit")
    assert table.commit(tried) == Refused("sequence number 2 is taken")
    assert isinstance(table.commit(tried), Landed)


def test_a_file_committed_twice_is_seen_twice() -> None:
    catalog = FakeCatalog()
    table = FakeTable(catalog, SINK)
    tried = attempt(table, 1, catalog)
    table.commit(tried)
    table.commit(replace(tried, base=table.read()))
    assert offsets_in(catalog) == [1, 1]
    catalog.compact()
    assert len(catalog.files()) == 1
    assert offsets_in(catalog) == [1, 1]


def test_what_happened_to_the_branch_shows_in_the_lineage() -> None:
    catalog = FakeCatalog()
    table = FakeTable(catalog, SINK)
    assert table.read().lineage is Lineage.FRESH
    table.commit(attempt(table, 1))
    first = table.read().head
    assert first is not None
    table.commit(attempt(table, 2))
    assert table.read().lineage is Lineage.CONTAINS_TAG
    catalog.roll_back(first)
    assert table.read().lineage is Lineage.ROLLED_BACK
    catalog.append_foreign()
    assert table.read().lineage is Lineage.ROLLED_BACK
    catalog.append_foreign()
    catalog.expire_snapshots()
    assert table.read().lineage is Lineage.ROLLED_BACK
    catalog.delete_tag("headgate-sink")
    assert table.read().lineage is Lineage.TAG_MISSING
    catalog.recreate()
    assert table.read().lineage is Lineage.FRESH
