"""Rows that ``[shape]`` leaves out, refuses, and hides; nothing shows what it hides
(SHAPE-1 to SHAPE-4)."""

from __future__ import annotations

import hmac
import json
import logging
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.changes_desk import ChangesDesk
from support.local_catalog import LocalCatalog, local_catalog
from unit.data_plane.cdc.test_unwrap_plain import gone, put
from unit.data_plane.write.test_write_batch_multi_table import BY_TOPIC, KEPT, Desk, rows_in

from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.errors import (
    HeadgateError,
    IncompatibleValue,
    RecordNotKept,
    ShapeUnfit,
    TooManyBadRecords,
)
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import BatchFailed, BatchWritten
from headgate.control_protocol.quarantine_policy import BadRecordLimits, Disposal
from headgate.data_plane.batch.row_rules import Expectation, Mask, RowRules
from headgate.data_plane.batch.transform_and_distribution import Shaping
from headgate.data_plane.cdc.policy import Changes
from headgate.data_plane.formats.column_options import ColumnRule
from headgate.data_plane.formats.json.format import JsonRecords
from headgate.participant.settings import Incompatible, SchemaPolicy
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

KEY = b"a key of tests that nobody else has, ever"
NEEDLE = "erika.mustermann@example.org"
COLUMNS = {"id": "long not null", "email": "string", "card": "string", "fare": "double"}
HASH = RowRules(hashed=("email",), key=KEY)
HIDDEN = replace(KEPT, excerpts=False, keeps_content=False)


def digest(text: str) -> str:
    return hmac.digest(KEY, text.encode(), "sha256").hex()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCatalog]:
    made = local_catalog(tmp_path)
    create_table_if_missing(made.catalog, "db.ledger", TableDeclaration({"note": "string"}))
    create_table_if_missing(made.catalog, "db.q", quarantine_declaration())
    create_table_if_missing(made.catalog, "db.trips", TableDeclaration(COLUMNS))
    yield made
    made.catalog.close()


def desk_of(local: LocalCatalog, rules: RowRules, **handling: Any) -> Desk:
    kept = replace(HIDDEN if rules.hidden_columns else KEPT, **handling)
    return Desk(local, (BY_TOPIC,), kept, shaping=Shaping(rules=rules))


def written(desk: Desk, rows: list[Any]) -> tuple[list[dict[str, Any]], BatchWritten]:
    outcome = desk.outcome({"shop.trips": rows})
    assert isinstance(outcome, BatchWritten), outcome
    (result,) = outcome.partitions.values()
    assert result.records + result.quarantined + result.skipped == len(rows)
    return [row for files in outcome.secondary_files.values() for row in rows_in(files)], outcome


def row(number: int, **values: Any) -> dict[str, Any]:
    return {"id": number, "email": f"{number}@x", "card": f"1234-5678-{number:04}", **values}


def test_rows_that_do_not_match_are_skipped_and_counted_and_are_not_bad(
    local: LocalCatalog,
) -> None:
    """Unknown is false, as in SQL: also for ``not in``."""
    desk = desk_of(local, RowRules(where="fare >= 2 and email not in ('3@x')"))
    fares = [1.0, 2.0, None, 4.0]
    rows, outcome = written(
        desk,
        [*(row(n, fare=fare) for n, fare in enumerate(fares)), row(9, fare=9, email=None)],
    )
    assert [found["id"] for found in rows] == [1]
    (result,) = outcome.partitions.values()
    assert (result.records, result.skipped, result.bad, result.quarantined) == (1, 4, 0, 0)


def test_a_batch_of_which_nothing_stays_writes_no_file(local: LocalCatalog) -> None:
    rows, outcome = written(desk_of(local, RowRules(where="fare < 0")), [row(1, fare=1)])
    assert (rows, outcome.all_files) == ([], ())


