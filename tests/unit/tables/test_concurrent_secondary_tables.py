"""Several secondary tables at once: troubles stay apart, and nobody is called twice (SUSPEND-1,
SUSPEND-3, PENDING-7)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from contract.fake_table_world import FakeWorld
from contract.test_secondaries import Held, delivery_of, open_table, stage
from pyiceberg.exceptions import ForbiddenError

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import (
    HeadgateError,
    MissingRights,
    TableMissing,
    Unreachable,
)
from headgate.control_protocol.events import Destination
from headgate.control_protocol.identifiers import Epoch
from headgate.control_protocol.ports import (
    Changed,
    CommitAttempt,
    CommitOutcome,
    Landed,
    Staging,
    Unknown,
    Want,
)
from headgate.control_protocol.table_format import Calls, Delivery, DeliveryOutcome
from headgate.tables.concurrent_secondary_tables import SecondaryTables

AWAY = Unreachable("the catalog is away")


class Troubled:
    """A secondary table that answers every call with one error."""

    def __init__(self, error: HeadgateError, cause: Exception | None = None) -> None:
        self._error, self._cause = error, cause
        self.closed = 0

    def read(self) -> object:
        raise self._error from self._cause

    def stage(self, _: Staging) -> tuple[PendingCommit, ...]:
        raise self._error from self._cause

    def commit(self, _: CommitAttempt) -> CommitOutcome:
        raise self._error from self._cause

    def close(self) -> None:
        self.closed += 1


def around(table: object, *, required: tuple[str, ...] | None = ()) -> SecondaryTables:
    return SecondaryTables(lambda _: table, threads=False, required=required)  # type: ignore[arg-type, return-value]


@pytest.fixture
def world(tmp_path: Path) -> FakeWorld:
    made = FakeWorld(tmp_path)
    made.rename("lake.one")
    return made


def delivery(world: FakeWorld) -> CommitAttempt:
    pending_commit = stage(world, open_table(world), 1, 10)
    return CommitAttempt(
        open_table(world).read(), delivery_of(pending_commit), pending_commits=(pending_commit,)
    )


def draft_of(world: FakeWorld) -> Staging:
    attempt = delivery(world)
    return Staging(attempt.base, attempt.record.transaction, attempt.record.coordinator, (), 0)


def test_who_cannot_be_reached_has_no_trouble_of_its_own(world: FakeWorld) -> None:
    """SUSPEND-3: it is not suspended for that; what is pending for it waits."""
    secondaries = around(Troubled(AWAY))
    assert secondaries.try_read_views(("lake.one",)) == {"lake.one": AWAY}
    assert secondaries.find_missing_tables(("lake.one",)) == {}
    with pytest.raises(Unreachable):
        secondaries.stage([draft_of(world)])
    with pytest.raises(Unreachable):
        secondaries.deliver([delivery(world)], 100)


def test_rights_that_are_taken_are_the_tables_own_trouble(world: FakeWorld) -> None:
    secondaries = around(Troubled(AWAY, ForbiddenError("no")))
    assert isinstance(secondaries.try_read_views(("lake.one",))["lake.one"], MissingRights)
    assert isinstance(secondaries.stage([draft_of(world)])["lake.one"], MissingRights)
    assert isinstance(secondaries.deliver([delivery(world)], 100)["lake.one"], MissingRights)


@pytest.mark.parametrize("required", [("lake.one",), None])
def test_what_a_sink_cannot_do_without_stops_it(
    world: FakeWorld, required: tuple[str, ...] | None
) -> None:
    gone = TableMissing("lake.one is gone")
    assert around(Troubled(gone)).try_read_views(("lake.one",)) == {"lake.one": gone}
    secondaries = around(Troubled(gone), required=required)
    for call in (
        lambda: secondaries.try_read_views(("lake.one",)),
        lambda: secondaries.stage([draft_of(world)]),
        lambda: secondaries.deliver([delivery(world)], 100),
    ):
        with pytest.raises(TableMissing):
            call()


def test_who_is_being_delivered_is_left_alone_until_that_has_ended(world: FakeWorld) -> None:
    """Neither delivered a second time, nor read, nor changed; and the answer is its own."""
    held = Held(open_table(world))
    told: list[int] = []
    secondaries = SecondaryTables(lambda _: held, lambda: told.append(1))  # type: ignore[arg-type, return-value]
    first = delivery(world)
    asked = threading.Event()
    commit = held.commit

    def counted(attempt: CommitAttempt) -> CommitOutcome:
        assert not asked.is_set(), "it is delivered to twice at once"
        asked.set()
        return commit(attempt)

    held.commit = counted  # type: ignore[method-assign]
    for _ in range(3):
        outcome = secondaries.deliver([first], 20)["lake.one"]
        assert isinstance(outcome, Unknown)
    assert secondaries.try_read_views(("lake.one",)) == {}
    columns = Struct((Column("tip", "long"),))
    (changed,) = secondaries.create_or_change_tables(
        [Want(Destination("lake.one", "uuid"), columns)]
    )
    assert changed == Changed("lake.one", failure="it is just being delivered")
    held.let_go.set()
    assert isinstance(secondaries.deliver([first], 30_000)["lake.one"], Landed)
    assert world.visible_file_numbers() == [10]
    assert len(told) == 5
    secondaries.close()


class Together:
    """Delivers tables one after another, and keeps what it was called with."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []

    def deliver(self, deliveries: Sequence[Delivery], calls: Calls) -> list[DeliveryOutcome]:
        self.groups.append([delivery.table_name for delivery in deliveries])
        return [
            calls.call_or_suspending_error_of_table(delivery.table_name, delivery.deliver)
            for delivery in deliveries
        ]


def test_pending_5_no_call_is_made_together_while_every_table_is_being_delivered(
    world: FakeWorld,
) -> None:
    """It would count as one that has landed whole, after which all are tried together again."""
    held, together = Held(open_table(world)), Together()
    secondaries = SecondaryTables(lambda _: held, together=together)  # type: ignore[arg-type, return-value]
    first = delivery(world)
    for _ in range(2):
        assert isinstance(secondaries.deliver([first], 20)["lake.one"], Unknown)
    held.let_go.set()
    assert isinstance(secondaries.deliver([first], 30_000)["lake.one"], Landed)
    assert together.groups == [["lake.one"]]
    secondaries.close()


def test_all_that_were_opened_are_closed() -> None:
    tables = {name: Troubled(AWAY) for name in ("lake.one", "lake.two", "lake.three")}
    secondaries = SecondaryTables(tables.__getitem__)  # type: ignore[arg-type]
    secondaries.try_read_views(("lake.one", "lake.two"))
    secondaries.close()
    assert [table.closed for table in tables.values()] == [1, 1, 0]


def test_tidying_reaches_each_that_was_opened() -> None:
    tidied: list[tuple[str, Epoch, frozenset[str]]] = []

    class Tidy(Troubled):
        def __init__(self, name: str) -> None:
            super().__init__(AWAY)
            self._name = name

        def delete_undecided_manifests(
            self, before_epoch: Epoch, pending_manifests: frozenset[str]
        ) -> None:
            tidied.append((self._name, before_epoch, pending_manifests))

    secondaries = SecondaryTables(Tidy, threads=False)  # type: ignore[arg-type]
    secondaries.try_read_views(("lake.one", "lake.two"))
    secondaries.delete_undecided_manifests(Epoch(7), frozenset({"m"}))
    assert tidied == [(name, Epoch(7), frozenset({"m"})) for name in ("lake.one", "lake.two")]
