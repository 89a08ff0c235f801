"""The demo's stream: the same for a seed, and shaped like a city."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from itertools import islice
from statistics import mean, median
from typing import Any

import pytest

from headgate.operations.demo.trips import FIRST_PICKUP, TRIP_COLUMNS, generate_trips

Trips = list[dict[str, Any]]


@pytest.fixture(scope="module")
def many() -> Trips:
    """Made when it is asked for: every worker imports this module."""
    return [json.loads(trip) for trip in islice(generate_trips(seed=3), 20_000)]


def test_equal_seeds_give_equal_bytes() -> None:
    assert list(islice(generate_trips(5), 2_500)) == list(islice(generate_trips(5), 2_500))
    assert list(islice(generate_trips(5), 10)) != list(islice(generate_trips(6), 10))


def test_every_trip_has_the_declared_columns_and_its_number(many: Trips) -> None:
    assert {tuple(trip) for trip in many} == {tuple(TRIP_COLUMNS)}
    assert [trip["trip_id"] for trip in many] == list(range(len(many)))
    kinds = {"long": int, "int": int, "double": float, "string": str, "timestamptz": str}
    assert {
        name
        for trip in many
        for name, declared in TRIP_COLUMNS.items()
        if type(trip[name]) is not kinds[declared]
    } == set()


def test_time_moves_on_and_trips_end_after_they_began(many: Trips) -> None:
    pickups = [datetime.fromisoformat(trip["pickup_at"]) for trip in many]
    dropoffs = [datetime.fromisoformat(trip["dropoff_at"]) for trip in many]
    assert pickups == sorted(pickups)
    assert pickups[0] >= FIRST_PICKUP
    assert all(begin < end for begin, end in zip(pickups, dropoffs, strict=True))


def test_the_shapes_are_a_citys(many: Trips) -> None:
    distances = [trip["distance_km"] for trip in many]
    assert 1 < median(distances) < mean(distances) < 10 < max(distances) < 62  # a long tail
    zones = Counter(trip["pickup_zone"] for trip in many)
    assert zones.keys() <= set(range(1, 264))
    assert zones.most_common(1)[0][1] > 20 * median(zones.values())
    assert {trip["payment"] for trip in many if trip["tip"]} == {"card", "app"}


def test_a_trip_is_about_two_hundred_bytes() -> None:
    assert 200 < mean(len(trip) for trip in islice(generate_trips(), 1_000)) < 250
