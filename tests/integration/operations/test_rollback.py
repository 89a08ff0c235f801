"""A real sink is rolled back next to a paused coordinator; every row is there once."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from integration.conftest import Deploy
from integration.tables.routed_sink import judge, routed, rows_of, table_of, with_zones

from headgate.operations.audit.audit import audit
from headgate.operations.cli.main import main
from headgate.operations.many_tables.list import list_tables

pytestmark = [pytest.mark.integration, pytest.mark.soak]


def test_a_rollback_beside_a_paused_zombie(deploy: Deploy) -> None:
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

    def ask(*options: str, to: str = target) -> tuple[int, str]:
        result = cli.invoke(main, ["rollback", str(sink.sink_file), to, *options])
        return result.exit_code, result.output + result.stderr

    code, said = ask("--yes")
    assert (code, "is running" in said) == (2, True), said
    sink.wait_until(lambda: ask("--dry-run")[0] == 0, "the paused one counts as gone")
    assert sink.rows().num_rows == sink.produced, "a dry run changes nothing"
    code, said = ask("--yes")
    assert code == 0, said
    assert sink.rows().num_rows == full[0].added_records

    tag = said.rpartition("headgate rollback SINK ")[2].partition(",")[0]
    code, undone = ask("--yes", to=tag)
    assert (code, sink.rows().num_rows) == (0, sink.produced), f"undone: {undone}"
    assert ask("--yes")[0] == 0, "and back once more"
    assert sink.rows().num_rows == full[0].added_records

    zombie.resume()
    sink.produce(100)  # without anything to commit it would notice at its next look at the table
    sink.wait_until_lag_zero()
    sink.wait_until(lambda: sink.rows().num_rows == sink.produced, "everything is there again")
    sink.stop()
    sink.judge()


def test_rollback_1_many_tables_go_back_beside_a_paused_zombie_and_come_again(
    deploy: Deploy,
) -> None:
    sink = routed(deploy)
    with_zones(sink)
    (zombie,) = sink.start()
    for _ in range(3):
        for topic in sink.topics[:3]:
            sink.produce(200, topic=topic)
        sink.wait_until_lag_zero()
    sink.wait_until(lambda: not sink.pending(), "everything is delivered")
    zombie.pause()
    history = sink.history()
    assert history is not None
    full = [commit.record for commit in history.commits if commit.record.records]
    names = ("db.orders", "db.zone_a", "db.zone_b", table_of(sink, sink.topics[1]))
    cli = CliRunner()

    def ask(to: str, *options: str) -> tuple[int, str]:
        result = cli.invoke(main, ["rollback", str(sink.sink_file), to, *options])
        return result.exit_code, result.output + result.stderr

    def rows() -> int:
        return sum(rows_of(sink, name).num_rows for name in names)

    before, target = rows(), str(full[0].transaction)
    sink.wait_until(lambda: ask(target, "--dry-run")[0] == 0, "the paused one counts as gone")
    assert rows() == before, "a dry run changes nothing"
    code, said = ask(target, "--yes")
    assert code == 0, said
    assert rows() == full[0].records
    assert audit(sink.settings, with_source=False).findings == ()

    tag = said.rpartition("headgate rollback SINK ")[2].partition(",")[0]
    assert ask(tag, "--yes")[0] == 0, "and there again"
    assert rows() == before
    assert ask(target, "--yes")[0] == 0

    zombie.resume()
    sink.produce(100, topic=sink.topics[0])
    sink.wait_until_lag_zero()
    sink.wait_until(lambda: not sink.pending(), "everything is delivered again")
    sink.stop()
    judge(sink, names)
    assert list_tables(sink.settings).exit_code == 0
    assert audit(sink.settings).findings == ()
