"""The first minutes: a real topic, with all that is wrong with one, and three commands to rows."""

from __future__ import annotations

import json
import logging
import re
import time
from contextlib import closing, suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from confluent_kafka import Producer
from integration.operations.test_getting_started import Newcomer
from pyiceberg.catalog import load_catalog

from headgate.config.load import load
from headgate.control_protocol.errors import PoisonRecord, TableChanged, TableMissing
from headgate.operations.audit.audit import audit
from headgate.operations.check.check import State, check
from headgate.operations.cli.run import run_until_latest
from headgate.operations.dry_run import dry_run_newest_records
from headgate.operations.init.sink_file_template import propose_and_write_sink_file
from headgate.runtime.process import run
from headgate.runtime.sink_tables import open_tables_creating_nothing

pytestmark = pytest.mark.integration

RECORDS = 5_000
BAD_EACH = 100


def order(number: int) -> bytes | None:
    """Times and a reference of several kinds, objects that are not always there, and worse."""
    if number % BAD_EACH == 7:
        return [b"not json", b"[1, 2]", b"", b'{"id": 1', None][number // BAD_EACH % 5]
    at = ["2026-11-01T10:00:00Z", "2026-11-01T10:00:00+05:30", 1_793_527_200_000 + number]
    reference = [True, 17, 3.5, "newsletter", None]
    document = {
        "id": number,
        "at": at[number % 3],
        "seen": "" if number % 50 == 1 else "2026-11-01T10:00:00Z",
        "ref": reference[number % 5],
        "user": {"id": number % 100, "code": [number, "x"][number % 2]},
        "lines": [{"sku": f"s{n}", "price": 1.5 * n} for n in range(number % 3)],
    }
    if number % 4 == 0:
        document["coupon"] = {"name": "xmas"}
    return json.dumps(document).encode()


@pytest.mark.wide
def test_three_commands_lead_from_a_dirty_topic_to_rows(
    tmp_path: Path, bootstrap: str, topic: str, producer: Producer
) -> None:
    values = [order(number) for number in range(RECORDS)]
    bad = sum(number % BAD_EACH == 7 for number in range(RECORDS))
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    producer.flush(10)
    began = time.monotonic()
    with closing(Newcomer(tmp_path)) as newcomer:
        said = newcomer.answers(
            f"headgate init shop --from-topic {topic} --kafka bootstrap.servers={bootstrap}"
        )
        assert "8 columns proposed from 1,000 records" in said
        assert "8 of them no json that can be read" in said
        assert "left out" not in said
        said = newcomer.answers("headgate check shop.toml")
        assert "default.shop_quarantine" in said
        newcomer.answers("headgate run shop.toml")
        print(f"three commands: {time.monotonic() - began:.1f} s")
        said = newcomer.answers("headgate audit shop.toml")
        good = RECORDS - bad
        assert f"{good:,} in the table, {bad} in quarantine, none lost, none twice: well" in said
    uri = f"sqlite:///{tmp_path}/shop-catalog.db"
    with closing(load_catalog("default", type="sql", uri=uri)) as at:
        rows = at.load_table("default.shop").scan().to_arrow()
    by_id = {row["id"]: row for row in rows.to_pylist()}
    assert [by_id[number]["ref"] for number in range(5)] == [
        "true",
        "17",
        "3.5",
        "newsletter",
        None,
    ]
    assert [by_id[number]["at"].hour for number in (0, 1)] == [10, 4]
    assert by_id[2]["user"] == {"id": 2}
    assert [by_id[number]["user_code"] for number in (2, 3)] == ["2", "x"]
    assert by_id[2]["lines"][1] == {"sku": "s1", "price": 1.5}


def test_a_first_start_that_stopped_without_a_row_leaves_a_table_that_a_forgotten_column_joins(
    tmp_path: Path, bootstrap: str, topic: str, producer: Producer
) -> None:
    for number in range(4):
        value = b"not json" if number == 0 else json.dumps({"id": number, "late": f"x{number}"})
        producer.produce(topic, value, partition=0)
    producer.flush(10)
    path, _ = propose_and_write_sink_file(
        "corrected_shop", tmp_path, topic=topic, kafka={"bootstrap.servers": bootstrap}
    )
    corrected = path.read_text()
    late = '[[table.columns]]\nname = "late"\ntype = "string"\n'
    first = corrected.replace(late, "").replace('policy = "quarantine" ', 'policy = "fail" ')
    assert len(first) < len(corrected) - len(late)
    path.write_text(first)
    with pytest.raises(PoisonRecord):
        run(load(path))
    path.write_text(corrected)
    (columns,) = (answer for answer in check(load(path)) if answer.what == "columns")
    assert (columns.state, columns.detail[-5:]) == (State.OK, "+late")
    (table,) = dry_run_newest_records(load(path), 10).tables
    assert {row["late"] for row in table.rows} == {"x1", "x2", "x3"}
    assert run_until_latest(load(path)).is_reached
    with open_tables_creating_nothing(load(path)) as tables:
        rows = tables.require_catalog_format().load_table(tables.name).scan().to_arrow()
    assert sorted(rows["late"].to_pylist()) == ["x1", "x2", "x3"]
    path.write_text(corrected.replace(late, late + late.replace("late", "later")))
    with pytest.raises(TableChanged, match=r"ALTER TABLE \S+ ADD COLUMN `later` STRING"):
        run(load(path))


def test_the_loop_of_the_embedding_page_fills_the_table(
    tmp_path: Path, bootstrap: str, topic: str, producer: Producer
) -> None:
    for number in range(100):
        producer.produce(topic, json.dumps({"id": number}), partition=number % 2)
    producer.flush(10)
    path, _ = propose_and_write_sink_file(
        "trips", tmp_path, topic=topic, kafka={"bootstrap.servers": bootstrap}
    )
    settings = load(path)
    page = (Path(__file__).parents[3] / "docs/guides/embedding.md").read_text()
    (code,) = re.findall(r"```python\n(.*?\ndef loop.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("trips.toml", str(path)), names)

    def is_incomplete() -> bool:
        with open_tables_creating_nothing(settings) as tables, suppress(TableMissing):
            return tables.require_catalog_format().load_table(tables.name).scan().count() < 100
        return True

    names["loop"](is_incomplete)
    assert not is_incomplete()
    assert audit(settings).exit_code() == 0


def test_a_run_says_what_it_met_long_before_the_commit_that_has_it(
    tmp_path: Path, bootstrap: str, topic: str, producer: Producer
) -> None:
    for number in range(100):
        producer.produce(topic, b"[]" if number == 7 else b'{"id": 1}', partition=number % 2)
    producer.flush(10)
    path, _ = propose_and_write_sink_file(
        "slow_shop", tmp_path, topic=topic, kafka={"bootstrap.servers": bootstrap}
    )
    slow = path.read_text().replace("interval_ms = 2_000 ", "interval_ms = 3_600_000 ")
    path.write_text(f"{slow}\n[participant]\nbatch_records_max = 10\n")  # less is read at END
    stop, said = Event(), list[str]()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "headgate_event", "") == "commit.awaited":
                said.append(record.getMessage())
                if len(said) == 2:
                    stop.set()

    log, ear = logging.getLogger("headgate.runtime"), Ear()
    log.addHandler(ear)
    level = log.level
    log.setLevel(logging.INFO)
    try:
        run(load(path), stop=stop)
    finally:
        log.removeHandler(ear)
        log.setLevel(level)
    assert "100 offsets of 2 partitions wait" in said[0]
    assert "there is one every 3600 s" in said[0]
    assert re.search(r"offsets read: \d+ rows, \d bad", said[1])