def test_a_record_that_does_not_meet_an_expectation_is_a_bad_one(local: LocalCatalog) -> None:
    rules = RowRules(
        where="id < 9",
        expectations=(
            Expectation("fare", "fare >= 0"),
            Expectation("card", "card like '1234%'", strict=True),
        ),
    )
    values = [
        row(0, fare=1),
        row(1, fare=-1),
        row(2, fare=None),
        row(3, card=None),
        row(4, fare=-1, card="9"),
        row(9, fare=-1),
    ]
    rows, outcome = written(desk_of(local, rules), values)
    assert [found["id"] for found in rows] == [0, 2]
    bad = {r["offset"]: (r["error_class"], r["message"]) for r in rows_in(outcome.quarantined)}
    fare = ("expectation", "expectation fare is not met")
    assert bad == {1: fare, 3: ("expectation", "expectation card is not met"), 4: fare}


def test_too_many_unmet_expectations_stop_the_sink_as_other_bad_records_do(
    local: LocalCatalog,
) -> None:
    rules = RowRules(expectations=(Expectation("fare", "fare >= 0"),))
    limits = BadRecordLimits(per_thousand_max=1_000, records_max=1)
    outcome = desk_of(local, rules, limits=limits).outcome(
        {"shop.trips": [row(n, fare=-1) for n in range(3)]}
    )
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, TooManyBadRecords)


@pytest.mark.parametrize(
    ("mask", "shown"),
    [
        (Mask("card", 0, 0, "***"), "***"),
        (Mask("card", 0, 4, "***"), "***0007"),
        (Mask("card", 2, 0, "…"), "12…"),
        (Mask("card", 2, 2, ""), "1207"),
    ],
)
def test_a_masked_column_holds_what_stays_of_it(
    local: LocalCatalog, mask: Mask, shown: str
) -> None:
    desk = desk_of(local, RowRules(masks=(mask,)))
    short = "äöü" if mask.first + mask.last >= 3 else ""
    rows, _ = written(desk, [row(7), row(8, card=None), row(9, card=short)])
    assert [found["card"] for found in rows] == [shown, None, mask.by]


def test_hashes_are_those_of_hmac_and_equal_values_stay_equal(local: LocalCatalog) -> None:
    rows, _ = written(desk_of(local, HASH), [row(1, email=v) for v in ("a", "ä", "", None, "a")])
    assert [found["email"] for found in rows] == [
        *(digest("a"), digest("ä"), digest(""), None, digest("a"))
    ]


@pytest.mark.parametrize("data_type", ["fixed(32)", "binary"])
def test_a_column_of_bytes_takes_the_hash_itself_and_conditions_its_text(
    local: LocalCatalog, data_type: str
) -> None:
    create_table_if_missing(
        local.catalog, "db.hashed", TableDeclaration({**COLUMNS, "email": data_type})
    )
    rules = replace(HASH, where="email is null or email like 'e%'")
    texts = [NEEDLE, None, "e", "x", "eä", NEEDLE]
    desk = desk_of(local, rules)
    outcome = desk.outcome({"shop.hashed": [row(n, email=text) for n, text in enumerate(texts)]})
    assert isinstance(outcome, BatchWritten), outcome
    (files,) = outcome.secondary_files.values()
    assert [found["email"] for found in rows_in(files)] == [
        text and bytes.fromhex(digest(text)) for text in texts if text != "x"
    ]
    assert NEEDLE.encode() not in everything_in(local.warehouse)


@pytest.mark.parametrize("data_type", ["string", "fixed(32)"])
def test_around_a_record_that_cannot_be_decoded_others_are_hashed(
    local: LocalCatalog, monkeypatch: pytest.MonkeyPatch, data_type: str
) -> None:
    decode = JsonRecords.decode

    def falls(self: JsonRecords, values: Any, schema: pa.Schema) -> pa.RecordBatch:
        if any(b"2@x" in value for value in values if value):
            raise ZeroDivisionError
        return decode(self, values, schema)

    monkeypatch.setattr(JsonRecords, "decode", falls)
    create_table_if_missing(
        local.catalog, "db.hashed", TableDeclaration({**COLUMNS, "email": data_type})
    )
    outcome = desk_of(local, HASH).outcome({"shop.hashed": [row(n) for n in range(1, 4)]})
    assert isinstance(outcome, BatchWritten), outcome
    (files,) = outcome.secondary_files.values()
    wanted = [digest(f"{n}@x") for n in (1, 3)]
    if data_type != "string":
        assert [found["email"].hex() for found in rows_in(files)] == wanted
    else:
        assert [found["email"] for found in rows_in(files)] == wanted


