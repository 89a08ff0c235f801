"""SUSPEND-1 to SUSPEND-5 on a real broker and catalog: three tables go wrong, and the sink goes
on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from integration.conftest import Deploy
from integration.deployment import PATIENCE_S, Deployment
from integration.sink_file import COORDINATES
from integration.tables.routed_sink import routed, rows_of, table_of, with_zones
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError

from headgate.control_protocol.errors import TableStillSuspended
from headgate.operations.audit.audit import audit
from headgate.operations.many_tables.list import list_tables
from headgate.operations.many_tables.replay_quarantined import replay_tables
from headgate.operations.many_tables.resume import resume_tables
from headgate.operations.status.status import read_status
from headgate.runtime.process import run

pytestmark = pytest.mark.integration

ORDERS, ZONE_A, ZONE_B, MOVED = "db.orders", "db.zone_a", "db.zone_b", "db.moved_by_hand"


@contextmanager
def running(sink: Deployment) -> Iterator[None]:
    """One participant in this process, which must not stop by itself."""
    stop, failures = threading.Event(), list[BaseException]()

    def participate() -> None:
        try:
            run(sink.settings, stop=stop)
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    thread = threading.Thread(target=participate)
    thread.start()
    try:
        yield
        assert thread.is_alive(), failures
    finally:
        stop.set()
        thread.join()
    assert failures == []


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Tables for which the catalog answers 403."""
    names: set[str] = set()
    load = SqlCatalog.load_table

    def refusing(self: SqlCatalog, identifier: Any) -> Any:
        if ".".join(self.identifier_to_tuple(identifier)) in names:
            raise ForbiddenError("this principal may not")
        return load(self, identifier)

    monkeypatch.setattr(SqlCatalog, "load_table", refusing)
    return names


def suspended_of(sink: Deployment) -> dict[str, str]:
    record = sink.record()
    return {suspended.table: suspended.why for suspended in record.suspended} if record else {}


def wait_until_decided(sink: Deployment, bound_s: float = PATIENCE_S) -> None:
    """Nothing of the source is left to read; what suspended tables are pending stays pending."""

    def decided() -> bool:
        lag = sink.lag()
        return lag is not None and lag <= sum(
            pending_commit.rows for pending_commit in sink.pending()
        )

    sink.wait_until(decided, "offsets at the end", bound_s)


def states(sink: Deployment) -> dict[str, str]:
    return {table.table: table.state for table in list_tables(sink.settings).tables}


def test_dropped_renamed_and_refused_tables_are_suspended_and_the_sink_goes_on(
    deploy: Deploy, forbidden: set[str]
) -> None:
    sink = routed(deploy)
    with_zones(sink)
    by_name = table_of(sink, sink.topics[1])

    produced = 0

    def produce_everywhere() -> None:
        nonlocal produced
        for topic in sink.topics:
            sink.produce(90, topic)
        produced += 90

    def more_until(suspended: set[str]) -> None:
        while not suspended <= suspended_of(sink).keys():
            produce_everywhere()
            wait_until_decided(sink)

    with running(sink):
        produce_everywhere()
        sink.wait_until_lag_zero()
        with sink.catalog() as catalog:
            catalog.drop_table(ZONE_A)
            catalog.rename_table(ZONE_B, MOVED)
        forbidden.add(ORDERS)
        more_until({ORDERS, ZONE_A, ZONE_B})
        whys = suspended_of(sink)
        assert whys[ORDERS].startswith("HG-103")
        assert whys[ZONE_A].startswith("HG-102")
        assert whys[ZONE_B].startswith("HG-102")
        produce_everywhere()
        wait_until_decided(sink)
        sink.wait_until(lambda: rows_of(sink, by_name).num_rows == produced, "the other table")
        assert states(sink) == {
            by_name: "open",
            **dict.fromkeys((ORDERS, ZONE_A, ZONE_B), "suspended"),
        }
        assert read_status(sink.settings).exit_code == 0
        diverted = rows_of(sink, "db.rejected")
        assert set(diverted["error_class"].to_pylist()) == {"route", "table"}
        report = audit(sink.settings)
        assert report.findings == ()
        assert any("cannot be examined" in text for text in report.unproven)

        with sink.catalog() as catalog:
            catalog.rename_table(MOVED, ZONE_B)
        forbidden.clear()
        with pytest.raises(TableStillSuspended, match=r"zone_a.*HG-102"):
            resume_tables(sink.settings, [])
        sink.wait_until(lambda: suspended_of(sink).keys() == {ZONE_A}, "both are open again")
        filled = {name: rows_of(sink, name).num_rows for name in (ORDERS, ZONE_B)}
        produce_everywhere()
        wait_until_decided(sink)
        sink.wait_until(
            lambda: all(rows_of(sink, name).num_rows > n for name, n in filled.items()),
            "rows in what was resumed",
        )
        assert states(sink)[ORDERS] == states(sink)[ZONE_B] == "open"
        given = replay_tables(sink.settings, [ORDERS, ZONE_B])  # while the sink commits
        assert all(each.records > 0 and not each.bad for each in given)
        produce_everywhere()
        wait_until_decided(sink)
    replay_tables(sink.settings, [])
    for name in (ORDERS, ZONE_B):
        there, diverted = coordinates(rows_of(sink, name)), meant_for(sink, name)
        assert diverted <= set(there)
        assert len(there) == len(set(there))
    assert audit(sink.settings).findings == ()


def coordinates(rows: pa.Table, columns: Sequence[str] = COORDINATES) -> list[tuple[str, int, int]]:
    return list(zip(*(rows[name].to_pylist() for name in columns), strict=True))


def meant_for(sink: Deployment, table: str) -> set[tuple[str, int, int]]:
    """What the quarantine holds for the table, as another reader sees it."""
    rows = rows_of(sink, "db.rejected")
    those = rows.filter(pc.equal(rows["table_name"], table))
    return set(coordinates(those, ("topic", "partition", "offset")))
