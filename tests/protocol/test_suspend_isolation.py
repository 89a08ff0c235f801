"""SUSPEND-1 to SUSPEND-5: a table that has trouble is suspended, and all others go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, WALL_AHEAD_MS, Coordinator
from protocol.following import secondary
from protocol.suspension import (
    ASIDE,
    CLICKS,
    ORDERS,
    UUID,
    announces,
    collecting,
    ledgers,
    pending,
    reads,
    table,
)
from protocol.values import BOB, P0, RIVAL, SINK, TOPIC_ID, offsets, record, view

from headgate.control_protocol.commit_record import PendingCommit, Suspended
from headgate.control_protocol.errors import (
    HeadgateError,
    MissingRights,
    RecordUnreadable,
    TableMissing,
    TableRolledBack,
    TooManySuspended,
)
from headgate.control_protocol.events import EndCommit, Resume, StartCommit
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.machine_io import Stop
from headgate.control_protocol.ports import Lineage, TableView, Unknown
from headgate.coordinator.inputs_and_actions import (
    CallFailed,
    CommitTable,
    DeliveriesAnswered,
    DeliverPendingCommits,
    ManifestsStaged,
    SecondariesRead,
    StageManifests,
)
from headgate.coordinator.phase_steps import build_start_event
from headgate.coordinator.phases import Phase
from headgate.coordinator.state import RefusedAccess
from headgate.coordinator.table_suspension import REFUSALS_MAX, SUSPENDED_MAX

GONE = TableMissing("there is no table lake.orders")
NOT_ALLOWED = MissingRights("lake.orders cannot be read: Forbidden")
DROPPED = Suspended(ORDERS, "HG-102 there is no table lake.orders")
SHARED = replace(table(), others={SinkName("twin"): {"trips": TOPIC_ID}})


def begun(made: Coordinator) -> Coordinator:
    """The judgement is over: what was let in is decided, or settled without."""
    made.until(Phase.OPEN)
    return made


def suspended_by(made: Coordinator) -> dict[str, str]:
    stored = made.table.record
    assert stored is not None
    return {suspended.table: suspended.why for suspended in stored.suspended}


@pytest.mark.parametrize(
    ("view", "code"),
    [
        (table(lineage=Lineage.ROLLED_BACK), "HG-201"),
        (table(lineage=Lineage.TAG_MISSING), "HG-203"),
        (table(lineage=Lineage.UNDECIDABLE), "HG-204"),
        (SHARED, "HG-113"),
    ],
)
def test_suspend_1_a_table_that_is_not_in_order_is_suspended(view: TableView, code: str) -> None:
    made = collecting()
    announces(made)
    reads(made, view)
    assert made.phase is not Phase.STOPPED
    assert made.term.suspensions.suspended[ORDERS].why.startswith(code)


@pytest.mark.parametrize("error", [GONE, RecordUnreadable("the tag carries no record")])
def test_suspend_1_one_that_is_gone_or_unreadable_is_suspended_and_offsets_stay(
    error: HeadgateError,
) -> None:
    made = collecting()
    announces(made)
    reads(made, troubles={ORDERS: error})
    assert made.term.suspensions.suspended[ORDERS].why.startswith(error.code)
    assert f"{ORDERS} is suspended" in made.told
    assert made.term.progress.settlement is not None
    assert made.term.progress.settlement.offsets == offsets(10, 20), (
        "SUSPEND-2: refused once, whole"
    )
    assert f"files of {ORDERS}, which is suspended" in made.term.progress.settlement.reason
    assert made.term.progress.settlement.suspended == {
        ORDERS: made.term.suspensions.suspended[ORDERS].why
    }


def test_suspend_1_the_record_says_so_and_so_does_every_start() -> None:
    made = collecting()
    announces(made)
    reads(made, troubles={ORDERS: GONE})
    assert made.wants(CommitTable), "nothing else is new"
    begun(made)
    assert suspended_by(made) == {ORDERS: f"HG-102 {GONE.message}"}
    assert build_start_event(made.state, first=False).suspended == suspended_by(made)


def test_suspend_1_rights_are_missing_only_when_they_are_missing_again_and_again() -> None:
    made = collecting()
    for number in range(1, REFUSALS_MAX + 1):
        assert ORDERS not in made.term.suspensions.suspended
        announces(made, number=number)
        reads(made, troubles={ORDERS: NOT_ALLOWED})
        made.until(Phase.COLLECTING)
    assert made.term.suspensions.suspended[ORDERS].why.startswith("HG-103")


def test_suspend_1_what_participants_say_is_looked_into() -> None:
    """They have kept its records in the quarantine; offsets move on."""
    made = collecting()
    announces(made, at=None, troubles={ORDERS: "HG-102 there is no table lake.orders any more"})
    assert made.reads_tables == (ORDERS,)
    reads(made, troubles={ORDERS: GONE})
    assert made.term.suspensions.suspended[ORDERS].why.startswith("HG-102")
    begun(made)
    assert made.term.progress.offsets[P0] == 13


def test_suspend_1_a_participants_word_alone_suspends_nothing_that_is_in_order() -> None:
    made = collecting()
    announces(made, at=None, troubles={ORDERS: "HG-102 there is no table lake.orders any more"})
    reads(made, table())
    assert not made.term.suspensions.suspended


def test_suspend_1_one_without_rights_for_participants_is_suspended_in_the_end() -> None:
    made = collecting()
    for number in range(1, REFUSALS_MAX + 1):
        announces(made, at=None, number=number, troubles={ORDERS: "HG-103 not for this role"})
        reads(made, table())
        made.until(Phase.COLLECTING)
    assert made.term.suspensions.suspended[ORDERS].why == "HG-103 not for this role"


def test_suspend_1_one_that_cannot_be_drafted_for_ends_the_epoch_suspended() -> None:
    made = collecting()
    announces(made)
    reads(made, table())
    assert made.wants(StageManifests)
    made.given(ManifestsStaged((), {ORDERS: GONE}))
    assert made.phase is Phase.RECOVERING
    made.until(Phase.OPEN)
    assert suspended_by(made) == {ORDERS: f"HG-102 {GONE.message}"}
    assert made.term.epoch == EPOCH + 1


def staging(made: Coordinator) -> Coordinator:
    """It has judged rows for one table, and wants their manifest written."""
    announces(made)
    reads(made, table())
    return made


def forbids_staging(made: Coordinator, *gone: str) -> None:
    """No manifest can be written for that table; after the wait it is read, and asked for again."""
    if not made.wants(StageManifests):
        made.waits(SETTINGS.retry_backoff_max_ms)
        made.looks(read=SecondariesRead({ORDERS: table()}))
    made.pending = None
    made.given(ManifestsStaged((), {ORDERS: NOT_ALLOWED, **dict.fromkeys(gone, GONE)}))


def test_suspend_1_one_that_takes_no_manifest_again_and_again_is_suspended() -> None:
    """What else failed meanwhile, as while the store is away, is no refusal."""
    made = staging(collecting())
    for _ in range(REFUSALS_MAX):
        made.pending = None
        made.given(CallFailed("the store does not answer"))
        made.waits(SETTINGS.retry_backoff_max_ms)
        made.looks(read=SecondariesRead({ORDERS: table()}))
    for _ in range(REFUSALS_MAX - 1):
        forbids_staging(made)
        assert made.phase is Phase.DRAFTING
    forbids_staging(made)
    assert made.phase is Phase.RECOVERING
    assert f"{ORDERS} is suspended" in made.told


def test_suspend_1_refusals_before_a_manifest_that_was_written_do_not_count() -> None:
    made = collecting()
    for number in range(1, REFUSALS_MAX + 1):
        announces(made, number=number)
        if made.phase is Phase.COLLECTING:
            reads(made, table())
        forbids_staging(made)
        assert made.phase is Phase.DRAFTING
        made.waits(SETTINGS.retry_backoff_max_ms)
        made.looks(read=SecondariesRead({ORDERS: table()}))
        made.drafts()
        made.secondaries[ORDERS] = table()
        made.until(Phase.COLLECTING)


def test_suspend_1_beside_one_that_is_gone_a_first_refusal_suspends_nobody() -> None:
    """What was pending for it tells the next epoch that it was refused once."""
    old = pending(EPOCH - 1, 4)
    made = ledgers(old)
    made.until(Phase.DELIVERING)
    reads(made, secondary(ASIDE))
    made.until(Phase.COLLECTING)
    forbids_staging(staging(made), CLICKS)
    assert made.state.suspicion.troubled.keys() == {CLICKS}
    assert made.state.suspicion.refused_access.stagings == {ORDERS: RefusedAccess(1, old)}


def delivering(view: TableView | None = None) -> Coordinator:
    """The primary table has decided rows for one table, which is about to be delivered."""
    made = collecting()
    announces(made)
    reads(made, table())
    made.until(Phase.DELIVERING)
    assert ORDERS in made.reads_tables
    reads(made, secondary(ASIDE), *([view] if view else []))
    return made


def test_suspend_1_a_table_that_was_rolled_back_is_not_delivered_and_the_loss_still_shows() -> None:
    made = delivering(table(lineage=Lineage.ROLLED_BACK))
    assert not made.wants(DeliverPendingCommits)
    assert made.phase is Phase.OPEN
    assert made.term.suspensions.suspended[ORDERS].why.startswith("HG-201")
    assert [pending_commit.table for pending_commit in made.term.delivery.pending] == [ORDERS], (
        "SUSPEND-3: it is pending still"
    )
    made.until(Phase.COLLECTING)
    announces(made, at=None, number=2)
    made.until(Phase.OPEN)
    assert suspended_by(made)[ORDERS].startswith("HG-201")
    stored = made.table.record
    assert stored is not None
    assert ORDERS in {pending_commit.table for pending_commit in stored.pending_commits}


def test_suspend_1_a_delivery_that_is_forbidden_again_and_again_suspends_its_table() -> None:
    made = delivering(table())
    for _ in range(REFUSALS_MAX):
        assert not made.term.suspensions.suspended
        made.only(DeliverPendingCommits)
        made.given(DeliveriesAnswered({ORDERS: Unknown("Forbidden", rights=True)}))
        reads(made, secondary(ASIDE), table())
        if not made.term.suspensions.suspended:
            made.waits(SETTINGS.retry_backoff_max_ms)
            reads(made, secondary(ASIDE), table())
    assert made.term.suspensions.suspended[ORDERS].why.startswith("HG-103")
    assert made.phase is Phase.OPEN


def forbids(made: Coordinator, what: str = "delivery") -> None:
    """Its next delivery is refused, or the read before it; the transaction after that opens."""
    made.until(Phase.DELIVERING)
    if what == "read":
        reads(made, secondary(ASIDE), troubles={ORDERS: NOT_ALLOWED})
        return
    reads(made, secondary(ASIDE), table())
    made.only(DeliverPendingCommits)
    made.given(DeliveriesAnswered({ORDERS: Unknown("Forbidden", rights=True)}))
    reads(made, secondary(ASIDE), table())


def superseded(made: Coordinator, *pending_commits: PendingCommit) -> None:
    """A rival claims an epoch, and ends; what is pending then is carried on."""
    stored, rival = made.table.record, made.term.epoch + 1
    assert stored is not None
    made.hears(EndCommit(), RIVAL, epoch=rival, transaction=1)
    assert made.phase is Phase.FOLLOWING
    claim = record(rival, 0, stored.offsets, RIVAL)
    claim = replace(stored, transaction=claim.transaction, coordinator=RIVAL)
    made.table = view(replace(claim, pending_commits=pending_commits))
    made.now_ms += 10 * SETTINGS.election_timeout_ms


@pytest.mark.parametrize("what", ["delivery", "read"])
def test_suspend_1_refused_access_is_counted_on_in_the_next_epoch(what: str) -> None:
    """Where two coordinators take turns, none would see three of them (seed 616102)."""
    old = pending(EPOCH - 1, 4)
    made = ledgers(old)
    for _ in range(REFUSALS_MAX - 1):
        forbids(made, what)
        assert not made.term.suspensions.suspended
        superseded(made, old)
    forbids(made, what)
    assert made.term.suspensions.suspended[ORDERS].why.startswith("HG-103")


@pytest.mark.parametrize("what", ["delivery", "read"])
def test_suspend_1_it_is_counted_anew_where_somebody_else_delivered_meanwhile(what: str) -> None:
    made = ledgers(pending(EPOCH - 1, 4))
    for number in range(REFUSALS_MAX):
        forbids(made, what)
        assert not made.term.suspensions.suspended
        superseded(made, pending(made.state.watch.highest_epoch, number + 1))
    forbids(made, what)
    assert not made.term.suspensions.suspended


def test_suspend_1_refused_reads_of_a_table_that_nothing_is_pending_for_end_with_the_epoch() -> (
    None
):
    """Nothing would tell whether others filled it meanwhile."""
    made = collecting()
    for number in range(1, REFUSALS_MAX + 2):
        announces(made, number=number)
        reads(made, troubles={ORDERS: NOT_ALLOWED})
        assert not made.term.suspensions.suspended
        made.until(Phase.OPEN)
        superseded(made)
        made.until(Phase.COLLECTING)


def test_suspend_2_status_of_a_table_suspended_since_is_refused_and_others_are_in() -> None:
    made = collecting(suspended=(DROPPED,))
    assert made.term.suspensions.suspended == {ORDERS: DROPPED}
    announces(made)
    assert made.term.progress.settlement is not None
    assert "which is suspended" in made.term.progress.settlement.reason
    assert made.term.progress.settlement.offsets == offsets(10, 20)
    made.until(Phase.COLLECTING)
    announces(made, at=None, number=2)
    begun(made)
    assert made.term.progress.offsets == offsets(13, 20)


def test_suspend_3_one_that_cannot_be_reached_is_not_suspended_and_its_pending_commits_wait() -> (
    None
):
    made = delivering()
    assert made.phase is Phase.OPEN
    assert not made.term.suspensions.suspended
    assert [pending_commit.table for pending_commit in made.term.delivery.pending] == [ORDERS]


def test_suspend_3_unless_its_pending_commits_have_waited_for_half_of_what_they_may() -> None:
    late = replace(pending(EPOCH - 1, 4), since_ms=WALL_AHEAD_MS - 600_000_000)
    settings = replace(SETTINGS, claim_age_max_ms=1_100_000_000)
    made = ledgers(late, settings=settings)
    made.until(Phase.DELIVERING)
    reads(made, secondary(ASIDE))
    assert made.term.suspensions.suspended[ORDERS].why.startswith("HG-401")
    assert made.term.delivery.pending == (late,), "it is pending still"


def test_suspend_3_one_that_received_them_at_last_is_not_overdue() -> None:
    late = replace(pending(EPOCH - 1, 4), since_ms=WALL_AHEAD_MS - 600_000_000)
    made = ledgers(late, settings=replace(SETTINGS, claim_age_max_ms=1_100_000_000))
    made.until(Phase.DELIVERING)
    reads(made, secondary(ASIDE), table())
    made.delivers()
    reads(made, secondary(ASIDE), made.secondaries[ORDERS])
    assert not made.term.suspensions.suspended
    assert made.term.delivery.pending == ()


def test_suspend_3_nor_does_one_that_owes_too_much_hold_up_the_others() -> None:
    pending_commits = tuple(pending(EPOCH - 1, 4) for _ in range(200))
    made = ledgers(*pending_commits, pending(EPOCH - 1, 4, name=CLICKS))
    made.until(Phase.DELIVERING)
    reads(made, secondary(ASIDE))
    assert set(made.term.suspensions.suspended) == {ORDERS}
    assert made.phase is Phase.OPEN


def test_suspend_4_without_a_quarantine_the_sink_stops_by_name() -> None:
    made = collecting()
    made.state = replace(made.state, identity=replace(made.state.identity, secondaries=()))
    announces(made)
    reads(made, table(lineage=Lineage.ROLLED_BACK))
    assert made.phase is Phase.STOPPED
    assert isinstance(made.only(Stop).error, TableRolledBack)


def test_suspend_4_a_quarantine_that_has_trouble_stops_the_sink() -> None:
    made = delivering(table())
    made.delivers()
    reads(made, replace(secondary(ASIDE), lineage=Lineage.ROLLED_BACK), table())
    assert made.phase is Phase.RECOVERING
    made.secondaries[ASIDE] = replace(secondary(ASIDE), lineage=Lineage.ROLLED_BACK)
    made.until(Phase.STOPPED)
    assert isinstance(made.only(Stop).error, TableRolledBack)


def test_suspend_4_trouble_of_all_tables_is_not_theirs() -> None:
    many = tuple(Suspended(f"lake.t{number}", "HG-103 no") for number in range(SUSPENDED_MAX))
    made = collecting(suspended=many)
    announces(made)
    reads(made, troubles={ORDERS: GONE})
    assert isinstance(made.only(Stop).error, TooManySuspended)


# ------------------------------------------------------------------------------------- lives on


def test_suspend_1_a_claim_carries_on_what_is_suspended() -> None:
    made = ledgers(pending(EPOCH - 1, 4), suspended=(DROPPED,))
    made.until(Phase.STARTING)
    assert suspended_by(made) == {ORDERS: DROPPED.why}
    (start,) = (event for event in made.said if isinstance(event, StartCommit))
    assert start.suspended == {ORDERS: DROPPED.why}
    made.until(Phase.OPEN)
    assert Phase.DELIVERING not in {phase for step in made.walk for phase in step}, (
        "nothing is delivered"
    )


@pytest.mark.parametrize("lineage", [Lineage.ROLLED_BACK, Lineage.TAG_MISSING])
def test_suspend_1_a_claim_suspends_what_went_wrong_meanwhile(lineage: Lineage) -> None:
    made = ledgers(pending(EPOCH - 1, 4))
    made.secondaries[ORDERS] = table(lineage=lineage)
    made.until(Phase.OPEN)
    assert list(suspended_by(made)) == [ORDERS]


# -------------------------------------------------------------------------------------- resumed


def asks(made: Coordinator, *tables: str) -> None:
    """A person wants them filled again."""
    made.until(Phase.OPEN)
    seen = made.table.record
    assert seen is not None
    made.hears(Resume(tables), BOB, epoch=EPOCH, transaction=seen.transaction.number)
    made.waits(0)
    assert ORDERS in made.reads_tables


def test_suspend_5_a_table_that_is_in_order_again_is_open_at_once() -> None:
    made = ledgers(suspended=(DROPPED,))
    asks(made, ORDERS)
    reads(made, table())
    assert f"{ORDERS} takes rows again" in made.told
    made.described()
    assert not build_start_event(made.state, first=False).suspended
    made.until(Phase.COLLECTING)
    announces(made)
    begun(made)
    assert suspended_by(made) == {}
    assert made.term.progress.offsets == offsets(13, 20)


def test_suspend_5_one_that_lost_rows_is_delivered_first_and_takes_rows_then() -> None:
    """The delivery moves the tag to where a person has put the branch."""
    back = replace(DROPPED, why="HG-201 was rolled back")
    made = ledgers(pending(EPOCH - 1, 4), suspended=(back,))
    made.secondaries[ORDERS] = table(lineage=Lineage.ROLLED_BACK, head=40)
    asks(made, ORDERS)
    reads(made, made.secondaries[ORDERS])
    assert made.term.suspensions.suspended[ORDERS].resuming
    made.described()
    made.until(Phase.COLLECTING)
    announces(made, at=None)
    made.until(Phase.DELIVERING)
    stored = made.table.record
    assert stored is not None
    assert stored.suspended[0].resuming
    assert ORDERS in {pending_commit.table for pending_commit in stored.pending_commits}
    made.until(Phase.OPEN)
    assert not made.term.suspensions.suspended
    assert made.secondaries[ORDERS].lineage is Lineage.CONTAINS_TAG
    made.until(Phase.COLLECTING)
    announces(made, at=None, number=2)
    begun(made)
    assert suspended_by(made) == {}


def test_suspend_5_without_any_pending_commit_it_is_delivered_nothing_all_the_same() -> None:
    made = ledgers(suspended=(replace(DROPPED, why="HG-201 was rolled back"),))
    made.secondaries[ORDERS] = table(lineage=Lineage.ROLLED_BACK, head=40)
    asks(made, ORDERS)
    reads(made, made.secondaries[ORDERS])
    made.described()
    made.until(Phase.COLLECTING)
    announces(made, at=None)
    made.until(Phase.DELIVERING)
    assert [
        pending_commit.manifest
        for pending_commit in made.term.delivery.pending
        if pending_commit.table == ORDERS
    ] == [""]
    made.until(Phase.OPEN)
    assert not made.term.suspensions.suspended


def test_suspend_5_one_that_was_delivered_by_who_did_not_live_to_open_it_is_opened() -> None:
    """Nobody would ask for it once more: it is resuming already (seed 69024)."""
    made = ledgers(suspended=(replace(DROPPED, resuming=True),))
    made.until(Phase.OPEN)
    made.waits(SETTINGS.commit_interval_ms)
    assert made.reads_tables == (ORDERS,)
    reads(made, table(lineage=Lineage.CONTAINS_TAG))
    assert f"{ORDERS} takes rows again" in made.told
    assert not made.term.suspensions.suspended


def test_suspend_5_one_whose_pending_commits_a_claim_let_expire_needs_no_rows_to_be_opened() -> (
    None
):
    """The source may be idle: nothing else would ever be decided (seed 612875)."""
    old = replace(pending(EPOCH - 1, 4), since_ms=WALL_AHEAD_MS - SETTINGS.claim_age_max_ms)
    made = ledgers(old, suspended=(replace(DROPPED, why="HG-201 was rolled back", resuming=True),))
    made.secondaries[ORDERS] = table(lineage=Lineage.ROLLED_BACK, head=40)
    made.until(Phase.COLLECTING)
    stored = made.table.record
    assert stored is not None
    assert (stored.pending_commits, stored.expired) == ((), (old,))
    made.until(Phase.COMMITTING)
    (empty,) = made.attempt.record.pending_commits
    assert (empty.table, empty.manifest) == (ORDERS, "")
    made.until(Phase.OPEN)
    assert not made.term.suspensions.suspended
    assert made.secondaries[ORDERS].lineage is Lineage.CONTAINS_TAG


@pytest.mark.parametrize(("views", "troubles"), [((), {ORDERS: GONE}), ((), {}), ((SHARED,), {})])
def test_suspend_5_what_still_has_trouble_stays_suspended_and_says_why(
    views: tuple[TableView, ...], troubles: dict[str, HeadgateError]
) -> None:
    made = ledgers(suspended=(DROPPED,))
    asks(made, ORDERS)
    reads(made, *views, troubles=troubles)
    assert f"{ORDERS} stays suspended" in made.told
    assert made.term.suspensions.suspended[ORDERS].since_ms > 0


def test_suspend_5_one_that_is_asked_for_while_a_look_is_repeated_is_looked_at_too() -> None:
    """Else it would stay suspended since it "cannot be reached", as nobody tried to."""
    made = ledgers(suspended=(DROPPED, replace(DROPPED, table=CLICKS)))
    asks(made, ORDERS)
    made.pending = None
    made.given(CallFailed("no broker answers"))
    made.hears(Resume((CLICKS,)), BOB, epoch=EPOCH)
    made.waits(SETTINGS.retry_backoff_ms)
    assert set(made.reads_tables) == {ORDERS, CLICKS}
    reads(made, table(), table(CLICKS, f"uuid-{CLICKS}"))
    assert not made.term.suspensions.suspended


@pytest.mark.parametrize("owing", [True, False])
def test_suspend_5_one_that_goes_while_it_is_resuming_stays_suspended_and_may_be_resumed(
    *, owing: bool
) -> None:
    """A RESUME of a table that is resuming already says nothing: it would be so for ever."""
    resumed = Suspended(ORDERS, "HG-103 no rights", resuming=True)
    made = ledgers(*([pending(EPOCH - 1, 4)] if owing else []), suspended=(resumed,))
    made.until(Phase.DELIVERING if owing else Phase.PREPARING)
    reads(made, secondary(ASIDE), troubles={ORDERS: GONE})
    assert made.term.suspensions.suspended[ORDERS].why == f"HG-102 {GONE.message}"
    assert f"{ORDERS} is suspended" in made.told
    asks(made, ORDERS)


@pytest.mark.parametrize("owing", [True, False])
def test_suspend_5_one_that_may_not_be_read_again_and_again_resumes_no_more(*, owing: bool) -> None:
    """It would be resuming for ever, without a word, and a person's next RESUME would not count."""
    resumed = Suspended(ORDERS, "HG-201 was rolled back", resuming=True)
    made = ledgers(*([pending(EPOCH - 1, 4)] if owing else []), suspended=(resumed,))
    for number in range(REFUSALS_MAX):
        assert number == 0 or made.term.suspensions.suspended[ORDERS].resuming
        made.until(Phase.DELIVERING if owing else Phase.PREPARING)
        reads(made, secondary(ASIDE), troubles={ORDERS: NOT_ALLOWED})
    assert made.term.suspensions.suspended[ORDERS].why == f"HG-103 {NOT_ALLOWED.message}"
    assert not made.term.suspensions.suspended[ORDERS].resuming
    assert f"{ORDERS} is suspended" in made.told


