"""Describes numbers that count time in a unit that their schema names, as in Debezium's connectors.

Connect's converters write such a number with Debezium's name for it but without a logical type, so
that it would be taken for milliseconds.
"""

from __future__ import annotations

import pyarrow as pa

_SPACE, _DAYS, _NO_MOMENT = "io.debezium.time.", "d", ""


class Counted(pa.ExtensionType):  # type: ignore[misc] # pyarrow has no types
    """Types a number of ``unit``, since midnight (``of_day``) or since 1970.

    Without a unit it is a year or a duration: not a point in time, whatever the column.
    """

    def __init__(self, unit: str, *, of_day: bool = False) -> None:
        self.unit, self.of_day = unit, of_day
        super().__init__(pa.int64(), "headgate.counted")

    def __arrow_ext_serialize__(self) -> bytes:
        return f"{self.unit},{self.of_day:d}".encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, _: pa.DataType, serialized: bytes) -> Counted:
        unit, of_day = serialized.decode().split(",")
        return cls(unit, of_day=of_day == "1")

    def can_become(self, target: pa.DataType) -> bool:
        """Return whether such numbers are values of this date, time or timestamp type."""
        if self.unit == _NO_MOMENT:
            return False
        if self.unit == _DAYS:
            return bool(pa.types.is_date(target))
        return bool(pa.types.is_time(target) if self.of_day else pa.types.is_timestamp(target))


_KNOWN = {
    "Date": Counted(_DAYS),
    "Time": Counted("ms", of_day=True),
    "MicroTime": Counted("us", of_day=True),
    "NanoTime": Counted("ns", of_day=True),
    "Timestamp": Counted("ms"),
    "MicroTimestamp": Counted("us"),
    "NanoTimestamp": Counted("ns"),
    **dict.fromkeys(("Year", "MicroDuration", "NanoDuration"), Counted(_NO_MOMENT)),
}


def debezium_time_type(schema_name: str) -> Counted | None:
    """Return what numbers with this schema name count; ``None`` if the name does not tell."""
    return _KNOWN.get(schema_name.removeprefix(_SPACE)) if schema_name.startswith(_SPACE) else None
