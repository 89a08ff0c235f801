"""Somebody changes columns while the sink runs: it stops by name, as its start would."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.operations.test_status import asked as status
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import DoubleType

from headgate.operations.cli.main import main

pytestmark = pytest.mark.integration

Change = Callable[[UpdateSchema], object]
COLUMNS = {"table.columns": {"columns": {"id": "long", "pad": "string", "fare": "float"}}}


def put(sink: Deployment, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": sink.bootstrap})
    for n in numbers:
        value = {"id": n, "pad": f"p{n}" if n % 7 else None, "fare": n + 0.5}
        producer.produce(sink.topics[0], json.dumps(value).encode(), partition=n % sink.partitions)
    assert producer.flush(10) == 0


CHANGES: dict[str, tuple[Change, str]] = {
    "dropped": (lambda update: update.delete_column("pad"), "has no column 'pad'"),
    "renamed": (lambda update: update.rename_column("pad", "filling"), "has no column 'pad'"),
    "retyped": (lambda update: update.update_column("fare", DoubleType()), "column 'fare'"),
    "required": (
        lambda update: update.update_column("pad", required=True),
        "requires a value of column 'pad' now",
    ),
}


@pytest.mark.parametrize(
    "how", [h if h == "dropped" else pytest.param(h, marks=pytest.mark.wide) for h in CHANGES]
)
def test_a_change_of_columns_stops_the_sink_before_its_next_commit(
    deploy: Deploy, how: str
) -> None:
    change, words = CHANGES[how]
    sink = deploy(COLUMNS)
    sink.start()
    put(sink, range(300))
    sink.wait_until(lambda: sink.committed() == 300, "the first records")
    with sink.table() as table, table.update_schema(allow_incompatible_changes=True) as update:
        change(update)
    put(sink, range(300, 600))
    assert words in sink.stopped_by_itself("HG-208")
    assert sink.committed() == 300
    condition, exit_code, error = status(sink.sink_file)
    assert (condition, exit_code, (error or {}).get("code")) == ("failed", 1, "HG-208")
    if how != "required":
        checked = CliRunner().invoke(main, ["check", str(sink.sink_file)])
        assert (checked.exit_code, "HG-208" in checked.stdout) == (1, True), checked.stdout
    if how != "required":  # what was written before is read again, and is bad where it lacks one
        sink.start()
        assert words in sink.stopped_by_itself("HG-208")


@pytest.mark.wide
def test_a_column_that_is_added_or_made_optional_stops_nothing(deploy: Deploy) -> None:
    sink = deploy(COLUMNS)
    sink.start()
    put(sink, range(300))
    sink.wait_until(lambda: sink.committed() == 300, "the first records")
    with sink.table() as table, table.update_schema() as update:
        update.add_column("extra", DoubleType())
    put(sink, range(300, 600))
    sink.wait_until(lambda: sink.committed() == 600, "all records")
    sink.stop()
