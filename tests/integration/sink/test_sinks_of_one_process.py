"""Point 2: two sinks in one process and one thread; what befalls one leaves the other alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.sink_file import COORDINATES

import headgate
from headgate.control_protocol.bad_records import Disposal
from headgate.control_protocol.errors import PoisonRecord
from headgate.control_protocol.identifiers import SinkName
from headgate.sink.settings import SinkSettings

pytestmark = pytest.mark.integration

ZONES = "db.zones"


def beside(sink: Deployment) -> SinkSettings:
    """Another sink of the same topic, with a table of its own, which keeps what is bad."""
    known = sink.settings
    aside = replace(known.quarantine, policy=Disposal.QUARANTINE, table=f"{ZONES}_rejected")
    return replace(
        known,
        name=SinkName("zones"),
        source=replace(known.source, group_id=f"{known.source.group_id}-zones"),
        table=replace(known.table, identifier=ZONES),
        quarantine=aside,
    )


def offsets_of(sink: Deployment, table: str) -> int:
    """How many records the table holds; each is there once."""
    with sink.catalog() as catalog:
        if not catalog.table_exists(table):
            return 0
        rows = catalog.load_table(table).scan().to_arrow()
    held = list(zip(*(rows[name].to_pylist() for name in COORDINATES), strict=True))
    assert len(held) == len(set(held))
    return len(held)


def test_point_2_two_sinks_of_one_process_and_one_that_ends(deploy: Deploy) -> None:
    sink = deploy(change={"quarantine": {"policy": "fail"}})

    def turned(*sinks: headgate.Sink) -> None:
        for _ in range(10):
            for each in sinks:
                each.turn()

    def both(count: int) -> bool:
        turned(trips, zones)
        return offsets_of(sink, "db.rows") == offsets_of(sink, ZONES) == count

    def second(count: int) -> bool:
        turned(zones)
        return offsets_of(sink, ZONES) == count

    with headgate.Sink(beside(sink)) as zones:
        with headgate.Sink(sink.settings) as trips:
            sink.produce(500)
            sink.wait_until(lambda: both(500), "all rows in both tables")
            sink.bad_every = 1
            sink.produce(1)
            sink.bad_every = 0
            with pytest.raises(PoisonRecord):
                sink.wait_until(lambda: both(0), "the end of one")
        sink.produce(500)
        sink.wait_until(lambda: second(1_000), "what came behind the bad record in one table")
    assert offsets_of(sink, "db.rows") == 500
