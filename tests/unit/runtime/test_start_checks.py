"""A start with expired file keys waits for them if somebody renews them."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchTableError

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import MissingRights, Unreachable
from headgate.runtime import dropped_table_detection, start_checks
from headgate.runtime.sink_tables import SinkTables

FILE = """
name = "trips"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "localhost:9092"
[catalog]
name = "lake"
properties = { type = "rest", uri = "http://localhost:8181"%s }
[table]
identifier = "db.trips"
"""
TOKEN = ', "s3.session-token" = "for-a-while"'
EXPIRED = OSError("An error occurred (ExpiredToken) when calling the GetObject operation: gone")


class Expired:
    """A catalog whose table cannot be read for so many calls, and is not there then."""

    def __init__(self, times: int) -> None:
        self.calls = 0
        self._times = times

    def load_table(self, _identifier: str) -> Any:
        self.calls += 1
        raise EXPIRED if self.calls <= self._times else NoSuchTableError("none")


def settings(more: str) -> SinkSettings:
    return parse(FILE % more)


def is_ready(catalog: Any, settings: SinkSettings) -> bool:
    return start_checks.require_fit_or_creatable_and_exists(
        SinkTables.from_open_catalog(settings, catalog)
    )


def test_a_start_waits_for_temporary_keys_that_have_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As whoever runs already does; ending with 2 would keep it from being started again."""
    monkeypatch.setattr(dropped_table_detection, "_AGAIN_S", 0.0)
    monkeypatch.setattr(start_checks, "require_creatable_table", lambda *_: None)
    catalog: Any = Expired(3)
    assert not is_ready(catalog, settings(TOKEN))
    assert catalog.calls == 4


def test_in_the_end_it_is_what_may_be_tried_again() -> None:
    catalog: Any = Expired(1)
    with pytest.raises(Unreachable, match="GetObject is refused"):
        start_checks.require_fit_iceberg_table(catalog, settings(TOKEN))


def test_keys_that_nobody_renews_end_the_start_at_once() -> None:
    catalog: Any = Expired(100)
    with pytest.raises(MissingRights):
        is_ready(catalog, settings(""))
    assert catalog.calls == 1
