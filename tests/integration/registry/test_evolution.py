"""A registry's new schema gives the table its columns, before any of its records is written."""

from __future__ import annotations

from datetime import UTC

import pytest
from integration.conftest import Deploy
from integration.registry.test_whole_sink import Writer, row, rows_by_id, sections

pytestmark = [pytest.mark.integration, pytest.mark.wide]


def test_a_new_version_of_a_schema_brings_its_columns(deploy: Deploy, registry_url: str) -> None:
    change = sections(registry_url)
    change["table.columns"] = {
        "columns": {"id": "long", "at": "timestamptz", "tags": "map<string, int>"}
    }
    del change["table.record_columns"], change["format.key_options"]
    change["format"] = {"type": "avro-registry"}
    sink = deploy({**change, "table.schema": {"unknown_fields": "evolve"}})
    sink.start(2)
    with Writer(sink, registry_url) as writer:
        writer.write(range(300), new=False)
        sink.wait_until_lag_zero()
        writer.write(range(300, 500), new=True)
        writer.write(range(500, 600), new=False)
        sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()
    found = dict(rows_by_id(sink))
    assert sorted(found) == list(range(600))
    for number, got in found.items():
        wanted = {"note": None, "tags": None, **row(number, new=300 <= number < 500)}
        assert got["at"].astimezone(UTC) == wanted["at"]
        assert (got["price"], got["note"]) == (wanted["price"], wanted["note"])
        assert dict(got["tags"] or {}) == (wanted["tags"] or {})
    with sink.table() as table:
        types = {field.name: str(field.field_type) for field in table.schema().fields}
    assert types["price"] == "decimal(9, 2)"
    assert types["tags"] == "map<string, long>"
