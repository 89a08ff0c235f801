"""``headgate check --catalog`` on catalogs that differ: what was tried, what follows and stays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from integration.iceberg.rest_server import LyingProxy
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from support.small_rest_catalog import SmallRestCatalog
from unit.operations.filled_table import sink_file_text

from headgate.operations.cli.main import main
from headgate.tables.iceberg.catalog import load_catalog

pytestmark = pytest.mark.integration

Report = dict[str, dict[str, Any]]


def report(folder: Path, properties: dict[str, str]) -> tuple[int, Report]:
    """What the command says of a catalog, for a sink whose table's namespace is ``db``."""
    text = sink_file_text(folder)
    begin, end = text.index("[catalog.properties]"), text.index("[table]")
    own = "\n".join(f'"{name}" = "{value}"' for name, value in properties.items())
    file = folder / "sink.toml"
    file.write_text(f"{text[:begin]}[catalog.properties]\n{own}\n\n{text[end:]}")
    result = CliRunner().invoke(main, ["check", str(file), "--catalog", "--json"])
    return result.exit_code, {each["what"]: each for each in json.loads(result.stdout)}


def tables_of(properties: dict[str, str]) -> list[tuple[str, ...]]:
    with closing(load_catalog("default", properties)) as catalog:
        return list(catalog.list_tables("db"))


def states(found: Report) -> dict[str, str]:
    return {what: each["state"] for what, each in found.items()}


ALL_WELL = dict.fromkeys(
    (
        *("catalog", "scratch tables", "keys", "files", "claim", "tag", "stale commit"),
        *("moved tag", "several tables", "clean-up", "verdict"),
    ),
    "ok",
)


def test_iceberg_s_own_rest_server_may_hold_the_lock(
    lying_proxy: LyingProxy, tmp_path: Path
) -> None:
    properties = {"type": "rest", "uri": lying_proxy.uri}
    with closing(load_catalog("default", properties)) as catalog:
        catalog.create_namespace_if_not_exists("db")
    before = tables_of(properties)
    exit_code, found = report(tmp_path, properties)
    assert states(found) == ALL_WELL, found
    assert exit_code == 0
    named = found["catalog"]["detail"]
    assert "db.headgate_check_" in named
    assert found["verdict"]["detail"].startswith("a sink may hold its lock here.")
    assert "tables.atomic may be set" in found["verdict"]["detail"]
    assert tables_of(properties) == before, "nothing stays"


@pytest.mark.parametrize("lie", ["503-after", "drop-after", "drop-before"])
def test_a_commit_whose_answer_is_lost_decides_nothing(
    lying_proxy: LyingProxy, tmp_path: Path, lie: str
) -> None:
    properties = {"type": "rest", "uri": lying_proxy.uri}
    with closing(load_catalog("default", properties)) as catalog:
        catalog.create_namespace_if_not_exists("db")
    lying_proxy.lie = lie
    exit_code, found = report(tmp_path, properties)
    assert "claim" in found, found
    assert (found["claim"]["code"], found["verdict"]["state"], exit_code) == (
        "HG-401",
        "unchecked",
        3,
    )
    assert found["clean-up"]["state"] == "ok"


def test_a_principal_that_may_not_create_tables_is_told_what_was_not_tried(
    lying_proxy: LyingProxy, tmp_path: Path
) -> None:
    properties = {"type": "rest", "uri": lying_proxy.uri}
    with closing(load_catalog("default", properties)) as catalog:
        catalog.create_namespace_if_not_exists("db")
    lying_proxy.forbids = "create"
    exit_code, found = report(tmp_path, properties)
    assert states(found) == {
        "catalog": "ok",
        "scratch tables": "unchecked",
        "verdict": "unchecked",
    }
    assert "may create and drop tables" in found["scratch tables"]["detail"]
    assert exit_code == 0


def test_a_database_may_hold_the_lock_and_leaves_no_file(tmp_path: Path) -> None:
    warehouse = tmp_path / "lake"
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/own.sqlite",
        "warehouse": warehouse.as_uri(),
    }
    with closing(load_catalog("default", properties)) as catalog:
        catalog.create_namespace("db")
    exit_code, found = report(tmp_path, properties)
    assert states(found) == {**ALL_WELL, "several tables": "unchecked"}, found
    assert exit_code == 0
    assert tables_of(properties) == []
    assert list(warehouse.rglob("*.avro")) == []


def test_a_namespace_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/own.sqlite",
        "warehouse": tmp_path.as_uri(),
    }
    load_catalog("default", properties).close()
    _, found = report(tmp_path, properties)
    assert states(found) == {"catalog": "unchecked", "verdict": "unchecked"}
    assert "namespace db is not there" in found["catalog"]["detail"]
    with closing(load_catalog("default", properties)) as catalog:
        assert catalog.list_namespaces() == []


# ------------------------------------------------------------------- servers that cannot be a lock

Change = Callable[[Sequence[Any]], Sequence[Any]]


def _everything(given: Sequence[Any]) -> Sequence[Any]:
    return given


