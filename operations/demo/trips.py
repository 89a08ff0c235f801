"""Generates a city's taxi trips as a stream: seeded, endless, and the same on every machine.

Each trip is a JSON object of about 210 bytes with the columns of ``TRIP_COLUMNS``. The
distributions are those of real taxi data: few zones are popular and most are not, trips are short
with a long tail, the night is quiet, fares follow distance and time, tips are paid by card, and
most people ride alone. It contains nobody's data.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")

TRIP_COLUMNS = {
    "trip_id": "long",
    "vendor": "string",
    "pickup_at": "timestamptz",
    "dropoff_at": "timestamptz",
    "pickup_zone": "int",
    "dropoff_zone": "int",
    "passengers": "int",
    "distance_km": "double",
    "fare": "double",
    "tip": "double",
    "payment": "string",
}
"""The columns and their Iceberg types, as a sink file declares them."""

FIRST_PICKUP = datetime(2026, 1, 1, tzinfo=UTC)

# By popularity, which the numbers themselves should not reveal.
ZONES = tuple(rank * 97 % 263 + 1 for rank in range(263))
VENDORS = {"Yellow Line": 5, "Harbour Cabs": 3, "Green Mile": 2}
PASSENGERS = {1: 72, 2: 15, 3: 5, 4: 3, 5: 3, 6: 2}
PAYMENTS = {"card": 72, "cash": 21, "app": 6, "voucher": 1}

# Milliseconds from one pickup to the next, by the hour of the day (UTC).
GAPS_MS = (
    *(40, 55, 80, 120, 150, 110, 60, 35, 26, 25, 27, 26),
    *(24, 24, 23, 22, 22, 19, 17, 18, 21, 24, 27, 32),
)

# Rides are drawn in advance, so that a trip costs microseconds. Powers of two are drawn as bits.
RIDES = 1 << 14
CREWS = 1 << 8
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class _Ride:
    """The parts that do not depend on time and vendor, as pieces of JSON text."""

    zones: str
    metres: int
    price: str
    duration_ms: int


def generate_trips(seed: int = 1) -> Iterator[bytes]:
    """Yield trips in the order of their pickups, numbered from 0. Equal seeds give equal bytes."""
    chance = random.Random(seed)
    rides = [_random_ride(chance) for _ in range(RIDES)]
    crews = [
        (_pick_weighted(chance, VENDORS), _pick_weighted(chance, PASSENGERS)) for _ in range(CREWS)
    ]
    bits, text = chance.getrandbits, _format_pickup_time
    pickup_ms, number = 0, 0
    while True:
        gap_ms = GAPS_MS[pickup_ms // HOUR_MS % 24]
        for _ in range(1_000):
            coins = bits(40)
            ride = rides[coins & (RIDES - 1)]
            vendor, passengers = crews[coins >> 14 & (CREWS - 1)]
            pickup_ms += gap_ms * (coins >> 22 & 255) >> 7
            dropoff_ms = pickup_ms + ride.duration_ms + (coins >> 30)
            yield (
                f'{{"trip_id":{number},"vendor":"{vendor}",'
                f'"pickup_at":"{text(pickup_ms // 1000)}.{pickup_ms % 1000:03}Z",'
                f'"dropoff_at":"{text(dropoff_ms // 1000)}.{dropoff_ms % 1000:03}Z",'
                f'{ride.zones},"passengers":{passengers},'
                f'"distance_km":{(ride.metres + (coins >> 30)) / 1000},{ride.price}}}'
            ).encode()
            number += 1


def _random_ride(chance: random.Random) -> _Ride:
    metres = round(min(60_000, 400 + chance.lognormvariate(7.9, 0.8)))
    km_per_hour = chance.uniform(9, 24) + metres / 2_000
    hours = metres / 1000 / km_per_hour
    fare_cents = round(300 + metres * 0.15 + hours * 2_400)
    payment = _pick_weighted(chance, PAYMENTS)
    percent = chance.choice((0, 10, 15, 20, 20, 25)) if payment in ("card", "app") else 0
    tip_cents = fare_cents * percent // 100
    return _Ride(
        zones=f'"pickup_zone":{_random_zone(chance)},"dropoff_zone":{_random_zone(chance)}',
        metres=metres,
        price=f'"fare":{_format_money(fare_cents)},"tip":{_format_money(tip_cents)},"payment":"{payment}"',
        duration_ms=round(hours * HOUR_MS),
    )


def _random_zone(chance: random.Random) -> int:
    """Return a zone by its popularity, which falls as one over its rank."""
    return chance.choices(ZONES, cum_weights=_ZONE_WEIGHTS)[0]


_ZONE_WEIGHTS = list(accumulate(1 / rank for rank in range(1, len(ZONES) + 1)))


def _pick_weighted(chance: random.Random, weighted: Mapping[T, int]) -> T:
    return chance.choices(list(weighted), list(weighted.values()))[0]


@functools.lru_cache(maxsize=1 << 14)
def _format_pickup_time(seconds_since_first: int) -> str:
    # Neighbouring trips share their seconds: most texts serve many trips.
    return (FIRST_PICKUP + timedelta(seconds=seconds_since_first)).strftime("%Y-%m-%dT%H:%M:%S")


def _format_money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"
