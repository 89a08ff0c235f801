"""Compacted topics: the value is the row, and no value deletes the row of the message's key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.changes_desk import ChangesDesk, Message
from support.local_catalog import local_catalog

from headgate.control_protocol.errors import KeyUnfit, PoisonRecord
from headgate.control_protocol.ports import BatchFailed
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.data_plane.cdc.policy import Changes, Tombstones
from headgate.data_plane.formats.column_options import ColumnRule


def put(key: int, **values: Any) -> Message:
    return str(key).encode(), json.dumps({"id": key, **values}).encode()


def gone(key: int) -> Message:
    return str(key).encode(), None


def desk(home: Path, **options: Any) -> ChangesDesk:
    changes = options.pop("changes", Changes(("id",)))
    return ChangesDesk(local_catalog(home), changes, **options)


def test_values_are_rows_and_no_value_deletes(tmp_path: Path) -> None:
    done = desk(tmp_path).write(put(1, name="a"), gone(2), put(3, n=7), gone(1))
    assert done.rows == [{"id": 1, "name": "a", "n": None}, {"id": 3, "name": None, "n": 7}]
    assert done.deletes == {1: (2,), 3: (1,)}


def test_a_batch_of_deletes_alone_writes_no_row_file(tmp_path: Path) -> None:
    done = desk(tmp_path).write(gone(1), gone(1))
    assert (done.rows, done.deletes) == ([], {0: (1,), 1: (1,)})


def test_quarantine_4_each_odd_record_is_a_bad_one(tmp_path: Path) -> None:
    odd: dict[Message, str] = {
        (b"1", b"{broken"): "",
        (b"1", b'{"name": "a"}'): "id: a required value is missing",
        (b"1", b'{"id": null}'): "id: a required value is missing",
        (b"1", b'{"id": 1.5}'): "id: ",
        (b"1", b'{"id": 1, "n": "x"}'): "n: ",
        (None, None): "the record has no key",
        (b"", None): "key: id: ",
        (b"one", None): "key: id: ",
        (b"\xff", None): "key: ",
        (b"1.5", None): "key: id: ",
        (b"99999999999999999999", None): "key: id: ",
    }
    messages = [put(0), *odd, put(2), gone(0)]
    done = desk(tmp_path).write(*messages)
    assert [row["id"] for row in done.rows] == [0, 2]
    assert done.deletes == {len(messages) - 1: (0,)}
    for offset, why in enumerate(odd.values(), 1):
        assert why in done.bad[offset]


def test_quarantine_4_a_bad_key_stops_the_sink_before_its_record_by_default(tmp_path: Path) -> None:
    outcome = desk(tmp_path, policy=Disposal.FAIL).outcome([put(1), (None, None)])
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, PoisonRecord)
    assert "changes partition 0 offset 1: the record has no key" in outcome.reason


def test_tombstones_are_passed_over_when_the_settings_say_so(tmp_path: Path) -> None:
    changes = Changes(("id",), tombstones=Tombstones.SKIP)
    done = desk(tmp_path, changes=changes).write(put(1), gone(1), (None, None))
    assert ([row["id"] for row in done.rows], done.deletes, done.skipped) == ([1], {}, 2)


def test_tombstones_stop_the_sink_when_the_settings_say_so(tmp_path: Path) -> None:
    changes = Changes(("id",), tombstones=Tombstones.FAIL)
    outcome = desk(tmp_path, changes=changes).outcome([put(1), gone(1)])
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, PoisonRecord)


def test_a_key_of_several_columns_comes_from_a_key_of_json(tmp_path: Path) -> None:
    columns = {"id": "long not null", "name": "string not null", "n": "long"}
    keyed = desk(tmp_path, changes=Changes(("name", "id")), columns=columns, key_format="json")
    done = keyed.write(
        (b"{}", b'{"id": 1, "name": "a", "n": 2}'),
        (b'{"name": "b", "id": 2}', None),
        (b'{"name": "b"}', None),
        (b"[]", None),
    )
    assert done.rows == [{"id": 1, "name": "a", "n": 2}]
    assert done.deletes == {1: ("b", 2)}
    assert "id has no value" in done.bad[2]
    assert set(done.bad) == {2, 3}


@pytest.mark.parametrize("name", ["pk", "PK"])
def test_a_rule_finds_its_field_in_the_message_key_as_in_the_value(
    tmp_path: Path, name: str
) -> None:
    keyed = desk(
        tmp_path,
        key_format="json",
        options={"case-insensitive": "true"},
        rules={"id": ColumnRule(("pk",))},
    )
    key = json.dumps({name: 1}).encode()
    done = keyed.write((key, json.dumps({name: 1, "N": 2}).encode()), (key, None))
    assert done.bad == {}
    assert done.deletes == {1: (1,)}


def test_the_key_may_be_a_column_that_the_message_key_fills(tmp_path: Path) -> None:
    columns = {"id": "string not null", "n": "long"}
    keyed = desk(tmp_path, columns=columns, record_columns={"key": "id"})
    done = keyed.write((b"a", b'{"n": 1}'), (b"b", None), (None, b'{"n": 2}'))
    assert (done.rows, done.deletes) == ([{"id": "a", "n": 1}], {1: ("b",)})
    assert "the record has no key" in done.bad[2]


def test_rows_of_a_partitioned_table_go_to_their_places(tmp_path: Path) -> None:
    keyed = desk(tmp_path, partition_by=["name"])
    done = keyed.write(*(put(n, name="ab"[n % 2]) for n in range(6)), gone(3))
    assert sorted(row["id"] for row in done.rows) == [0, 1, 2, 3, 4, 5]
    assert done.deletes == {6: (3,)}


def test_key_2_a_table_of_files_that_are_not_parquet_is_refused(tmp_path: Path) -> None:
    keyed = desk(tmp_path)
    with keyed.catalog.load_table("db.t").transaction() as change:
        change.set_properties({"write.format.default": "avro"})
    outcome = keyed.outcome([put(1)])
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, KeyUnfit)
