"""Commands start soon, since they import what they need; by names, and not by a clock."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.local_catalog import LocalCatalog
from support.quarantine_rows import IDENTIFIER, QuarantineRows
from unit.operations.filled_table import FilledTable, sink_file_text

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import Unreachable
from headgate.operations.cli.main import main
from headgate.operations.status import status as module
from headgate.operations.status.report import StatusReport

IMPORTED = """
import json, sys
from headgate.operations.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("\\n" + json.dumps(sorted(sys.modules)))
"""

HEAVY = {
    "pandas",
    "pyspark",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyiceberg.io.pyarrow",
    "duckdb",
}
FOREIGN = HEAVY | {"confluent_kafka", "fastavro", "numpy", "pyarrow", "pyiceberg", "sqlalchemy"}
"""Not even these are needed for a command's help, nor to tell a mistake in the sink file."""

TAKING_A_FILE = [
    name
    for name, command in main.commands.items()
    if {"sink", "sinks"} & {parameter.name for parameter in command.params}
]
MORE = {"rollback": ["1.1"], "delete": ["--where", "id=1"], "wait": ["--through", "0"]}
"""What a command needs besides the sink file."""

TOLD = """
import json, sys
from click.testing import CliRunner
from headgate.operations.cli.main import main
path, *commands = sys.argv[1:]
told = []
for command in commands:
    result = CliRunner().invoke(main, [command.split()[0], path, *command.split()[1:]])
    told.append((result.exit_code, result.output, sorted(sys.modules)))
print(json.dumps(told))
"""


def imported(*arguments: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    *shown, names = run.stdout.splitlines()
    if "--json" in arguments:
        assert json.loads("\n".join(shown))["epoch"] == 1
    return set(json.loads(names))


@pytest.mark.parametrize("arguments", [["--help"], ["status", "--help"]])
def test_help_imports_no_foreign_system(arguments: list[str]) -> None:
    assert imported(*arguments) & {*FOREIGN, "pydantic", "rich"} == set()


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("[coordinator]\ncomit_interval_ms = 5", "comit_interval_ms is not a known key"),
        ("[coordinator]\ncommit_timeout_ms = 0", "commit_timeout_ms cannot be 0"),
        ("[coordinator]\ncommit_timeout_ms = true", "must be a whole number"),
        ("[maintenance]\nfiles_min = 1", "one file needs no compaction"),
        ("[quarantine]\ndead_letter_topic = 'x'", "nothing comes into the quarantine"),
    ],
)
def test_every_command_tells_a_mistake_in_the_file_before_it_imports_a_library_for_tables(
    mistake: str, told: str, tmp_path: Path
) -> None:
    sink = tmp_path / "sink.toml"
    columns = '[[table.columns]]\nname = "id"\ntype = "long"\n'
    sink.write_text(f"{sink_file_text(tmp_path)}{columns}{mistake}\n")
    commands = [" ".join((name, *MORE.get(name, ()))) for name in TAKING_A_FILE]
    run = subprocess.run(
        [sys.executable, "-c", TOLD, str(sink), *commands],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    for command, (code, output, modules) in zip(commands, json.loads(run.stdout), strict=True):
        assert code == 2, (command, output)
        assert told in output, command
        assert FOREIGN & {*modules} <= {"fastavro"}, command  # it reads control events


@pytest.mark.parametrize("command", ["status", "pause"])
def test_what_only_looks_imports_nothing_heavy(command: str, tmp_path: Path) -> None:
    sink = tmp_path / "sink.toml"
    columns = '[[table.columns]]\nname = "id"\ntype = "long"\n'
    sink.write_text(sink_file_text(tmp_path) + columns)
    assert imported(command, str(sink)) & HEAVY == set()


def test_a_look_at_a_table_that_is_there_imports_nothing_heavy(
    filled: FilledTable, sink_file: Path
) -> None:
    filled.commit(filled.record(1, 0, {0: 0}))
    assert imported("status", str(sink_file), "--json") & {*HEAVY, "requests"} == set()


def test_the_last_bad_records_are_read_without_a_scan(
    filled: FilledTable, sink_file: Path, tmp_path: Path
) -> None:
    filled.commit(filled.record(1, 0, {0: 0}))
    filled.commit(filled.record(1, 1, {0: 9}, quarantined=7))
    with sink_file.open("a") as more:
        more.write(f'[quarantine]\npolicy = "quarantine"\ntable = "{IDENTIFIER}"\n')
    catalog = filled.table.catalog
    rows = QuarantineRows(LocalCatalog("default", {}, catalog, tmp_path, tmp_path))
    rows.claim(1, "trips")
    rows.commit(1, 1, *range(7), sink="trips")
    seen = imported("status", str(sink_file), "--json")
    assert seen & {*HEAVY, "requests"} == {"pyarrow.parquet"}


def test_a_look_is_not_held_up_by_collections_and_others_are(
    sink_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collecting: list[bool] = []

    def look(_: SinkSettings) -> StatusReport:
        collecting.append(gc.isenabled())
        raise Unreachable("not today")

    monkeypatch.setattr(module, "read_status", look)
    assert CliRunner().invoke(main, ["status", str(sink_file)]).exit_code == 3
    assert collecting == [False]
    assert gc.isenabled()
