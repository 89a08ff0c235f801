"""The plays: what befalls a small deployment, one function per failure of the protocol."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

from scenarios.stage import COORDINATORS, Stage

from headgate.control_protocol.errors import PoisonRecord
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.testing import CommitFault
from headgate.coordinator.settings import RollbackPolicy

PLAYS: list[Play] = []


@dataclass(frozen=True)
class Play:
    """``stops``: the error code with which the sink stops; else all rows arrive, once."""

    heading: str
    act: Callable[[Stage], None]
    stops: str = ""

    @property
    def name(self) -> str:
        return self.act.__name__

    def text(self) -> str:
        """Plays it. Whatever happened: no row twice, and none missing unless the sink stopped."""
        stage = Stage()
        self.act(stage)
        assert stage.doubles() == 0
        if self.stops:
            assert any(f"stops: {self.stops}" in line for line in stage.lines)
        else:
            assert stage.lag() == 0
        about = [f"# {self.heading}"] if self.heading else []
        about += [f"# {line}".rstrip() for line in (inspect.getdoc(self.act) or "").splitlines()]
        return "\n".join([*about, *stage.lines]) + "\n"


def play(heading: str, stops: str = "") -> Callable[[Callable[[Stage], None]], None]:
    return lambda act: PLAYS.append(Play(heading, act, stops))


def both_at_work(stage: Stage) -> None:
    stage.direct("alice and bob have joined; 5 and 3 records are there")
    stage.produce(5, 3)
    stage.enter("alice", "bob")
    stage.until("ACK")
    stage.settles()


@play("")
def quiet(stage: Stage) -> None:
    """One claim, and two transactions with nothing in the way."""
    both_at_work(stage)
    stage.direct("4 records more, all in partition 1")
    stage.produce(0, 4)
    stage.settles()


@play("A participant dies before START, while writing, or after END")
def participant_dies_while_writing(stage: Stage) -> None:
    """Its files are orphans. The open transaction waits for one time-out at most."""
    both_at_work(stage)
    stage.produce(2, 2)
    stage.direct("bob is killed in mid-batch, after END")
    stage.nodes["bob"].writer.work_ms = None
    stage.until("END")
    stage.until("alice:  WRITE-STATUS")
    stage.kill("bob")
    stage.until("ACK")
    stage.direct("his session expires: alice gets partition 1")
    stage.session_expires("bob", "alice")
    stage.settles()


@play("A participant dies after WRITE-STATUS")
def participant_dies_after_its_status(stage: Stage) -> None:
    """The status stands in the log: its files are committed, and nothing is read again."""
    both_at_work(stage)
    stage.produce(2, 2)
    stage.direct("bob dies as soon as his answer is in the log")
    stage.until("bob:    WRITE-STATUS")
    stage.kill("bob")
    stage.session_expires("bob", "alice")
    stage.settles()
    stage.until("ACK")


@play("A participant pauses for longer than every time-out")
def participant_wakes_late(stage: Stage) -> None:
    """It lost its partition meanwhile; what it still announces is refused by its range."""
    both_at_work(stage)
    stage.produce(2, 2)
    stage.direct("bob is stopped in mid-batch; his session expires, alice reads his range")
    stage.nodes["bob"].writer.work_ms = 0
    stage.until("END")
    stage.nodes["bob"].asleep = True
    stage.passes(1_000)
    stage.session_expires("bob", "alice")
    stage.settles()
    stage.direct("bob wakes, and is given partition 1 again")
    stage.nodes["bob"].asleep = False
    stage.share("alice", "bob")
    stage.produce(1, 1)
    stage.settles()


@play("The coordinator dies after START or END")
def coordinator_dies_after_end(stage: Stage) -> None:
    """Bob claims the next epoch; unsettled work is void and read again from C."""
    both_at_work(stage)
    stage.produce(2, 2)
    stage.direct("alice, who leads, is killed right behind END and START")
    stage.nodes["alice"].dies_at = "appended"
    stage.until("killed")
    stage.direct("her session expires")
    stage.session_expires("alice", "bob")
    stage.settles()


@play("The coordinator dies while committing")
def coordinator_dies_while_committing(stage: Stage) -> None:
    """Its call is still in the air, and arrives after the new claim: the tag has moved."""
    both_at_work(stage)
    stage.produce(2, 2)
    stage.direct("alice's commit call is slow; she is killed while she waits for the answer")
    stage.catalog.faults.append(CommitFault.LATE_UNKNOWN)
    stage.nodes["alice"].dies_at = "committed"
    stage.until("killed")
    stage.session_expires("alice", "bob")
    stage.until("START")
    stage.direct("now the dead coordinator's call arrives")
    stage.lines.append(f"        table: the late call -> {stage.catalog.land_or_return_refusal()}")
    stage.settles()


@play("The coordinator dies while committing")
def coordinator_dies_while_committing_and_it_lands_first(stage: Stage) -> None:
    """Its call arrives before the new claim: the claim is refused once, and reads again."""
    both_at_work(stage)
    stage.produce(2, 2)
    stage.catalog.faults.append(CommitFault.LATE_UNKNOWN)
    stage.nodes["alice"].dies_at = "committed"
    stage.until("killed")
    stage.direct("bob's claim is slow too; the dead coordinator's call overtakes it")
    stage.catalog.faults.append(CommitFault.LATE_UNKNOWN)
    stage.session_expires("alice", "bob")
    stage.until("claim")
    stage.lines.append(
        f"        table: alice's late call -> {stage.catalog.land_or_return_refusal() or 'landed'}"
    )
    stage.lines.append(
        f"        table: bob's late claim -> {stage.catalog.land_or_return_refusal()}"
    )
    stage.settles()


@play("The coordinator dies between the table and the quarantine")
def coordinator_dies_before_the_quarantine(stage: Stage) -> None:
    """The table has decided, and names what the quarantine is pending: the next claim delivers to
    it."""
    stage.keep_bad_records()
    both_at_work(stage)
    stage.produce(2, 2)
    stage.direct("alice is killed with the table committed, and the quarantine not")
    stage.nodes["alice"].dies_at = "committed"
    stage.until("killed")
    stage.produce(1, 1)
    stage.session_expires("alice", "bob")
    stage.settles()
    stage.produce(2, 2)
    stage.settles()


@play("A crash between tables 3 and 4 of 10")
def crash_between_tables_3_and_4_of_10(stage: Stage) -> None:
    """Of ten pending commits three are acknowledged; the claim carries seven on, and they are
    delivered."""
    stage.spread_bad_records(10)
    both_at_work(stage)
    stage.produce(28, 0)
    stage.direct("alice decides what ten tables shall receive, and is killed at table 4")
    stage.secondaries["lake.f04"].faults.append(CommitFault.LATE_UNKNOWN)
    stage.nodes["alice"].dies_at = "delivered lake.f04"
    stage.until("killed")
    stage.direct("bob claims, and delivers seven of them")
    stage.session_expires("alice", "bob")
    stage.until("lake.f10: bob commits")
    late = stage.secondaries["lake.f04"].land_or_return_refusal()
    stage.lines.append(f"        lake.f04: alice's late call -> {late}")
    stage.settles()
    assert all(catalog.visible_rows() for catalog in stage.secondaries.values())


@play("A secondary table cannot be reached, or refuses")
def secondary_is_away(stage: Stage) -> None:
    """Offsets move on; what is pending for it waits, and is delivered when it is there again."""
    stage.settings = replace(COORDINATORS, delivery_timeout_ms=50)
    stage.keep_bad_records()
    both_at_work(stage)
    stage.direct("the quarantine takes no commit, five calls long")
    assert stage.quarantine is not None
    stage.quarantine.faults.extend([CommitFault.LOST_UNKNOWN] * 5)
    stage.produce(2, 2)
    stage.until("ACK", times=2)
    stage.produce(2, 2)
    stage.settles()


@play(
    "A secondary table was delivered to by another table, or beyond this one's decisions (HG-215)",
    stops="HG-215",
)
def secondary_of_another_table(stage: Stage) -> None:
    """A table of the same name was put in the place of the primary table, with the primary table's
    record."""
    stage.keep_bad_records()
    both_at_work(stage)
    stage.direct("the table is replaced by a copy of it, under another UUID; bob begins")
    stage.catalog.uuid = "uuid-copy"
    stage.kill("alice")
    stage.produce(1, 1)
    stage.session_expires("alice", "bob")
    stage.until("stops")


def _three_tables(stage: Stage) -> None:
    stage.route("lake.a", "lake.b", "lake.c")
    both_at_work(stage)
    stage.produce(3, 3)
    stage.settles()


@play("One table of many is dropped, broken, refused or renamed")
def one_table_is_dropped(stage: Stage) -> None:
    """Suspended as its next rows are drafted; its records go to the quarantine, the others go
    on."""
    _three_tables(stage)
    stage.direct("lake.b is dropped")
    stage.others["lake.b"].drop()
    stage.produce(3, 3)
    stage.until("lake.b=suspended")
    stage.produce(3, 3)
    stage.until("ACK", 2)
    stage.direct("it is restored, and an operator resumes it")
    stage.others["lake.b"].exists = True
    stage.operator_resumes("lake.b")
    stage.until("ACK", 2)
    stage.produce(3, 3)
    stage.until("lake.b: alice commits")
    stage.settles()


@play("One table of many is dropped, broken, refused or renamed")
def one_table_refuses(stage: Stage) -> None:
    """Three deliveries in a row are not allowed: it is suspended."""
    _three_tables(stage)
    stage.direct("rights on lake.c are taken")
    stage.others["lake.c"].forbidden = True
    stage.produce(3, 3)
    stage.until("lake.c=suspended")
    stage.produce(3, 3)
    stage.until("ACK", 2)
    stage.direct("rights are given back, and an operator resumes it")
    stage.others["lake.c"].forbidden = False
    stage.operator_resumes("lake.c")
    stage.until("lake.c: alice commits")
    stage.produce(3, 3)
    stage.settles()


@play("One table of many is dropped, broken, refused or renamed", stops="HG-201")
def quarantine_is_suspended(stage: Stage) -> None:
    """There is nowhere to put what is diverted: the sink stops by the quarantine's error."""
    _three_tables(stage)
    stage.direct("lake.b is dropped, and the quarantine is set back")
    stage.others["lake.b"].drop()
    stage.produce(3, 3)
    stage.until("lake.b=suspended")
    stage.produce(3, 3)
    stage.until("quarantine: alice commits")
    assert stage.quarantine is not None
    stage.quarantine.append_foreign()
    stage.quarantine.roll_back(min(stage.quarantine.snapshots))
    stage.produce(3, 3)
    stage.until("stops")


