"""Generates seeded records to sink, and the tables that they belong into.

A workload renders a prime number of endings once. The id in front, and a time that moves with it,
make every record different. So a million records take a second or two, and a seed always gives the
same bytes.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import fastavro

ENDINGS = 20_011
RECORDS_PER_SECOND = 32  # of the time inside the records
ZONES = [f"{b}-{i:02d}" for b in ("manhattan", "queens", "brooklyn", "bronx") for i in range(1, 65)]
PAYMENTS = ("card", "cash", "dispute", "voucher")
METHODS = ("GET", "PUT", "POST")
WORDS = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")

Maker = Callable[[int, int], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Workload:
    """``columns``: Iceberg types by name, ``id`` among them. ``records(count, seed)``.

    ``format`` and ``options`` are headgate's. ``derived``: further columns of the table, by name
    their type and how SQL (Spark's and Flink's) computes them from the others. ``key``: the
    table's; then records are Debezium's row changes (``changelog.py``).
    """

    name: str
    columns: Mapping[str, str]
    records: Maker
    format: str = "json"
    options: Mapping[str, str] = field(default_factory=dict)
    derived: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    key: tuple[str, ...] = ()

    @property
    def table_columns(self) -> dict[str, str]:
        columns = {**self.columns, **{name: kind for name, (kind, _) in self.derived.items()}}
        if self.key:
            columns |= {"kafka_partition": "int", "kafka_offset": "long"}
        return columns | {name: f"{columns[name]} not null" for name in self.key}

    def select(self, source: str) -> str:
        made = [f"{sql} AS `{name}`" for name, (_, sql) in self.derived.items()]
        return f"SELECT {', '.join(['*', *made])} FROM {source}"


def _stamp(number: int) -> str:
    second = number // RECORDS_PER_SECOND
    minute = second // 60
    return f"2026-08-{1 + minute // 1440 % 28:02d}T{minute // 60 % 24:02d}:{minute % 60:02d}:"


def _fraction(number: int) -> str:
    return f"{number // RECORDS_PER_SECOND % 60:02d}.{number * 31 % 1000:03d}Z"


# ------------------------------------------------------------------------------------ taxi trips

TAXI = {
    "id": "long",
    "pickup_at": "timestamptz",
    "vendor_id": "int",
    "passengers": "int",
    "distance_km": "double",
    "fare": "double",
    "tip": "double",
    "payment": "string",
    "zone": "string",
    "dropoff_at": "timestamptz",
}


def taxi(count: int, seed: int) -> Iterator[bytes]:
    """Yield about 200 bytes of JSON: ten columns, two of them timestamps."""
    trip = taxi_trips(seed)
    for number in range(count):
        yield f'{{"id":{number},{trip(number)}'.encode()


def taxi_trips(seed: int) -> Callable[[int], str]:
    """Return a function from a number to all of a trip's JSON after its id."""
    dice = random.Random(seed)
    endings = [_taxi_ending(dice) for _ in range(ENDINGS)]

    def trip(number: int) -> str:
        middle, end = endings[number % ENDINGS]
        stamp = _stamp(number)
        return f'"pickup_at":"{stamp}{_fraction(number)}",{middle}{stamp}{end}'

    return trip


def _taxi_ending(dice: random.Random) -> tuple[str, str]:
    fare = round(dice.uniform(3, 90), 2)
    middle = (
        f'"vendor_id":{dice.randint(1, 6)},"passengers":{dice.randint(1, 6)},'
        f'"distance_km":{dice.uniform(0.4, 42):.3f},"fare":{fare},'
        f'"tip":{round(fare * dice.random() * 0.3, 2)},"payment":"{dice.choice(PAYMENTS)}",'
        f'"zone":"{dice.choice(ZONES)}","dropoff_at":"'
    )
    return middle, f'{dice.randint(0, 59):02d}.{dice.randint(0, 999):03d}Z"}}'


def riders(count: int, seed: int) -> Iterator[bytes]:
    """Yield trips with a text that no two of them share."""
    trip = taxi_trips(seed)
    for number in range(count):
        yield f'{{"id":{number},"email":"rider-{number}@example.org",{trip(number)}'.encode()


# ------------------------------------------------------------------------- taxi trips, in full

TRIPS = {
    "id": "long",
    "cab_type_id": "int",
    "vendor_id": "int",
    "pickup_datetime": "timestamp",
    "dropoff_datetime": "timestamp",
    "store_and_fwd_flag": "boolean",
    "rate_code_id": "int",
    "pickup_longitude": "double",
    "pickup_latitude": "double",
    "dropoff_longitude": "double",
    "dropoff_latitude": "double",
    "passenger_count": "int",
    "trip_distance": "double",
    "fare_amount": "double",
    "extra": "double",
    "mta_tax": "double",
    "tip_amount": "double",
    "tolls_amount": "double",
    "ehail_fee": "double",
    "improvement_surcharge": "double",
    "congestion_surcharge": "double",
    "airport_fee": "double",
    "total_amount": "double",
    "payment_type": "int",
    "trip_type": "int",
    "pickup_nyct2010_gid": "int",
    "dropoff_nyct2010_gid": "int",
    "pickup_location_id": "int",
    "dropoff_location_id": "int",
}


