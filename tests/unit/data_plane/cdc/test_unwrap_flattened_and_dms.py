"""Flattened records, and those of AWS DMS: each changes rows or is a bad record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.changes_desk import ChangesDesk, Message
from support.local_catalog import local_catalog

from headgate.data_plane.cdc.policy import PLACEHOLDER, Changes, Envelope


def desk(home: Path, envelope: Envelope, **options: Any) -> ChangesDesk:
    home.mkdir(exist_ok=True)
    return ChangesDesk(local_catalog(home), Changes(("id",), envelope), **options)


def said(value: Any) -> Message:
    return b'{"id": 9}', value if isinstance(value, bytes) else json.dumps(value).encode()


def test_flattened_records_say_that_they_delete(tmp_path: Path) -> None:
    done = desk(tmp_path, Envelope.FLATTENED).write(
        said({"id": 1, "name": "a"}),
        said({"id": 1, "name": "a", "__deleted": "true"}),
        said({"id": 2, "__deleted": True}),
        said({"id": 3, "__deleted": "false"}),
        said({"id": 4, "__op": "u"}),
        said({"id": 4, "__op": "d"}),
        said({"__deleted": "true"}),
        (b'{"id": 5}', None),
        said({"id": 6, "__op": "m"}),
    )
    assert [row["id"] for row in done.rows] == [1, 3, 4]
    assert done.deletes == {1: (1,), 2: (2,), 5: (4,), 6: (9,), 7: (5,)}
    assert done.skipped == 1


def test_quarantine_4_odd_flattened_records_are_bad_ones(tmp_path: Path) -> None:
    odd = {
        b'{"id": 1, "__deleted": "yes"}': "__deleted: 'yes' is not known",
        b'{"id": 1, "__deleted": 1}': "__deleted: '1' is not known",
        b'{"id": 1, "__op": "x"}': "__op: 'x' is not known",
        b'{"id": 1, "name": "%s"}' % PLACEHOLDER.encode(): "REPLICA IDENTITY FULL",
        b'{"name": "a"}': "id: a required value is missing",
        b"[]": "",
    }
    done = desk(tmp_path, Envelope.FLATTENED).write(*map(said, odd), said({"id": 7}))
    assert [row["id"] for row in done.rows] == [7]
    for offset, why in enumerate(odd.values()):
        assert why in done.bad[offset]


def dms(operation: str | None, data: Any, kind: str = "data", **more: Any) -> Message:
    words = {"record-type": kind} | ({"operation": operation} if operation else {})
    return said({"data": data, "metadata": words, **more})


def test_records_of_dms_load_insert_update_and_delete(tmp_path: Path) -> None:
    done = desk(tmp_path, Envelope.DMS).write(
        dms("load", {"id": 1, "n": 1}),
        dms("insert", {"id": 2}),
        said({"Op": "I", "id": 3}),
        dms("update", {"id": 2, "n": 5}),
        dms("delete", {"id": 1}),
        said({"Op": "D", "id": 3}),
        said({"Op": "U", "id": 4, "name": "b"}),
        dms("create-table", None, "control"),
        dms("delete", None),
        (b'{"id": 8}', None),
    )
    assert [(row["id"], row["n"]) for row in done.rows] == [
        (1, 1),
        (2, None),
        (3, None),
        (2, 5),
        (4, None),
    ]
    assert done.deletes == {4: (1,), 5: (3,), 8: (9,), 9: (8,)}
    assert done.skipped == 1


def test_quarantine_4_odd_records_of_dms_are_bad_ones(tmp_path: Path) -> None:
    odd: list[tuple[Message, str]] = [
        (dms("merge", {"id": 1}), "metadata.operation: 'merge' is not known"),
        (dms(None, {"id": 1}), "metadata.operation: is missing"),
        (said({"Op": "X", "id": 1}), "Op: 'X' is not known"),
        (said({"id": 1}), "Op: is missing"),
        (dms("insert", {"n": 1}), "id: a required value is missing"),
        (dms("insert", {"id": "x"}), "id: "),
        (dms("insert", [1]), ""),
        (said({"Op": "I", "id": 1, "n": "x"}), "n: "),
        (said(b"{"), ""),
        (said(b"[]"), ""),
        (dms("update", {"id": 1}, **{"before-image": {"id": 2}}), "the key of the row changes"),
    ]
    done = desk(tmp_path, Envelope.DMS).write(*(m for m, _ in odd), said({"Op": "I", "id": 7}))
    assert [row["id"] for row in done.rows] == [7]
    for offset, (message, why) in enumerate(odd):
        assert why in done.bad[offset], message


def test_a_batch_in_which_no_record_can_be_read_is_all_bad(tmp_path: Path) -> None:
    for envelope in Envelope:
        keyed = desk(tmp_path / envelope, envelope)
        done = keyed.write(said(b"{"), said(b"nothing"))
        assert set(done.bad) == {0, 1}
