"""V1, V2 and V4: how far each table is complete, and how often it is paid."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.parking import (
    ASIDE,
    CLICKS,
    ORDERS,
    announces,
    collecting,
    ledgers,
    owed,
    table,
)
from protocol.values import record

from headgate.control_protocol.identifiers import TransactionId
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Lineage, TableView
from headgate.control_protocol.record import Debt, Parked
from headgate.coordinator.actions import (
    DescribeFollowers,
    Drafted,
    FollowersRead,
    PayDebts,
)
from headgate.coordinator.pacing import GATHERED_MAX, owed_now
from headgate.coordinator.payment import DEBTS_MAX
from headgate.coordinator.refreshing import AT_ONCE
from headgate.coordinator.settings import Pace
from headgate.coordinator.state import Gathering
from headgate.coordinator.transitions import Phase

EVERY_MS = 5_000
REFRESH_MS = 60_000


def with_identity(made: Coordinator, **changed: object) -> Coordinator:
    made.state = replace(made.state, identity=replace(made.state.identity, **changed))
    return made


def paced(*debts: Debt, match: str = r"lake\.orders") -> Coordinator:
    """A ledger's coordinator; the routed table gathers what it is owed."""
    made = ledgers(*debts)
    made.followers[ORDERS] = table()
    return with_identity(made, paces=(Pace(match, EVERY_MS), Pace(".*", 1)))


def decides(made: Coordinator, number: int, name: str = ORDERS) -> None:
    """One more transaction with rows for the table is decided, and the next one is open."""
    made.until(Phase.COLLECTING)
    announces(made, at=name, number=number)
    made.until(Phase.OPEN)


def shown(made: Coordinator, name: str = ORDERS) -> TransactionId | None:
    """The transaction up to which the table was paid."""
    found = made.followers[name].record
    return found.transaction if found else None


# ------------------------------------------------------------------------------------------ V4


def test_v4_debts_gather_and_are_paid_in_one_commit() -> None:
    made = paced()
    for number in range(1, 4):
        decides(made, number)
        assert shown(made) is None
    assert [debt.transaction.number for debt in made.term.debts] == [1, 2, 3]
    made.waits(EVERY_MS)
    made.until(Phase.PAYING)
    made.reads()
    made.follows()
    (payment,) = made.only(PayDebts).payments
    assert [debt.transaction.number for debt in payment.debts] == [1, 2, 3]
    assert payment.record.records == 9
    made.until(Phase.OPEN)
    assert made.term.debts == ()


def test_v4_what_has_gathered_is_paid_while_the_sink_is_paused() -> None:
    """D10: what makes a place that a rollback can reach."""
    made = paced()
    decides(made, 1)
    made.state = replace(made.state, term=replace(made.term, paused=True))
    made.waits(EVERY_MS)
    made.until(Phase.PAYING)
    made.until(Phase.OPEN)
    assert made.term.debts == ()


def test_v4_what_gathers_is_not_even_read() -> None:
    made = paced()
    decides(made, 1)
    made.walk.clear()
    decides(made, 2)
    assert (Phase.SETTLING, Phase.OPEN) in made.walk, "nothing is paid"


def test_v4_other_tables_and_the_quarantine_are_paid_at_once() -> None:
    made = paced()
    made.followers[CLICKS] = table(CLICKS, uuid="uuid-orders")
    made.state = replace(
        made.state, identity=replace(made.state.identity, paces=(Pace(ORDERS, EVERY_MS),))
    )
    decides(made, 1, CLICKS)
    assert shown(made, CLICKS) == TransactionId(EPOCH, 1)  # type: ignore[arg-type]
    made = with_identity(paced(), paces=(Pace(".*", EVERY_MS),))
    made.until(Phase.COLLECTING)
    announces(made, at=None)
    made.until(Phase.OPEN)
    assert shown(made, ASIDE) == TransactionId(EPOCH, 1)  # type: ignore[arg-type]


def test_v4_the_first_pattern_that_matches_counts() -> None:
    made = with_identity(paced(), paces=(Pace(ORDERS, 0), Pace(".*", EVERY_MS)))
    decides(made, 1)
    assert shown(made) is not None


def test_v4_offsets_are_stored_all_the_same() -> None:
    made = paced()
    before = made.table.record
    decides(made, 1)
    after = made.table.record
    assert before is not None
    assert after is not None
    assert before.offsets.behind(after.offsets) or after.offsets != before.offsets
    assert [debt.rows for debt in after.debts] == [3]


def test_v4_a_new_epoch_pays_what_it_finds() -> None:
    made = paced(owed(EPOCH - 1, 3), owed(EPOCH - 1, 4))
    made.until(Phase.PAYING)
    made.reads()
    made.follows()
    (payment,) = made.only(PayDebts).payments
    assert [debt.transaction.number for debt in payment.debts] == [3, 4]


