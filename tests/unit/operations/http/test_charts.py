"""How charts write numbers."""

from __future__ import annotations

import pytest

from headgate.operations.http.charts import format_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.1234, "0.123"),
        (999.4, "999"),
        (999.6, "1000"),
        (1234.5, "1234"),
        (9_999, "9999"),
        (10_000, "10 k"),
        (999_400, "999 k"),
        (999_500, "1 M"),
        (1_234_567, "1.23 M"),
        (-999_999_999, "-1 G"),
        (999_999_999_999, "1 T"),
    ],
)
def test_three_figures_are_written_and_no_exponent(value: float, text: str) -> None:
    assert format_number(value) == text
