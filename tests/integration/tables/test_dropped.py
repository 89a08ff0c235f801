"""LEDGER-2, CONFIG-1 on real systems: a filled table that is gone is not silently created again."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.tables.routed_sink import routed, rows_of, table_of
from integration.tables.test_suspended import running, states, suspended_of, wait_until_decided

from headgate.config.catalog_checks import sqlite_file
from headgate.control_protocol.errors import (
    HeadgateError,
    RetryLater,
    TableMissing,
    TableRecreated,
    TableStillSuspended,
)
from headgate.operations.access.kafka_connection import open_reachable_source_topics
from headgate.operations.audit.audit import audit
from headgate.operations.check.check import check
from headgate.operations.cli.main import main
from headgate.operations.many_tables.resume import resume_and_wait_until_open, resume_tables
from headgate.operations.status.status import read_status
from headgate.runtime.process import run

pytestmark = pytest.mark.integration


def produce(sink: Deployment) -> None:
    for topic in sink.topics:
        sink.produce(50, topic)


def filled(sink: Deployment) -> str:
    """Both tables have rows, nothing runs any more, and one of them is dropped."""
    by_name = table_of(sink, sink.topics[1])
    produce(sink)
    with running(sink):
        sink.wait_until_lag_zero()
    assert rows_of(sink, by_name).num_rows == 50
    with sink.catalog() as catalog:
        catalog.drop_table(by_name)
    return by_name


def exists(sink: Deployment, table: str) -> bool:
    with sink.catalog() as catalog:
        return catalog.table_exists(table)


@pytest.mark.wide
def test_ledger_2_a_table_dropped_between_two_runs_is_suspended_until_a_person_decides(
    deploy: Deploy,
) -> None:
    sink = routed(deploy)
    by_name = filled(sink)
    assert states(sink)[by_name] == "missing"
    assert (
        f"{by_name} was filled, and is gone: it will be suspended"
        in read_status(sink.settings).notes
    )
    (wrong,) = (each for each in check(sink.settings) if each.what == "routed tables")
    assert wrong.code == "HG-102"
    assert by_name in wrong.detail
    with running(sink):
        sink.wait_until(
            lambda: by_name in suspended_of(sink), "it is suspended before any record comes"
        )
        with sink.catalog() as catalog:
            catalog.drop_table("db.orders")  # which nobody has touched in this epoch
        produce(sink)
        wait_until_decided(sink)
        assert all(why.startswith("HG-102") for why in suspended_of(sink).values())
        assert states(sink) == {"db.orders": "suspended", by_name: "suspended"}
        assert any(f"{by_name} is suspended" in note for note in read_status(sink.settings).notes)
        assert not exists(sink, by_name)
        assert not exists(sink, "db.orders")
        sink.wait_until(
            lambda: "table" in rows_of(sink, "db.rejected")["error_class"].to_pylist(), "diverted"
        )
        with pytest.raises(TableStillSuspended, match="HG-102"):
            resume_tables(sink.settings, [])
        resume_tables(sink.settings, [by_name])
        produce(sink)
        wait_until_decided(sink)
        sink.wait_until(lambda: states(sink)[by_name] == "open", "a new table")
        sink.wait_until(lambda: rows_of(sink, by_name).num_rows == 50, "rows of after")
        assert states(sink)["db.orders"] == "suspended"


@pytest.mark.wide
def test_suspend_6_a_dropped_table_has_its_records_replayed_once_it_is_there_again(
    deploy: Deploy,
) -> None:
    sink = routed(deploy)
    by_name = filled(sink)
    with running(sink):
        sink.wait_until(lambda: by_name in suspended_of(sink), "it is suspended")
        produce(sink)
        wait_until_decided(sink)
        with pytest.raises(RetryLater, match="is created again with the next record"):
            resume_and_wait_until_open(sink.settings, [by_name], patience_s=2)
        assert replayed(sink, by_name) != 0, "it says so, and ends with no traceback"
        produce(sink)
        wait_until_decided(sink)
        sink.wait_until(lambda: replayed(sink, by_name) == 0, "its records")
    assert rows_of(sink, by_name).num_rows == 100


def replayed(sink: Deployment, table: str) -> int:
    """The exit code of the command that a person repeats."""
    arguments = ["tables", str(sink.sink_file), "resume", table, "--replay"]
    said = CliRunner().invoke(main, arguments)
    assert said.exception is None or isinstance(said.exception, SystemExit), said.exception
    return said.exit_code


@pytest.mark.wide
def test_ledger_2_a_new_one_is_made_where_the_file_asks_for_it(deploy: Deploy) -> None:
    sink = routed(deploy, {"tables": {"ledger": "db.ledger", "on_missing": "create"}})
    by_name = filled(sink)
    produce(sink)
    with running(sink):
        wait_until_decided(sink)
        sink.wait_until(lambda: states(sink)[by_name] == "open", "a new table")
        sink.wait_until(lambda: rows_of(sink, by_name).num_rows == 50, "rows of after")
        assert suspended_of(sink) == {}


def refused(sink: Deployment) -> HeadgateError:
    with pytest.raises(TableRecreated) as stopped:
        run(sink.settings)
    return stopped.value


def noted(sink: Deployment) -> bool:
    with open_reachable_source_topics(sink.settings) as topics:
        return topics.committed_offset_metadata() is not None


@pytest.mark.parametrize("many", [True, pytest.param(False, marks=pytest.mark.wide)])
def test_config_1_nothing_is_made_when_the_whole_catalog_is_gone(
    deploy: Deploy,
    many: bool,
) -> None:
    sink = routed(deploy) if many else deploy({"table": {"create": True}})
    produce(sink)
    with running(sink):
        sink.wait_until_lag_zero()
        sink.wait_until(lambda: noted(sink), "notes beside the group's offsets")
    database = sqlite_file(sink.settings.catalog)
    assert database is not None
    away = Path(f"{database}.away")
    database.rename(away)
    error = refused(sink)
    assert error.code == "HG-202"
    assert sink.settings.table.identifier in error.message
    assert not database.exists()
    wrong = {each.what: each.code for each in check(sink.settings) if each.code}
    assert wrong["catalog"] == "HG-202"
    told = read_status(sink.settings)
    assert told.condition == "failed"
    assert told.last_error is not None
    assert told.last_error.code == "HG-202"
    with pytest.raises(TableRecreated, match="this sink has filled it"):
        audit(sink.settings)
    with pytest.raises(TableMissing):
        audit(sink.settings, with_source=False)
    away.rename(database)
    produce(sink)
    with running(sink):
        sink.wait_until_lag_zero()
