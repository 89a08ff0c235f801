"""The claim by which a person moves offsets: of a new epoch, on the table as it was planned."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pyiceberg.catalog import Catalog
from unit.operations.filled_table import SINK, TOPIC, FilledTable

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import OPERATOR, PendingCommit
from headgate.control_protocol.errors import (
    ConfigurationError,
    RetryLater,
    SinkNameTaken,
    StopSink,
    Unreachable,
)
from headgate.control_protocol.identifiers import TopicId, TopicPartition, TransactionNumber
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Refused,
    TopicState,
    Unknown,
)
from headgate.operations.control import set_offsets as module
from headgate.operations.control.set_offsets import (
    OffsetMove,
    OffsetPlan,
    _require_no_added_keyed_partitions,
    _resolve_offset,
    carry_out_offset_plan,
    require_claimable_record,
)
from headgate.tables.iceberg.table import IcebergTable

ZERO, ONE = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


@pytest.fixture
def table(filled: FilledTable, catalog: Catalog) -> IcebergTable:
    filled.good_start()
    return IcebergTable(catalog, "db.trips", SINK)


def plan(table: IcebergTable) -> OffsetPlan:
    view = table.read()
    assert view.record is not None
    return OffsetPlan(view, view.record, (OffsetMove(ZERO, 10, 4),))


def test_offsets_are_set_by_a_new_epoch(table: IcebergTable, settings: SinkSettings) -> None:
    before = table.read()
    assert before.record is not None
    carry_out_offset_plan(settings, plan(table))
    after = table.read()
    assert after.record is not None
    assert (after.record.transaction.epoch, after.record.transaction.number) == (2, 0)
    assert after.record.is_claim
    assert after.record.coordinator.member == OPERATOR
    assert after.record.offsets == Offsets({ZERO: 4, ONE: 10})
    assert (after.record.records, after.record.quarantined, after.record.skipped) == (0, 0, 0)
    assert after.record.topic_ids == before.record.topic_ids


@pytest.mark.parametrize(("end", "known"), [(4, None), (12, 5_000)])
def test_what_is_known_of_time_stays_where_offsets_go_forward(
    table: IcebergTable, settings: SinkSettings, filled: FilledTable, end: int, known: int | None
) -> None:
    told = filled.record(1, 3, {0: 10, 1: 10}, valid_through_ms=5_000)
    table.commit(CommitAttempt(table.read(), told))
    carry_out_offset_plan(settings, replace(plan(table), moves=(OffsetMove(ZERO, 10, end),)))
    record = table.read().record
    assert record is not None
    assert (record.offsets[ZERO], record.valid_through_ms) == (end, known)
    assert record.command == "offsets set"


def test_key_8_of_a_keyed_table_no_partition_is_set_that_was_added(
    table: IcebergTable, settings: SinkSettings
) -> None:
    record = table.read().record
    assert record is not None
    added = TopicPartition(TOPIC, 2)
    keyed = replace(settings, table=replace(settings.table, key=("id",)))
    _require_no_added_keyed_partitions(settings, record, [ZERO, added])
    _require_no_added_keyed_partitions(keyed, record, [ZERO, ONE, TopicPartition("another", 0)])
    with pytest.raises(ConfigurationError, match="trips/2: added to a topic of a keyed table"):
        _require_no_added_keyed_partitions(keyed, record, [ZERO, added])


def test_a_topic_that_is_new_to_the_sink_begins_with_all_of_its_partitions(
    table: IcebergTable, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KEY-8: one that the claim leaves out would count as added, and stop a keyed sink."""
    logs = {0: OffsetRange(2, 50), 1: OffsetRange(0, 0), 2: OffsetRange(7, 9)}
    zones = TopicState(TopicId("zones-id"), logs)
    source = SimpleNamespace(describe=lambda: {"zones": zones}, offsets_at=None)
    monkeypatch.setattr(module, "open_reachable_source_topics", lambda _: nullcontext(source))
    monkeypatch.setattr(module, "require_no_running_participants", lambda _: None)
    planned = module.plan_offset_moves(settings, ["zones/0=latest"])
    assert [*planned.describe_moves()] == [
        "zones/0: from 2 to 50: up to 48 records are skipped, and LOST to the table"
    ]
    carry_out_offset_plan(settings, planned)
    record = table.read().record
    assert record is not None
    begun = {at.partition: offset for at, offset in record.offsets.items() if at.topic == "zones"}
    assert begun == {0: 50, 1: 0, 2: 7}
    assert record.topic_ids == {TOPIC: "topic-id-1", "zones": "zones-id"}


def test_who_leads_unseen_is_fenced_by_it(
    table: IcebergTable, settings: SinkSettings, filled: FilledTable
) -> None:
    base = table.read()
    carry_out_offset_plan(settings, plan(table))
    late = CommitAttempt(base, filled.record(1, 3, {0: 12, 1: 12}))
    assert isinstance(table.commit(late), Refused)


