"""Which sink files bring a JVM of their own, and what they may not be promised."""

from __future__ import annotations

import pytest

from headgate.control_protocol.errors import FleetFilesUnfit
from headgate.control_protocol.identifiers import SinkName
from headgate.runtime.fleet.sink_files import has_own_jvm, require_memory_for_jvm_per_sink

NAME = SinkName("trips")


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ('name = "trips"', True),
        ("", True),
        ('[spark]\nmaster = "local[2]"', True),
        ('spark.writer = "spark"', True),
        ('[spark]\nwriter = "in-process"', False),
        ('[spark]\nremote = "sc://spark:15002"', False),
        ("spark = 7", False),
        ("no [ TOML", False),
    ],
)
def test_fleet_13_a_spark_of_its_own_is_a_jvm(text: str, *, has: bool) -> None:
    assert has_own_jvm(text) is has


def test_fleet_13_less_than_a_jvm_takes_is_refused() -> None:
    for enough in (0, 1_500, 9_000):
        require_memory_for_jvm_per_sink({NAME: "[spark]"}, enough)
    require_memory_for_jvm_per_sink({NAME: '[spark]\nwriter = "in-process"'}, 50)
    with pytest.raises(FleetFilesUnfit, match="1024 MiB are not enough for trips"):
        require_memory_for_jvm_per_sink({NAME: "[spark]"}, 1_024)
