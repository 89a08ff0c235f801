"""What all tests of the simulation share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of faults are played, and each would be logged."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
