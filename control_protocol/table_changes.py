"""What participants need of tables that no START names, and the results (S2, S3, N1)."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.control_protocol.column_growth import Refusal
from headgate.control_protocol.columns import Struct
from headgate.control_protocol.events import Destination
from headgate.control_protocol.offsets import Offsets


@dataclass(frozen=True, slots=True)
class TableNeed:
    """What a batch's records need of one table that a route names.

    ``at`` is the table as the writer found it; without a UUID there is none yet, and ``raw`` is the
    name from which the route made its name. ``first`` and ``records`` are as in ``BatchNeeds``.
    """

    at: Destination
    columns: Struct
    first: Offsets
    records: int
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Want:
    """The joined request of all waiting proposals for one table; fields as in ``TableNeed``."""

    at: Destination
    columns: Struct
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """A table after changes to it were asked for. ``data``: where its data files go.

    ``changes`` says in words what was done, ``refused`` which fields become no column. Without a
    ``uuid`` there is no such table: it is not made for the reason ``why``, and if ``any_other`` is
    set, neither is any other that the contents of records name (R4); ``dropped``: it was there
    once, and rows went to it (N5). ``failure``: the outcome is unknown, so ask again (S9).
    """

    table: str
    uuid: str = ""
    schema_id: int = 0
    spec_id: int = 0
    data: str = ""
    changes: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    why: str = ""
    any_other: bool = False
    dropped: bool = False
    failure: str = ""
