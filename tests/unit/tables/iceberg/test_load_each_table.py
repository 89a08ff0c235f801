"""A catalog that is down keeps nobody waiting; one that answers is asked for each table."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError

from headgate.control_protocol.errors import HeadgateError, MissingRights, TableMissing, Unreachable
from headgate.tables.iceberg.load_each_table import IN_VAIN_MAX_S, load_each_table

NAMES = [f"db.t{number}" for number in range(10)]


class Slow(NoopCatalog):
    """Its calls take a sixth of the time that may be in vain, and end in the same error."""

    def __init__(self, error: Exception) -> None:
        super().__init__("slow")
        self.now_s = 0.0
        self._error = error

    def load_table(self, identifier: Any) -> Any:
        self.now_s += IN_VAIN_MAX_S / 6
        raise self._error


def answers(catalog: Slow) -> list[HeadgateError]:
    found = [answer for _, answer in load_each_table(catalog, NAMES, lambda: catalog.now_s)]
    return [answer for answer in found if isinstance(answer, HeadgateError)]


def test_a_catalog_that_is_down_is_not_asked_for_every_table() -> None:
    catalog = Slow(OSError("connection refused"))
    said = answers(catalog)
    assert len(said) == len(NAMES)
    assert catalog.now_s < IN_VAIN_MAX_S * len(NAMES) / 6
    assert isinstance(said[-1], Unreachable)
    assert "was not asked for" in str(said[-1])


@pytest.mark.parametrize(
    ("error", "kind"),
    [(NoSuchTableError("gone"), TableMissing), (ForbiddenError("no"), MissingRights)],
)
def test_that_a_table_is_gone_or_not_to_be_read_is_an_answer(
    error: Exception, kind: type[HeadgateError]
) -> None:
    assert {type(each) for each in answers(Slow(error))} == {kind}
