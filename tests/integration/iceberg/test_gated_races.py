"""Two committers, each held between its check of the requirements and its swap: one lands.

Here pyiceberg checks and swaps by itself. Where a server does (REST), ``test_racing`` and the
contract ask it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from contract.iceberg_table_world import IcebergWorld
from contract.test_sink_table import own_table
from integration.iceberg.races import a_sleeper_undoes_nothing, of_two_one_lands
from pyiceberg.catalog import Catalog
from support.object_store import ObjectStore
from support.postgres_server import PostgresServer

from headgate.control_protocol.identifiers import SinkName
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table import IcebergTable

pytestmark = pytest.mark.integration

GATE_S = 5.0


class Committers:
    """A table in a catalog, and as many openings of it as there are committers."""

    def __init__(self, folder: Path, properties: dict[str, str]) -> None:
        self.world = IcebergWorld(folder, properties, table=own_table())
        self._properties = {**self.world.catalog.properties, **properties}
        self._name = str(folder)

    def opened(self, wait: Callable[[], object]) -> tuple[Catalog, IcebergTable]:
        catalog = load_catalog(self._name, self._properties)
        held(catalog, wait)
        return catalog, IcebergTable(catalog, self.world.name, SinkName("sink"))


@pytest.fixture(params=["sqlite", "postgres", "glue"])
def committers(request: pytest.FixtureRequest, tmp_path: Path) -> Committers:
    local = {"warehouse": f"file://{tmp_path}/warehouse"}
    if request.param == "glue":
        store: ObjectStore = request.getfixturevalue("object_store")
        return Committers(tmp_path, {**store.glue(), **local})
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        return Committers(tmp_path, {**local, "type": "sql", "uri": server.uri})
    return Committers(tmp_path, {**local, "type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"})


def held(catalog: Catalog, wait: Callable[[], object]) -> None:
    """What is required was checked by then; the swap is behind it."""
    writes: Callable[..., None] = catalog._write_metadata  # type: ignore[attr-defined]

    def write(*arguments: Any, **named: Any) -> None:
        wait()
        writes(*arguments, **named)

    catalog._write_metadata = write  # type: ignore[attr-defined]


def test_of_two_that_were_checked_at_once_one_lands(committers: Committers) -> None:
    def at_gate(gate: Barrier) -> None:
        with suppress(BrokenBarrierError):  # some let the second in when the first is through
            gate.wait(GATE_S)

    of_two_one_lands(committers.world, committers.opened, at_gate)


def test_a_committer_that_slept_through_its_heirs_commits_undoes_nothing(
    committers: Committers,
) -> None:
    a_sleeper_undoes_nothing(committers.world, committers.opened)
