"""``check`` says what a topic's records look like, and which envelope fits them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from integration.registry.server import RegistryServer
from unit.data_plane.cdc.test_unwrap_debezium_in_avro import ENVELOPE, said
from unit.data_plane.formats.avro_worlds import encoded as avro_encoded
from unit.data_plane.formats.avro_worlds import record
from unit.operations.audit.test_keyed_tables import SINK_FILE

from headgate.config.load import parse
from headgate.config.quarantine_settings import QuarantineSettings
from headgate.config.sink_sections import FormatSettings
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import EnvelopeUnfit, RecordsWouldStop
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.data_plane.cdc.policy import Tombstones
from headgate.operations.check.records import (
    can_describe_records,
    check_envelopes_of_values,
    describe_disposal_of_bad_records,
    require_keys_not_all_json_objects,
)
from headgate.operations.init.infer_record_format import propose_from_records
from headgate.operations.init.sink_file_template import build_sink_file_text


def encoded(*values: Any) -> list[bytes | None]:
    return [None if value is None else json.dumps(value).encode() for value in values]


ROW = {"id": 1, "name": "a"}
DEBEZIUM = [
    {"before": None, "after": ROW, "op": "c", "source": {}},
    {"before": ROW, "after": None, "op": "d"},
    {"op": "m", "message": {}},
    {"op": "t", "source": {}},
]
FLATTENED = [{**ROW, "__deleted": "false"}, {**ROW, "__deleted": True}, {**ROW, "__op": "u"}]
DMS = [
    {"data": ROW, "metadata": {"operation": "load", "record-type": "data"}},
    {"metadata": {"operation": "create-table", "record-type": "control"}},
    {"Op": "I", **ROW},
]
PLAIN = [ROW, {"op": "sale", **ROW}, {"metadata": {"version": 1}}, {"op": "c", "id": 3}]
KINDS = {"debezium": DEBEZIUM, "flattened": FLATTENED, "dms": DMS, "plain": PLAIN}


def settings(envelope: str = "plain", *, keyed: bool = True, **form: str) -> SinkSettings:
    text = SINK_FILE.format(sink="s", catalog="c", properties="", table="db.t")
    if keyed:
        text += f'[changes]\nenvelope = "{envelope}"\n'
    else:
        text = text.replace('key = ["id"]', "")
    own = [name for name in form if name in ("schema", "registry.url")]
    options = "".join(f"[format.options]\n'{name}' = '''{form.pop(name)}'''\n" for name in own)
    lines = "\n".join(f'{name} = "{value}"' for name, value in form.items())
    text += '[quarantine]\npolicy = "quarantine"\n'
    return parse(f"{text}[format]\n{lines}\n{options}" if lines else text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("configured", KINDS)
def test_check_names_the_envelope_that_fits(kind: str, configured: str) -> None:
    values = encoded(*KINDS[kind], None)
    if configured == kind or (configured, kind) == ("flattened", "plain"):
        text = check_envelopes_of_values(settings(configured), "shop", values)
        assert f"{len(KINDS[kind])} {kind}" in text
        assert "1 without a value" in text
        return
    with pytest.raises(EnvelopeUnfit) as error:
        check_envelopes_of_values(settings(configured), "shop", values)
    assert f'set changes.envelope = "{kind}"' in error.value.hint
    assert f"changes.envelope is {configured}" in error.value.message


def test_changes_that_are_appended_are_said_and_are_no_fault() -> None:
    plain = settings(keyed=False)
    text = check_envelopes_of_values(plain, "shop", encoded(*DEBEZIUM))
    assert 'with table.key and changes.envelope = "debezium"' in text
    assert check_envelopes_of_values(plain, "shop", encoded(ROW)) == "shop: of 1 record 1 plain"
    assert check_envelopes_of_values(plain, "shop", []) == "shop has no records yet"


def test_keys_that_are_records_need_their_format() -> None:
    keys = [b'{"id": 1}', None, b'{"id": 2}']
    with pytest.raises(EnvelopeUnfit, match="keys of all 2 records without a value") as error:
        require_keys_not_all_json_objects(settings(), "shop", keys)
    assert error.value.hint == 'set format.key_type = "json"'
    require_keys_not_all_json_objects(settings(), "shop", [*keys, b"3"])
    require_keys_not_all_json_objects(settings(), "shop", [b"\xff", b"1"])
    require_keys_not_all_json_objects(settings(), "shop", [])
    require_keys_not_all_json_objects(settings(key_type="json"), "shop", keys)
    require_keys_not_all_json_objects(
        settings("debezium"), "shop", keys
    )  # reads them as its values
    require_keys_not_all_json_objects(settings(keyed=False), "shop", keys)
    skipping = replace(settings().changes, tombstones=Tombstones.SKIP)
    require_keys_not_all_json_objects(replace(settings(), changes=skipping), "shop", keys)


def test_schemas_beside_the_records_are_another_format() -> None:
    enclosed = [{"schema": None, "payload": value} for value in DEBEZIUM]
    with pytest.raises(EnvelopeUnfit, match="a schema and a payload") as error:
        check_envelopes_of_values(settings("debezium"), "shop", encoded(*enclosed))
    assert error.value.hint == 'set format.type = "connect-json"'
    good = settings("debezium", type="connect-json")
    assert "4 debezium" in check_envelopes_of_values(good, "shop", encoded(*enclosed))
    with pytest.raises(EnvelopeUnfit, match="Avro"):
        check_envelopes_of_values(settings("debezium"), "shop", [b"\0\0\0\0\1abc"])


@pytest.mark.parametrize("enveloped", [True, False])
def test_nulls_that_a_converter_replaces_are_told_of(enveloped: bool) -> None:
    row = {
        "type": "struct",
        "optional": True,
        "fields": [
            {"field": "id", "type": "int32", "optional": False, "default": 0},
            {"field": "name", "type": "string", "optional": True, "default": "nobody"},
            {"field": "note", "type": "string", "optional": True},
        ],
    }
    operation = {"field": "op", "type": "string", "optional": True, "default": "r"}
    envelope = {"type": "struct", "fields": [{**row, "field": "after"}, operation]}
    value = {"op": "c", "after": ROW} if enveloped else ROW
    whole = {"schema": envelope if enveloped else row, "payload": value}
    kept = settings(
        "debezium" if enveloped else "plain", type="connect-json", key_type="connect-json"
    )
    text = check_envelopes_of_values(
        kept, "shop", [*encoded(whole, None, {"schema": 3, "payload": ROW}), b"[1]", b"{"]
    )
    assert "a null in name may have become the column's default" in text
    assert "replace.null.with.default=false" in text
    del row["fields"][1]["default"]  # type: ignore[attr-defined]
    assert "default" not in check_envelopes_of_values(kept, "shop", encoded(whole))


@pytest.mark.parametrize("enveloped", [True, False])
def test_so_they_are_in_avro_of_a_registry(enveloped: bool) -> None:
    row = {
        "type": "record",
        "name": "Value",
        "fields": [
            {"name": "id", "type": "int", "default": 0},
            {"name": "name", "type": ["string", "null"], "default": "nobody"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "rank", "type": ["int", "null"]},
        ],
    }
    envelope = record(after=["null", row], op="string")
    schema, value = (envelope, {"after": {**ROW, "note": None, "rank": 1}, "op": "c"})
    if not enveloped:
        schema, value = row, value["after"]
    with RegistryServer() as registry:
        number = registry.subjects.register("shop-value", {"schema": json.dumps(schema)})
        form = {"type": "avro-registry", "key_type": "json", "registry.url": registry.url}
        kept = settings("debezium" if enveloped else "plain", **form)
        known = b"\0" + number.to_bytes(4, "big") + avro_encoded(schema, value)
        text = check_envelopes_of_values(
            kept, "shop", [known, known, None, b"\0\0\0\0\x63?", b"{", b""]
        )
    assert "of 6 records 2 " in text
    assert "a null in name may have become the column's default" in text
    assert "value.converter.ignore.default.for.nullables=true" in text


def test_debezium_in_avro_is_known() -> None:
    values = [said("c", None, {"id": 1, "total": None, "placed_at": None})[1]]
    schema = json.dumps(ENVELOPE)
    avro = settings("debezium", type="avro", schema=schema)
    assert can_describe_records(avro)
    assert "1 debezium" in check_envelopes_of_values(avro, "shop", values)
    with pytest.raises(EnvelopeUnfit, match="1 debezium"):
        check_envelopes_of_values(settings("dms", type="avro", schema=schema), "shop", values)


def test_what_cannot_be_read_is_said_with_its_reason() -> None:
    with pytest.raises(RecordsWouldStop) as caught:
        check_envelopes_of_values(settings(), "shop", [b"{", b"[]"])
    assert caught.value.message.startswith(
        "shop: of 2 records no value can be read, 2 not to be read: not a JSON"
    )


def test_formats_without_fields_are_not_looked_at() -> None:
    assert not can_describe_records(settings(keyed=False, type="string"))
    assert can_describe_records(settings())


# -------------------------------------------------------------------------------- headgate init


def begun(home: Path, kind: str, keys: list[bytes | None], *, enclosed: bool = False) -> str:
    """The sink file for these records."""
    values: list[Any] = [*KINDS[kind], None]
    if enclosed:
        values = [v and {"schema": None, "payload": v} for v in values]
    records = list(zip(keys * len(values), encoded(*values), strict=False))
    proposed = propose_from_records(records, FormatSettings(), is_format_given=False)
    assert proposed.proposal.records == len(values)
    return build_sink_file_text("shop", home, "topic", {}, records=proposed)


@pytest.mark.parametrize("enclosed", [False, True])
def test_init_writes_envelope_key_and_columns(tmp_path: Path, enclosed: bool) -> None:
    key = {"schema": None, "payload": {"id": 1}} if enclosed else {"id": 1}
    made = parse(begun(tmp_path, "debezium", encoded(key), enclosed=enclosed))
    assert made.table.key == ("id",)
    assert made.changes.envelope == "debezium"
    assert made.format.type == ("connect-json" if enclosed else "json")
    columns = {column.name: (column.type, column.required) for column in made.table.columns}
    assert columns == {"id": ("long", True), "name": ("string", False)}


@pytest.mark.parametrize("kind", ["flattened", "dms"])
def test_init_says_where_it_guesses_the_key(tmp_path: Path, kind: str) -> None:
    text = begun(tmp_path, kind, [b"1"])
    assert 'key = ["id"]' in text
    assert "a guess: it must be the primary key" in text
    made = parse(text)
    assert made.changes.envelope == kind
    assert [column.name for column in made.table.columns] == ["id", "name"]


def test_init_leaves_plain_records_to_be_appended(tmp_path: Path) -> None:
    made = parse(begun(tmp_path, "plain", [b"1"]))
    assert made.table.key == ()


@pytest.mark.parametrize(
    ("policy", "bad", "what"),
    [
        ("quarantine", 1, "; the sink puts them into db.trips_quarantine"),
        ("skip", 1, "; the sink leaves them out"),
        ("skip", 0, ""),
    ],
)
def test_check_says_what_becomes_of_the_bad_records_that_it_saw(
    policy: str, bad: int, what: str
) -> None:
    wanted = QuarantineSettings(policy=Disposal(policy), table="db.trips_quarantine")
    assert describe_disposal_of_bad_records(wanted, bad, 100) == what


def test_check_says_that_too_many_bad_records_stop_the_sink() -> None:
    wanted = QuarantineSettings(policy=Disposal.SKIP)
    assert "but stops with HG-211" in describe_disposal_of_bad_records(wanted, 11, 100)
