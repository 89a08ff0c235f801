"""The sink file of a test deployment, and the small records that it is fed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset")
COLUMNS = {"id": "long", "zone": "string", "happened_at": "timestamptz"}

Sections = Mapping[str, Mapping[str, Any] | list[Mapping[str, Any]] | str | None]

HURRIED_MS = 5_000

KEPT: Sections = {"quarantine": {"policy": "quarantine", "per_thousand_max": 1_000}}
"""However many records are bad."""


def default_sections(home: Path, bootstrap: str, topics: Sequence[str], group: str) -> Sections:
    """A sink in a hurry: it commits twice a second, and misses a dead member after six."""
    return {
        "name": "sink",
        "source": {"topics": list(topics), "group_id": group},
        "kafka": {
            "bootstrap.servers": bootstrap,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_000,
        },
        "control": {"topic": f"{group}-control"},
        "catalog": {"name": "local"},
        "catalog.properties": {
            "type": "sql",
            "uri": f"sqlite:///{home}/catalog.sqlite",
            "warehouse": (home / "warehouse").as_uri(),
        },
        "table": {"identifier": "db.rows", "create": True},
        "table.columns": {"columns": COLUMNS},
        "table.record_columns": dict(
            zip(("topic", "partition", "offset"), COORDINATES, strict=True)
        ),
        "coordinator": {
            "commit_interval_ms": 500,
            "commit_timeout_ms": HURRIED_MS,
            "rebalance_delay_ms": 200,
            "election_timeout_ms": 3_000,
            "retry_backoff_max_ms": 1_000,
        },
        "participant": {
            "presence_interval_ms": 1_000,
            "end_offset_interval_ms": 200,
            "release_timeout_ms": 5_000,
            "retry_backoff_ms": 200,
        },
        "spark": {"writer": "in-process"},
    }


def patient(sections: Sections) -> Sections:
    """With time for Spark: where others use the cores its first batches take long, and one that
    never comes in time is written again for ever.
    """
    spark, coordinator = sections["spark"], sections["coordinator"]
    assert isinstance(spark, Mapping)
    assert isinstance(coordinator, Mapping)
    if spark["writer"] != "spark" or coordinator["commit_timeout_ms"] != HURRIED_MS:
        return sections
    return {**sections, "coordinator": {**coordinator, "commit_timeout_ms": 6 * HURRIED_MS}}


def toml(sections: Sections) -> str:
    """Columns are written as the list of sections that they are; the rest as it stands."""
    lines = [f"{key} = {json.dumps(v)}" for key, v in sections.items() if isinstance(v, str)]
    for name, section in sections.items():
        if name.endswith(".columns") and isinstance(section, Mapping):
            for column, kind in section["columns"].items():
                said = kind if isinstance(kind, Mapping) else {"type": kind}
                lines += [f"[[{name}]]", f'name = "{column}"']
                lines += [f"{key} = {json.dumps(value)}" for key, value in said.items()]
                if column in _record_columns(sections):
                    lines.append("from_record = true")
        elif isinstance(section, Mapping):
            lines.append(f"[{name}]")
            lines += _keys(section)
        elif isinstance(section, list):
            for one in section:
                lines += [f"[[{name}]]", *_keys(one)]
    return "\n".join(lines) + "\n"


def _keys(section: Mapping[str, Any]) -> list[str]:
    return [f"{json.dumps(key)} = {_value(value)}" for key, value in section.items()]


def _value(value: Any) -> str:
    """As TOML has it, whose sections inside of lists are not JSON's."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_keys(value)) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


def _record_columns(sections: Sections) -> Sequence[str]:
    named = sections.get("table.record_columns", {})
    return list(named.values()) if isinstance(named, Mapping) else []


def record(number: int) -> bytes:
    """A small record whose columns partition well: three zones, and a day per hundred records."""
    day = 1 + number // 100 % 28
    return (
        f'{{"id":{number},"zone":"{"abc"[number % 3]}","happened_at":"2026-01-{day:02}T06:00:00Z"}}'
    ).encode()


def bad_record(number: int) -> bytes:
    """One that no table of these columns takes: broken text, or a value that does not fit."""
    return b"{broken" if number % 2 else f'{{"id":{number}.5,"zone":"d"}}'.encode()
