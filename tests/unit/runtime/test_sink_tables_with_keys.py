"""A sink with a key is put together so that its table, and no other, resolves keys."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.keyed_world import NAME, SINK, Event, KeyedWorld
from support.local_catalog import local_catalog
from unit.operations.audit.test_keyed_tables import SINK_FILE

from headgate.config.configuration_fingerprint import settings_to_agree_on
from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import KeyIndexFull
from headgate.control_protocol.ports import Landed
from headgate.control_protocol.table_format import Use
from headgate.control_protocol.testing.source import FakeSource, FakeTopics
from headgate.runtime.sink_tables import SinkTables
from headgate.tables.iceberg.upsert.key_reader import KeyReader


def settings(home: Path, more: str = "") -> SinkSettings:
    text = SINK_FILE.format(sink=SINK, catalog="local", properties=f'home = "{home}"', table=NAME)
    return parse(text + more)


def test_key_7_the_index_has_the_memory_that_the_settings_allow(tmp_path: Path) -> None:
    catalog = local_catalog(tmp_path).catalog
    world = KeyedWorld.create(catalog, 2)
    world.commit([Event((n,), "a") for n in range(3)])
    world.table = SinkTables.from_open_catalog(settings(tmp_path), catalog).open_primary(
        Use.PRIMARY
    )
    assert world.commit([Event((1,), "b"), Event((2,))]).updated == 1
    bounded = settings(tmp_path, "[changes]\nindex_memory_bytes = 8\n")
    world.table = SinkTables.from_open_catalog(bounded, catalog).open_primary(Use.PRIMARY)
    with pytest.raises(KeyIndexFull, match="raise changes"):
        world.commit([Event((1,), "c")])


def test_config_1_participants_agree_on_what_changes_mean(tmp_path: Path) -> None:
    plain = settings_to_agree_on(settings(tmp_path))
    assert (plain["table.key"], plain["changes"]) == ("id", "plain, delete, fail, fail")
    assert plain == settings_to_agree_on(settings(tmp_path, "[changes]\nindex_memory_bytes = 56\n"))
    for said in ('envelope = "dms"', 'tombstones = "skip"', 'on_truncate = "skip"'):
        assert settings_to_agree_on(settings(tmp_path, f"[changes]\n{said}\n")) != plain


@pytest.mark.parametrize("leads", [True, False])
def test_key_7_who_only_claims_reads_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, leads: bool
) -> None:
    """As the delivery that refreshes an idle secondary table (FRESH-2)."""
    catalog = local_catalog(tmp_path).catalog
    world = KeyedWorld.create(catalog, 2)
    world.commit([Event((1,), "a")])
    tables, reads = SinkTables.from_open_catalog(settings(tmp_path), catalog), list[object]()
    monkeypatch.setattr(KeyReader, "read_data_file", lambda *asked: reads.append(asked))
    before = set(threading.enumerate())
    with ExitStack() as opening:
        topics = FakeTopics(FakeSource(), [])
        coordinated = tables.open_coordinator_ports(settings(tmp_path), topics, opening)
        table = coordinated.table if leads else tables.open_primary()
        assert isinstance(table.commit(world.attempt(())), Landed)
        for thread in set(threading.enumerate()) - before:
            if thread.name == "headgate-key-index":  # others may not have begun, or never end
                thread.join()
    assert len(reads) == int(leads)