def test_conditions_see_values_before_they_are_hidden(local: LocalCatalog) -> None:
    rules = replace(
        HASH,
        where="email like 'e%'",
        expectations=(Expectation("address", f"email = '{NEEDLE}'"),),
    )
    rows, outcome = written(
        desk_of(local, rules), [row(n, email=e) for n, e in enumerate([NEEDLE, "x", "e"])]
    )
    assert [found["email"] for found in rows] == [digest(NEEDLE)]
    assert [r["message"] for r in rows_in(outcome.quarantined)] == [
        "expectation address is not met"
    ]


# ------------------------------------------------------------------------------------ keyed tables


def keyed(home: Path, rules: RowRules, **more: Any) -> ChangesDesk:
    columns = {"id": "long not null", "name": "string", "n": "long"}
    return ChangesDesk(
        local_catalog(home), Changes(("id",)), columns=columns, row_rules=rules, **more
    )


def test_in_a_keyed_table_a_row_that_does_not_match_deletes_that_of_its_key(
    tmp_path: Path,
) -> None:
    """So it has the rows of those keys whose last record matches."""
    desk = keyed(tmp_path, RowRules(where="n > 0"))
    done = desk.write(put(1, n=1), put(2, n=0), put(1, n=0), gone(3), put(2))
    assert [found["id"] for found in done.rows] == [1]
    assert done.deletes == {1: (2,), 2: (1,), 3: (3,), 4: (2,)}
    assert (done.bad, done.skipped) == ({}, 0)


def test_an_expectation_of_a_keyed_table_says_nothing_of_deletes(tmp_path: Path) -> None:
    rules = RowRules(expectations=(Expectation("n", "n > 0", strict=True),))
    done = keyed(tmp_path, rules).write(
        (b"1", b"{broken"), put(1, n=1), put(2, n=0), gone(3), put(4, n=2)
    )
    assert ([found["id"] for found in done.rows], done.deletes) == ([1, 4], {3: (3,)})
    assert sorted(done.bad) == [0, 2]
    assert done.bad[2] == "expectation n is not met"


@pytest.mark.parametrize("data_type", ["string", "binary", "fixed(32)"])
def test_a_hashed_key_is_the_same_in_rows_and_in_deletes(tmp_path: Path, data_type: str) -> None:
    changes = Changes(("name",))
    hashed: Any = digest(NEEDLE) if data_type == "string" else bytes.fromhex(digest(NEEDLE))
    desk = ChangesDesk(
        local_catalog(tmp_path),
        changes,
        columns={"name": f"{data_type} not null", "n": "long"},
        row_rules=RowRules(where="n != 7", hashed=("name",), key=KEY),
    )
    value = json.dumps({"name": NEEDLE, "n": 1}).encode()
    filtered = json.dumps({"name": NEEDLE, "n": 7}).encode()
    done = desk.write((NEEDLE.encode(), value), (NEEDLE.encode(), None), (None, filtered))
    assert done.rows == [{"name": hashed, "n": 1}]
    assert done.deletes == {1: (hashed,), 2: (hashed,)}
    assert NEEDLE.encode() not in everything_in(tmp_path)


