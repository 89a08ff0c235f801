"""Defines the settings for rows shaped in headgate itself: ``[shape]``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from headgate.config.setting_types import Secret, Text
from headgate.data_plane.batch.row_rules import Expectation, Mask, RowRules


class Unknown(StrEnum):
    """What becomes of a record for which nulls leave open whether it meets an expectation."""

    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskSettings:
    """One masked column."""

    column: Text
    """Name of a string column."""
    keep_first: Annotated[int, "characters"] = 0
    """Characters at the beginning that stay."""
    keep_last: Annotated[int, "characters"] = 0
    """Characters at the end that stay. A text with no more characters than stay is masked as a
    whole."""
    replace_by: Text = "***"
    """Text in place of the others, whatever their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectationSettings:
    """One condition that every row has to meet; a record that does not is a bad one."""

    name: Text
    """Name of the expectation, for the reason of bad records."""
    that: Text
    """The condition, written as shape.where."""
    unknown: Unknown = Unknown.GOOD
    """What becomes of a record for which a null leaves the condition open: good or bad."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSettings:
    """Which records become rows, and what nobody may see of them; docs/guides/shaping-rows.md has
    the rules."""

    where: Text = ""
    """Condition under which a record becomes a row, such as "country in ('DE', 'FR') and fare >=
    0"; others are skipped and counted. In a keyed table such a record deletes the row of its key.
    """
    expect: tuple[ExpectationSettings, ...] = ()
    """Conditions that make a record a bad one if it does not meet them."""
    hash: tuple[Text, ...] = ()
    """Columns that hold the HMAC-SHA-256 of a text: a string column its 64 hexadecimal digits, one
    of type fixed(32) or binary its 32 bytes, which is cheaper."""
    hash_key: Secret = Secret()
    """Key of these hashes, as ${file:PATH} or ${env:NAME}: at least 32 characters, the same for all
    members, and for every sink whose hashes are to be compared."""
    mask: tuple[MaskSettings, ...] = ()
    """String columns of which only a part is written."""
    tables: Text = ""
    """Pattern of the whole names of the tables that all this is for, if [tables] declares many;
    empty: every table."""

    def __bool__(self) -> bool:
        return bool(self.where or self.expect or self.hidden_columns)

    @property
    def hidden_columns(self) -> tuple[str, ...]:
        """Return the columns whose values nobody may see."""
        return (*self.hash, *(each.column for each in self.mask))

    @property
    def row_rules(self) -> RowRules | None:
        """Return them as tasks take them; ``None`` if there are none."""
        if not self:
            return None
        return RowRules(
            where=self.where,
            expectations=tuple(
                Expectation(each.name, each.that, each.unknown is Unknown.BAD)
                for each in self.expect
            ),
            hashed=self.hash,
            masks=tuple(
                Mask(each.column, each.keep_first, each.keep_last, each.replace_by)
                for each in self.mask
            ),
            key=self.hash_key.text.encode(),
            tables=self.tables,
        )
