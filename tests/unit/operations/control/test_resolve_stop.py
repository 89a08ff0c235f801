"""``headgate resume --accept``: one claim under a policy that no file holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headgate.control_protocol.commit_record import offset_metadata_of_table
from headgate.control_protocol.errors import (
    ConfigurationError,
    KeyedPartitionsAdded,
    MissingRights,
    RetryLater,
    StopSink,
    TableRolledBack,
)
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import Sender, SinkName, TopicPartition, tag_name
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import CommitAttempt, Landed, Lineage, TableView
from headgate.control_protocol.redaction import Redaction
from headgate.control_protocol.testing import (
    CommitFault,
    FakeCatalog,
    FakeSource,
    FakeTable,
    FakeTopics,
)
from headgate.coordinator.driver import StartAt, answer_look
from headgate.coordinator.epoch_claim import on_look_before_claim, on_primary_read_before_claim
from headgate.coordinator.inputs_and_actions import Look
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import CoordinatorSettings
from headgate.coordinator.state import Identity, State
from headgate.operations.control.resolve_stop import (
    CHOICES,
    ClaimedSink,
    _parse_choices,
    resolve_stop,
)
from headgate.tables.concurrent_secondary_tables import SecondaryTables

SINK = SinkName("sink")
AT = TopicPartition("source", 0)
OPERATOR = Identity(SINK, "group", Sender("operator", "1"))
COORDINATOR = Identity(SINK, "group", Sender("member", "1"))
SETTINGS = CoordinatorSettings()


class Sink:
    """Has committed the first 3 of 9 records, and then 3 more."""

    def __init__(self) -> None:
        self.catalog, self.source = FakeCatalog(), FakeSource()
        self.source.create_or_replace("source", 1)
        self.source.produce(AT, 9, 0)
        self.table = FakeTable(self.catalog, SINK)
        self.topics = FakeTopics(self.source, ("source",))
        self.claims(COORDINATOR)
        for offset in (3, 6):
            base = self.table.read()
            assert base.record is not None
            records = self.source.records(AT, OffsetRange(offset - 3, offset))
            file = self.catalog.storage.write("sink/", records)
            moved = _moved(base, offset, file)
            outcome = self.table.commit(moved)
            assert isinstance(outcome, Landed)

    @property
    def stored(self) -> Offsets:
        record = self.table.read().record
        assert record is not None
        return record.offsets

    def claims(self, identity: Identity, settings: CoordinatorSettings = SETTINGS) -> None:
        """As the next start of the sink does it. Raises ``StopSink``."""
        view = self.table.read()
        state, (asked,) = on_primary_read_before_claim(
            State(identity, settings, phase=Phase.RECOVERING), view
        )
        assert isinstance(asked, Look)
        world = ClaimedSink(identity, self.table, self.topics, StartAt())
        found = answer_look(asked, world, world.start_at, lambda: 0)
        attempt = on_look_before_claim(state, found, 0)[0].call.attempt
        assert attempt is not None
        assert isinstance(self.table.commit(attempt), Landed)

    def accepts(self, *wanted: str, operator: Identity = OPERATOR) -> list[str]:
        world = ClaimedSink(operator, self.table, self.topics, StartAt())
        return resolve_stop(world, SETTINGS, _parse_choices(wanted))


def _moved(base: TableView, offset: int, *files: WrittenFile) -> CommitAttempt:
    assert base.record is not None
    transaction = replace(base.record.transaction, number=base.record.transaction.number + 1)
    record = replace(base.record, transaction=transaction, offsets=Offsets({AT: offset}))
    return CommitAttempt(base, record, files)


def roll_back(sink: Sink) -> None:
    sink.catalog.roll_back(2)


def lose_history(sink: Sink) -> None:
    """Whether the head holds the last commit, nothing tells any more: it was rolled back, others
    appended, and what lay between expired with the table's old metadata."""
    roll_back(sink)
    sink.catalog.append_foreign()
    sink.catalog.expire_snapshots()
    sink.catalog.log_lost = True


def delete_tag(sink: Sink) -> None:
    sink.catalog.delete_tag(tag_name(SINK))


def recreate(sink: Sink) -> None:
    sink.source.committed[AT] = (6, offset_metadata_of_table("uuid-1", SINK))
    sink.catalog.recreate()


def expire_source(sink: Sink) -> None:
    sink.source.expire(AT, 8)


def recreate_topic(sink: Sink) -> None:
    sink.source.create_or_replace("source", 1)
    sink.source.produce(AT, 7, 0)


CASES = [
    (roll_back, "HG-201=follow-table", 3),
    (roll_back, "HG-201=keep-offsets", 6),
    (recreate, "HG-202=restart", 0),
    (delete_tag, "HG-203=follow-table", 6),
    (lose_history, "HG-204=keep-offsets", 6),
    (expire_source, "HG-205=earliest", 8),
    (expire_source, "HG-205=latest", 9),
    (recreate_topic, "HG-206=earliest", 0),
    (recreate_topic, "HG-206=latest", 7),
]


@pytest.mark.parametrize(("happens", "choice", "stored"), CASES)
def test_what_stopped_the_sink_is_resolved_once(
    happens: Callable[[Sink], None], choice: str, stored: int
) -> None:
    sink = Sink()
    happens(sink)
    with pytest.raises(StopSink) as stop:
        sink.claims(COORDINATOR)
    assert stop.value.code == choice.partition("=")[0]

    assert sink.accepts(choice) == [stop.value.message]
    accepted = sink.table.read().record
    assert accepted is not None
    assert accepted.command == f"resume --accept {choice}"

    sink.claims(COORDINATOR)
    assert sink.stored == Offsets({AT: stored})
    assert sink.table.read().lineage is Lineage.CONTAINS_TAG
    with pytest.raises(ConfigurationError, match="nothing was changed"):
        sink.accepts(choice)


