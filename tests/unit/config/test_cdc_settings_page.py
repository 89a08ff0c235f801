"""The sink file that docs/guides/upserts-and-deletes.md shows works as the page says."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from repository.tree import ROOT
from support.changes_desk import PLACES, ChangesDesk
from support.local_catalog import local_catalog

from headgate.config.column_rules import rules_of_decoded_columns
from headgate.config.load import parse
from headgate.data_plane.cdc.policy import Envelope

PAGE = (ROOT / "docs/guides/upserts-and-deletes.md").read_text()
SINK_FILE, *_ = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
DECIMAL, MICROS = "org.apache.kafka.connect.data.Decimal", "io.debezium.time.MicroTimestamp"
ROW = [
    {"field": "id", "type": "int64"},
    {"field": "customer", "type": "string"},
    {"field": "total", "type": "bytes", "name": DECIMAL, "parameters": {"scale": "2"}},
    {"field": "placed_at", "type": "int64", "name": MICROS},
]


def connect(fields: list[dict[str, Any]], payload: dict[str, Any] | None) -> bytes | None:
    if payload is None:
        return None
    schema = {"type": "struct", "fields": [{"optional": True, **field} for field in fields]}
    return json.dumps({"schema": schema, "payload": payload}).encode()


def change(key: int, **payload: Any) -> tuple[bytes | None, bytes | None]:
    inside = [{"field": name, "type": "struct", "fields": ROW} for name in ("before", "after")]
    fields = [*inside, {"field": "op", "type": "string"}]
    return connect(ROW[:1], {"id": key}), connect(fields, payload or None)


def test_the_page_s_sink_file_takes_records_of_debezium(tmp_path: Path) -> None:
    settings = parse(SINK_FILE)
    table, changes = settings.table, settings.changes.change_rules_for_key(settings.table.key)
    assert changes
    assert changes.envelope is Envelope.DEBEZIUM
    assert set(PLACES) == set(table.record_columns.columns_by_part().values())
    desk = ChangesDesk(
        local_catalog(tmp_path),
        changes,
        columns={c.name: c.type + " not null" * c.required for c in table.columns},
        format_name=settings.format.type,
        rules=rules_of_decoded_columns(settings),
        policy=settings.quarantine.policy,
    )
    total = base64.b64encode((1999).to_bytes(2, "big")).decode()
    row = {"id": 1, "customer": "Ada", "total": total, "placed_at": 1_785_585_600_123_456}
    done = desk.write(
        change(1, before=None, after=row, op="c"), change(1, before=row, op="d"), change(1)
    )
    (found,) = done.rows
    assert (found["id"], found["customer"], str(found["total"])) == (1, "Ada", "19.99")
    assert found["placed_at"].isoformat() == "2026-08-01T12:00:00.123456+00:00"
    assert done.deletes == {1: (1,), 2: (1,)}
