from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate",
        action="store_true",
        help="write the golden conversations anew: pytest tests/scenarios --regenerate",
    )
