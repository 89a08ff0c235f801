"""Where the benchmark's tables are."""

from __future__ import annotations

from pathlib import Path

from comparison.lake import local_lake


def test_a_local_lake_reads_what_its_catalog_names(tmp_path: Path) -> None:
    (tmp_path / "a file.json").write_text("{}")
    lake = local_lake(tmp_path)
    for location in (f"file://{tmp_path}/a file.json", f"file:{tmp_path}/a file.json"):
        assert lake.read(location) == b"{}"
    assert lake.java["uri"].startswith(f"jdbc:sqlite:file:{lake.database}?")
    assert lake.java["warehouse"] == lake.properties["warehouse"]
