"""Deletes that mark rows: what each envelope's record becomes, and what is refused (KEY-13)."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.changes_desk import COLUMNS, ChangesDesk, Message
from support.local_catalog import local_catalog

from headgate.control_protocol.errors import KeyUnfit
from headgate.data_plane.batch.row_rules import Expectation, Mask, RowRules
from headgate.data_plane.cdc.policy import (
    PLACEHOLDER,
    Changes,
    Envelope,
    Tombstones,
    UnavailableValue,
)
from headgate.data_plane.write.delete_marking import require_markable

MARKED = {**COLUMNS, "deleted_at": "timestamptz"}
TIME = dt.datetime(2026, 8, 1, 12, 0, 0, 123_000, dt.UTC)
"""Of every record of the desk."""


def desk(home: Path, envelope: Envelope, **options: Any) -> ChangesDesk:
    policies = {
        name: options.pop(name) for name in ("tombstones", "unavailable_value") if name in options
    }
    key = options.pop("key", ("id",))
    changes = Changes(key, envelope, **policies, deleted_at="deleted_at")
    home.mkdir(exist_ok=True)
    columns = options.pop("columns", MARKED)
    return ChangesDesk(local_catalog(home), changes, columns=columns, **options)


def said(key: Any, value: Any) -> Message:
    return json.dumps({"id": key}).encode(), None if value is None else json.dumps(value).encode()


def row(key: int, **values: Any) -> dict[str, Any]:
    return {"id": key, "name": None, "n": None, "deleted_at": None} | values


def gone(key: int, **values: Any) -> dict[str, Any]:
    return row(key, **values) | {"deleted_at": TIME}


def test_key_13_debezium_keeps_the_row_before_and_a_tombstone_says_nothing(tmp_path: Path) -> None:
    made = desk(tmp_path, Envelope.DEBEZIUM)
    done = made.write(
        said(1, {"op": "c", "after": {"id": 1, "name": "a"}}),
        said(1, {"op": "d", "before": {"id": 1, "name": "a", "n": 7}, "after": None}),
        said(1, None),
        said(2, {"op": "d", "before": None}),
        said(3, {"op": "d", "before": {"id": 3}}),
    )
    assert done.rows == [row(1, name="a"), gone(1, name="a", n=7), gone(2), gone(3)]
    assert (done.deletes, done.bad, done.skipped) == ({}, {}, 1)


def test_key_13_a_row_before_that_cannot_be_read_costs_its_values_and_not_the_delete(
    tmp_path: Path,
) -> None:
    made = desk(tmp_path, Envelope.DEBEZIUM)
    done = made.write(
        said(1, {"op": "d", "before": {"id": 1, "name": "a", "n": "many"}}),
        said(2, {"op": "d", "before": {"id": 2, "name": PLACEHOLDER, "n": 5}}),
        said(3, {"op": "u", "before": {"id": 3, "n": "many"}, "after": {"id": 3, "n": 1}}),
        said(4, {"op": "u", "before": {"id": 4}, "after": {"id": 4, "name": PLACEHOLDER}}),
    )
    assert done.rows == [gone(1), gone(2, n=5), row(3, n=1)]
    assert list(done.bad) == [3]


def test_key_13_plain_tombstones_mark_by_the_key_of_the_message(tmp_path: Path) -> None:
    made = desk(tmp_path, Envelope.PLAIN)
    done = made.write((b"1", b'{"id": 1, "name": "a"}'), (b"1", None), (None, None), (b"x", None))
    assert done.rows == [row(1, name="a"), gone(1)]
    assert set(done.bad) == {2, 3}


def test_key_13_flattened_deletes_keep_what_their_own_row_says(tmp_path: Path) -> None:
    made = desk(tmp_path, Envelope.FLATTENED)
    done = made.write(
        said(1, {"id": 1, "name": "a", "n": 2, "__deleted": "false"}),
        said(1, {"id": 1, "name": "b", "n": 3, "__deleted": "true"}),
        said(2, {"id": 2, "name": "b", "n": "many", "__deleted": "true"}),
        said(3, {"id": 3, "name": PLACEHOLDER, "n": 4, "__deleted": "true"}),
        said(3, None),
    )
    assert done.rows == [row(1, name="a", n=2), gone(1, name="b", n=3), gone(2), gone(3, n=4)]
    assert (done.bad, done.skipped) == ({}, 1)


def test_key_13_dms_takes_the_image_before_and_what_that_leaves_out_from_the_data(
    tmp_path: Path,
) -> None:
    made = desk(tmp_path, Envelope.DMS)
    of = {"operation": "delete", "record-type": "data"}
    done = made.write(
        said(1, {"data": {"id": 1, "name": "a", "n": 2}, "metadata": of}),
        said(
            2, {"data": {"id": 2, "n": 9}, "before-image": {"id": 2, "name": "b"}, "metadata": of}
        ),
        said(3, {"Op": "D", "id": 3, "name": "c"}),
    )
    assert done.rows == [gone(1, name="a", n=2), gone(2, name="b", n=9), gone(3, name="c")]


def test_key_13_a_field_of_the_name_is_not_read_and_a_policy_may_skip_tombstones(
    tmp_path: Path,
) -> None:
    made = desk(tmp_path, Envelope.PLAIN, tombstones=Tombstones.SKIP)
    done = made.write((b"1", b'{"id": 1, "deleted_at": "2020-01-01T00:00:00Z"}'), (b"1", None))
    assert (done.rows, done.skipped) == ([row(1)], 1)


def test_key_13_a_delete_without_a_time_is_a_bad_record_and_no_row_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (time, why) in enumerate([(-1, "has no time"), (2**62, "out of range")]):
        monkeypatch.setattr("support.changes_desk.TIME_MS", time)
        made = desk(tmp_path / str(number), Envelope.DEBEZIUM)
        done = made.write(
            said(1, {"op": "d", "before": {"id": 1}}), said(2, {"op": "c", "after": {"id": 2}})
        )
        assert done.rows == [row(2)]
        assert why in done.bad[0]


def history(home: Path, envelope: Envelope) -> ChangesDesk:
    home.mkdir(exist_ok=True)
    columns = {**MARKED, "changed_at": "timestamptz"}
    changes = Changes(("id",), envelope, deleted_at="deleted_at", history=True)
    parts = {"timestamp": "changed_at"}
    return ChangesDesk(local_catalog(home), changes, columns=columns, record_columns=parts)


def test_key_14_each_change_is_a_version_also_of_one_key_in_one_batch(tmp_path: Path) -> None:
    done = history(tmp_path, Envelope.DEBEZIUM).write(
        said(1, {"op": "c", "after": {"id": 1, "name": "a"}}),
        said(1, {"op": "u", "after": {"id": 1, "name": "b"}}),
        said(1, {"op": "d", "before": {"id": 1, "name": "b"}}),
        said(1, None),
        said(1, {"op": "c", "after": {"id": 1, "name": "a"}}),
    )
    versions = [row(1, name="a"), row(1, name="b"), gone(1, name="b"), row(1, name="a")]
    assert done.rows == [{**each, "changed_at": TIME} for each in versions]
    assert (done.deletes, done.bad, done.skipped) == ({}, {}, 1)


def test_key_14_a_record_without_a_time_is_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.changes_desk.TIME_MS", -1)
    done = history(tmp_path, Envelope.PLAIN).write((b"1", b'{"id": 1}'), (b"1", None))
    assert (done.rows, set(done.bad)) == ([], {0, 1})
    assert "changed_at: the record has no time, and a version is valid from one" in done.bad[0]


def test_key_13_expectations_are_not_asked_of_what_was_deleted_and_hidden_columns_stay_hidden(
    tmp_path: Path,
) -> None:
    rules = RowRules(
        expectations=(Expectation("named", "n > 0", strict=True),),
        masks=(Mask("name", 0, 1, "*"),),
    )
    made = desk(tmp_path, Envelope.DEBEZIUM, row_rules=rules)
    done = made.write(
        said(1, {"op": "d", "before": {"id": 1, "name": "erika"}}),
        said(2, {"op": "c", "after": {"id": 2, "name": "erika", "n": 1}}),
        said(3, {"op": "c", "after": {"id": 3, "name": "erika"}}),
    )
    assert done.rows == [gone(1, name="*a"), row(2, name="*a", n=1)]
    assert list(done.bad) == [2]


def test_key_13_an_unknown_value_of_a_row_that_goes_is_null_whatever_the_policy(
    tmp_path: Path,
) -> None:
    made = desk(tmp_path, Envelope.DEBEZIUM, unavailable_value=UnavailableValue.FAIL)
    done = made.write(said(1, {"op": "d", "before": {"id": 1, "name": PLACEHOLDER, "n": 1}}))
    assert done.rows == [gone(1, n=1)]


REFUSED: list[tuple[dict[str, str], str]] = [
    (COLUMNS, "has no column 'deleted_at'"),
    ({**COLUMNS, "deleted_at": "date"}, "is date32[day], and deletes cannot mark"),
    ({**COLUMNS, "deleted_at": "long"}, "is int64, and deletes cannot mark"),
    ({**COLUMNS, "deleted_at": "timestamptz not null"}, "is required, timestamp"),
    ({**MARKED, "name": "string not null"}, "the column 'name' is required"),
]


@pytest.mark.parametrize(("columns", "why"), REFUSED)
def test_key_13_a_table_that_cannot_keep_marked_rows_is_refused(
    tmp_path: Path, columns: dict[str, str], why: str
) -> None:
    made = desk(tmp_path, Envelope.PLAIN, columns=columns)
    failed = made.outcome([(b"1", None)])
    assert isinstance(getattr(failed, "fatal", None), KeyUnfit), failed
    assert why in str(getattr(failed, "reason", ""))


def test_key_13_a_time_without_a_zone_takes_marks_in_utc(tmp_path: Path) -> None:
    made = desk(tmp_path, Envelope.PLAIN, columns={**COLUMNS, "deleted_at": "timestamp"})
    done = made.write((b"1", None))
    assert done.rows == [row(1) | {"deleted_at": TIME.replace(tzinfo=None)}]
    key, schema = Changes(("id",), deleted_at="at"), pa.schema([("id", pa.int64())])
    with pytest.raises(KeyUnfit) as refused:
        require_markable("t", schema, key, ())
    assert "timestamptz or timestamp" in refused.value.hint
    schema = schema.append(pa.field("at", pa.int64()))
    with pytest.raises(KeyUnfit) as refused:
        require_markable("t", schema, key, ())
    assert "timestamptz or timestamp" in refused.value.hint


def test_key_13_the_marks_have_a_column_of_their_own() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us"))])
    require_markable("t", schema, Changes(("id",), deleted_at="at"), {})
    with pytest.raises(KeyUnfit, match="has another purpose"):
        require_markable("t", schema, Changes(("id",), deleted_at="at"), {"offset": "at"})
