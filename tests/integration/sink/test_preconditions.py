"""A start refuses what ``headgate check`` refuses, before it creates anything."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient
from integration.conftest import Deploy
from integration.deployment import Deployment

from headgate.operations.cli.main import main

pytestmark = pytest.mark.integration


def checked(sink: Deployment) -> set[str]:
    result = CliRunner().invoke(main, ["check", str(sink.sink_file), "--json"])
    assert result.exit_code != 0
    return {answer["code"] for answer in json.loads(result.stdout) if answer["code"]}


def test_a_missing_topic_ends_the_start_and_nothing_is_created(
    deploy: Deploy, admin: AdminClient
) -> None:
    sink = deploy()
    sink.change({"source": {"topics": [f"{sink.topics[0]}-absent"]}})
    sink.start()
    assert "does not exist" in sink.stopped_by_itself("HG-100")
    assert not sink.database.exists()
    assert sink.settings.control.topic not in admin.list_topics(timeout=10).topics
    assert checked(sink) == {"HG-100"}


@pytest.mark.parametrize(
    ("wrong", "words", "code"),
    [
        ({"warehouse": "file:///proc/lake"}, "is not storage", "HG-100"),
        ({"warehouse": "s4://bucket/lake"}, "a s4 address", "HG-100"),
        ({"uri": "sqlite:////nowhere/at/all/catalog.db"}, "/nowhere/at/all does not", "HG-100"),
        ({"type": "sqll"}, "'sqll' is not a catalog", "HG-116"),
    ],
    ids=["no storage", "no scheme", "no folder", "no kind"],
)
def test_a_catalog_or_warehouse_that_is_none(
    deploy: Deploy, admin: AdminClient, wrong: dict[str, str], words: str, code: str
) -> None:
    sink = deploy({"catalog.properties": wrong})
    assert checked(sink) == {code}
    sink.start()
    assert words in sink.stopped_by_itself(code)
    assert sink.settings.control.topic not in admin.list_topics(timeout=10).topics


@pytest.mark.wide
def test_a_column_of_another_type(deploy: Deploy) -> None:
    sink = deploy()
    sink.start()
    sink.produce()
    sink.wait_until_lag_zero()
    sink.stop()
    other = deploy({"name": "other", "table.columns": {"columns": {"id": "date"}}})
    assert "HG-208" in checked(other)
    other.start()
    assert "column 'id'" in other.stopped_by_itself("HG-208")
    told = CliRunner().invoke(main, ["status", str(other.sink_file), "--json"])
    report = json.loads(told.stdout)
    assert (report["condition"], report["last_error"]["code"]) == ("failed", "HG-208")
    assert told.exit_code == 1
    sink.judge()
