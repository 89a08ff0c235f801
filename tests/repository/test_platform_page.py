"""The guide's sink files can be loaded, and every property that it names is one that is read."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pyiceberg
import pytest
from repository.test_documents import FENCE
from repository.tree import PROJECT, ROOT

from headgate.config.catalog_settings import Backend
from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import CatalogRefused
from headgate.tables.iceberg.catalog_types import (
    require_supported_java_type,
    require_supported_type,
)
from headgate.tables.storage.s3_file_io import S3_PART_BYTES

PAGE = (ROOT / "docs/guides/platforms.md").read_text()
REST_OF_THE_FILE = """
name = "trips"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
[table]
identifier = "city.trips"
"""
WHERE_PROPERTIES_ARE_READ = (
    "__init__.py",
    *(f"catalog/{name}.py" for name in ("__init__", "rest/__init__", "glue", "hive", "sql")),
    "io/__init__.py",
)
HEADER = "header."  # and then any header's name
SNIPPETS = [found for found in FENCE.finditer(PAGE) if found["language"] == "toml"]
PREFIXES = ("s3.", "glue.", "gcs.", "adls.", "client.", "rest.", "py-io")


def loaded(snippet: re.Match[str], monkeypatch: pytest.MonkeyPatch) -> SinkSettings:
    for name in re.findall(r"\$\{env:(\w+)\}", snippet["text"]):
        monkeypatch.setenv(name, f"value of {name}")
    return parse(REST_OF_THE_FILE + snippet["text"])


def known_properties() -> set[str]:
    """Every text in the modules where pyiceberg names its properties, and our own."""
    folder = Path(pyiceberg.__file__).parent
    return {S3_PART_BYTES, "type", "warehouse"} | {
        node.value
        for module in WHERE_PROPERTIES_ARE_READ
        for node in ast.walk(ast.parse((folder / module).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda found: found["text"].split('"')[1])
def test_a_platforms_sink_file_is_loaded_and_its_catalog_is_taken_or_refused(
    snippet: re.Match[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = loaded(snippet, monkeypatch).catalog
    refuses = (
        require_supported_java_type if catalog.backend is Backend.JAVA else require_supported_type
    )
    if snippet["word"] == "refused":
        with pytest.raises(CatalogRefused, match="can lose a commit"):
            refuses(catalog.name, catalog.properties)
    else:
        assert refuses(catalog.name, catalog.properties) == catalog.properties["type"]
    unknown = set(catalog.properties) - known_properties()
    assert {name for name in unknown if not name.startswith(HEADER)} == set()


def test_every_property_of_the_guides_text_is_one() -> None:
    told = set(re.findall(r'`"([\w.-]+)"', PAGE))
    assert "s3.region" in told
    assert {name for name in told if name.startswith(PREFIXES)} - known_properties() == set()


def test_the_extras_that_it_names_are_there() -> None:
    assert set(re.findall(r"headgate\[([\w-]+)\]", PAGE)) == {"glue", "adls", "postgres", "hive"}
    extras = PROJECT["project"]["optional-dependencies"]
    assert all(extras[name] for name in ("glue", "adls", "postgres"))
    # A Hive metastore is spoken to in Java alone: what it takes is the JVM that Spark has.
    assert extras["hive"] == ["headgate[spark]"]


def test_every_platform_says_what_was_run() -> None:
    table = PAGE.partition("## ")[0]
    for heading in re.findall(r"^## (.*)$", PAGE, re.MULTILINE):
        assert re.split(r"[ ,:]", heading)[0] in table, heading
