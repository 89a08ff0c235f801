"""Debezium's envelope: each record changes rows, is a bad one, or stops the sink by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.changes_desk import ChangesDesk, Message
from support.local_catalog import local_catalog

from headgate.control_protocol.errors import SourceTruncated
from headgate.control_protocol.ports import BatchFailed
from headgate.data_plane.cdc.policy import (
    PLACEHOLDER,
    Changes,
    Envelope,
    OnTruncate,
    Tombstones,
    UnavailableValue,
)

Fields = dict[str, Any]


def desk(home: Path, **options: Any) -> ChangesDesk:
    policies = {
        name: options.pop(name)
        for name in (
            *("tombstones", "on_truncate", "unavailable_value", "unavailable_placeholder"),
        )
        if name in options
    }
    changes = Changes(options.pop("key", ("id",)), Envelope.DEBEZIUM, **policies)
    home.mkdir(exist_ok=True)
    return ChangesDesk(local_catalog(home), changes, **options)


def said(op: str | None, key: Any = 1, **more: Any) -> Message:
    value = {"source": {"ts_ms": 1}, "transaction": None, **more}
    value |= {} if op is None else {"op": op}
    return json.dumps({"id": key}).encode(), json.dumps(value).encode()


def row(key: int | None, **values: Any) -> Fields:
    return {"id": key, "name": None, "n": None} | values


def test_creates_reads_updates_and_deletes(tmp_path: Path) -> None:
    done = desk(tmp_path).write(
        said("c", after=row(1, name="a"), before=None),
        said("r", after=row(2)),
        said("u", before=row(1), after=row(1, n=5)),
        said("u", before=None, after=row(3)),
        said("d", before=row(2, name="x"), after=None),
        (b'{"id": 2}', None),
        said("m", message={"prefix": "p"}),
    )
    assert done.rows == [row(1, name="a"), row(2), row(1, n=5), row(3)]
    assert done.deletes == {4: (2,), 5: (2,)}
    assert done.skipped == 1


def test_a_delete_that_says_no_row_goes_by_the_key_of_its_message(tmp_path: Path) -> None:
    done = desk(tmp_path).write(
        said("d", 7, before=None),
        said("d", 8, before={}),
        (None, said("d", before=None)[1]),
        (b'{"ident": 9}', said("d", before=None)[1]),
    )
    assert done.deletes == {0: (7,), 1: (8,)}
    assert "the record has no key" in done.bad[2]
    assert "id has no value" in done.bad[3]


def test_a_key_update_is_a_delete_and_a_create_and_no_other_record(tmp_path: Path) -> None:
    done = desk(tmp_path).write(
        said("d", 1, before=row(1)),
        (b'{"id": 1}', None),
        said("c", 2, after=row(2)),
        said("u", 4, before=row(3), after=row(4)),
    )
    assert (done.rows, done.deletes) == ([row(2)], {0: (1,), 1: (1,)})
    assert "the key of the row changes" in done.bad[3]


ODD: list[tuple[Any, str]] = [
    (b"{", ""),
    (b"", ""),
    (b"null", ""),
    (b"[]", ""),
    (said(None, after=row(1)), "op: is missing"),
    (said("x", after=row(1)), "op: 'x' is not known"),
    (said("C", after=row(1)), "op: 'C' is not known"),
    (said("", after=row(1)), "op: '' is not known"),
    (said("c" * 100, after=row(1)), "op: 'ccc"),
    (json.dumps({"op": 1, "after": row(1)}).encode(), "op: 1 is not text"),
    (json.dumps({"op": ["c"], "after": row(1)}).encode(), "op: "),
    (json.dumps({"op": None, "after": row(1)}).encode(), "op: is missing"),
    (said("c"), "id: a required value is missing"),
    (said("c", after=None), "id: a required value is missing"),
    (said("c", after={}), "id: a required value is missing"),
    (said("c", after=row(None)), "id: a required value is missing"),
    (said("c", after={"ID": 1}), "id: a required value is missing"),
    (said("c", after="text"), ""),
    (said("c", after=[row(1)]), ""),
    (said("c", after=7), ""),
    (said("c", after=row(1, n="x")), "n: "),
    (said("c", after=row(1, n=1.5)), "n: "),
    (said("c", after=row(1, n=2**63)), "n: "),
    (said("u", before="text", after=row(1)), ""),
    (said("u", before={"id": "x"}, after=row(1)), ""),
    (said("d", before={"id": "x"}), ""),
    (b'{"op":"c","after":{"id":1},"after":{"id":2}}', ""),
    (b'{"op":"c","op":"d","after":{"id":1}}', ""),
    (b'{"op":"c","after":{"id":1,"id":2}}', ""),
]


def test_quarantine_4_each_odd_record_is_a_bad_one_and_no_other(tmp_path: Path) -> None:
    messages = [value if isinstance(value, tuple) else (b'{"id": 1}', value) for value, _ in ODD]
    sound = said("c", after=row(5))
    between = [message for odd in messages for message in (odd, sound)]
    done = desk(tmp_path).write(*between)
    assert len(done.rows) == len(ODD)
    assert not done.deletes
    for place, (value, why) in enumerate(ODD):
        assert why in done.bad[2 * place], value


def test_a_truncate_stops_the_sink_or_is_passed_over(tmp_path: Path) -> None:
    outcome = desk(tmp_path / "fail").outcome([said("c", after=row(1)), said("t", after=None)])
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, SourceTruncated)
    assert "offset 1 says that the source's table was emptied" in outcome.reason
    passing = desk(tmp_path / "skip", on_truncate=OnTruncate.SKIP)
    done = passing.write(said("t"), said("c", after=row(1)))
    assert (done.rows, done.skipped) == ([row(1)], 1)


def test_tombstones_behind_deletes_may_be_passed_over(tmp_path: Path) -> None:
    done = desk(tmp_path, tombstones=Tombstones.SKIP).write(
        said("d", before=row(1)), (b'{"id": 1}', None), (None, None)
    )
    assert (done.deletes, done.skipped) == ({0: (1,)}, 2)


def test_an_unavailable_value_is_a_bad_record_or_null(
    tmp_path: Path,
) -> None:
    unknown = said("u", before=None, after=row(1, name=PLACEHOLDER))
    known = said("u", after=row(2, name=f"{PLACEHOLDER} "))
    done = desk(tmp_path / "fail").write(unknown, known)
    assert [each["id"] for each in done.rows] == [2]
    assert "REPLICA IDENTITY FULL" in done.bad[0]
    nulled = desk(tmp_path / "null", unavailable_value=UnavailableValue.NULL)
    assert nulled.write(unknown).rows == [row(1)]


OCTETS = list(PLACEHOLDER.encode())
UNKNOWN: list[tuple[str, Any, Any]] = [
    ("list<int>", OCTETS, OCTETS[:-1]),
    ("list<long>", OCTETS, [*OCTETS, 1]),
    ("list<double>", OCTETS, [0.5, *OCTETS[1:]]),
    ("list<long>", OCTETS, [None, *OCTETS[1:]]),
    ("list<long>", OCTETS, []),
    ("list<date>", OCTETS, OCTETS[1:]),
    ("list<string>", [PLACEHOLDER], ["a"]),
    ("list<string>", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], ["a"]),
    ("list<uuid>", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], []),
    ("map<string, string>", {PLACEHOLDER: PLACEHOLDER}, {"a": PLACEHOLDER}),
    ("string", f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}', "{}"),
]


def test_an_unavailable_value_is_found_in_every_form(tmp_path: Path) -> None:
    kinds = {f"v{place}": kind for place, (kind, _, _) in enumerate(UNKNOWN)}
    columns = {"id": "long not null", **kinds}
    known = {f"v{place}": value for place, (_, _, value) in enumerate(UNKNOWN)}
    messages = [
        said("u", after={"id": place, **known, f"v{place}": value})
        for place, (_, value, _) in enumerate(UNKNOWN)
    ]
    messages += [said("u", after={"id": len(UNKNOWN), **known}), said("u", after={"id": 99})]
    done = desk(tmp_path / "fail", columns=columns).write(*messages)
    assert [each["id"] for each in done.rows] == [len(UNKNOWN), 99]
    assert all(f"v{place}: Debezium writes" in why for place, why in done.bad.items())
    null = UnavailableValue.NULL
    nulled = desk(tmp_path / "null", columns=columns, unavailable_value=null).write(*messages)
    for place, each in enumerate(nulled.rows[:-1]):
        nulls = {f"v{place}"} & kinds.keys()
        assert {name for name in kinds if each[name] is None} == nulls


@pytest.mark.parametrize("chosen", ["__gone__", "hex:5f5f676f6e655f5f"])
def test_the_connector_may_write_another_placeholder(tmp_path: Path, chosen: str) -> None:
    """As Debezium 3.3 wrote it from PostgreSQL with ``unavailable.value.placeholder``."""
    columns = {"id": "long not null", "name": "string", "h": "map<string, string>", "b": "binary"}
    columns |= {"u": "list<uuid>", "n": "list<int>", "j": "string"}
    unknown = {
        "name": "__gone__",
        "h": {"__gone__": "__gone__"},
        "b": "X19nb25lX18=",
        "u": ["2c66fe9d-a9ee-36b9-b83a-5e4a8d39e7b2"],
        "n": [95, 95, 103, 111, 110, 101, 95, 95],
        "j": '{"__gone__":"__gone__"}',
    }
    messages = [said("u", after={"id": n, name: unknown[name]}) for n, name in enumerate(unknown)]
    messages.append(said("u", after={"id": 99, "name": PLACEHOLDER}))
    done = desk(tmp_path, columns=columns, unavailable_placeholder=chosen).write(*messages)
    assert [each["id"] for each in done.rows] == [99]
    assert all("Debezium writes __gone__" in why for why in done.bad.values())
    assert len(done.bad) == len(unknown)


def test_a_required_column_is_not_made_null_for_it(tmp_path: Path) -> None:
    columns = {"id": "long not null", "name": "string not null", "n": "long"}
    nulled = desk(tmp_path, columns=columns, unavailable_value=UnavailableValue.NULL)
    done = nulled.write(said("u", after=row(1, name=PLACEHOLDER)))
    assert "name: a required value is missing" in done.bad[0]


def test_the_key_may_have_several_columns(tmp_path: Path) -> None:
    columns = {"id": "long not null", "name": "string not null", "n": "long"}
    keyed = desk(tmp_path, key=("name", "id"), columns=columns)
    done = keyed.write(
        said("c", after=row(1, name="a")),
        said("d", before=row(1, name="a")),
        (b'{"id": 2, "name": "b"}', None),
        said("d", 3, before={"id": 3}),
    )
    assert done.rows == [row(1, name="a")]
    assert done.deletes == {1: ("a", 1), 2: ("b", 2)}
    assert "name has no value" in done.bad[3]


def connect(payload: Any, **types: str) -> bytes:
    """With its schema, as Connect's JSON converter writes it."""
    inside = [{"field": name, "type": kind, "optional": True} for name, kind in types.items()]
    fields = [
        {"field": "before", "type": "struct", "fields": inside, "optional": True},
        {"field": "after", "type": "struct", "fields": inside, "optional": True},
        {"field": "op", "type": "string"},
    ]
    schema = {"type": "struct", "fields": fields if "op" in payload else inside}
    return json.dumps({"schema": schema, "payload": payload}).encode()


@pytest.mark.parametrize("format_name", ["connect-json"])
def test_records_with_schemas_are_read_likewise(tmp_path: Path, format_name: str) -> None:
    types = {"id": "int64", "name": "string", "n": "int32"}
    key = connect({"id": 2}, id="int64")
    done = desk(tmp_path, format_name=format_name).write(
        (key, connect({"op": "c", "before": None, "after": row(1, name="a")}, **types)),
        (key, connect({"op": "d", "before": row(1), "after": None}, **types)),
        (key, connect({"op": "d", "before": None, "after": None}, **types)),
        (key, None),
        (b'{"schema":null,"payload":{"id":3}}', None),
        (key, connect({"op": "c", "after": None}, **types)),
        (key, connect({"op": "q", "after": row(1)}, **types)),
    )
    assert done.rows == [row(1, name="a")]
    assert done.deletes == {1: (1,), 2: (2,), 3: (2,), 4: (3,)}
    assert "id: a required value is missing" in done.bad[5]
    assert "op: 'q'" in done.bad[6]
