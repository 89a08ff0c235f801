"""Where a Delta table may lie."""

from __future__ import annotations

import pytest

from headgate.control_protocol.errors import ConfigurationError
from headgate.tables.delta.locations import require_supported_location


@pytest.mark.parametrize("location", ["/lake/a%20b", "s3://lake/a%20b", "/lake/a?b", "/lake/a#b"])
def test_signs_that_addresses_are_read_by(location: str) -> None:
    """The log was written to ``a b`` and the files to ``a%20b``: no reader found them."""
    with pytest.raises(ConfigurationError, match="in it"):
        require_supported_location(location)


@pytest.mark.parametrize("location", ["s3://lake//t", "s3://lake/a//t/", "s3:///t", "s3://"])
def test_a_name_in_a_store_has_no_empty_parts(location: str) -> None:
    """delta-rs refused it when it read the log, which was then called damaged."""
    with pytest.raises(ConfigurationError, match="an empty part"):
        require_supported_location(location)


@pytest.mark.parametrize(
    "location", ["/lake/a b", "file:///lake/ä+b", "s3://lake/day=1/t", "s3://lake/t/", "/lake//t"]
)
def test_other_signs_may_be_in_a_location(location: str) -> None:
    require_supported_location(location)
