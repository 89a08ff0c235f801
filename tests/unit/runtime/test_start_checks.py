"""What a start asks of a table that is there, or that is to be created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchTableError
from unit.operations.check.test_table_and_catalog import nobody, open_to_all

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import ConfigurationError, MissingRights, Unreachable
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


LONG = "\u00e4" * 100


@pytest.mark.parametrize(
    ("identifier", "is_refused"),
    [
        (f"db.{'t' * 255}", False),
        (f"db.{'t' * 256}", True),
        (f"{'n' * 200}.{LONG}", False),
        (f"{'n' * 200}.{LONG * 2}", True),  # 200 characters each, and 400 bytes here
        (f"{'a' * 127}.{'b' * 127}.t", False),
        (f"{'a' * 128}.{'b' * 127}.t", True),  # a namespace is one folder
    ],
)
def test_no_folder_of_a_new_table_has_a_name_too_long_for_a_disk(
    tmp_path: Path, identifier: str, is_refused: bool
) -> None:
    named = FILE.replace("db.trips", identifier).replace("[table]", "[table]\ncreate = true")
    sql = named.replace('type = "rest", uri = "http://localhost:8181"%s', "%s") % (
        f'type = "sql", uri = "sqlite:///{tmp_path}/lake.db", warehouse = "file://{tmp_path}"'
    )
    made = parse(sql + '\n[[table.columns]]\nname = "id"\ntype = "long"\n')
    if is_refused:
        with pytest.raises(ConfigurationError, match="no folder may be named"):
            start_checks.require_creatable_table(made)
    else:
        start_checks.require_creatable_table(made)


def test_a_location_below_a_folder_that_may_not_be_searched_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home" / "lake").mkdir(parents=True)
    open_to_all(tmp_path)
    (tmp_path / "home").chmod(0)
    try:
        with nobody(), pytest.raises(MissingRights, match="home may not be written"):
            start_checks.require_known_scheme_or_writable_folder(
                f"file://{tmp_path}/home/lake/trips"
            )
    finally:
        (tmp_path / "home").chmod(0o755)