def test_suspend_5_one_that_may_not_be_delivered_to_again_and_again_resumes_no_more() -> None:
    resumed = Suspended(ORDERS, "HG-201 was rolled back", resuming=True)
    made = ledgers(pending(EPOCH - 1, 4), suspended=(resumed,))
    for number in range(REFUSALS_MAX):
        assert number == 0 or made.term.suspensions.suspended[ORDERS].resuming
        forbids(made)
    assert made.term.suspensions.suspended[ORDERS].why.startswith("HG-103")
    assert not made.term.suspensions.suspended[ORDERS].resuming


def test_suspend_5_one_that_owes_much_has_time_to_receive_it() -> None:
    """It is left out of what is read while its delivery goes on."""
    resumed = replace(DROPPED, resuming=True, since_ms=WALL_AHEAD_MS + 1_000_000)
    made = ledgers(*(pending(EPOCH - 1, 4) for _ in range(200)), suspended=(resumed,))
    made.until(Phase.DELIVERING)
    reads(made, secondary(ASIDE), table())
    made.given(DeliveriesAnswered({ORDERS: Unknown("no answer in time")}))
    reads(made, secondary(ASIDE))
    assert made.phase is Phase.DELIVERING
    assert made.term.suspensions.suspended[ORDERS].resuming