def test_v4_who_could_not_be_paid_before_does_not_gather() -> None:
    made = paced(owed(EPOCH - 1, 4))
    made.until(Phase.PAYING)
    away = made.followers.pop(ORDERS)
    made.until(Phase.OPEN)
    made.followers[ORDERS] = away
    decides(made, 1)
    assert shown(made) == TransactionId(EPOCH, 1)  # type: ignore[arg-type]


def test_v4_a_table_that_is_resumed_is_paid_first() -> None:
    made = paced()
    decides(made, 1)
    resuming = Parked(ORDERS, "HG-102 gone", 1, resuming=True)
    made.state = replace(made.state, term=replace(made.term, parked={ORDERS: resuming}))
    assert owed_now(made.state, made.now_ms) == made.term.debts


def gathers(made: Coordinator, *debts: Debt) -> Coordinator:
    """So much is owed, and all of it gathers still."""
    newest = debts[-1].transaction
    gathering = {debt.table: Gathering(made.now_ms + REFRESH_MS, newest) for debt in debts}
    made.state = replace(made.state, term=replace(made.term, debts=debts, gathering=gathering))
    return made


def test_v4_beyond_a_number_of_debts_nothing_gathers() -> None:
    made = paced()
    decides(made, 1)
    gathers(made, *(owed(EPOCH, 1) for _ in range(GATHERED_MAX - 1)))
    decides(made, 2)
    assert len(made.term.debts) == GATHERED_MAX
    assert shown(made) is None
    decides(made, 3)
    assert made.term.debts == ()


def goes_unpaid(made: Coordinator, *debts: Debt) -> None:
    """These debts are decided, and no payment is known to have landed."""
    announces(made, number=made.term.closing)
    made.until(Phase.DRAFTING)
    made.owed = None
    made.given(Drafted(debts))
    made.until(Phase.PAYING)
    made.reads()
    made.follows()
    made.unanswered()


def test_v4_what_comes_after_too_many_have_gathered_is_waited_for_as_ever() -> None:
    """D7: the record would grow without a bound."""
    made = with_identity(paced(), paces=(Pace(".*", 60_000),))
    decides(made, 1)
    names = [f"lake.t{n}" for n in range(DEBTS_MAX)]
    made.followers |= {name: table(name, uuid=f"uuid-{name}") for name in names}
    gathers(made, *(owed(EPOCH, 1, name=names[n % DEBTS_MAX]) for n in range(GATHERED_MAX)))
    for _ in range(2):
        made.until(Phase.OPEN)
        made.until(Phase.COLLECTING)
        goes_unpaid(made, *(owed(EPOCH, made.term.closing, name=name) for name in names))
    for _ in range(3):
        made.waits(60_000)
        assert made.phase is Phase.PAYING
        made.reads()
        made.follows()
        made.unanswered()
    assert made.term.parked == {}, "it is the catalog's trouble"
    assert len(made.term.debts) == GATHERED_MAX + 2 * DEBTS_MAX


def test_v4_what_has_gathered_does_not_park_its_table() -> None:
    made = paced()
    decides(made, 1)
    gathered = tuple(owed(EPOCH, 1) for _ in range(DEBTS_MAX + 5))
    made.state = replace(made.state, term=replace(made.term, debts=gathered))
    made.waits(EVERY_MS)
    away = made.followers.pop(ORDERS)
    made.until(Phase.OPEN)
    assert made.term.parked == {}
    assert "stay owed" in made.told
    made.followers[ORDERS] = away
    decides(made, 2)
    assert made.term.debts == (), "one payment for all"


# -------------------------------------------------------------------------- D7 with many tables


def test_d7_a_catalog_that_is_away_for_a_moment_parks_nobody() -> None:
    made = with_identity(ledgers(), paces=())
    made.until(Phase.COLLECTING)
    announces(made)
    made.followers[ORDERS] = table()
    made.goes_on()
    number = made.term.closing
    debts = tuple(owed(EPOCH, number, name=f"lake.t{n}") for n in range(300))
    made.owed = None
    made.given(Drafted(debts))
    made.until(Phase.PAYING)
    made.reads()
    made.given(FollowersRead({ASIDE: made.followers[ASIDE]}, made.now_ms))
    made.owed = None
    assert made.term.parked == {}
    assert made.phase is Phase.OPEN
    assert "stay owed" in made.told


# ------------------------------------------------------------------------------------------ V2


def paid(name: str, through_ms: int | None) -> TableView:
    """A table that this lead has paid."""
    stored = replace(record(EPOCH - 1, 2, Offsets()), lead="uuid-1", valid_through_ms=through_ms)
    found = table(name, uuid=f"uuid-{name}", lineage=Lineage.CONTAINS_TAG)
    return replace(found, record=stored, branch_record=stored, tag=9, head=9)


