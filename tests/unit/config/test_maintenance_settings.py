"""Rows that expire: which settings go together, and what is refused by name (EXPIRY-1)."""

from __future__ import annotations

import pytest
from unit.config.test_load import MINIMAL, refusal

from headgate.config.load import parse
from headgate.control_protocol.errors import MaintenanceUnfit, RowExpiryUnfit, TableFormatLacks
from headgate.data_plane.batch.row_rules import RowRules
from headgate.runtime.write_planning import shaping_of

DAY_MS = 24 * 3_600_000
COLUMNS = '[[table.columns]]\nname = "at"\ntype = "timestamptz"\n'
EXPIRING = f'[maintenance]\nrows_after_ms = {30 * DAY_MS}\nrows_by = "at"\n'
SKIPPING = f'{EXPIRING}rows_late = "skip"\n'
KEYED = '[table.record_columns]\npartition = "p"\noffset = "o"\n'


def test_expiry_1_rows_expire_by_a_column_that_is_declared_or_the_tables_own() -> None:
    told = parse(MINIMAL + COLUMNS + EXPIRING).maintenance
    assert (told.rows_after_ms, told.rows_by, bool(told)) == (30 * DAY_MS, "at", True)
    assert parse(MINIMAL + EXPIRING).maintenance.rows_by == "at"
    assert not parse(MINIMAL).maintenance
    assert not parse(MINIMAL + EXPIRING).bad_record_limits.may_skip
    skipping = parse(MINIMAL + SKIPPING)
    assert skipping.bad_record_limits.may_skip
    assert shaping_of(skipping).rules == RowRules(late_by="at")


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        (COLUMNS + EXPIRING.replace('"at"', '"when"'), RowExpiryUnfit, "has no column 'when'"),
        (
            COLUMNS.replace("timestamptz", "long") + EXPIRING,
            RowExpiryUnfit,
            "is long, and rows expire by a time",
        ),
        (EXPIRING.replace('rows_by = "at"', ""), MaintenanceUnfit, "set without the other"),
        ('[maintenance]\nrows_by = "at"\n', MaintenanceUnfit, "set without the other"),
        ('[maintenance]\nrows_late = "skip"\n', MaintenanceUnfit, "and no rows expire"),
        (SKIPPING.replace('"at"', "'a\"t'"), MaintenanceUnfit, "no condition can name the column"),
        ('key = ["id"]\n' + KEYED + SKIPPING, MaintenanceUnfit, "together with table.key"),
        (
            SKIPPING + '[transform]\nsql = "SELECT * FROM records"\n',
            MaintenanceUnfit,
            "together with a transform",
        ),
        (EXPIRING.replace(str(30 * DAY_MS), "60000"), MaintenanceUnfit, "rows_after_ms is 60000"),
        (
            EXPIRING.replace(str(30 * DAY_MS), str(10**15)),
            MaintenanceUnfit,
            "rows_after_ms is 1000000000000000",
        ),
        (EXPIRING.replace(str(30 * DAY_MS), "-1"), MaintenanceUnfit, "rows_after_ms is -1"),
        (
            'shared_with = ["other"]\n' + EXPIRING,
            MaintenanceUnfit,
            "together with table.shared_with",
        ),
    ],
)
def test_expiry_1_what_cannot_expire_is_refused(text: str, kind: type, why: str) -> None:
    error = refusal(MINIMAL + text)
    assert isinstance(error, kind)
    assert why in error.message


def test_expiry_1_other_formats_and_many_tables_are_refused() -> None:
    delta = MINIMAL.replace("[table]\n", '[table]\ntype = "delta"\nlocation = "/tmp/t"\n')
    error = refusal(delta + EXPIRING)
    assert isinstance(error, TableFormatLacks)
    many = MINIMAL[: MINIMAL.index("[table]")] + (
        '[tables]\nledger = "db.ledger"\n[[tables.route]]\ntopic = "trips"\nto = "db.trips"\n'
        '[tables.record_columns]\ntopic = "t"\npartition = "p"\noffset = "o"\n'
    )
    parse(many)
    error = refusal(many + EXPIRING)
    assert isinstance(error, MaintenanceUnfit)
    assert "routes name the tables" in error.message
