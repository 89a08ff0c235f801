"""PENDING-1: the quarantine is a table with the sink's tag and record."""

from __future__ import annotations

from protocol.quarantining import at_work, exactly_once
from scenarios.stage import SINK

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.identifiers import tag_name


def test_both_tables_carry_the_sinks_tag_and_marker() -> None:
    stage, quarantine = at_work()

    exactly_once(stage)
    for catalog in (stage.catalog, quarantine):
        assert tag_name(SINK) in catalog.tags
        assert commit_record_codec.claim_marker_property(SINK) in catalog.properties


def test_its_record_counts_its_own_rows_and_the_tables_names_it() -> None:
    stage, quarantine = at_work()
    records = [
        commit_record_codec.decode_record(
            SINK, catalog.snapshots[catalog.tags[tag_name(SINK)]].summary
        )
        for catalog in (stage.catalog, quarantine)
    ]

    table, aside = records
    assert table
    assert aside
    assert (table.records, table.quarantined) == (7, 2)
    assert table.secondaries == {"lake.trips_quarantine": "uuid-q"}
    assert (aside.records, aside.quarantined, aside.primary) == (2, 0, "uuid-1")
    assert aside.transaction == table.transaction