def refreshing(*tables: TableView, through_ms: int = 1_000_000) -> Coordinator:
    made = with_identity(collecting(), refresh_ms=REFRESH_MS)
    followers = {**made.term.followers, **{each.table: each for each in tables}}
    made.followers |= followers
    view = made.term.view
    assert view.record is not None
    stored = replace(view, record=replace(view.record, valid_through_ms=through_ms))
    made.table = stored
    made.state = replace(
        made.state,
        term=replace(made.term, followers=followers, view=stored, valid_through_ms=through_ms),
    )
    return made


def idles(made: Coordinator) -> None:
    """Nobody has read anything, and all say so."""
    made.waits(SETTINGS.commit_timeout_ms)


def test_v2_an_idle_table_learns_how_far_it_is_complete() -> None:
    made = refreshing(paid(ORDERS, 1_000_000 - REFRESH_MS), paid(CLICKS, 999_999))
    idles(made)
    debts = made.attempt.record.debts
    assert [(debt.table, debt.manifest, debt.rows) for debt in debts] == [(ORDERS, "", 0)]
    made.until(Phase.OPEN)
    found = made.followers[ORDERS].record
    assert found is not None
    assert found.valid_through_ms == 1_000_000


def test_v2_only_where_it_is_asked_for() -> None:
    made = with_identity(refreshing(paid(ORDERS, 0)), refresh_ms=0)
    idles(made)
    assert made.phase is Phase.SETTLING
    assert made.table.record is not None
    assert made.table.record.debts == ()


def test_v2_some_for_each_transaction_the_furthest_behind_first() -> None:
    tables = [paid(f"lake.t{n:03}", 100 - n) for n in range(AT_ONCE + 5)]
    made = refreshing(*tables)
    idles(made)
    debts = made.attempt.record.debts
    assert [debt.table for debt in debts] == [
        f"lake.t{n:03}" for n in reversed(range(5, AT_ONCE + 5))
    ]
    made.until(Phase.COLLECTING)
    idles(made)
    assert len(made.attempt.record.debts) == 5
    made.until(Phase.COLLECTING)
    idles(made)
    assert made.phase is Phase.SETTLING, "then nothing is to be said any more"


def test_v2_parked_owed_and_foreign_tables_are_left_alone() -> None:
    foreign = paid("lake.foreign", 0)
    assert foreign.record is not None
    foreign = replace(foreign, record=replace(foreign.record, lead="another"))
    made = refreshing(paid(ORDERS, 0), paid(CLICKS, 0), foreign)
    parked = {ORDERS: Parked(ORDERS, "HG-102 gone")}
    debts = (owed(EPOCH - 1, 4, name=CLICKS),)
    made.state = replace(made.state, term=replace(made.term, parked=parked, debts=debts))
    idles(made)
    assert made.attempt.record.debts == debts


def filled(*names: str) -> Coordinator:
    """A coordinator whose ledger has filled tables before this epoch; an END is due."""
    made = with_identity(ledgers(), refresh_ms=REFRESH_MS)
    made.until(Phase.OPEN)
    made.table = replace(made.table, filled={name: f"uuid-{name}" for name in names})
    made.state = replace(made.state, term=replace(made.term, view=made.table))
    made.waits(SETTINGS.commit_interval_ms)
    return made


def test_v2_tables_that_this_epoch_has_not_seen_are_looked_at() -> None:
    made = filled(ORDERS, CLICKS, ASIDE)
    assert made.only(DescribeFollowers).tables == (CLICKS, ORDERS)
    made.given(FollowersRead({ORDERS: paid(ORDERS, 5)}, made.now_ms))
    assert ORDERS in made.term.followers
    assert CLICKS not in made.term.followers
    assert made.term.parked == {}, "nothing goes there"
    assert made.term.unseen == ()
    made.described()
    made.until(Phase.OPEN)
    made.waits(SETTINGS.commit_interval_ms)
    assert not made.wants(DescribeFollowers), "as often as they are refreshed"


def test_v2_not_all_tables_are_looked_at_at_once() -> None:
    names = [f"lake.t{n:03}" for n in range(AT_ONCE + 5)]
    made = filled(*names)
    assert made.only(DescribeFollowers).tables == tuple(names[:AT_ONCE])
    made.given(FollowersRead({}, made.now_ms))
    assert made.term.unseen == tuple(names[AT_ONCE:])


def test_v2_what_this_lead_has_never_paid_is_not_known() -> None:
    made = filled(ORDERS, CLICKS)
    rolled_back = replace(paid(CLICKS, 5), lineage=Lineage.ROLLED_BACK)
    made.given(FollowersRead({ORDERS: table(), CLICKS: rolled_back}, made.now_ms))
    assert not {ORDERS, CLICKS} & made.term.followers.keys()


def test_v1_a_payment_says_the_sinks_valid_through() -> None:
    made = paced()
    made.state = replace(made.state, identity=replace(made.state.identity, paces=()))
    decides(made, 1)
    lead, follower = made.table.record, made.followers[ORDERS].record
    assert lead is not None
    assert follower is not None
    assert follower.valid_through_ms == lead.valid_through_ms
