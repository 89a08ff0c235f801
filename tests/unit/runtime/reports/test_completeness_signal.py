"""What a signal says, and when an hour has passed (REPORT-3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.config.test_load import MINIMAL
from unit.operations.routed_shop import CLICKS, ORDERS, Shop, shop_settings

from headgate.config.load import parse
from headgate.control_protocol.commit_record import PendingCommit, Suspended
from headgate.control_protocol.ports import Landed
from headgate.runtime.reports import completeness_signal
from headgate.runtime.reports.completeness_signal import (
    Completeness,
    SentSignal,
    build_signal,
    last_passed_hour_or_day_end,
    read_completeness,
)
from headgate.tables.iceberg.catalog import load_catalog

HOUR = 3_600_000
NOW = 1_000 * HOUR + 60_000


@pytest.mark.parametrize(
    ("time_ms", "passed"),
    [
        (None, None),
        (0, 0),
        (HOUR - 1, 0),
        (HOUR, HOUR),
        (10 * HOUR + 1, 10 * HOUR),
        (NOW + 50 * HOUR, 1_000 * HOUR),
        (253_402_300_799_999, 1_000 * HOUR),
    ],
)
def test_an_hour_has_passed_at_its_end_and_never_beyond_the_clock(
    time_ms: int | None, passed: int | None
) -> None:
    assert last_passed_hour_or_day_end(time_ms, HOUR, NOW) == passed


@pytest.mark.parametrize("note", ["", "x", "[]", "{}", "[1]", '["u", "x"]', "[1, 2, 3]", "null"])
def test_a_note_that_is_none_is_as_if_nothing_had_been_said(note: str) -> None:
    assert SentSignal.from_offset_metadata(note) is None


def test_a_note_comes_back() -> None:
    said = SentSignal("a-uuid", 5 * HOUR)
    assert SentSignal.from_offset_metadata(said.to_offset_metadata()) == said


def test_who_waits_for_a_table_that_is_behind_does_not_store_the_same_note_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored: list[str] = []

    class Note:
        """The group's note, in memory."""

        def __init__(self, *_of: object) -> None: ...

        def read(self) -> str:
            return SentSignal("a-uuid", 5 * HOUR).to_offset_metadata()

        def store(self, note: str) -> None:
            stored.append(note)

    monkeypatch.setattr(completeness_signal, "GroupNote", Note)
    behind = Completeness("a-uuid", 5 * HOUR, 7 * HOUR)
    monkeypatch.setattr(completeness_signal, "read_completeness", lambda _settings: behind)
    signals = completeness_signal.Signals(
        parse(f'{MINIMAL}\n[signal]\ntopic = "hours"\n'), lambda *_: None
    )
    signals.close()
    stored.clear()
    signals._refresh_s = 0.0
    assert [signals._send_next_signal_and_has_none_left() for _ in range(3)] == [False] * 3
    assert stored == [SentSignal("a-uuid", 5 * HOUR).to_offset_metadata()]


def test_what_was_said_of_another_table_is_no_beginning() -> None:
    settings = parse(f'{MINIMAL}\n[signal]\ntopic = "hours"\n')
    complete = Completeness("a-uuid", 7 * HOUR, 7 * HOUR)
    for said, since in (
        (None, None),
        (SentSignal("another", HOUR), None),
        (SentSignal("a-uuid", HOUR), "1970-01-01T01:00:00Z"),
    ):
        told: Any = build_signal(settings, complete, said, 7 * HOUR)
        assert told["complete_since"] == since
        assert told["complete_through"] == "1970-01-01T07:00:00Z"


# -------------------------------------------------------------------------------------- many tables


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    settings = shop_settings(tmp_path)
    with load_catalog(settings.catalog.name, settings.catalog.properties) as catalog:
        yield Shop(catalog, settings)


def decided(shop: Shop, hour: int, *tables: str, **other: Any) -> tuple[PendingCommit, ...]:
    """A transaction up to this hour with a row for each table; nothing of it is delivered."""
    rows = {name: [shop.next_offset + place] for place, name in enumerate(tables)}
    return shop.decides(rows, valid_through_ms=hour * HOUR, **other)


def delivered(shop: Shop, pending: tuple[PendingCommit, ...], *tables: str) -> None:
    for name in tables:
        assert isinstance(shop.table(name).commit(shop.delivery(name, pending)), Landed)


def test_of_many_tables_each_must_have_received_what_is_said(shop: Shop) -> None:
    assert read_completeness(shop.settings).through_ms is None
    first = decided(shop, 1, ORDERS, CLICKS)
    assert read_completeness(shop.settings).through_ms is None  # nothing was ever delivered
    delivered(shop, first, ORDERS)
    assert read_completeness(shop.settings).through_ms is None
    delivered(shop, first, CLICKS)
    assert read_completeness(shop.settings).through_ms == HOUR
    second = decided(shop, 5, ORDERS, CLICKS)
    delivered(shop, second, CLICKS)
    found = read_completeness(shop.settings)
    assert (found.through_ms, found.decided_ms) == (HOUR, 5 * HOUR)
    delivered(shop, second, ORDERS)
    assert read_completeness(shop.settings).through_ms == 5 * HOUR
    decided(shop, 9)  # it brought no rows: nothing waits for it
    found = read_completeness(shop.settings)
    assert (found.through_ms, found.snapshot_id) == (9 * HOUR, shop.ledger.read().tag)


def test_a_suspended_table_is_named_and_not_waited_for(shop: Shop) -> None:
    delivered(shop, decided(shop, 1, ORDERS, CLICKS), ORDERS, CLICKS)
    second = decided(shop, 5, ORDERS, CLICKS, suspended=(Suspended(CLICKS, "HG-102"),))
    delivered(shop, second, ORDERS)
    found = read_completeness(shop.settings)
    assert (found.through_ms, found.suspended) == (5 * HOUR, (CLICKS,))
    told: Any = build_signal(shop.settings, found, None, 5 * HOUR)
    assert told["suspended"] == [CLICKS]


def test_what_is_pending_for_the_quarantine_holds_nothing_back(shop: Shop) -> None:
    aside = shop.settings.quarantine.table
    at, uuid = shop.record(1), shop.table(aside).read().uuid
    bad = PendingCommit(at.transaction, at.coordinator, uuid, aside, "bad.avro", rows=1)
    decided(shop, 3, still=(bad,))
    record = shop.ledger.read().record
    assert record is not None
    assert record.pending_commits == (bad,)
    assert read_completeness(shop.settings).through_ms == 3 * HOUR
