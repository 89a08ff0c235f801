"""Distributions of their own in examples/ keep to what is public."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from repository.test_dependencies import distribution
from repository.tree import PROJECT, ROOT, imports, modules
from support import postgres_example
from support.postgres_server import PostgresServer

from headgate.control_protocol.table_format import Capability

SINK = """
name = "trips"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
[table]
type = "postgres"
identifier = "lake.trips"
location = "/staging"
create = true
[[table.columns]]
name = "id"
type = "long"
[catalog.properties]
uri = "postgresql://127.0.0.1/lake"
[spark]
writer = "in-process"
"""
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/pyproject.toml"))
MODULES = sorted(path for folder in EXAMPLES for path in folder.glob("*/*.py"))


def public() -> set[str]:
    """The modules that the page names as public."""
    page = (ROOT / "docs/table-formats/writing-a-table-format.md").read_text()
    told = page.partition("## What a package may use")[2].partition("\n\n[")[0]
    paragraph = told.partition("all of `headgate.control_protocol`")[0]
    names = re.findall(r"`([\w.]+)`", paragraph)
    return {f"headgate.control_protocol.{name.rpartition('.')[2]}" for name in names}


def test_what_the_page_names_as_public_is_there() -> None:
    assert len(public()) > 10
    assert public() - {"headgate.control_protocol.testing"} <= modules().keys()


def test_an_example_imports_nothing_of_headgate_but_what_is_public() -> None:
    allowed = public()
    private = {
        f"{path.relative_to(ROOT / 'examples')} imports {name}"
        for path in MODULES
        for name in imports(path)
        if name.split(".")[0] == "headgate"
        and not any(f"{name}.".startswith(f"{each}.") for each in allowed)
    }
    assert private == set()


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_headgate_knows_and_needs_nothing_of_an_example(folder: Path) -> None:
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    package = project["name"].replace("-", "_")
    assert not any(package in path.read_text() for path in modules().values())
    own = {distribution(line) for line in PROJECT["project"]["dependencies"]}
    users = [
        extra
        for name, extra in PROJECT["project"]["optional-dependencies"].items()
        if name != "test"
    ]
    own |= {distribution(line) for extra in users for line in extra}
    for needed in {distribution(line) for line in project["dependencies"]} - {
        "headgate",
        "pyarrow",
    }:
        assert needed not in own


OUTSIDE = """
from headgate.config.table_format_registry import known_format_names, traits_of_format
from headgate.config.load import load
import sys
settings = load(sys.argv[1])
traits = traits_of_format(settings)
able = ",".join(sorted(traits.capabilities)).replace(" ", "-")
print(*known_format_names(), able, traits.guarantee, sys.modules["headgate_postgres"].__file__)
"""


def test_an_installed_example_is_found_by_its_entry_point_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg", reason="the example's driver: make env installs it")
    postgres_example.install(tmp_path, monkeypatch)
    sink_file, outside = tmp_path / "sink.toml", tmp_path / "outside.py"
    outside.write_text(OUTSIDE)
    sink_file.write_text(SINK)
    asked = [sys.executable, outside, sink_file]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=True)
    *known, path = done.stdout.split()
    assert known == ["delta", "hudi", "iceberg", "postgres", said_of("postgres"), "exactly", "once"]
    assert Path(path).is_relative_to(tmp_path)


def said_of(kind: str) -> str:
    """What the page of kinds says that its tables can do."""
    page = (ROOT / "docs/table-formats/comparison.md").read_text()
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    place = next(row.index(kind) for row in rows if kind in row)
    said = {row[0]: row[place] for row in rows if len(row) > place}
    able = (each for each in Capability if said[each] == "yes")
    return ",".join(sorted(able)).replace(" ", "-")


@pytest.mark.soak
def test_an_example_s_own_tests_need_nothing_of_this_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its author runs them: an installed headgate, and a server that somebody has."""
    pytest.importorskip("psycopg", reason="the example's driver: make env installs it")
    postgres_example.install(tmp_path, monkeypatch)
    tests = tmp_path / "tests"
    shutil.copytree(postgres_example.SOURCE / "tests", tests)
    shutil.copy(postgres_example.SOURCE / "README.md", tmp_path)
    with PostgresServer() as server:
        monkeypatch.setenv("HEADGATE_POSTGRES_URI", server.new_database().replace("+psycopg2", ""))
        asked = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
        done = subprocess.run(asked, cwd=tests, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
