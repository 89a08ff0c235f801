"""``headgate fleet apply --check`` on a real broker and a real catalog."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from integration.conftest import Deploy
from support.fleet_scene import Fleet

pytestmark = pytest.mark.integration


@pytest.mark.wide
def test_nothing_changes_unless_each_sink_that_changes_would_work(
    deploy: Deploy, tmp_path: Path, bootstrap: str, unique_name: str
) -> None:
    good = deploy({"name": "good", "table": {"identifier": "db.good"}})
    with Fleet(tmp_path, bootstrap, f"{unique_name}-fleet") as fleet:
        shutil.copy(good.sink_file, fleet.folder / "good.toml")
        text = good.sink_file.read_text().replace('name = "good"', 'name = "bad"', 1)
        missing = text.replace(good.topics[0], f"{good.topics[0]}-missing")
        assert missing != text
        (fleet.folder / "bad.toml").write_text(missing)
        said = fleet.command("apply", fleet.folder, "--check", code=2)
        assert "HG-123" in said
        assert "1 of 2 sinks that would change would not work" in said
        assert f"{good.topics[0]}-missing" in said
        assert "HG-124" in fleet.command("list", code=2), "not even topics were created"

        (fleet.folder / "bad.toml").unlink()
        said = fleet.command("apply", fleet.folder, "--check")
        assert "1 changed file: each would work" in said
        assert "1 file: 1 added" in said

        (fleet.folder / "bad.toml").write_text(missing)
        said = fleet.command("apply", fleet.folder, "--check", code=2)
        assert "1 of 1 sinks" in said, "a sink that is there as it is wanted is not asked again"
        assert [*fleet.view().sinks] == ["good"]
