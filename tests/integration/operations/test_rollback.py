"""Point 4: a real sink goes back beside a paused coordinator, reads again; every row is once."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from integration.conftest import Deploy

from headgate.operations.cli import main

pytestmark = [pytest.mark.integration, pytest.mark.soak]


def test_point_4_a_rollback_beside_a_paused_zombie(deploy: Deploy) -> None:
    sink = deploy()
    (zombie,) = sink.start()
    for _ in range(3):
        sink.produce(500)
        sink.wait_until_lag_zero()
    zombie.pause()
    history = sink.history()
    assert history is not None
    full = [commit for commit in history.commits if commit.added_records]
    target = str(full[0].record.transaction)
    cli = CliRunner()

    def ask(*options: str) -> tuple[int, str]:
        result = cli.invoke(main, ["rollback", str(sink.sink_file), target, *options])
        return result.exit_code, result.output + result.stderr

    code, said = ask("--yes")
    assert (code, "is running" in said) == (2, True), said
    sink.wait_until(lambda: ask("--dry-run")[0] == 0, "the paused one counts as gone")
    assert sink.rows().num_rows == sink.produced, "a dry run changes nothing"
    code, said = ask("--yes")
    assert code == 0, said
    assert sink.rows().num_rows == full[0].added_records

    zombie.resume()
    sink.produce(100)  # without anything to commit it would notice at its next look at the table
    sink.wait_until_lag_zero()
    sink.wait_until(lambda: sink.rows().num_rows == sink.produced, "everything is there again")
    sink.stop()
    sink.judge()
