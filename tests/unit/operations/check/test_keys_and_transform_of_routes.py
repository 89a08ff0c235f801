"""Tables of routes that have a key: what ``check`` says of them, and what is refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from unit.operations.routed_shop import CLICKS, FILE, ORDERS, Shop

from headgate.config.load import parse
from headgate.config.multi_table_settings import OneTableSettings, RouteSettings
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.errors import DeletionRefused, KeyChanged, KeyUnfit, ReplayUnfit
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.operations.audit.changelog_replay import SourceRanges
from headgate.operations.audit.keyed_tables import KeyedTable, KeyedTables
from headgate.operations.check import keys_and_transform as module
from headgate.operations.check.keys_and_transform import check_keys
from headgate.operations.control.delete_rows import RowDeletion, plan_deletion
from headgate.operations.many_tables.replay_quarantined import replay_tables
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

GOOD = '{"kind": "clicks"}'
BY_TOPIC = RouteSettings(topic=r"^(?P<name>\w+)$", to="db.{name}")
COLUMNS = {"id": "long not null", "topic": "string", "partition": "int", "offset": "long"}


@pytest.fixture
def plain(tmp_path: Path) -> SinkSettings:
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    text = FILE.format(uri=uri, warehouse=warehouse)
    return parse(text + '[quarantine]\npolicy = "quarantine"\n')


@pytest.fixture
def keyed(plain: SinkSettings) -> SinkSettings:
    """Clicks have a key, orders have none."""
    section = OneTableSettings(match="db.(clicks|users)", key=("id",))
    return replace(plain, tables=replace(plain.tables, route=(BY_TOPIC,), table=(section,)))


@pytest.fixture
def catalog(plain: SinkSettings) -> Iterator[Catalog]:
    with load_catalog(plain.catalog.name, plain.catalog.properties) as catalog:
        yield catalog


@pytest.fixture
def shop(catalog: Catalog, plain: SinkSettings) -> Shop:
    shop = Shop(catalog, plain)
    shop.commits({ORDERS: [0, 1], CLICKS: [2]})
    shop.diverts({CLICKS: {3: GOOD}}, {ORDERS: [4]})
    return shop


def asked(settings: SinkSettings, monkeypatch: pytest.MonkeyPatch, *topics: str) -> str:
    found = SimpleNamespace(describe=lambda: dict.fromkeys(topics))
    monkeypatch.setattr(module, "open_reachable_source_topics", lambda _: nullcontext(found))
    return check_keys(settings)


def test_suspend_6_nothing_is_put_again_into_a_keyed_table(shop: Shop, keyed: SinkSettings) -> None:
    assert shop.catalog.table_exists(CLICKS)
    with pytest.raises(ReplayUnfit, match=f"{CLICKS} has a key"):
        replay_tables(keyed, [CLICKS])
    assert replay_tables(keyed, []) == ()


def test_rows_of_keyed_tables_are_not_deleted(shop: Shop, keyed: SinkSettings) -> None:
    assert shop.catalog.table_exists(CLICKS)
    for names in ((), (CLICKS,)):
        with pytest.raises(DeletionRefused, match=f"{CLICKS} has a key"):
            plan_deletion(keyed, RowDeletion("offset >= 0", tables=names))
    (found,) = plan_deletion(keyed, RowDeletion("offset >= 0", tables=(ORDERS,)))
    assert (found.table, found.rows) == (ORDERS, 3)


def test_check_names_the_keyed_tables_of_the_topics(
    keyed: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(keyed, monkeypatch, "orders", "logs") == "no topic goes to a table with a key"
    said = asked(keyed, monkeypatch, "users", "clicks", "orders")
    assert said == "db.clicks by id; db.users by id"


def test_check_refuses_keyed_tables_that_cannot_be_filled(
    shop: Shop, keyed: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyUnfit, match="there is no column 'id'"):
        asked(keyed, monkeypatch, "clicks")
    shop.catalog.drop_table(CLICKS)
    create_table_if_missing(shop.catalog, CLICKS, TableDeclaration(COLUMNS))
    assert asked(keyed, monkeypatch, "clicks") == "db.clicks by id"
    with shop.catalog.load_table(CLICKS).transaction() as transaction:
        transaction.set_properties({"headgate.shop.claimed": "true"})
    with pytest.raises(KeyChanged, match="filled without a key"):
        asked(keyed, monkeypatch, "clicks")


AT = TopicPartition("clicks", 0)
OTHER = TopicPartition("orders", 0)


def record(number: int, upto: int, **more: Any) -> CommitRecord:
    return CommitRecord(
        sink=SinkName("shop"),
        group_id="group",
        transaction=TransactionId(Epoch(1), TransactionNumber(number)),
        coordinator=Sender("member", "life"),
        offsets=Offsets({AT: upto, OTHER: upto}),
        **more,
    )


def pending_commit(number: int) -> PendingCommit:
    transaction = TransactionId(Epoch(1), TransactionNumber(number))
    return PendingCommit(
        transaction, Sender("member", "life"), "uuid", CLICKS, f"{number}.avro", deletes=1
    )


@pytest.mark.parametrize(
    ("primary", "upto"),
    [
        (record(7, 90), 90),
        (record(7, 90, pending_commits=(pending_commit(7),)), 50),
        (
            record(7, 90, pending_commits=(pending_commit(4),)),
            90,
        ),  # acknowledged by a read, and named still
        (record(7, 90, expired=(pending_commit(3),)), None),
    ],
)
def test_a_table_is_folded_as_far_as_it_was_delivered(
    keyed: SinkSettings, monkeypatch: pytest.MonkeyPatch, primary: CommitRecord, upto: int | None
) -> None:
    """It was delivered transaction 4, whose offsets were 50."""
    asked: list[tuple[Mapping[str, Offsets], SourceRanges]] = []
    monkeypatch.setattr(KeyedTables, "_replay_and_compare", lambda _, *what: asked.append(what))
    tables = KeyedTables(keyed, lambda *_: None)
    delivered = record(4, 50, primary="uuid-of-the-lead")
    history = SimpleNamespace(current_record=delivered, table=CLICKS, uuid="uuid")
    tables.tables[CLICKS] = KeyedTable(CLICKS, None, history, delivered.offsets)  # type: ignore[arg-type]
    ranges = {AT: OffsetRange(10, 90)}
    tables.compare_with_replay(primary, "uuid-of-the-lead", ranges, {})
    (found,) = asked
    assert {name: offsets[AT] for name, offsets in found[0].items()} == (
        {CLICKS: upto} if upto else {}
    )
    assert found[1].ranges == ranges
    told = "; ".join(tables.conclusions.unproven)
    assert ("pending for too long" in told) == (upto is None)
