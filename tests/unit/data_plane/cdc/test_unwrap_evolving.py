"""Rows with fields that their table lacks: found behind the envelope, by each policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.changes_desk import ChangesDesk, Message
from support.local_catalog import LocalCatalog, local_catalog
from unit.data_plane.formats.avro_worlds import encoded, physical, record

from headgate.control_protocol.errors import UnknownField
from headgate.control_protocol.ports import BatchFailed, BatchWritten
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.data_plane.cdc.policy import Changes, Envelope
from headgate.participant.settings import SchemaPolicy, UnknownFields

COLUMNS = {"id": "int not null", "name": "string", "user": "struct<name: string>"}
EVOLVE, QUARANTINE = UnknownFields.EVOLVE, UnknownFields.QUARANTINE


@pytest.fixture
def local(tmp_path: Path) -> LocalCatalog:
    return local_catalog(tmp_path)


def desk(
    local: LocalCatalog, envelope: Envelope, unknown: UnknownFields, **options: Any
) -> ChangesDesk:
    options = {"columns": COLUMNS} | options
    changes = Changes(("id",), envelope)
    return ChangesDesk(local, changes, schema_policy=SchemaPolicy(unknown), **options)


def said(value: dict[str, Any] | None) -> Message:
    return b'{"id": 9}', None if value is None else json.dumps(value).encode()


def change(op: str, before: Any = None, after: Any = None, **beside: Any) -> Message:
    return said({"before": before, "after": after, "op": op, "source": {"db": "x"}, **beside})


def files(local: LocalCatalog) -> list[Path]:
    table = local.catalog.load_table("db.t")
    return list(Path(table.location().removeprefix("file://")).rglob("*.parquet"))


@pytest.mark.parametrize("caseless", [False, True], ids=["by the C", "by names of any case"])
def test_the_row_s_fields_become_columns_and_nothing_beside_it(
    local: LocalCatalog, *, caseless: bool
) -> None:
    options = {"case-insensitive": "true"} if caseless else {}
    at = desk(local, Envelope.DEBEZIUM, EVOLVE, options=options)
    records = (
        change("c", after={"id": 1, "color": "red", "user": {"name": "u", "age": 7}}),
        change("u", {"id": 1, "before_only": 1}, {"id": 1, "name": "a"}, ts_ns=7, odd=[1]),
        change("d", {"id": 2, "of_the_dead": 1}),
        said(None),
        change("c", after={"id": 2**40}),
    )
    assert at.evolve(*records) == ("id: long", "+user.age", "+color")
    assert files(local) == []
    done = at.write(*records)
    assert [(row["id"], row["color"]) for row in done.rows] == [
        (1, "red"),
        (1, None),
        (2**40, None),
    ]
    assert done.rows[0]["user"] == {"name": "u", "age": 7}
    assert done.deletes == {2: (2,), 3: (9,)}


@pytest.mark.parametrize("envelope", [Envelope.PLAIN, Envelope.FLATTENED])
def test_words_of_the_envelope_become_no_columns(local: LocalCatalog, envelope: Envelope) -> None:
    at = desk(local, envelope, EVOLVE, key_format="json")
    words = {} if envelope is Envelope.PLAIN else {"__deleted": "false", "__op": "u"}
    records = [said({"id": 1, "color": "red", **words}), said(None)]
    if words:
        records.append(said({"id": 1, "of_the_dead": 1, "__deleted": "true"}))
    assert at.evolve(*records) == ("+color",)
    done = at.write(*records)
    assert [row["color"] for row in done.rows] == ["red"]
    assert len(done.deletes) == len(records) - 1


def test_a_row_with_such_fields_is_bad_where_they_are_to_be(local: LocalCatalog) -> None:
    done = desk(local, Envelope.DEBEZIUM, QUARANTINE).write(
        change("c", after={"id": 1, "name": "a"}),
        change("u", {"id": 1}, {"id": 1, "color": "red"}),
        change("d", {"id": 2, "color": "red"}),
        change("c", after={"id": 3, "name": "b"}),
        change("?", after={"id": 4, "color": "red"}),
    )
    assert [row["id"] for row in done.rows] == [1, 3]
    assert done.deletes == {2: (2,)}
    assert done.bad == {
        1: "has fields that the table lacks: +color",
        4: "op: '?' is not known",
    }


def test_the_sink_stops_where_it_is_to_and_says_for_which_record(local: LocalCatalog) -> None:
    at = desk(local, Envelope.DEBEZIUM, UnknownFields.FAIL, policy=Disposal.FAIL)
    at.write(change("c", after={"id": 1}), change("d", {"id": 1, "color": "red"}))
    failed = at.outcome(
        [change("c", after={"id": 1}), change("c", after={"id": 1, "color": "red"})]
    )
    assert isinstance(failed, BatchFailed)
    assert isinstance(failed.fatal, UnknownField)
    assert set(failed.fatal.first.values()) == {3}
    assert "changes/0 offset 3 has fields that the table lacks: +color" in str(failed.fatal)


@pytest.mark.usefixtures("either_loops")
def test_what_becomes_no_column_is_counted(local: LocalCatalog) -> None:
    at = desk(local, Envelope.DEBEZIUM, EVOLVE)
    with local.catalog.load_table("db.t").update_schema() as update:
        update.delete_column("name")
    written = at.outcome([change("c", after={"id": n, "name": "a"}) for n in range(3)])
    assert isinstance(written, BatchWritten)
    assert written.ignored == {"name": 3}


def connect(op: str, after: dict[str, Any] | None, **kinds: str) -> Message:
    row = [{"field": name, "type": kind, "optional": name != "id"} for name, kind in kinds.items()]
    inside = [
        {"field": name, "type": "struct", "fields": row, "optional": True}
        for name in ("before", "after")
    ]
    schema = {"type": "struct", "fields": [*inside, {"field": "op", "type": "string"}]}
    payload = {"before": None if after else {"id": 2}, "after": after, "op": op}
    return said({"schema": schema, "payload": payload})


def test_schemas_of_connect_say_what_rows_need(local: LocalCatalog) -> None:
    at = desk(local, Envelope.DEBEZIUM, EVOLVE, format_name="connect-json")
    records = (
        connect("c", {"id": 1}, id="int32"),
        connect("c", {"id": 2, "color": None}, id="int64", color="string"),
        connect("d", None, id="int32", of_the_dead="string"),
    )
    assert at.evolve(*records) == ("id: long", "+color")
    done = at.write(*records)
    assert [(row["id"], row["color"]) for row in done.rows] == [(1, None), (2, None)]
    assert done.deletes == {2: (2,)}


def test_schemas_of_avro_say_what_rows_need(local: LocalCatalog) -> None:
    row = {**record(id="long", color=["null", "string"]), "name": "Value"}
    schema = {
        **record(before=["null", row], after=["null", "Value"], op="string"),
        "name": "Envelope",
    }
    at = desk(
        local,
        Envelope.DEBEZIUM,
        EVOLVE,
        format_name="avro",
        key_format="string",
        options={"schema": json.dumps(schema)},
    )
    value = {"before": None, "after": {"id": 1, "color": "red"}, "op": "c"}
    message = (b"1", encoded(physical(schema), value))
    assert at.evolve(message) == ("id: long", "+color")
    assert [(row["id"], row["color"]) for row in at.write(message).rows] == [(1, "red")]
