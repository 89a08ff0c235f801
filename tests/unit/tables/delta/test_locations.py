"""Where a Delta table may lie."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.table_format import TableFormat, TableSpec
from headgate.tables.delta.locations import require_supported_location
from headgate.tables.delta.table_format import DeltaFormat
from headgate.tables.hudi.lock_check import BASE_PATH, PROVIDER, URL
from headgate.tables.hudi.table_format import HudiFormat

LOCK = {
    PROVIDER: "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider",
    URL: "zk1:2181",
    BASE_PATH: "/hudi",
}


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


@pytest.mark.parametrize("text", ["20s", "", "nan", "inf", "0", "-1"])
@pytest.mark.parametrize("key", ["s3.request-timeout", "s3.connect-timeout"])
@pytest.mark.parametrize("form", [DeltaFormat(), HudiFormat()])
def test_a_time_out_that_is_no_number_of_seconds_is_refused_by_name(
    form: TableFormat, key: str, text: str
) -> None:
    properties = LOCK if isinstance(form, HudiFormat) else {}
    spec = TableSpec("db.t", "s3://lake/t", properties=properties, storage={key: "2.5"})
    form.require_supported(spec)
    with pytest.raises(ConfigurationError, match=rf"catalog\.properties\.{key} is '{text}'"):
        form.require_supported(replace(spec, storage={key: text}))