def test_rules_of_a_column_of_bytes_are_of_the_text_that_is_hashed(tmp_path: Path) -> None:
    desk = ChangesDesk(
        local_catalog(tmp_path),
        Changes(("id",)),
        columns={"id": "long not null", "name": "fixed(32)"},
        rules={"name": ColumnRule(path=("n",), as_text=True, default="none")},
        row_rules=RowRules(hashed=("name",), key=KEY),
    )
    done = desk.write(
        *((None, json.dumps(value).encode()) for value in ({"id": 1, "n": 7}, {"id": 2}))
    )
    assert [found["name"].hex() for found in done.rows] == [digest("7"), digest("none")]


def test_a_masked_key_is_refused(tmp_path: Path) -> None:
    desk = ChangesDesk(
        local_catalog(tmp_path),
        Changes(("name",)),
        columns={"name": "string not null"},
        row_rules=RowRules(masks=(Mask("name", 0, 1, "*"),)),
    )
    outcome = desk.outcome([(b"a", b'{"name": "a"}')])
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, ShapeUnfit)


# ----------------------------------------------------------------------------------- what is hidden


def everything_in(folder: Path) -> bytes:
    """What is in all files below, Parquet's columns as they are when they are read."""
    found = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    for path in folder.rglob("*.parquet"):
        found.append(repr(pq.ParquetFile(path).read().to_pylist()).encode())
        found.append(repr(pq.read_metadata(path).row_group(0).to_dict()).encode())
    return b"\0".join(found)


BAD: Mapping[str, bytes] = {
    "broken": b'{"email": "%s", ' % NEEDLE.encode(),
    "not a number": json.dumps({"id": NEEDLE}).encode(),
    "a value in a column that others need": json.dumps(row(1, email=NEEDLE, fare=NEEDLE)).encode(),
    "unmet": json.dumps(row(1, email=NEEDLE, fare=-1)).encode(),
    "text that is none": b'{"id": 1, "email": "\xff' + NEEDLE.encode() + b'"}',
    "no object": json.dumps(NEEDLE).encode(),
}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
@pytest.mark.parametrize("policy", Disposal)
def test_a_hidden_value_of_a_bad_record_is_nowhere(
    local: LocalCatalog, caplog: pytest.LogCaptureFixture, value: bytes, policy: Disposal
) -> None:
    caplog.set_level(logging.DEBUG)
    rules = replace(HASH, expectations=(Expectation("fare", "fare >= 0"),))
    desk = desk_of(local, rules, policy=policy)
    sound = json.dumps(row(2, email=NEEDLE)).encode()
    headers = [("who", NEEDLE.encode())]
    outcome = desk.outcome({"shop.trips": [(sound, headers), (value, headers)]})
    assert isinstance(outcome, BatchFailed) is (policy is Disposal.FAIL)
    seen = everything_in(local.warehouse) + repr(outcome).encode() + pickle.dumps(outcome)
    assert NEEDLE.encode() not in seen
    assert NEEDLE not in caplog.text
    if isinstance(outcome, BatchFailed):
        assert isinstance(outcome.fatal, HeadgateError)
        assert NEEDLE not in outcome.fatal.message
    elif policy is Disposal.QUARANTINE:
        (found,) = rows_in(outcome.quarantined)
        assert (found["value"], found["key"], found["headers"]) == (None, None, [])
        assert found["offset"] == 1


def test_a_value_that_stops_the_sink_where_it_does_not_fit_is_not_shown(
    tmp_path: Path, local: LocalCatalog
) -> None:
    desk = desk_of(local, HASH)
    source = replace(desk.source, schema_policy=SchemaPolicy(incompatible=Incompatible.FAIL))

    class Strict(Desk):
        @property
        def source(self) -> Any:
            return source

    strict = Strict(local, (BY_TOPIC,), HIDDEN, shaping=Shaping(rules=HASH))
    outcome = strict.outcome({"shop.trips": [{"id": 1, "fare": NEEDLE}]})
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, IncompatibleValue)
    assert "does not fit into the column" in outcome.fatal.message or "cannot be read" in (
        outcome.fatal.message
    )
    assert NEEDLE not in str(outcome.fatal)


