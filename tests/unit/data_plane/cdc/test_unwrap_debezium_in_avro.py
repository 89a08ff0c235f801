"""Debezium's records in Avro: the row is one branch of a union, named once and used twice."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from support.changes_desk import ChangesDesk, Message
from support.local_catalog import local_catalog
from unit.data_plane.formats.avro_worlds import encoded, physical

from headgate.data_plane.cdc.policy import Changes, Envelope

MICROS = {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroTimestamp"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
VALUE = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": ["null", MONEY], "default": None},
        {"name": "placed_at", "type": ["null", MICROS], "default": None},
    ],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.orders",
    "fields": [
        {"name": "before", "type": ["null", VALUE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": []}},
        {"name": "op", "type": "string"},
    ],
}
COLUMNS = {"id": "long not null", "total": "decimal(12, 2)", "placed_at": "timestamptz"}
AT_US = 1_785_585_600_123_456


def said(op: str, before: Any = None, after: Any = None) -> Message:
    value = {"before": before, "after": after, "source": {}, "op": op}
    return b"9", encoded(physical(ENVELOPE), value)


def row(key: int, cents: int | None = None, at_us: int | None = None) -> dict[str, Any]:
    octets = None if cents is None else cents.to_bytes(4, "big", signed=True)
    return {"id": key, "total": octets, "placed_at": at_us}


@pytest.fixture
def desk(tmp_path: Path) -> ChangesDesk:
    return ChangesDesk(
        local_catalog(tmp_path),
        Changes(("id",), Envelope.DEBEZIUM),
        columns=COLUMNS,
        format_name="avro",
        key_format="string",
        options={"schema": json.dumps(ENVELOPE)},
    )


def test_rows_come_and_go(desk: ChangesDesk) -> None:
    assert fastavro.parse_schema(json.loads(json.dumps(ENVELOPE)))
    done = desk.write(
        said("c", after=row(1, 1999, AT_US)),
        said("u", row(1), row(1, -5)),
        said("d", row(2)),
        said("d"),
        (b"7", None),
    )
    assert [(each["id"], each["total"]) for each in done.rows] == [
        (1, Decimal("19.99")),
        (1, Decimal("-0.05")),
    ]
    assert done.rows[0]["placed_at"].isoformat() == "2026-08-01T12:00:00.123456+00:00"
    assert done.deletes == {2: (2,), 3: (9,), 4: (7,)}


def test_quarantine_4_odd_records_are_bad_ones(desk: ChangesDesk) -> None:
    odd: dict[bytes | None, str] = {
        said("c")[1]: "id: a required value is missing",
        said("?", after=row(1))[1]: "op: '?' is not known",
        said("", after=row(1))[1]: "op: '' is not known",
        said("u", row(1), row(2))[1]: "the key of the row changes",
        said("c", after=row(1))[1][:-3]: "",  # type: ignore[index]
        b"\x08": "",
        b"": "",
    }
    done = desk.write(*((b"1", value) for value in odd), said("c", after=row(5)))
    assert [each["id"] for each in done.rows] == [5]
    assert not done.deletes
    for offset, why in enumerate(odd.values()):
        assert why in done.bad[offset]
