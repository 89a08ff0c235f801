"""``headgate check`` and ``headgate run`` of the same wrong file say the same, with one code."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from integration.conftest import Deploy
from integration.sink_file import Sections

from headgate.operations.cli.main import main

pytestmark = pytest.mark.integration

WRONG: dict[str, tuple[Sections, str, str]] = {
    "a codec that does not exist": (
        {"table": {"properties": {"write.parquet.compression-codec": "zst"}}},
        "HG-100",
        "zst",
    ),
    "no warehouse": ({"catalog.properties": {"warehouse": None}}, "HG-100", "nothing says where"),
    "an empty warehouse": ({"catalog.properties": {"warehouse": ""}}, "HG-100", "nothing says"),
    "no certificate": (
        {"http": {"listen": "127.0.0.1:0", "certificate": "/no/c", "key": "/no/k"}},
        "HG-100",
        "http.certificate",
    ),
    "REST at a database": ({"catalog.properties": {"type": "rest"}}, "HG-116", "REST catalog"),
    "a bucket too wide": (
        {"table": {"partition_by": ["bucket(99999999999, id)"]}},
        "HG-100",
        "too",
    ),
    "a blank group": ({"source": {"group_id": " "}}, "HG-100", "source.group_id"),
    "a line break in a name": (
        {"table": {"identifier": "db.t\n"}},
        "HG-100",
        "identifier",
    ),
    "a chance that is none": (
        {
            "table": {
                "properties": {
                    "write.parquet.bloom-filter-enabled.column.id": "true",
                    "write.parquet.bloom-filter-fpp.column.id": "7",
                }
            }
        },
        "HG-100",
        "between 0 and 1",
    ),
    "a distribution that does not exist": (
        {"table": {"properties": {"write.distribution-mode": "nope"}}},
        "HG-100",
        "write.distribution-mode is 'nope'",
    ),
    "neither true nor false": (
        {"table": {"properties": {"write.metadata.delete-after-commit.enabled": "perhaps"}}},
        "HG-100",
        "cannot be 'perhaps'",
    ),
    "a name that no disk takes": (
        {"table": {"identifier": f"db.{'x' * 300}"}},
        "HG-100",
        "(300 bytes)",
    ),
    "a member that the client refuses": (
        {"source": {"group_protocol": "consumer"}, "kafka": {"session.timeout.ms": 6_000}},
        "HG-100",
        "session.timeout.ms",
    ),
    "a number that is none": (
        {"kafka": {"fetch.max.bytes": "many"}},
        "HG-100",
        "fetch.max.bytes",
    ),
    "a time beyond all calendars": (
        {"source": {"start_at": "9" * 23}},
        "HG-100",
        "source.start_at cannot be",
    ),
    "a Spark that is none": (
        {"spark": {"writer": "spark", "master": "lokal"}},
        "HG-100",
        "spark.master",
    ),
}


def said(command: str, sink_file: str) -> tuple[int, str]:
    form = ["--json"] if command == "check" else []
    result = CliRunner().invoke(main, [command, *form, sink_file])
    return result.exit_code, result.output


@pytest.mark.parametrize("name", WRONG)
def test_what_run_refuses_check_refuses(deploy: Deploy, name: str) -> None:
    change, code, text = WRONG[name]
    sink = deploy()
    right, wrong = sink.sink_file.read_text(), sink.sink_file.with_name("wrong.toml")
    sink.change(change)
    wrong.write_text(sink.sink_file.read_text())
    sink.sink_file.write_text(right)
    for command in ("check", "run"):
        exit_code, output = said(command, str(wrong))
        assert exit_code == 2, output
        assert code in output
        assert text in output


def test_a_format_that_cannot_fill_the_columns_is_found_by_check(deploy: Deploy) -> None:
    sink = deploy({"format": {"type": "string"}})
    sink.produce(20)
    for command, code in (("check", 2), ("run", 2)):
        exit_code, output = said(command, str(sink.sink_file))
        assert (exit_code, "a value fills one column only" in output) == (code, True), output


def test_records_that_do_not_fit_the_columns_are_found_by_check(deploy: Deploy) -> None:
    sink = deploy({"table.columns": {"columns": {"id": "boolean"}}})
    sink.produce(20)
    exit_code, output = said("check", str(sink.sink_file))
    (rows,) = [line for line in json.loads(output) if line["what"] == "rows"]
    assert (rows["state"], rows["code"], exit_code) == ("wrong", "HG-107", 2)
    assert "of the 20 newest records 20 do not fit the columns" in rows["detail"]
    exit_code, output = said("run", str(sink.sink_file))
    assert (exit_code, "HG-207" in output) == (1, True), output


def test_records_that_would_stop_it_are_found_by_check(deploy: Deploy) -> None:
    sink = deploy()
    sink.bad_every = 101  # the second of them is no JSON
    sink.produce(200)
    exit_code, output = said("check", str(sink.sink_file))
    (records,) = [line for line in json.loads(output) if line["what"] == "records"]
    assert (records["state"], records["code"], exit_code) == ("wrong", "HG-107", 2)
    exit_code, output = said("run", str(sink.sink_file))
    assert "HG-207" in output
    assert exit_code == 1