def test_a_plan_is_void_when_somebody_else_has_committed(
    table: IcebergTable, settings: SinkSettings, filled: FilledTable
) -> None:
    planned = plan(table)
    table.commit(CommitAttempt(planned.view, filled.record(1, 3, {0: 12, 1: 12})))
    with pytest.raises(RetryLater, match="were not moved"):
        carry_out_offset_plan(settings, planned)
    record = table.read().record
    assert record is not None
    assert record.offsets == Offsets({ZERO: 12, ONE: 12})


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_answer_is_asked_of_the_table(
    table: IcebergTable, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    def commit(self: IcebergTable, attempt: CommitAttempt) -> CommitOutcome:
        if landed:
            right(self, attempt)
        return Unknown("the answer was lost")

    right = IcebergTable.commit
    monkeypatch.setattr(IcebergTable, "commit", commit)
    planned = plan(table)
    if landed:
        carry_out_offset_plan(settings, planned)
        return
    with pytest.raises(RetryLater, match="the answer was lost"):
        carry_out_offset_plan(settings, planned)


def test_only_a_table_in_order_has_offsets_to_set(
    table: IcebergTable, settings: SinkSettings, filled: FilledTable
) -> None:
    view = table.read()
    assert require_claimable_record(settings, view) == view.record
    filled.table.refresh()
    filled.table.manage_snapshots().rollback_to_snapshot(
        filled.table.snapshots()[1].snapshot_id
    ).commit()
    with pytest.raises(StopSink, match="rolled-back"):
        require_claimable_record(settings, table.read())


def test_another_groups_offsets_are_not_ours(
    filled: FilledTable, catalog: Catalog, settings: SinkSettings
) -> None:
    filled.commit(filled.record(1, 0, {0: 0}, group_id="other"))
    with pytest.raises(SinkNameTaken):
        require_claimable_record(settings, IcebergTable(catalog, "db.trips", SINK).read())


def test_pending_9_pending_commits_stay_and_secondaries_are_claimed_before_the_next_start(
    table: IcebergTable, settings: SinkSettings
) -> None:
    before = table.read().record
    assert before is not None
    pending = PendingCommit(
        before.transaction, before.coordinator, "uuid-q", "db.q", "m.avro", 9, 2
    )
    old = PendingCommit(before.transaction, before.coordinator, "uuid-q", "db.q")
    owing = replace(before, secondaries={"db.q": "uuid-q"}, pending_commits=(pending, old))
    number = TransactionNumber(before.transaction.number + 1)
    owing = replace(owing, transaction=replace(before.transaction, number=number))
    table.commit(CommitAttempt(table.read(), owing))
    carry_out_offset_plan(settings, plan(table))
    after = table.read().record
    assert after is not None
    assert after.pending_commits == (
        pending,
        PendingCommit(after.transaction, after.coordinator, "uuid-q", "db.q"),
    )
    assert after.pending_commits[1].is_claim


@pytest.mark.parametrize(("text", "offset"), [("earliest", 3), ("latest", 20), ("7", 7)])
def test_words_and_numbers_mean_places_in_the_log(
    filled: FilledTable, text: str, offset: int
) -> None:
    states = {TOPIC: TopicState(filled.topic_id, {0: OffsetRange(3, 20)})}
    record = filled.record(1, 0, {0: 5})
    assert _resolve_offset(ZERO, text, states, record) == offset
    for beyond in ("2", "21"):
        with pytest.raises(ConfigurationError, match="not in the log"):
            _resolve_offset(ZERO, beyond, states, record)
    anew = {TOPIC: TopicState(TopicId("another"), {0: OffsetRange(3, 20)})}
    with pytest.raises(ConfigurationError, match="re-created"):
        _resolve_offset(ZERO, text, anew, record)


SIX = "2026-01-31T06:00:00Z"
SIX_MS = 1_769_839_200_000


def expanded(*wanted: str) -> dict[str, str]:
    described = {TOPIC: TopicState(TopicId("id"), {0: OffsetRange(0, 9), 1: OffsetRange(0, 9)})}

    def offsets_at(time_ms: int) -> Offsets:
        assert time_ms == SIX_MS
        return Offsets({ZERO: 3, ONE: 9})

    found = module._expand_to_partitions(
        [module._parse_assignment(text) for text in wanted], described, offsets_at
    )
    return {str(at): place for at, place in found.items()}


def test_a_time_or_a_word_is_meant_for_all_of_a_topic() -> None:
    assert expanded(f"{TOPIC}={SIX}") == {"trips/0": "3", "trips/1": "9"}
    assert expanded(f"{TOPIC}/1={SIX}") == {"trips/1": "9"}
    assert expanded(f"{TOPIC}=latest", f"{TOPIC}/0=7") == {"trips/0": "7", "trips/1": "latest"}
    assert expanded("elsewhere/4=7") == {"elsewhere/4": "7"}  # refused with its reason later


@pytest.mark.parametrize(
    "text",
    [
        *("trips=7", "trips", "=earliest", "trips/0=", "trips=2026-01-31", "trips=yesterday"),
        "trips=1969-12-31T23:59:59.999Z",  # to Kafka, the latest offset
    ],
)
def test_what_names_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an offset of a partition"):
        module._parse_assignment(text)


def test_a_topic_is_not_moved_in_part_where_a_partition_has_no_leader() -> None:
    led = {TOPIC: TopicState(TopicId("id"), {0: OffsetRange(0, 9)}, silent=frozenset({1}))}
    whole, one = (module._parse_assignment(f"{at}=latest") for at in (TOPIC, ZERO))
    with pytest.raises(Unreachable, match="no broker leads trips/1"):
        module._expand_to_partitions([whole], led, lambda _: Offsets())
    assert module._expand_to_partitions([one], led, lambda _: Offsets()) == {ZERO: "latest"}


def test_a_topic_that_is_not_read_has_no_partitions() -> None:
    with pytest.raises(ConfigurationError, match="not in the source"):
        expanded(f"other={SIX}")