def test_an_unforeseen_error_of_reading_says_no_more_than_its_kind(
    local: LocalCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = JsonRecords.decode

    def falls(self: JsonRecords, values: Any, schema: pa.Schema) -> pa.RecordBatch:
        if any(NEEDLE.encode() in value for value in values if value):
            raise ZeroDivisionError(f"so much for {NEEDLE}")
        return decode(self, values, schema)

    monkeypatch.setattr(JsonRecords, "decode", falls)
    desk = desk_of(local, HASH)
    rows, outcome = written(desk, [row(1), row(2, email=NEEDLE), row(3)])
    assert [found["id"] for found in rows] == [1, 3]
    (found,) = rows_in(outcome.quarantined)
    assert NEEDLE not in repr(found)
    every = desk.outcome({"shop.trips": [row(n, email=NEEDLE) for n in range(99)]})
    assert isinstance(every, BatchFailed)
    assert "ZeroDivisionError" in every.reason
    assert NEEDLE not in every.reason


def test_no_plan_shows_the_key_or_a_condition(local: LocalCatalog) -> None:
    rules = replace(HASH, where=f"email != '{NEEDLE}'")
    shown = repr(Shaping(rules=rules)) + repr(desk_of(local, rules).plans)
    assert KEY.decode() not in shown
    assert NEEDLE not in shown


def test_records_for_a_suspended_table_stop_the_sink_where_the_quarantine_may_not_keep_them(
    local: LocalCatalog,
) -> None:
    """SUSPEND-1: nothing could be given back from there."""
    desk = desk_of(local, HASH)
    desk.suspended = {"db.trips": "HG-1 its owner did something"}
    outcome = desk.outcome({"shop.trips": [row(1), row(2)]})
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, RecordNotKept)
    assert outcome.fatal.first == Offsets({TopicPartition("shop.trips", 0): 0})
    assert list(local.warehouse.rglob("*.parquet")) == []


# -------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "rules",
    [
        RowRules(hashed=("mail",), key=KEY),
        RowRules(hashed=("fare",), key=KEY),
        RowRules(masks=(Mask("id", 0, 1, "*"),)),
        RowRules(where="mail = 'x'"),
        RowRules(where="fare like 'x%'"),
        RowRules(where="fare = 'x'"),
        RowRules(expectations=(Expectation("e", "id ="),)),
    ],
    ids=repr,
)
def test_rules_that_do_not_fit_the_table_stop_the_sink_by_name(
    local: LocalCatalog, rules: RowRules
) -> None:
    """Otherwise a wrong name would let through what was to be hidden."""
    outcome = desk_of(local, rules).outcome({"shop.trips": [row(1)]})
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, ShapeUnfit)
    assert "db.trips" in outcome.fatal.message
    assert list(local.warehouse.rglob("*.parquet")) == []


@pytest.mark.parametrize(
    ("data_type", "rules"),
    [
        ("fixed(16)", HASH),
        ("uuid", HASH),
        ("binary", RowRules(masks=(Mask("email", 0, 1, "*"),))),
    ],
)
def test_only_hashes_become_bytes_and_only_whole_ones(
    local: LocalCatalog, data_type: str, rules: RowRules
) -> None:
    create_table_if_missing(
        local.catalog, "db.hashed", TableDeclaration({**COLUMNS, "email": data_type})
    )
    outcome = desk_of(local, rules).outcome({"shop.hashed": [row(1)]})
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, ShapeUnfit)


def test_rules_concern_the_tables_that_their_pattern_names(local: LocalCatalog) -> None:
    create_table_if_missing(local.catalog, "db.other", TableDeclaration(COLUMNS))
    desk = desk_of(local, replace(HASH, tables=r"db\.tr.*"))
    outcome = desk.outcome({"shop.trips": [row(1)], "shop.other": [row(2)]})
    assert isinstance(outcome, BatchWritten)
    found = {at.table: rows_in(files)[0]["email"] for at, files in outcome.secondary_files.items()}
    assert found == {"db.trips": digest("1@x"), "db.other": "2@x"}