@pytest.mark.parametrize("read", [True, False])
def test_suspend_5_one_that_owes_too_much_and_takes_nothing_holds_up_no_others(
    *, read: bool
) -> None:
    resumed = replace(DROPPED, resuming=True)
    made = ledgers(*(pending(EPOCH - 1, 4) for _ in range(200)), suspended=(resumed,))
    made.until(Phase.DELIVERING)
    reads(made, secondary(ASIDE), *([table()] if read else []))
    if read:
        made.given(DeliveriesAnswered({ORDERS: Unknown("no answer in time")}))
        reads(made, secondary(ASIDE), table())
    assert made.phase is Phase.OPEN
    assert made.term.suspensions.suspended[ORDERS].why.startswith("HG-401")
    assert not made.term.suspensions.suspended[ORDERS].resuming
    assert len(made.term.delivery.pending) == 200


def test_suspend_5_one_that_was_made_anew_is_filled_and_what_the_old_one_was_pending_expires() -> (
    None
):
    made = ledgers(pending(EPOCH - 1, 4), suspended=(DROPPED,))
    asks(made, ORDERS)
    reads(made, table(uuid="uuid-anew"))
    assert not made.term.suspensions.suspended
    made.described()
    made.until(Phase.COLLECTING)
    announces(made, at=None)
    begun(made)
    stored = made.table.record
    assert stored is not None
    assert [pending_commit.secondary for pending_commit in stored.expired] == [UUID]
    assert stored.pending_commits == () or all(
        pending_commit.secondary != UUID for pending_commit in stored.pending_commits
    )


def test_suspend_5_nobody_resumes_what_is_not_suspended() -> None:
    made = ledgers()
    made.until(Phase.OPEN)
    made.hears(Resume((ORDERS,)), BOB, epoch=EPOCH, transaction=0)
    assert not made.term.suspensions.resume_asked
    assert not made.term.pause.paused


def test_suspended_tables_travel_in_the_record() -> None:
    from headgate.control_protocol.commit_record_codec import decode_record, encode_record

    stored = replace(
        record(EPOCH, 4, offsets(10, 20)), suspended=(DROPPED, Suspended("a.b", "x", 7, True))
    )
    assert decode_record(SINK, encode_record(stored)) == stored
