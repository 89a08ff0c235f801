"""A sink file with ``table.key``: what goes with it, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headgate.control_protocol.errors import HeadgateError, KeyUnfit
from headgate.control_protocol.identifiers import SinkName
from headgate.coordinator.settings import CoordinatorSettings, RollbackPolicy
from headgate.sink import keyed_tables
from headgate.sink.declaration import declared
from headgate.sink.properties import Properties
from headgate.sink.settings import SinkSettings, SourceSettings
from headgate.sink.table_settings import ColumnSettings, RecordColumns, TableSettings

COLUMNS = (
    ColumnSettings(name="id", type="long", required=True),
    ColumnSettings(name="zone", type="string", required=True),
    ColumnSettings(name="fare", type="double", required=True),
    ColumnSettings(name="tip", type="long"),
    ColumnSettings(name="who", type="struct<name: string>", required=True),
)
PLACES = RecordColumns(partition="_partition", offset="_offset")


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_tables, "refuse_unfinished", lambda: None)


def settings(
    *key: str, topics: tuple[str, ...] = ("orders",), places: RecordColumns = PLACES, **more: Any
) -> SinkSettings:
    return SinkSettings(
        name=SinkName("orders"),
        source=SourceSettings(topics=topics),
        kafka=Properties({"bootstrap.servers": "localhost:1"}),
        table=TableSettings(
            identifier="lake.orders", columns=COLUMNS, key=key, record_columns=places
        ),
        **more,
    )


def test_a_keyed_table_is_refused_by_name_for_now() -> None:
    with pytest.raises(KeyUnfit, match="does not fill keyed tables yet"):
        settings("id")


@pytest.mark.usefixtures("finished")
def test_the_keys_columns_become_the_identifier_fields() -> None:
    schema = declared(settings("zone", "id").table).schema()
    assert schema.identifier_field_names() == {"id", "zone"}


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: settings("ide"), "no column 'ide'.*do you mean 'id'"),
        (lambda: settings("fare"), "of type double"),
        (lambda: settings("tip"), "not required"),
        (lambda: settings("who"), "of type struct"),
        (lambda: settings("id", "id"), "named twice"),
        (lambda: settings("id", places=RecordColumns(offset="_offset")), "which record a row"),
        (lambda: settings("id", topics=("a", "b")), "several topics"),
        (lambda: settings("id", topics=("a", "^b.*")), "several topics"),
        (
            lambda: settings(
                "id", coordinator=CoordinatorSettings(on_rollback=RollbackPolicy.KEEP_OFFSETS)
            ),
            "keep-offsets",
        ),
    ],
)
def test_u1_u12_what_does_not_go_with_a_key_is_refused(
    make: Callable[[], SinkSettings], why: str
) -> None:
    with pytest.raises(HeadgateError, match=why) as refused:
        make()
    assert refused.value.code == KeyUnfit.code
