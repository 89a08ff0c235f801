"""Changes that were corrupted: each is a row, a deleted key, a bad record or skipped.

``ChangesDesk.write`` counts them: none is lost, and none counts twice.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.changes_desk import ChangesDesk, Message
from support.local_catalog import local_catalog
from unit.data_plane.cdc.test_unwrap_debezium import connect
from unit.data_plane.write.test_write_batch_mutated_records import mutated

from headgate.data_plane.cdc.policy import Changes, Envelope, OnTruncate, UnavailableValue

Sound = Callable[[random.Random], dict[str, Any]]


def row(dice: random.Random) -> dict[str, Any]:
    return {"id": dice.randrange(100), "name": dice.choice([None, "a", "\u00e9"]), "n": 7}


def debezium(dice: random.Random) -> dict[str, Any]:
    op = dice.choice("crud" * 4 + "mt")
    before, after = dice.choice([None, row(dice)]), row(dice)
    return {"before": before if op in "ud" else None, "after": None if op in "dmt" else after} | {
        "op": op
    }


def flattened(dice: random.Random) -> dict[str, Any]:
    return row(dice) | dice.choice([{}, {"__deleted": "true"}, {"__op": "u"}, {"__deleted": False}])


def dms(dice: random.Random) -> dict[str, Any]:
    if dice.random() < 0.3:
        return {"Op": dice.choice("IUD"), **row(dice)}
    operation = dice.choice(["load", "insert", "update", "delete"])
    return {"data": row(dice), "metadata": {"operation": operation, "record-type": "data"}}


WORLDS: dict[tuple[Envelope, str], Sound] = {
    (Envelope.PLAIN, "json"): row,
    (Envelope.DEBEZIUM, "json"): debezium,
    (Envelope.DEBEZIUM, "connect-json"): debezium,
    (Envelope.FLATTENED, "json"): flattened,
    (Envelope.DMS, "json"): dms,
}


def message(sound: Sound, format_name: str, dice: random.Random) -> Message:
    value = sound(dice)
    types = {"id": "int64", "name": "string", "n": "int64"}
    octets = json.dumps(value).encode() if format_name == "json" else connect(value, **types)
    keys = [
        None,
        b"7",
        b'{"id": 7}',
        b'{"id": "x"}',
        b"\xff",
        b'{"schema":null,"payload":{"id":7}}',
    ]
    kept = dice.random()
    if kept < 0.1:
        return dice.choice(keys), None
    return dice.choice(keys), octets if kept < 0.4 else mutated(octets, dice)


@pytest.mark.parametrize(("envelope", "format_name"), WORLDS)
def test_mutated_changes_are_changes_or_bad_records(
    tmp_path: Path, envelope: Envelope, format_name: str
) -> None:
    passing = {"on_truncate": OnTruncate.SKIP, "unavailable_value": UnavailableValue.NULL}
    changes = Changes(("id",), envelope, **passing)  # type: ignore[arg-type]
    desk = ChangesDesk(local_catalog(tmp_path), changes, format_name=format_name)
    sound = WORLDS[envelope, format_name]
    for seed in range(4):
        dice = random.Random(seed)
        done = desk.write(*(message(sound, format_name, dice) for _ in range(200)))
        assert done.rows, f"seed {seed}"
        assert done.deletes, f"seed {seed}"
        assert done.bad, f"seed {seed}"
        assert all(each["id"] is not None for each in done.rows)
        assert all(key is not None for keys in done.deletes.values() for key in keys)