@play("The coordinator dies after the commit, before ACK")
def coordinator_dies_before_ack(stage: Stage) -> None:
    """The table has the offsets; the new epoch's START carries them."""
    both_at_work(stage)
    stage.produce(2, 2)
    stage.direct("alice is killed with the landed commit in her hands")
    stage.nodes["alice"].dies_at = "committed"
    stage.until("killed")
    stage.session_expires("alice", "bob")
    stage.settles()


@play("The coordinator dies before its first commit ever")
def coordinator_dies_before_its_first_commit(stage: Stage) -> None:
    """The claim stored where to begin: nothing is skipped to "latest"."""
    stage.produce(5, 3)
    stage.enter("alice", "bob")
    stage.direct("statuses are announced, nothing is committed yet: alice is killed")
    stage.until("bob:    WRITE-STATUS")
    stage.kill("alice")
    stage.produce(1, 1)
    stage.session_expires("alice", "bob")
    stage.settles()


@play("Two coordinators")
def two_coordinators(stage: Stage) -> None:
    """Alice sleeps with a commit under way, Bob claims: her call is refused, she steps down."""
    both_at_work(stage)
    stage.produce(2, 2)
    stage.direct("alice is stopped with a commit under way; bob becomes the owner")
    stage.catalog.faults.append(CommitFault.LATE_UNKNOWN)
    stage.until("no answer")
    alice = stage.nodes["alice"]
    alice.asleep = True
    stage.session_expires("alice", "bob")
    stage.until("bob:    START")
    stage.lines.append(f"        table: alice's call -> {stage.catalog.land_or_return_refusal()}")
    stage.direct("alice's coordinator wakes before her next poll: it is superseded")
    alice.asleep = False
    alice.coordinator_turn()
    assert alice.coordinator is not None
    stage.lines.append(f"        alice's coordinator is {alice.coordinator.state.phase}")
    stage.settles()