def trips(count: int, seed: int) -> Iterator[bytes]:
    """Yield about 650 bytes of JSON: the 29 columns of the table ``trips`` of New York's taxis.

    The columns are those of nyc-taxi-data, which others load in their benchmarks, too. As there,
    younger columns are null, and so are a place's coordinates or its number.
    """
    dice = random.Random(seed)
    endings = [_trip_ending(dice) for _ in range(ENDINGS)]
    for number in range(count):
        middle, end = endings[number % ENDINGS]
        stamp = _stamp(number)
        times = f'"pickup_datetime":"{stamp}{_fraction(number)[:-1]}","dropoff_datetime":"{stamp}'
        yield f'{{"id":{number},{middle}{times}{end}'.encode()


def _trip_ending(dice: random.Random) -> tuple[str, str]:
    located = dice.random() < 0.5
    fare, tip = round(dice.uniform(3, 90), 2), round(dice.uniform(0, 20), 2)
    values: dict[str, object] = {
        "store_and_fwd_flag": dice.random() < 0.01,
        "rate_code_id": dice.choice((1, 1, 1, 2, 5)),
        **{
            f"{end}_{way}": round(dice.uniform(low, low + 0.4), 6) if located else None
            for end in ("pickup", "dropoff")
            for way, low in (("longitude", -74.1), ("latitude", 40.6))
        },
        "passenger_count": dice.randint(1, 6),
        "trip_distance": round(dice.uniform(0.4, 26), 2),
        "fare_amount": fare,
        "extra": dice.choice((0, 0.5, 1)),
        "mta_tax": 0.5,
        "tip_amount": tip,
        "tolls_amount": dice.choice((0, 0, 0, 5.54)),
        "ehail_fee": None,
        "improvement_surcharge": 0.3,
        "congestion_surcharge": dice.choice((None, 2.5)),
        "airport_fee": None,
        "total_amount": round(fare + tip + 1.3, 2),
        "payment_type": dice.randint(1, 4),
        "trip_type": dice.choice((None, 1, 2)),
        **{
            f"{end}_nyct2010_gid": dice.randint(1, 2167) if located else None
            for end in ("pickup", "dropoff")
        },
        **{f"{end}_location_id": dice.randint(1, 263) for end in ("pickup", "dropoff")},
    }
    front = f'"cab_type_id":{dice.randint(1, 2)},"vendor_id":{dice.randint(1, 2)},'
    rest = json.dumps(values, separators=(",", ":"))[1:]
    return front, f'{dice.randint(0, 59):02d}.{dice.randint(0, 999):03d}",{rest}'


# ---------------------------------------------------------------------------------- small events

EVENTS = {
    "id": "long",
    "at": "timestamptz",
    "user": "string",
    "method": "string",
    "path": "string",
    "status": "int",
    "took_us": "int",
}
EVENT_BYTES = 142
DERIVED = {
    "failed": ("boolean", "`status` >= 400"),
    "took_ms": ("double", "CAST(`took_us` AS DOUBLE) / 1000"),
    "account": ("string", "UPPER(`user`)"),
    "verb": ("string", "LOWER(`method`)"),
    "section": ("string", "SUBSTRING(`path`, 2, 4)"),
}


def events(count: int, seed: int) -> Iterator[bytes]:
    """Yield requests to some server, of exactly 142 bytes each."""
    dice = random.Random(seed)
    endings = [_event_ending(dice) for _ in range(ENDINGS)]
    for number in range(count):
        # Blanks inside the object, where JSON allows them, make up for short numbers.
        front = f'{{"id":{number},"at":"{_stamp(number)}{_fraction(number)}"'
        text = f"{front},{endings[number % ENDINGS]}"
        yield (text + " " * (EVENT_BYTES - 1 - len(text)) + "}").encode()


def _event_ending(dice: random.Random) -> str:
    return (
        f'"user":"u{dice.randint(0, 99_999):05d}","method":"{dice.choice(METHODS)}",'
        f'"path":"/{dice.choice(WORDS)}/{dice.randint(0, 999)}",'
        f'"status":{dice.choice((200, 201, 404, 500))},"took_us":{dice.randint(90, 90_000)}'
    )


# ---------------------------------------------------------------------------------- wide records

WIDE_KINDS = ("long", "int", "double", "string", "timestamptz")
WIDE = {"id": "long"} | {f"c{n:02d}": WIDE_KINDS[n % len(WIDE_KINDS)] for n in range(1, 100)}
_AVRO_KINDS = {
    "long": "long",
    "int": "int",
    "double": "double",
    "string": "string",
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros"},
}


