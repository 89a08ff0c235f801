"""Says what a sink file's ``[shape]`` does to rows, as one value for other processes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from headgate.control_protocol.errors import ShapeUnfit


@dataclass(frozen=True, slots=True)
class Mask:
    """Replaces the middle of a column's texts: ``first`` and ``last`` characters of it stay.

    A text with no more characters than stay is replaced as a whole.
    """

    column: str
    first: int
    last: int
    by: str


@dataclass(frozen=True, slots=True)
class Expectation:
    """Holds a condition that rows must meet. ``strict``: one that is unknown is not met."""

    name: str
    condition: str = field(repr=False)
    strict: bool = False

    @property
    def reason_if_not_met(self) -> str:
        """Return why a record that does not meet it is bad."""
        return f"expectation {self.name} is not met"


@dataclass(frozen=True, slots=True)
class RowRules:
    """Says which rows stay, what they must meet, and which of their columns nobody may see.

    ``where``: the condition under which a row stays; empty: all do. ``key``: of the hash.
    ``tables``: a pattern of the tables that are meant; empty: every table. ``late_by``: the column
    by which rows that have expired already do not stay (EXPIRY-1). No ``repr`` shows the
    key, or a condition: it may name a person.
    """

    where: str = field(default="", repr=False)
    expectations: tuple[Expectation, ...] = ()
    hashed: tuple[str, ...] = ()
    masks: tuple[Mask, ...] = ()
    key: bytes = field(default=b"", repr=False)
    tables: str = ""
    late_by: str = ""

    @property
    def hidden_columns(self) -> tuple[str, ...]:
        """Return the columns whose values nobody may see."""
        return (*self.hashed, *(mask.column for mask in self.masks))

    def with_row_age_limit(self, oldest_literal: str) -> RowRules:
        """Return the rules with a limit for the rows' time; one without a time stays."""
        name = f'"{self.late_by}"'
        young = f"({name} is null or {name} >= '{oldest_literal}')"
        return replace(self, where=f"({self.where}) and {young}" if self.where else young)

    def has_rules_for(self, table: str) -> bool:
        """Return whether they concern the rows of this table."""
        any_rule = bool(self.where or self.expectations or self.hidden_columns)
        return any_rule and bool(not self.tables or re.fullmatch(self.tables, table))


def masked_key_error(column: str, table: str = "") -> ShapeUnfit:
    """Build the error for a mask of a column of the key: several keys would become one."""
    return ShapeUnfit(
        f"{table + ': ' if table else ''}shape.mask names {column!r}, a column of the key",
        "different keys would become one; hash it instead: equal values have equal hashes",
    )
