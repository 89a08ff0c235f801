"""Columns are proposed as records say them: by the schemas that they bring, if they bring some."""

from __future__ import annotations

import json

from headgate.config.sink_sections import FormatSettings
from headgate.operations.init.infer_record_format import propose_from_records

KINDS = "org.apache.kafka.connect.data"
FIELDS = [
    {"field": "id", "type": "int64"},
    {"field": "ts", "type": "int64", "name": f"{KINDS}.Timestamp"},
    {"field": "day", "type": "int32", "name": f"{KINDS}.Date"},
    {"field": "op", "type": "string", "optional": True},
]
ROW = {"id": 1, "ts": 1_780_000_000_000, "day": 20_000, "op": None}


def test_embedded_schemas_tell_times_from_numbers() -> None:
    value = json.dumps({"schema": {"type": "struct", "fields": FIELDS}, "payload": ROW})
    for given, fixed in ((FormatSettings(type="connect-json"), True), (FormatSettings(), False)):
        found = propose_from_records([(None, value.encode())], given, is_format_given=fixed)
        assert found.format_name == "connect-json"
        types = {column.name: column.type for column in found.proposal.columns}
        assert types == {"id": "long", "ts": "timestamptz", "day": "date", "op": "string"}


def test_without_a_schema_the_values_tell() -> None:
    value = json.dumps({"schema": None, "payload": ROW}).encode()
    found = propose_from_records(
        [(None, value)], FormatSettings(type="connect-json"), is_format_given=True
    )
    types = {column.name: column.type for column in found.proposal.columns}
    assert types["id"] == types["ts"] == "long"
