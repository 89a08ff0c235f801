"""Secondary tables that are delivered together (PENDING-5): all in one call, or each alone if one
is refused.

On Iceberg's own REST server, and on a small one of the tests, behind a proxy that lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

import pytest
from contract.iceberg_table_world import IcebergWorld
from contract.test_secondaries import delivery_of, stage
from integration.iceberg.rest_server import LyingProxy, rest_server
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import DEFAULT_ENDPOINTS
from support.keyed_pending_commits import PendingTable
from support.keyed_world import NAME, SINK, Event
from support.local_catalog import local_catalog
from support.small_rest_catalog import SmallRestCatalog

from headgate.control_protocol.errors import HeadgateError, JointCommitsMissing, NotAtomic
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Landed, Refused, Unknown
from headgate.tables.concurrent_secondary_tables import SecondaryTables
from headgate.tables.iceberg.atomic_deliveries import AtomicDeliveries
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.rest_catalog import JOINT_COMMIT
from headgate.tables.iceberg.table import IcebergTable

PATIENT_S, HURRIED_S = 60.0, 3.0
"""Only who is not answered is told not to wait: this machine may be busy."""
Outcomes = Mapping[str, CommitOutcome | HeadgateError]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("small", id="small"),
        pytest.param(
            "reference", id="reference", marks=[pytest.mark.integration, pytest.mark.wide]
        ),
    ],
)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("server")
    if request.param == "reference":
        with rest_server(folder) as port:
            yield port
        return
    with SmallRestCatalog(folder, {"warehouse": f"file://{folder}/warehouse"}) as server:
        yield server.server_port


@dataclass
class Lake:
    """Three secondary tables of one catalog, and what they are delivered."""

    proxy: LyingProxy
    secondaries: SecondaryTables
    worlds: dict[str, IcebergWorld]

    def pending(self, number: int) -> list[CommitAttempt]:
        """What transaction ``number`` brings to each table."""
        views = self.secondaries.try_read_views(tuple(self.worlds))
        attempts = []
        for name, world in self.worlds.items():
            pending_commit = stage(world, world.open(), number, number)  # type: ignore[arg-type]
            view = views[name]
            assert not isinstance(view, HeadgateError)
            attempts.append(
                CommitAttempt(view, delivery_of(pending_commit), pending_commits=(pending_commit,))
            )
        return attempts

    def delivers(self, deliveries: list[CommitAttempt]) -> Outcomes:
        return self.secondaries.deliver(deliveries, 60_000)

    def delivers_what_is_left(self, deliveries: list[CommitAttempt]) -> Outcomes:
        """As the coordinator: what a read of the secondary tables shows as delivered is not
        delivered again."""
        views = self.secondaries.try_read_views([delivery.base.table for delivery in deliveries])
        left = []
        for delivery in deliveries:
            view = views[delivery.base.table]
            assert not isinstance(view, HeadgateError)
            if view.record is None or view.record.transaction < delivery.record.transaction:
                left.append(replace(delivery, base=view))
        return self.delivers(left)

    def numbers(self) -> list[list[int]]:
        return [world.visible_file_numbers() for world in self.worlds.values()]


@pytest.fixture
def timeout_s() -> float:
    return PATIENT_S


@pytest.fixture
def lake(port: int, tmp_path: Path, unique_name: str, timeout_s: float) -> Iterator[Lake]:
    space = unique_name.replace("-", "_")
    with LyingProxy(port) as proxy:
        rest = {"type": "rest", "uri": f"http://127.0.0.1:{port}"}
        worlds = {
            name: IcebergWorld(tmp_path, rest, table=name)
            for name in (f"{space}.one", f"{space}.two", f"{space}.three")
        }
        behind = {"type": "rest", "uri": proxy.uri}
        with load_catalog("lake", behind, timeout_s=timeout_s) as catalog:
            secondaries = SecondaryTables(
                lambda name: IcebergTable(catalog, name, SinkName("sink")),
                required=(),
                together=AtomicDeliveries(catalog),
            )
            yield Lake(proxy, secondaries, worlds)
            secondaries.close()
        for world in worlds.values():
            world.close()


def which_landed(outcomes: Outcomes) -> list[bool]:
    return [isinstance(outcome, Landed) for outcome in outcomes.values()]


def test_one_call_delivers_all(lake: Lake) -> None:
    first = lake.pending(1)
    assert which_landed(lake.delivers(first)) == [True] * 3
    assert lake.proxy.commits == 1
    assert which_landed(lake.delivers(lake.pending(2))) == [True] * 3
    assert lake.proxy.commits == 2
    assert lake.numbers() == [[1, 2]] * 3


def test_an_outcome_shows_the_table_as_a_read_does(lake: Lake) -> None:
    outcomes = lake.delivers(lake.pending(1))
    views = lake.secondaries.try_read_views(tuple(lake.worlds))
    for name, outcome in outcomes.items():
        assert isinstance(outcome, Landed)
        assert outcome.view == views[name]


def test_a_table_that_has_moved_is_left_out_and_the_others_are_delivered_together(
    lake: Lake,
) -> None:
    lake.delivers(lake.pending(1))
    deliveries = lake.pending(2)
    moved = next(iter(lake.worlds.values()))
    moved.append_foreign(77)
    before = lake.proxy.commits
    outcomes = lake.delivers(deliveries)
    assert which_landed(outcomes) == [False, True, True]
    assert lake.proxy.commits == before + 1
    assert which_landed(lake.delivers_what_is_left(deliveries)) == [True]
    assert lake.numbers() == [[1, 2, 77], [1, 2], [1, 2]]


def test_a_race_for_one_table_costs_no_other(lake: Lake) -> None:
    lake.delivers(lake.pending(1))
    deliveries = lake.pending(2)
    lake.proxy.keep_next()
    outcomes: dict[str, CommitOutcome | HeadgateError] = {}
    delivering = Thread(target=lambda: outcomes.update(lake.delivers(deliveries)))
    delivering.start()
    assert lake.proxy.kept.wait(60)
    raced = next(iter(lake.worlds.values()))
    raced.append_foreign(77)
    lake.proxy.let_go()
    delivering.join(60)
    assert which_landed(outcomes) == [False, True, True]
    assert isinstance(outcomes[raced.name], Refused | Unknown)
    assert which_landed(lake.delivers_what_is_left(deliveries)) == [True]
    assert lake.numbers() == [[1, 2, 77], [1, 2], [1, 2]]


def test_a_table_that_is_gone_takes_no_other_with_it(lake: Lake) -> None:
    deliveries = lake.pending(1)
    lake.proxy.keep_next()
    outcomes: dict[str, CommitOutcome | HeadgateError] = {}
    delivering = Thread(target=lambda: outcomes.update(lake.delivers(deliveries)))
    delivering.start()
    assert lake.proxy.kept.wait(60)
    gone, *others = lake.worlds.values()
    gone.drop()
    lake.proxy.let_go()
    delivering.join(60)
    assert which_landed(outcomes) == [False, True, True]
    assert [world.visible_file_numbers() for world in others] == [[1], [1]]


@pytest.mark.parametrize(
    ("lie", "timeout_s"),
    [
        *((lie, PATIENT_S) for lie in ("drop-after", "503-after", "502-before", "drop-before")),
        *(("twice", PATIENT_S), ("hang-after", HURRIED_S)),
    ],
)
def test_whatever_is_answered_each_table_is_delivered_once(lake: Lake, lie: str) -> None:
    lake.delivers(lake.pending(1))
    deliveries = lake.pending(2)
    lake.proxy.lie = lie
    outcomes = lake.delivers(deliveries)
    if lie == "twice":  # it has landed, whatever the second copy was answered
        assert which_landed(outcomes) == [True] * 3
    elif lie.endswith("-after"):
        assert lake.numbers() == [[1, 2]] * 3, "together"
    for _ in range(2):
        lake.delivers_what_is_left(deliveries)
    assert lake.numbers() == [[1, 2]] * 3
    before = lake.proxy.commits
    assert which_landed(lake.delivers(lake.pending(3))) == [True] * 3
    assert lake.proxy.commits in (before + 1, before + 3), "one by one at most once more"
    before = lake.proxy.commits
    assert which_landed(lake.delivers(lake.pending(4))) == [True] * 3
    assert lake.proxy.commits == before + 1, "together again"
    assert lake.numbers() == [[1, 2, 3, 4]] * 3


@pytest.mark.parametrize("timeout_s", [HURRIED_S])
def test_a_copy_that_comes_late_delivers_nothing_again(lake: Lake) -> None:
    lake.delivers(lake.pending(1))
    deliveries = lake.pending(2)
    lake.proxy.keep_next()
    outcomes = lake.delivers(deliveries)  # its client gives up
    assert all(isinstance(outcome, Unknown) for outcome in outcomes.values())
    lake.delivers_what_is_left(deliveries)
    assert lake.numbers() == [[1, 2]] * 3
    lake.proxy.let_go()
    assert which_landed(lake.delivers(lake.pending(3))) == [True] * 3
    assert lake.numbers() == [[1, 2, 3]] * 3


def test_a_catalog_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NotAtomic) as refused:
        AtomicDeliveries(local_catalog(tmp_path).catalog)
    assert refused.value.code == "HG-121"


@pytest.mark.parametrize("listed", [True, False])
def test_a_server_without_that_call_is_refused_by_name(tmp_path: Path, *, listed: bool) -> None:
    with SmallRestCatalog(tmp_path, {"warehouse": f"file://{tmp_path}"}) as server:
        others = [str(endpoint) for endpoint in DEFAULT_ENDPOINTS]
        server.endpoints = [*others, "GET /v1/{prefix}/functions"]
        if listed:
            server.endpoints.append(str(JOINT_COMMIT))
        with load_catalog("lake", {"type": "rest", "uri": server.uri}) as catalog:
            if listed:
                AtomicDeliveries(catalog)
                return
            with pytest.raises(NotAtomic):
                AtomicDeliveries(catalog)


@pytest.mark.parametrize("status", ["404", "405", "501"])
def test_a_server_that_says_nothing_stops_the_sink_by_name(lake: Lake, status: str) -> None:
    deliveries = lake.pending(1)
    lake.proxy.lie = f"{status}-before"
    with pytest.raises(JointCommitsMissing) as stopped:
        lake.delivers(deliveries)
    assert stopped.value.code == "HG-250"
    assert lake.numbers() == [[], [], []]


def test_key_4_a_keyed_table_is_delivered_together_with_others_by_its_keys(
    port: int, tmp_path: Path
) -> None:
    """Keys are resolved while the call is made ready; one that was overtaken is found anew."""
    with LyingProxy(port) as proxy, local_rest(proxy.uri) as catalog:
        pending = PendingTable.create(catalog, 2)
        plain = IcebergWorld(tmp_path, {"type": "rest", "uri": proxy.uri}, table="db.beside")
        secondaries = SecondaryTables(
            lambda name: pending.table if name == NAME else IcebergTable(catalog, name, SINK),
            required=(),
            together=AtomicDeliveries(catalog),
        )

        def delivers(number: int, stale: CommitAttempt | None = None) -> list[bool]:
            pending_commit = stage(plain, plain.open(), number, number)  # type: ignore[arg-type]
            view = secondaries.try_read_views(["db.beside"])["db.beside"]
            assert not isinstance(view, HeadgateError)
            beside = CommitAttempt(
                view, delivery_of(pending_commit), pending_commits=(pending_commit,)
            )
            return which_landed(secondaries.deliver([stale or pending.delivery(), beside], 60_000))

        pending.decides([Event((1,), "a"), Event((2,), "a")], [Event((1,), "b"), Event((2,))])
        before = proxy.commits
        assert delivers(1) == [True, True]
        assert proxy.commits == before + 1
        pending.check()
        pending.reads()
        assert pending.pending_commits == ()

        pending.decides([Event((1,)), Event((3,), "c")])
        stale = pending.delivery()
        pending.deliver()  # by somebody else
        assert delivers(2, stale) == [False, True]
        pending.check()
        assert plain.visible_file_numbers() == [1, 2]
        secondaries.close()
        plain.close()


@contextmanager
def local_rest(uri: str) -> Iterator[Catalog]:
    catalog = load_catalog("lake", {"type": "rest", "uri": uri}, timeout_s=PATIENT_S)
    try:
        yield catalog
    finally:
        catalog.close()
