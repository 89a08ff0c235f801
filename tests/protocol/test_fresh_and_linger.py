"""FRESH-1, FRESH-2 and LINGER-1: how far each table is complete, and how often it is delivered
to."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.suspension import (
    ASIDE,
    CLICKS,
    ORDERS,
    announces,
    collecting,
    ledgers,
    pending,
    table,
)
from protocol.values import record

from headgate.control_protocol.commit_record import PendingCommit, Suspended
from headgate.control_protocol.identifiers import TransactionId
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Lineage, TableView
from headgate.coordinator.inputs_and_actions import (
    DeliverPendingCommits,
    ManifestsStaged,
    SecondariesRead,
)
from headgate.coordinator.phases import Phase
from headgate.coordinator.secondary_delivery import (
    LINGERING_MAX,
    TRIED_MAX,
    commits_due_for_delivery,
)
from headgate.coordinator.settings import DeliveryLinger
from headgate.coordinator.state import Lingering
from headgate.coordinator.table_checks import AT_ONCE, with_unseen_tables_listed

EVERY_MS = 5_000
REFRESH_MS = 60_000


def with_identity(made: Coordinator, **changed: object) -> Coordinator:
    made.state = replace(made.state, identity=replace(made.state.identity, **changed))
    return made


def paced(*pending_commits: PendingCommit, match: str = r"lake\.orders") -> Coordinator:
    """A ledger's coordinator; the routed table gathers what is pending for it."""
    made = ledgers(*pending_commits)
    made.secondaries[ORDERS] = table()
    return with_identity(made, paces=(DeliveryLinger(match, EVERY_MS), DeliveryLinger(".*", 1)))


def decides(made: Coordinator, number: int, name: str = ORDERS) -> None:
    """One more transaction with rows for the table is decided, and the next one is open."""
    made.until(Phase.COLLECTING)
    announces(made, at=name, number=number)
    made.until(Phase.OPEN)


def shown(made: Coordinator, name: str = ORDERS) -> TransactionId | None:
    """The transaction up to which the table was delivered to."""
    found = made.secondaries[name].record
    return found.transaction if found else None


# ----------------------------------------------------------------------------------------- LINGER-1


def test_linger_1_pending_commits_gather_and_are_delivered_in_one_commit() -> None:
    made = paced()
    for number in range(1, 4):
        decides(made, number)
        assert shown(made) is None
    assert [pending_commit.transaction.number for pending_commit in made.term.delivery.pending] == [
        1,
        2,
        3,
    ]
    made.waits(EVERY_MS)
    made.until(Phase.DELIVERING)
    made.reads()
    made.follows()
    (delivery,) = made.only(DeliverPendingCommits).deliveries
    assert [pending_commit.transaction.number for pending_commit in delivery.pending_commits] == [
        1,
        2,
        3,
    ]
    assert delivery.record.records == 9
    made.until(Phase.OPEN)
    assert made.term.delivery.pending == ()


def test_linger_1_what_has_gathered_is_delivered_while_the_sink_is_paused() -> None:
    """ROLLBACK-1: what makes a place that a rollback can reach."""
    made = paced()
    decides(made, 1)
    made.state = replace(
        made.state, term=replace(made.term, pause=replace(made.term.pause, paused=True))
    )
    made.waits(EVERY_MS)
    made.until(Phase.DELIVERING)
    made.until(Phase.OPEN)
    assert made.term.delivery.pending == ()


def test_linger_1_what_gathers_is_not_even_read() -> None:
    made = paced()
    decides(made, 1)
    made.walk.clear()
    decides(made, 2)
    assert (Phase.SETTLING, Phase.OPEN) in made.walk, "nothing is delivered"


def test_linger_1_other_tables_and_the_quarantine_are_delivered_at_once() -> None:
    made = paced()
    made.secondaries[CLICKS] = table(CLICKS, uuid="uuid-orders")
    made.state = replace(
        made.state, identity=replace(made.state.identity, paces=(DeliveryLinger(ORDERS, EVERY_MS),))
    )
    decides(made, 1, CLICKS)
    assert shown(made, CLICKS) == TransactionId(EPOCH, 1)  # type: ignore[arg-type]
    made = with_identity(paced(), paces=(DeliveryLinger(".*", EVERY_MS),))
    made.until(Phase.COLLECTING)
    announces(made, at=None)
    made.until(Phase.OPEN)
    assert shown(made, ASIDE) == TransactionId(EPOCH, 1)  # type: ignore[arg-type]