@play("The coordinator is alive but stuck")
def coordinator_is_stuck(stage: Stage) -> None:
    """Every commit call ends as unknown for a while; the next END waits, no row is lost."""
    both_at_work(stage)
    stage.produce(2, 2)
    stage.direct("the catalog answers nothing, five calls long")
    stage.catalog.faults.extend([CommitFault.LOST_UNKNOWN] * 5)
    stage.settles()


@play("The control topic is lost, truncated or re-created")
def control_topic_is_recreated(stage: Stage) -> None:
    """New epoch, new presences; unsettled work is read again."""
    both_at_work(stage)
    stage.produce(2, 2)
    stage.until("bob:    WRITE-STATUS")
    stage.direct("the control topic is deleted and created anew")
    stage.log.recreate()
    stage.settles()


@play("Control events are duplicated or delayed")
def control_events_come_twice(stage: Stage) -> None:
    """Whatever is in the log comes once more: nothing new is said by it."""
    both_at_work(stage)
    stage.produce(1, 1)
    stage.until("WRITE-STATUS")
    stage.direct("all that is in the log comes again")
    stage.log.append(*stage.log.messages)
    stage.settles()
    stage.direct("and once more")
    stage.log.append(*stage.log.messages)
    stage.produce(1, 1)
    stage.settles()


