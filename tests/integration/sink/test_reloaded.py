"""A sink file that changes under a real participant, on a real broker."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from integration.conftest import Deploy
from integration.deployment import Deployment, Participant

from headgate.operations.cli.main import main

pytestmark = pytest.mark.integration


def changed(sink: Deployment, participant: Participant, text: str | None = None) -> None:
    """Put the deployment's file, or another one, in the place of the participant's own."""
    own = participant.log.with_suffix(".toml")
    new = own.with_suffix(".new")
    new.write_text(sink.sink_file.read_text() if text is None else text)
    new.replace(own)


def test_a_file_that_changes_holds_live_or_anew_and_no_record_is_lost(
    deploy: Deploy,
) -> None:
    sink = deploy()
    (participant,) = sink.start()
    sink.produce(300)
    sink.wait_until_lag_zero()
    record = sink.record()
    assert record is not None

    sink.change({"coordinator": {"commit_interval_ms": 700}})
    changed(sink, participant)
    sink.wait_until(lambda: participant.said("it applies at the next START"), "a live change")
    sink.produce(300)
    sink.wait_until_lag_zero()
    known = sink.record()
    assert known is not None
    assert known.transaction.epoch == record.transaction.epoch, "nobody has left for that"

    changed(sink, participant, "name = ")
    sink.wait_until(lambda: participant.said("was not adopted: HG-100"), "a refusal")

    sink.change({"quarantine": {"policy": "skip"}})
    changed(sink, participant)
    sink.wait_until(lambda: participant.said("it applies after leaving in order"), "another life")
    sink.produce(300)
    sink.wait_until_lag_zero()
    after = sink.record()
    assert after is not None
    assert after.transaction.epoch > record.transaction.epoch
    assert participant.running, "in the same process"
    sink.stop()
    sink.judge()


def test_a_start_with_another_file_is_an_order_to_work_with_it(deploy: Deploy) -> None:
    """Who waited for it with the old file ends by name, once those with the new one work."""
    sink = deploy()
    old = sink.start(2)
    sink.wait_until(sink.all_share, "a partition each")
    sink.produce(300)
    sink.wait_until_lag_zero()
    assert CliRunner().invoke(main, ["stop", str(sink.sink_file)]).exit_code == 0
    sink.participants.clear()  # they are meant to end
    try:
        sink.change({"quarantine": {"policy": "skip"}})
        (new,) = sink.start()
        waits = "waiting for headgate start"
        sink.wait_until(lambda: all(p.said(waits) for p in (*old, new)), "all wait")
        assert CliRunner().invoke(main, ["start", str(sink.sink_file)]).exit_code == 0
        assert [each.ended() for each in old] == [2, 2], "\n".join(map(str, old))
    finally:
        sink.participants += [each for each in old if each.running]
    for each in old:
        line = each.log_text().splitlines()[-1]
        assert line.startswith("headgate: HG-114 "), line
        assert "quarantine.policy is 'skip' there and 'fail' here" in line
    sink.produce(300)
    sink.wait_until_lag_zero()
    assert new.running
    sink.stop()
    sink.judge()


@pytest.mark.wide
def test_a_change_is_rolled_out_one_participant_after_the_other(deploy: Deploy) -> None:
    """Who has the new file waits until the last one with the old file has left in order."""
    sink = deploy()
    first, last = sink.start(2)
    sink.wait_until(sink.all_share, "a partition each")
    sink.produce(300)
    sink.wait_until_lag_zero()

    sink.change({"quarantine": {"policy": "skip"}})
    changed(sink, first)
    sink.wait_until(lambda: first.said("waits: HG-114"), "the first one waits")
    sink.produce(300)
    sink.wait_until_lag_zero()
    assert not last.said("HG-114"), "the older one goes on"
    checked = CliRunner().invoke(main, ["check", str(sink.sink_file)])
    assert (checked.exit_code, "HG-114" in checked.stdout) == (2, True), checked.stdout

    changed(sink, last)
    sink.wait_until(sink.all_share, "both take part again")
    sink.produce(300)
    sink.wait_until_lag_zero()
    assert first.running
    assert last.running
    sink.stop()
    sink.judge()