def test_linger_1_the_first_pattern_that_matches_counts() -> None:
    made = with_identity(paced(), paces=(DeliveryLinger(ORDERS, 0), DeliveryLinger(".*", EVERY_MS)))
    decides(made, 1)
    assert shown(made) is not None


def test_linger_1_offsets_are_stored_all_the_same() -> None:
    made = paced()
    before = made.table.record
    decides(made, 1)
    after = made.table.record
    assert before is not None
    assert after is not None
    assert before.offsets.partitions_behind(after.offsets) or after.offsets != before.offsets
    assert [pending_commit.rows for pending_commit in after.pending_commits] == [3]


def test_linger_1_a_new_epoch_delivers_what_it_finds() -> None:
    made = paced(pending(EPOCH - 1, 3), pending(EPOCH - 1, 4))
    made.until(Phase.DELIVERING)
    made.reads()
    made.follows()
    (delivery,) = made.only(DeliverPendingCommits).deliveries
    assert [pending_commit.transaction.number for pending_commit in delivery.pending_commits] == [
        3,
        4,
    ]


def test_linger_1_who_could_not_be_delivered_before_does_not_gather() -> None:
    made = paced(pending(EPOCH - 1, 4))
    made.until(Phase.DELIVERING)
    away = made.secondaries.pop(ORDERS)
    made.until(Phase.OPEN)
    made.secondaries[ORDERS] = away
    decides(made, 1)
    assert shown(made) == TransactionId(EPOCH, 1)  # type: ignore[arg-type]


def test_linger_1_a_table_that_is_resumed_is_delivered_first() -> None:
    made = paced()
    decides(made, 1)
    resuming = Suspended(ORDERS, "HG-102 gone", 1, resuming=True)
    made.state = replace(
        made.state,
        term=replace(
            made.term, suspensions=replace(made.term.suspensions, suspended={ORDERS: resuming})
        ),
    )
    assert commits_due_for_delivery(made.state, made.now_ms) == made.term.delivery.pending


def gathers(made: Coordinator, *pending_commits: PendingCommit) -> Coordinator:
    """So much is pending, and all of it gathers still."""
    newest = pending_commits[-1].transaction
    gathering = {
        pending_commit.table: Lingering(made.now_ms + REFRESH_MS, newest)
        for pending_commit in pending_commits
    }
    made.state = replace(
        made.state,
        term=replace(
            made.term,
            delivery=replace(made.term.delivery, pending=pending_commits, lingering=gathering),
        ),
    )
    return made


def test_linger_1_beyond_a_number_of_pending_commits_nothing_gathers() -> None:
    made = paced()
    decides(made, 1)
    gathers(made, *(pending(EPOCH, 1) for _ in range(LINGERING_MAX - 1)))
    decides(made, 2)
    assert len(made.term.delivery.pending) == LINGERING_MAX
    assert shown(made) is None
    decides(made, 3)
    assert made.term.delivery.pending == ()


def goes_undelivered(made: Coordinator, *pending_commits: PendingCommit) -> None:
    """These pending commits are decided, and no delivery is known to have landed."""
    announces(made, number=made.term.previous_transaction_number)
    made.until(Phase.DRAFTING)
    made.pending = None
    made.given(ManifestsStaged(pending_commits))
    made.until(Phase.DELIVERING)
    made.reads()
    made.follows()
    made.unanswered()


def test_linger_1_what_comes_after_too_many_have_gathered_is_waited_for_as_ever() -> None:
    """PENDING-7: the record would grow without a bound."""
    made = with_identity(paced(), paces=(DeliveryLinger(".*", 60_000),))
    decides(made, 1)
    names = [f"lake.t{n}" for n in range(TRIED_MAX)]
    made.secondaries |= {name: table(name, uuid=f"uuid-{name}") for name in names}
    gathers(made, *(pending(EPOCH, 1, name=names[n % TRIED_MAX]) for n in range(LINGERING_MAX)))
    for _ in range(2):
        made.until(Phase.OPEN)
        made.until(Phase.COLLECTING)
        goes_undelivered(
            made,
            *(pending(EPOCH, made.term.previous_transaction_number, name=name) for name in names),
        )
    for _ in range(3):
        made.waits(60_000)
        assert made.phase is Phase.DELIVERING
        made.reads()
        made.follows()
        made.unanswered()
    assert made.term.suspensions.suspended == {}, "it is the catalog's trouble"
    assert len(made.term.delivery.pending) == LINGERING_MAX + 2 * TRIED_MAX