@play("The Kafka cluster is lost and rebuilt", stops="HG-206")
def cluster_is_rebuilt(stage: Stage) -> None:
    """Topics have other ids: the sink stops. (It would go on by ``on_topic_recreated``.)"""
    both_at_work(stage)
    stage.direct("the cluster is lost and rebuilt")
    stage.source.create_or_replace("trips", 2)
    stage.source.produce(TopicPartition("trips", 0), 20)
    stage.log.recreate()
    stage.until("stops")


@play("The catalog is slow, down, or lying (landed but answered with an error)")
def catalog_lies(stage: Stage) -> None:
    """It landed, and the answer was lost: found under the tag, not committed again."""
    both_at_work(stage)
    stage.produce(2, 2)
    stage.direct("the next commit lands, its answer does not")
    stage.catalog.faults.append(CommitFault.LANDED_UNKNOWN)
    stage.settles()


@play("The table was rolled back (HG-201), or that cannot be excluded (HG-204)", stops="HG-201")
def table_is_rolled_back(stage: Stage) -> None:
    """An operator sets the branch to an older snapshot: the sink stops at the next commit."""
    both_at_work(stage)
    stage.direct("the branch is set back to the snapshot of the claim")
    stage.catalog.roll_back(1)
    stage.produce(1, 1)
    stage.until("stops")


@play("The table was rolled back (HG-201), or that cannot be excluded (HG-204)")
def rolled_back_table_is_followed(stage: Stage) -> None:
    """``on_rollback = "follow-table"``: offsets go back with the table, rows come again."""
    stage.settings = replace(COORDINATORS, on_rollback=RollbackPolicy.FOLLOW_TABLE)
    both_at_work(stage)
    stage.direct("the branch is set back to the snapshot of the claim")
    stage.catalog.roll_back(1)
    stage.produce(1, 1)
    stage.settles()


