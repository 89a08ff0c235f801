"""The way back is refused where the connector's one group counts for tables of others, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from unit.operations.filled_table import SCHEMA, FilledTable
from unit.operations.routed_shop import CLICKS, LEDGER, ORDERS, Shop, shop_settings

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import TakeoverUnfit
from headgate.control_protocol.identifiers import SinkName, TopicId
from headgate.control_protocol.ports import CommitAttempt, Landed
from headgate.operations.kafka_connect import takeover
from headgate.operations.kafka_connect.control_topic import ControlTopic
from headgate.operations.kafka_connect.takeover import WayBack, plan_handback_to_connector
from headgate.operations.kafka_connect.transaction_events import WorkerAnnouncement
from headgate.tables.iceberg.connector_fence import mark_property_for_ends, properties_of_fence
from headgate.tables.iceberg.table import IcebergTable

CONNECTOR = {"connector.class": "IcebergSink", "name": "trips"}
SEEN = ("control-iceberg", "connect-trips")


@pytest.fixture(autouse=True)
def announced(monkeypatch: pytest.MonkeyPatch) -> list[WorkerAnnouncement]:
    """A connector at rest; what it has announced is added here."""
    told: list[WorkerAnnouncement] = []
    for name, answer in {
        "require_no_running_participants": None,
        "require_empty_group": None,
        "read_control_topic": ControlTopic((), {0: 0}, {0: 7}),
        "assemble_announcements": told,
    }.items():
        monkeypatch.setattr(takeover, name, lambda *_, answer=answer: answer)
    return told


def hand_back(settings: SinkSettings, keys: Mapping[str, str]) -> WayBack:
    return plan_handback_to_connector(settings, {**CONNECTOR, **keys})


class TestOneTable:
    @pytest.fixture(autouse=True)
    def good_start(self, filled: FilledTable) -> None:
        filled.good_start()

    def test_the_connector_of_this_table_alone_is_given_its_group_back(
        self, settings: SinkSettings
    ) -> None:
        way = hand_back(settings, {"iceberg.tables": "db.trips"})
        assert list(way.record.offsets.values()) == [10, 10]

    @pytest.mark.parametrize(
        ("keys", "named"),
        [
            ({"iceberg.tables": "db.trips, db.twin"}, "db.twin"),
            ({"iceberg.tables": "db.twin"}, "db.twin"),
            (
                {"iceberg.tables": "db.trips", "iceberg.tables.dynamic-enabled": "true"},
                "every table that a record names",
            ),
        ],
    )
    def test_takeover_13_a_connector_of_more_tables_is_refused(
        self, settings: SinkSettings, keys: dict[str, str], named: str
    ) -> None:
        """Each sink has offsets of its own: whichever goes back last would move the others."""
        said = f"group connect-trips counts for {named}, too, which sink trips does not fill"
        with pytest.raises(TakeoverUnfit, match=re.escape(said)):
            hand_back(settings, keys)

    @pytest.mark.parametrize("fenced", [False, True])
    def test_takeover_13_a_table_that_the_connector_has_again_is_refused_unlisted(
        self,
        settings: SinkSettings,
        catalog: Catalog,
        announced: list[WorkerAnnouncement],
        *,
        fenced: bool,
    ) -> None:
        announced.append(WorkerAnnouncement(0, 0, 1, files={"db.twin": []}))
        made = catalog.create_table("db.twin", SCHEMA)
        nothing = pa.Table.from_pylist([], schema=made.schema().as_arrow())
        ends = {0: 5}
        made.append(nothing, mark_property_for_ends(*SEEN, ends))
        if fenced:
            made.append(nothing, properties_of_fence(SinkName("twin"), *SEEN, ends))
            hand_back(settings, {"iceberg.tables": "db.trips"})
            return
        with pytest.raises(TakeoverUnfit, match=re.escape("counts for db.twin, too")):
            hand_back(settings, {"iceberg.tables": "db.trips"})


@pytest.mark.parametrize(
    ("topic_id", "is_refused"), [("topic-id-1", True), ("of another topic", False)]
)
def test_takeover_13_routes_a_table_that_is_another_sink_s_is_refused(
    tmp_path: Path, catalog: Catalog, topic_id: str, *, is_refused: bool
) -> None:
    settings = shop_settings(tmp_path)
    shop = Shop(catalog, settings)
    shop.commits({ORDERS: [0, 1]})
    catalog.create_table(CLICKS, SCHEMA)
    other = IcebergTable(catalog, CLICKS, SinkName("other"))
    theirs = replace(shop.record(0), sink=SinkName("other"), topic_ids={"shop": TopicId(topic_id)})
    assert isinstance(other.commit(CommitAttempt(other.read(), theirs)), Landed)
    keys = {"iceberg.tables": f"{ORDERS},{CLICKS}"}
    if is_refused:
        with pytest.raises(TakeoverUnfit, match=f"counts for {CLICKS}, too"):
            hand_back(settings, keys)
        return
    way = hand_back(settings, keys)
    assert [view.table for view in way.fenced] == [ORDERS]
    assert way.view.table == LEDGER