def _nothing(_: Sequence[Any]) -> Sequence[Any]:
    return ()


def _without_tags(updates: Sequence[Any]) -> Sequence[Any]:
    return [u for u in updates if not (isinstance(u, SetSnapshotRefUpdate) and u.type == "tag")]


def _without_requirements_of_tags(requirements: Sequence[Any]) -> Sequence[Any]:
    return [r for r in requirements if not (isinstance(r, AssertRefSnapshotId) and r.ref != "main")]


def _without_properties(updates: Sequence[Any]) -> Sequence[Any]:
    for update in updates:
        if isinstance(update, AddSnapshotUpdate) and update.snapshot.summary:
            update.snapshot.summary._additional_properties.clear()
    return updates


def _with_tags_of_a_day(updates: Sequence[Any]) -> Sequence[Any]:
    return [
        u.model_copy(update={"max_ref_age_ms": 86_400_000})
        if isinstance(u, SetSnapshotRefUpdate) and u.type == "tag"
        else u
        for u in updates
    ]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SmallRestCatalog]:
    (tmp_path / "server").mkdir()
    files = {"warehouse": (tmp_path / "server").as_uri()}
    with SmallRestCatalog(tmp_path / "server", files) as server:
        server.catalog.create_namespace("db")
        yield server


def lie(server: SmallRestCatalog, requires: Change, updates: Change) -> None:
    """Let the server check, and keep, only what these leave of a commit."""
    catalog: SqlCatalog = server.catalog
    honest = catalog.commit_table

    def commit(
        table: Any, requirements: tuple[TableRequirement, ...], asked: tuple[TableUpdate, ...]
    ) -> Any:
        return honest(table, tuple(requires(requirements)), tuple(updates(asked)))

    catalog.commit_table = commit  # type: ignore[method-assign]


def properties_of(server: SmallRestCatalog) -> dict[str, str]:
    return {"type": "rest", "uri": server.uri}


@pytest.mark.parametrize(
    ("requires", "updates", "wrong", "words"),
    [
        (_nothing, _everything, {"stale commit", "moved tag"}, "two coordinators could commit"),
        (_without_requirements_of_tags, _everything, {"moved tag"}, "two coordinators"),
        (_everything, _without_tags, {"claim"}, "dropped the tag"),
        (_everything, _without_properties, {"claim"}, "a claim came back changed"),
    ],
    ids=["checks nothing", "does not check tags", "drops tags", "drops properties"],
)
def test_a_server_that_cannot_be_a_lock_is_found_out_and_left_as_it_was(
    server: SmallRestCatalog,
    tmp_path: Path,
    requires: Change,
    updates: Change,
    wrong: set[str],
    words: str,
) -> None:
    lie(server, requires, updates)
    exit_code, found = report(tmp_path, properties_of(server))
    assert {what for what, state in states(found).items() if state == "wrong"} == wrong | {
        "verdict"
    }, found
    assert any(words in found[what]["detail"] for what in wrong), [found[w] for w in wrong]
    assert exit_code == 2
    assert (found["verdict"]["code"], found["clean-up"]["state"]) == ("HG-116", "ok")
    assert server.catalog.list_tables("db") == []


def test_retention_that_is_not_kept_and_keys_that_come_are_told(
    server: SmallRestCatalog, tmp_path: Path
) -> None:
    lie(server, _everything, _with_tags_of_a_day)
    server.config = {"s3.access-key-id": "ASIAHUSH", "s3.secret-access-key": "hush-hush"}
    exit_code, found = report(tmp_path, properties_of(server))
    assert exit_code == 0
    assert found["tag"]["state"] == "unchecked"
    assert "is 1 days" in found["tag"]["detail"]
    assert "s3.access-key-id, s3.secret-access-key" in found["keys"]["detail"]
    assert "hush" not in json.dumps(found).lower()
    assert "expires refs" in found["verdict"]["detail"]


def test_a_server_that_signs_requests_itself_is_refused_by_its_reason(
    server: SmallRestCatalog, tmp_path: Path
) -> None:
    server.config = {"s3.remote-signing-enabled": "true"}
    exit_code, found = report(tmp_path, properties_of(server))
    assert (found["keys"]["state"], exit_code) == ("wrong", 2)
    assert "HG-120" in found["keys"]["hint"]


def test_half_of_a_commit_to_two_tables_is_found_out(
    server: SmallRestCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs only tables.atomic: no sink needs it."""
    handler: Any = server.RequestHandlerClass

    def one_by_one(self: Any, changes: list[dict[str, Any]]) -> None:
        for change in changes:
            name = change["identifier"]
            self._commit(name["namespace"][0], name["name"], json.dumps(change).encode())

    monkeypatch.setattr(handler, "_commit_together", one_by_one)
    exit_code, found = report(tmp_path, properties_of(server))
    assert exit_code == 0
    assert found["several tables"]["state"] == "unchecked"
    assert "half of a commit" in found["several tables"]["detail"]
    assert "leave tables.atomic off" in found["verdict"]["detail"]
