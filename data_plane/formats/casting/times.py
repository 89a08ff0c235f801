"""Reads dates and times from text, exactly: one value at a time, and whole columns with Arrow.

Text is ISO 8601: ``2026-08-01T12:30:15.123456+02:00``, with ``T`` or a space, and ``Z``, ``+00``,
``+00:00``, ``+0000`` or no zone. Trailing parts of the time may be missing (zero). A column with a
zone takes text without one as UTC. A column without a zone takes text with one only if it is UTC,
since anything else would shift the value; the same goes for dates and times of the day with a
trailing ``Z``. Digits that the column cannot hold are an error, not dropped. Years are 1 to 9999
everywhere: readers and statistics know no others. ``iso_text`` writes what is read here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_UNITS_PER_SECOND = {"us": 1_000_000, "ns": 1_000_000_000}
_UNIT_DIGITS = {"us": 6, "ns": 9}
_INT64_MAX = 2**63 - 1

_DAY_MIN, _DAY_MAX = -719_162, 2_932_896
_PER_DAY = {"d": 1, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_BOUNDS = {
    unit: (max(_DAY_MIN * per_day, -_INT64_MAX - 1), min((_DAY_MAX + 1) * per_day - 1, _INT64_MAX))
    for unit, per_day in _PER_DAY.items()
}

_TIME = r"(\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?"
_ZONE = r"(Z|[+-]\d\d(?::?\d\d)?)"
_DATE_TEXT = re.compile(r"(\d{4})-(\d\d)-(\d\d)Z?", re.ASCII)
_TIME_TEXT = re.compile(f"{_TIME}Z?", re.ASCII)
_TIMESTAMP_TEXT = re.compile(rf"(\d{{4}}-\d\d-\d\d)(?:[T ]{_TIME}{_ZONE}?)?", re.ASCII)
_UTC_ENDING = r"(Z|[+-]00(:?00)?)$"
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def parse_date(text: str) -> int:
    """Return days since 1970-01-01. Raises ``ValueError``."""
    result = _DATE_TEXT.fullmatch(text)
    if not result:
        raise ValueError("is not a date like 2026-08-01")
    year, month, day = (int(part) for part in result.groups())
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    longest = 28 if month == 2 and not leap else _MONTH_DAYS[(month - 1) % 12]
    if not 1 <= month <= 12 or not 1 <= day <= longest:
        raise ValueError("is not a day of the calendar")
    return require_years_1_to_9999(_days_since_1970(year, month, day), "d")


def _days_since_1970(year: int, month: int, day: int) -> int:
    # The year begins in March, so that the leap day is its last; an era has 400 years.
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def parse_time(text: str, unit: str) -> int:
    """Return units since midnight. Raises ``ValueError``."""
    result = _TIME_TEXT.fullmatch(text)
    if not result:
        raise ValueError("is not a time like 12:30:15.123456")
    return _units_since_midnight(result.groups(), unit)


def parse_timestamp(text: str, unit: str, *, zoned: bool) -> int:
    """Return units since 1970-01-01T00:00 (UTC if ``zoned``). Raises ``ValueError``."""
    result = _TIMESTAMP_TEXT.fullmatch(text)
    if not result:
        raise ValueError("is not a timestamp like 2026-08-01T12:30:15.123456Z")
    date, *time, zone = result.groups()
    offset_s = _zone_offset_s(zone)
    if offset_s and not zoned:
        raise ValueError("has a zone offset, the column has none")
    per_second = _UNITS_PER_SECOND[unit]
    seconds = parse_date(date) * 86_400 - offset_s
    units = seconds * per_second + (_units_since_midnight(time, unit) if time[0] else 0)
    return require_years_1_to_9999(units, unit)


def require_years_1_to_9999(units: int, unit: str) -> int:
    """Return the count itself if it is within the years 1 to 9999. Raises ``ValueError``."""
    least, most = _BOUNDS[unit]
    if not least <= units <= most:
        raise ValueError("is out of range")
    return units


def _units_since_midnight(groups: tuple[str | None, ...] | list[str | None], unit: str) -> int:
    hour, minute, second = (int(part or 0) for part in groups[:3])
    fraction = (groups[3] or "").ljust(9, "0")
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("is not a time of the day")
    digits = _UNIT_DIGITS[unit]
    if int(fraction[digits:] or 0):
        raise ValueError(f"is finer than the column's unit ({unit})")
    seconds = hour * 3600 + minute * 60 + second
    return seconds * _UNITS_PER_SECOND[unit] + int(fraction[:digits])


def _zone_offset_s(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    hour, minute = int(digits[:2]), int(digits[2:])
    if hour > 23 or minute > 59:
        raise ValueError("has an impossible zone offset")
    return (hour * 3600 + minute * 60) * (-1 if zone[0] == "-" else 1)


def iso_text(units: int, data_type: pa.DataType) -> str:
    """Return the text of a date, a time of the day, or a timestamp (in UTC, if it has a zone)."""
    if pa.types.is_date(data_type):
        return (_EPOCH + timedelta(days=units)).date().isoformat()
    micros, nanos = divmod(units, _UNITS_PER_SECOND[data_type.unit] // 1_000_000)
    moment = _EPOCH + timedelta(microseconds=micros)
    text = f"{moment.isoformat(timespec='microseconds')}{nanos:03}" if nanos else moment.isoformat()
    if pa.types.is_time(data_type):
        return text.partition("T")[2]
    return f"{text}+00:00" if data_type.tz else text


def parse_uniform_timestamps(texts: pa.Array, target: pa.TimestampType) -> pa.Array:
    """Convert a column of text whose values are all written alike. Raises ``pa.ArrowInvalid``."""
    naive, zoned = pa.timestamp(target.unit), pa.timestamp(target.unit, tz="UTC")
    first, second = (zoned, naive) if target.tz else (naive, zoned)
    try:
        return texts.cast(first)
    except pa.ArrowInvalid:
        if not target.tz and not _has_no_false(pc.match_substring_regex(texts, _UTC_ENDING)):
            raise
        # Both directions keep the number: it counts from the same midnight, in UTC.
        return texts.cast(second).cast(pa.int64()).cast(target)


def parse_uniform_times(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert times of the day, like ``parse_uniform_timestamps``."""
    times = without_trailing_z(texts)
    dated = pc.binary_join_element_wise(pa.scalar("1970-01-01T", times.type), times, "")
    return dated.cast(pa.timestamp(target.unit)).cast(pa.int64()).cast(target)


def without_trailing_z(texts: pa.Array) -> pa.Array:
    """Remove the ``Z`` after dates or times of the day."""
    return pc.replace_substring_regex(texts, "Z$", "")


def has_only_years_1_to_9999(column: pa.Array) -> bool:
    """Return whether a column of dates or timestamps stays within the years 1 to 9999."""
    dates = pa.types.is_date32(column.type)
    counts = column.cast(pa.int32() if dates else pa.int64())
    least, most = _BOUNDS["d" if dates else column.type.unit]
    result = pc.min_max(counts).as_py()
    return result["min"] is None or (least <= result["min"] and result["max"] <= most)


def _has_no_false(flags: pa.Array) -> bool:
    return pc.all(flags, min_count=0).as_py() is not False