@play("The table was dropped (HG-102) or re-created (HG-202)", stops="HG-202")
def table_is_recreated(stage: Stage) -> None:
    """Another UUID under the same name: the sink stops, nothing is skipped."""
    both_at_work(stage)
    stage.direct("the table is dropped and created anew")
    stage.catalog.recreate()
    stage.produce(1, 1)
    stage.until("stops")


@play("The table was dropped (HG-102) or re-created (HG-202)", stops="HG-102")
def table_is_dropped(stage: Stage) -> None:
    """Nothing is there to write to: the sink stops."""
    both_at_work(stage)
    stage.direct("the table is dropped")
    stage.catalog.drop()
    stage.produce(1, 1)
    stage.until("stops")


@play("The table was compacted, or its snapshots expired")
def table_is_compacted(stage: Stage) -> None:
    """Foreign commits move only the branch: refused once, then on the new head."""
    both_at_work(stage)
    stage.direct("a foreign writer compacts, then snapshots expire")
    stage.catalog.compact()
    stage.catalog.expire_snapshots()
    stage.produce(1, 1)
    stage.settles()


@play("The tag was deleted, or moved by hand (HG-203)", stops="HG-203")
def tag_is_deleted(stage: Stage) -> None:
    """Beginning anew would double rows: the sink stops."""
    both_at_work(stage)
    stage.direct("the tag is deleted")
    stage.catalog.delete_tag(stage.tag())
    stage.produce(1, 1)
    stage.until("stops")


@play("The schema or partition spec was changed by others")
def schema_is_changed(stage: Stage) -> None:
    """The START after the next commit names the new schema."""
    both_at_work(stage)
    stage.direct("a column is added")
    stage.catalog.schema_id = 1
    stage.produce(1, 1)
    stage.settles()
    stage.until("schema=1")


@play("Partitions were added")
def partitions_are_added(stage: Stage) -> None:
    """The next START contains them, from their log's beginning."""
    both_at_work(stage)
    stage.direct("partition 2 is added, with 6 records; bob gets it")
    stage.source.add_partitions("trips", 1)
    stage.produce(0, 0, 6)
    stage.share("alice", "bob")
    stage.settles()


@play(
    "A stored offset is out of the log's range (HG-205), or a topic was re-created (HG-206)",
    stops="HG-205",
)
def retention_overtakes(stage: Stage) -> None:
    """Records that nobody has read yet are gone: the sink stops and says which."""
    both_at_work(stage)
    stage.direct("retention takes offsets that were never read")
    stage.produce(10)
    stage.source.expire(TopicPartition("trips", 0), before=12)
    stage.until("stops")


@play("A poison record (HG-207)", stops="HG-207")
def poison(stage: Stage) -> None:
    """What lies before it is committed first (BATCH-2)."""
    both_at_work(stage)
    stage.direct("two records, and one that cannot be converted")
    first = Offsets({TopicPartition("trips", 1): 5})
    error = PoisonRecord("trips/1 offset 5: no number", "", first)
    stage.nodes["bob"].writer.fail_next_outcome(error.message, fatal=error)
    stage.produce(0, 3)
    stage.until("stops")


@play("The clock jumps")
def wall_clock_jumps(stage: Stage) -> None:
    """Durations come from the monotonic clock: nothing is due earlier or later."""
    both_at_work(stage)
    stage.direct("the wall clock goes back by a day")
    stage.clock.wall_ahead_ms -= 86_400_000
    stage.produce(1, 1)
    stage.settles()


@play("The disk is full")
def disk_is_full(stage: Stage) -> None:
    """The reason travels in the status, the range is done again."""
    both_at_work(stage)
    stage.direct("bob's next batch fails")
    stage.nodes["bob"].writer.fail_next_outcome("disk full")
    stage.produce(1, 1)
    stage.settles()
