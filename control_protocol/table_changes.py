"""What participants need of tables that no START names, and what becomes of that (S2, S3, N1)."""

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
    name that the route made its name of. ``first`` and ``records`` are as in ``BatchNeeds``.
    """

    at: Destination
    columns: Struct
    first: Offsets
    records: int
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Want:
    """What all proposals that wait ask of one table; as ``TableNeed`` has it."""

    at: Destination
    columns: Struct
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """A table after it was asked for. ``data``: where it takes its data files.

    ``changes`` says in words what was done, ``refused`` which fields become no column. Without a
    ``uuid`` there is no such table: it is not made for the reason ``why``, and where ``any_other``
    is set neither is any other that the contents of records name (R4); ``dropped``: it was there
    once, and rows went to it (N5). ``failure``: nobody knows
    yet, it is to be asked for again (S9).
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
