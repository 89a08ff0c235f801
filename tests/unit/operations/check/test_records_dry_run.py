"""``check`` says whether the newest records become rows, as a batch of them would."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.config.test_load import MINIMAL

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import RecordsWouldStop
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import PartitionResult
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.operations.check.records import check_dry_run_result
from headgate.operations.dry_run import DryRun, Misfit

P0 = TopicPartition("trips", 0)
NOTHING = Misfit(P0, 4, "tombstone: it has no value")
UNFIT = Misfit(P0, 7, 'value: id: "x" is not a number')


def sink(
    policy: Disposal = Disposal.QUARANTINE, tombstones: Disposal = Disposal.SKIP
) -> SinkSettings:
    found = parse(MINIMAL)
    aside = replace(found.quarantine, policy=policy, tombstones=tombstones)
    return replace(found, quarantine=aside)


def seen(rows: int, bad: int = 0, tombstones: int = 0, *, stops: bool = False) -> DryRun:
    result = PartitionResult(OffsetRange(0, 50), rows, 1_000, quarantined=bad + tombstones, bad=bad)
    misfits = (NOTHING,) * bool(tombstones) + (UNFIT,) * bool(bad)
    return DryRun((), {P0: result}, misfits, tombstones=tombstones, stops_at_tombstone=stops)


def test_records_that_fit_are_counted() -> None:
    assert check_dry_run_result(sink(), seen(20)) == "the 20 newest records fit the columns"
    assert check_dry_run_result(sink(), seen(0)) == "there are no records yet"
    assert check_dry_run_result(sink(), seen(18, tombstones=2)).endswith(
        "; 2 have no value, or no table"
    )


def test_the_first_record_that_does_not_fit_is_named() -> None:
    text = check_dry_run_result(sink(), seen(18, bad=2, tombstones=1))
    assert text.startswith(
        "of the 21 newest records 2 do not fit the columns: trips/0 at 7, value:"
    )


@pytest.mark.parametrize(
    ("settings", "records", "hint"),
    [
        (sink(Disposal.FAIL), seen(18, bad=1), 'quarantine.policy = "quarantine"'),
        (sink(), seen(0, bad=3), "correct [[table.columns]]"),
        (sink(Disposal.SKIP), seen(0, bad=3), "correct [[table.columns]]"),
        (sink(), seen(3, tombstones=1, stops=True), "quarantine.tombstones"),
    ],
)
def test_records_at_which_the_sink_would_stop_or_keep_none_are_wrong(
    settings: SinkSettings, records: DryRun, hint: str
) -> None:
    with pytest.raises(RecordsWouldStop) as caught:
        check_dry_run_result(settings, records)
    assert hint in caught.value.hint