def test_linger_1_what_has_gathered_does_not_suspend_its_table() -> None:
    made = paced()
    decides(made, 1)
    gathered = tuple(pending(EPOCH, 1) for _ in range(TRIED_MAX + 5))
    made.state = replace(
        made.state, term=replace(made.term, delivery=replace(made.term.delivery, pending=gathered))
    )
    made.waits(EVERY_MS)
    away = made.secondaries.pop(ORDERS)
    made.until(Phase.OPEN)
    assert made.term.suspensions.suspended == {}
    assert "stay pending" in made.told
    made.secondaries[ORDERS] = away
    decides(made, 2)
    assert made.term.delivery.pending == (), "one delivery for all"


# ----------------------------------------------------------------------- PENDING-7 with many tables


def test_pending_7_a_catalog_that_is_away_for_a_moment_suspends_nobody() -> None:
    made = with_identity(ledgers(), paces=())
    made.until(Phase.COLLECTING)
    announces(made)
    made.secondaries[ORDERS] = table()
    made.goes_on()
    number = made.term.previous_transaction_number
    pending_commits = tuple(pending(EPOCH, number, name=f"lake.t{n}") for n in range(300))
    made.pending = None
    made.given(ManifestsStaged(pending_commits))
    made.until(Phase.DELIVERING)
    made.reads()
    made.looks(read=SecondariesRead({ASIDE: made.secondaries[ASIDE]}))
    made.pending = None
    assert made.term.suspensions.suspended == {}
    assert made.phase is Phase.OPEN
    assert "stay pending" in made.told


# ------------------------------------------------------------------------------------------ FRESH-2


def delivered(name: str, through_ms: int | None) -> TableView:
    """A table that this primary table has delivered."""
    stored = replace(record(EPOCH - 1, 2, Offsets()), primary="uuid-1", valid_through_ms=through_ms)
    found = table(name, uuid=f"uuid-{name}", lineage=Lineage.CONTAINS_TAG)
    return replace(found, record=stored, branch_record=stored, tag=9, head=9)


def refreshing(*tables: TableView, through_ms: int = 1_000_000) -> Coordinator:
    made = with_identity(collecting(), refresh_ms=REFRESH_MS)
    secondaries = {**made.term.delivery.secondaries, **{each.table: each for each in tables}}
    made.secondaries |= secondaries
    view = made.term.primary.view
    assert view.record is not None
    stored = replace(view, record=replace(view.record, valid_through_ms=through_ms))
    made.table = stored
    made.state = replace(
        made.state,
        term=replace(
            made.term,
            delivery=replace(made.term.delivery, secondaries=secondaries),
            primary=replace(made.term.primary, view=stored),
            progress=replace(made.term.progress, valid_through_ms=through_ms),
        ),
    )
    return made


def idles(made: Coordinator) -> None:
    """Nobody has read anything, and all say so."""
    made.waits(SETTINGS.commit_timeout_ms)


def test_fresh_2_an_idle_table_learns_how_far_it_is_complete() -> None:
    made = refreshing(delivered(ORDERS, 1_000_000 - REFRESH_MS), delivered(CLICKS, 999_999))
    idles(made)
    pending_commits = made.attempt.record.pending_commits
    assert [
        (pending_commit.table, pending_commit.manifest, pending_commit.rows)
        for pending_commit in pending_commits
    ] == [(ORDERS, "", 0)]
    made.until(Phase.OPEN)
    found = made.secondaries[ORDERS].record
    assert found is not None
    assert found.valid_through_ms == 1_000_000


