"""Point 19: a participant on another control topic than the sink's coordinator finds out."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.operations.filled_table import sink_file_text

from headgate.control_protocol.errors import OtherConfiguration, Unreachable
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.record import CommitRecord
from headgate.sink.load import parse
from headgate.sink.lookout import Lookout

SETTINGS = parse(sink_file_text(Path("/lake")))
EVERY_MS = 120_000


class Table:
    """A record that somebody else moves, or not."""

    def __init__(self, control_topic: str | None, *, moves: bool = True) -> None:
        self.number = 0
        self.moves = moves
        self.control_topic = control_topic
        self.reads = 0

    def read(self) -> CommitRecord:
        self.reads += 1
        self.number += self.moves
        return CommitRecord(
            SinkName("trips"),
            "headgate-trips",
            TransactionId(Epoch(1), TransactionNumber(self.number)),
            Sender("worker-9", "life"),
            Offsets(),
            control_topic=self.control_topic,
        )


def watched(table: Table, *, unheard: bool = True) -> None:
    lookout = Lookout(SETTINGS, table.read, 0)
    for now_ms in range(0, 5 * EVERY_MS, 1_000):
        lookout.look(now_ms, unheard=unheard)


def test_point_19_others_commit_through_another_control_topic() -> None:
    with pytest.raises(OtherConfiguration, match="worker-9 on control topic elsewhere") as caught:
        watched(Table("elsewhere"))
    assert "this sink file names control:" in caught.value.message


@pytest.mark.parametrize("table", [Table("control"), Table(None), Table("elsewhere", moves=False)])
def test_point_19_the_same_topic_and_a_record_that_rests_say_nothing(table: Table) -> None:
    watched(table)
    assert table.reads == 4


def test_point_19_who_hears_a_coordinator_does_not_look() -> None:
    table = Table("elsewhere")
    watched(table, unheard=False)
    assert table.reads == 0


def test_point_19_a_catalog_that_is_away_is_asked_again() -> None:
    def away() -> CommitRecord:
        raise Unreachable("away")

    lookout = Lookout(SETTINGS, away, 0)
    for now_ms in (EVERY_MS, 2 * EVERY_MS):
        lookout.look(now_ms, unheard=True)