def test_the_same_stop_a_second_time_is_a_stop_again() -> None:
    sink = Sink()
    roll_back(sink)
    sink.accepts("HG-201=follow-table")
    roll_back(sink)
    with pytest.raises(TableRolledBack):
        sink.claims(COORDINATOR)


def test_key_8_partitions_that_were_added_to_a_keyed_topic_meanwhile_are_not_taken_in() -> None:
    sink = Sink()
    roll_back(sink)
    sink.source.add_partitions("source", 1)
    sink.source.produce(TopicPartition("source", 1), 5, 0)
    keyed = replace(OPERATOR, keyed=True)
    with pytest.raises(KeyedPartitionsAdded):
        sink.accepts("HG-201=follow-table", operator=keyed)
    sink.accepts("HG-201=follow-table", operator=replace(keyed, growth_ms=1_000))
    assert sink.stored == Offsets({AT: 3})


def test_a_choice_answers_no_other_error() -> None:
    sink = Sink()
    roll_back(sink)
    before = sink.table.read()
    with pytest.raises(TableRolledBack):
        sink.accepts("HG-204=keep-offsets")
    assert sink.table.read() == before


def test_two_stops_need_two_choices() -> None:
    sink = Sink()
    roll_back(sink)
    expire_source(sink)
    with pytest.raises(StopSink, match="removed by retention"):
        sink.accepts("HG-201=keep-offsets")
    assert len(sink.accepts("HG-201=keep-offsets", "HG-205=earliest")) == 2
    assert sink.stored == Offsets({AT: 8})


def test_a_lost_answer_is_asked_of_the_table() -> None:
    sink = Sink()
    roll_back(sink)
    sink.catalog.faults.append(CommitFault.LOST_UNKNOWN)
    with pytest.raises(RetryLater):
        sink.accepts("HG-201=follow-table")
    sink.catalog.faults.append(CommitFault.LANDED_UNKNOWN)
    assert sink.accepts("HG-201=follow-table")
    assert sink.stored == Offsets({AT: 3})


@pytest.mark.parametrize(
    "wanted", ["HG-201", "HG-201=fail", "HG-207=skip", "HG-204=follow-table", "rollback=keep"]
)
def test_what_cannot_be_meant_is_refused(wanted: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        _parse_choices([wanted])
    assert refused.value.hint.startswith("write ")


def test_every_choice_is_one_that_the_settings_have() -> None:
    for name, choices in CHOICES.values():
        kind = type(getattr(SETTINGS, name))
        assert all(isinstance(choice, kind) and choice != "fail" for choice in choices)


class Followed(Sink):
    """As ``Sink``, with a quarantine that carries a record of another table."""

    def __init__(self) -> None:
        super().__init__()
        self.aside = FakeCatalog(table="lake.aside", uuid="uuid-aside")
        table = FakeTable(self.aside, SINK)
        record = self.table.read().record
        assert record is not None
        theirs = replace(record, primary="uuid-of-another")
        assert isinstance(table.commit(CommitAttempt(table.read(), theirs)), Landed)

    def accepts(self, *wanted: str) -> list[str]:
        identity = replace(OPERATOR, secondaries=("lake.aside",))
        secondaries = SecondaryTables(lambda _: FakeTable(self.aside, SINK), threads=False)
        world = ClaimedSink(identity, self.table, self.topics, StartAt(), secondaries)
        return resolve_stop(world, SETTINGS, _parse_choices(wanted))


def test_pending_9_a_quarantine_of_another_table_is_gone_on_with_once() -> None:
    sink = Followed()
    with pytest.raises(StopSink, match="uuid-of-another"):
        sink.accepts()
    assert len(sink.accepts("HG-215=restart")) == 1
    record = sink.table.read().record
    assert record is not None
    (claim,) = record.pending_commits
    assert (claim.table, claim.is_claim, claim.manifest) == ("lake.aside", True, "")
    assert sink.aside.sequence_number == 1, "a claim touches the table alone"


def test_pending_9_a_rollback_that_is_followed_claims_the_quarantine() -> None:
    sink = Followed()
    roll_back(sink)
    sink.accepts("HG-201=follow-table", "HG-215=restart")
    record = sink.table.read().record
    assert record is not None
    assert [pending_commit.table for pending_commit in record.pending_commits] == ["lake.aside"]


def test_what_a_claim_will_say_of_a_table_is_redacted_before_it_is_cut() -> None:
    """As a coordinator's: the table's record repeats it."""

    class Forbidden(FakeTable):
        def read(self) -> TableView:
            raise MissingRights("no rights for sesame-open")

    sink = Followed()
    tables = SecondaryTables(lambda _: Forbidden(sink.aside, SINK), threads=False, required=())
    hidden = Redaction(frozenset({"sesame-open"}))
    world = ClaimedSink(OPERATOR, sink.table, sink.topics, StartAt(), tables, redaction=hidden)
    found = answer_look(Look(tables=("lake.aside",)), world, StartAt(), lambda: 0).secondaries
    assert found is not None
    assert found.troubles["lake.aside"].message == "no rights for ***"


def test_pending_9_a_quarantine_that_cannot_be_read_accepts_nothing() -> None:
    sink = Followed()
    sink.aside.reachable = False
    with pytest.raises(RetryLater, match=r"lake\.aside"):
        sink.accepts("HG-215=restart")