def test_fresh_2_only_where_it_is_asked_for() -> None:
    made = with_identity(refreshing(delivered(ORDERS, 0)), refresh_ms=0)
    idles(made)
    assert made.phase is Phase.SETTLING
    assert made.table.record is not None
    assert made.table.record.pending_commits == ()


def test_fresh_2_some_for_each_transaction_the_furthest_behind_first() -> None:
    tables = [delivered(f"lake.t{n:03}", 100 - n) for n in range(AT_ONCE + 5)]
    made = refreshing(*tables)
    idles(made)
    pending_commits = made.attempt.record.pending_commits
    assert [pending_commit.table for pending_commit in pending_commits] == [
        f"lake.t{n:03}" for n in reversed(range(5, AT_ONCE + 5))
    ]
    made.until(Phase.COLLECTING)
    idles(made)
    assert len(made.attempt.record.pending_commits) == 5
    made.until(Phase.COLLECTING)
    idles(made)
    assert made.phase is Phase.SETTLING, "then nothing is to be said any more"


def test_fresh_2_suspended_pending_and_foreign_tables_are_left_alone() -> None:
    foreign = delivered("lake.foreign", 0)
    assert foreign.record is not None
    foreign = replace(foreign, record=replace(foreign.record, primary="another"))
    made = refreshing(delivered(ORDERS, 0), delivered(CLICKS, 0), foreign)
    suspended = {ORDERS: Suspended(ORDERS, "HG-102 gone")}
    pending_commits = (pending(EPOCH - 1, 4, name=CLICKS),)
    made.state = replace(
        made.state,
        term=replace(
            made.term,
            suspensions=replace(made.term.suspensions, suspended=suspended),
            delivery=replace(made.term.delivery, pending=pending_commits),
        ),
    )
    idles(made)
    assert made.attempt.record.pending_commits == pending_commits


def filled(*names: str) -> Coordinator:
    """A coordinator whose ledger has filled tables before this epoch; an END is due."""
    made = with_identity(ledgers(), refresh_ms=REFRESH_MS)
    made.until(Phase.OPEN)
    made.table = replace(made.table, filled={name: f"uuid-{name}" for name in names})
    made.state = replace(
        made.state, term=replace(made.term, primary=replace(made.term.primary, view=made.table))
    )
    made.state = with_unseen_tables_listed(made.state)
    made.waits(SETTINGS.commit_interval_ms)
    return made


def test_fresh_2_tables_that_this_epoch_has_not_seen_are_looked_at() -> None:
    made = filled(ORDERS, CLICKS, ASIDE)
    assert made.reads_tables == (CLICKS, ORDERS)
    made.looks(read=SecondariesRead({ORDERS: delivered(ORDERS, 5)}))
    assert ORDERS in made.term.delivery.secondaries
    assert CLICKS not in made.term.delivery.secondaries
    assert made.term.suspensions.suspended == {}, "nothing goes there"
    assert made.term.delivery.unseen == ()
    made.described()
    made.until(Phase.OPEN)
    made.waits(SETTINGS.commit_interval_ms)
    assert not made.reads_secondaries, "as often as they are refreshed"


def test_fresh_2_not_all_tables_are_looked_at_at_once() -> None:
    names = [f"lake.t{n:03}" for n in range(AT_ONCE + 5)]
    made = filled(*names)
    assert made.reads_tables == tuple(names[:AT_ONCE])
    made.looks(read=SecondariesRead({}))
    assert made.term.delivery.unseen == tuple(names[AT_ONCE:])


def test_fresh_2_what_this_lead_has_never_delivered_is_not_known() -> None:
    made = filled(ORDERS, CLICKS)
    rolled_back = replace(delivered(CLICKS, 5), lineage=Lineage.ROLLED_BACK)
    made.looks(read=SecondariesRead({ORDERS: table(), CLICKS: rolled_back}))
    assert not {ORDERS, CLICKS} & made.term.delivery.secondaries.keys()


def test_fresh_1_a_delivery_says_the_sinks_valid_through() -> None:
    made = paced()
    made.state = replace(made.state, identity=replace(made.state.identity, paces=()))
    decides(made, 1)
    primary, secondary = made.table.record, made.secondaries[ORDERS].record
    assert primary is not None
    assert secondary is not None
    assert secondary.valid_through_ms == primary.valid_through_ms
