"""Where the benchmark's tables are."""

from __future__ import annotations

from pathlib import Path

import pytest

from comparison.lake import local_lake, server_variable


def test_a_local_lake_reads_what_its_catalog_names(tmp_path: Path) -> None:
    (tmp_path / "a file.json").write_text("{}")
    lake = local_lake(tmp_path)
    for location in (f"file://{tmp_path}/a file.json", f"file:{tmp_path}/a file.json"):
        assert lake.read(location) == b"{}"
    assert lake.java["uri"].startswith(f"jdbc:sqlite:file:{lake.database}?")
    assert lake.java["warehouse"] == lake.properties["warehouse"]


@pytest.mark.parametrize(
    ("key", "variable"),
    [("io-impl", "CATALOG_IO__IMPL"), ("s3.path-style-access", "CATALOG_S3_PATH__STYLE__ACCESS")],
)
def test_the_server_is_told_a_property_by_a_variable(key: str, variable: str) -> None:
    assert server_variable(key) == variable