def wide_schema(columns: Mapping[str, str]) -> dict[str, object]:
    """Return an Avro record of the columns, in which every field but the id may be null."""
    fields = [
        {"name": name, "type": _AVRO_KINDS[kind] if name == "id" else ["null", _AVRO_KINDS[kind]]}
        for name, kind in columns.items()
    ]
    return {"type": "record", "name": "wide", "fields": fields}


def _wide_value(dice: random.Random, kind: str) -> object:
    match kind:
        case "long":
            return dice.randrange(2**40)
        case "int":
            return dice.randrange(100_000)
        case "double":
            return round(dice.uniform(0, 1000), 3)
        case "string":
            return f"{dice.choice(WORDS)}-{dice.randint(0, 99)}"
    return 1_785_542_400_000_000 + dice.randrange(86_400_000) * 1000


def _wide_rows(columns: Mapping[str, str], seed: int, count: int) -> Iterator[dict[str, object]]:
    dice = random.Random(seed)
    for _ in range(count):
        yield {name: _wide_value(dice, kind) for name, kind in columns.items() if name != "id"}


def avro_maker(columns: Mapping[str, str], endings: int) -> Maker:
    """Make records of plain Avro: the id in front, then one of the rendered endings."""

    def records(count: int, seed: int) -> Iterator[bytes]:
        schema = fastavro.parse_schema(wide_schema(columns))
        rendered = []
        for row in _wide_rows(columns, seed, endings):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, {"id": 0, **row})
            rendered.append(out.getvalue()[1:])  # an id of 0 is one byte
        for number in range(count):
            yield zigzag(number) + rendered[number % endings]

    return records


def zigzag(number: int) -> bytes:
    """Encode a non-negative number as Avro's long."""
    left, out = number << 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def wide_json(count: int, seed: int) -> Iterator[bytes]:
    """Yield the same hundred columns as JSON, about 1.9 kB."""
    rendered = []
    for row in _wide_rows(WIDE, seed, 1009):
        parts = []
        for name, value in row.items():
            kind = WIDE[name]
            if kind == "timestamptz":
                assert isinstance(value, int)
                second, millis = divmod(value // 1000, 1000)
                text = f'"2026-08-01T{second // 3600 % 24:02d}:{second // 60 % 60:02d}:'
                parts.append(f'"{name}":{text}{second % 60:02d}.{millis:03d}Z"')
            else:
                parts.append(f'"{name}":"{value}"' if kind == "string" else f'"{name}":{value}')
        rendered.append(",".join(parts) + "}")
    for number in range(count):
        yield f'{{"id":{number},{rendered[number % 1009]}'.encode()


# -------------------------------------------------------------------------------- nested records

NESTED = {
    "id": "long",
    "at": "timestamptz",
    "customer": "struct<name: string, tier: int, address: struct<city: string, zip: string>>",
    "items": "list<struct<sku: string, quantity: int, price: double>>",
    "labels": "map<string, string>",
}


def nested(count: int, seed: int) -> Iterator[bytes]:
    """Yield orders: a struct in a struct, a list of structs, a map."""
    dice = random.Random(seed)
    endings = [_nested_ending(dice) for _ in range(ENDINGS)]
    for number in range(count):
        front = f'{{"id":{number},"at":"{_stamp(number)}{_fraction(number)}"'
        yield f"{front},{endings[number % ENDINGS]}".encode()


def _nested_ending(dice: random.Random) -> str:
    items = ",".join(
        f'{{"sku":"{dice.choice(WORDS)}-{dice.randint(0, 999)}","quantity":{dice.randint(1, 9)},'
        f'"price":{dice.uniform(1, 99):.2f}}}'
        for _ in range(dice.randint(1, 3))
    )
    labels = ",".join(f'"{word}":"{dice.randint(0, 99)}"' for word in dice.sample(WORDS, 2))
    return (
        f'"customer":{{"name":"n{dice.randint(0, 9999)}","tier":{dice.randint(1, 4)},"address":'
        f'{{"city":"{dice.choice(ZONES)}","zip":"{dice.randint(10_000, 99_999)}"}}}},'
        f'"items":[{items}],"labels":{{{labels}}}}}'
    )


# ----------------------------------------------------------------------------------------- all

_NARROW = dict(list(WIDE.items())[:10])


def _avro(name: str, columns: Mapping[str, str], endings: int) -> Workload:
    options = {"schema": json.dumps(wide_schema(columns))}
    return Workload(name, columns, avro_maker(columns, endings), "avro", options)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("taxi", TAXI, taxi),
        Workload("riders", {"id": "long", "email": "string", **TAXI}, riders),
        Workload("trips", TRIPS, trips),
        Workload("events", EVENTS, events),
        Workload("derived", EVENTS, events, derived=DERIVED),
        Workload("nested", NESTED, nested),
        Workload("wide-json", WIDE, wide_json),
        _avro("avro", _NARROW, 20_011),
        _avro("wide-avro", WIDE, 2003),
    )
}
