"""A machine whose clock is not the brokers': log, probe, status and check say so, or it works."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic
from integration.deployment import Deployment
from integration.operations.test_served_sinks import asked
from integration.operations.test_status import asked as status
from repository.tree import ROOT

from headgate.operations.cli.main import main
from headgate.operations.local_kafka.broker import EmbeddedKafka
from headgate.operations.status.status import read_status as look

pytestmark = pytest.mark.integration

HOURS = {"ahead of": -2, "behind": 2}
"""By how this machine's clock is: by how many hours the brokers' differs."""
Shifted = Callable[[], AbstractContextManager[None]]
FACE: dict[str, Any] = {"http": {"listen": "127.0.0.1:0"}}


@pytest.fixture(params=["ahead of", pytest.param("behind", marks=pytest.mark.soak)])
def away(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shifted(away: str, tmp_path: Path) -> Shifted:
    """A broker that is started within it has another clock than this machine."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("there is no C compiler")
    library = tmp_path / "shifted_clock.so"
    source = ROOT / "tests/support/shifted_clock.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)

    @contextmanager
    def within() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CLOCK_SHIFT_S", str(HOURS[away] * 3_600))
            patch.setenv("LD_PRELOAD", str(library))
            yield

    return within


@contextmanager
def deployed(kafka: EmbeddedKafka, home: Path) -> Iterator[Deployment]:
    create_source(kafka)
    with Deployment(home, kafka.bootstrap, ["rows"], group="rows", change=FACE) as sink:
        yield sink


def create_source(kafka: EmbeddedKafka) -> None:
    """The topic itself takes records of any time."""
    takes_all = NewTopic("rows", 2, 1, config={"message.timestamp.type": "LogAppendTime"})
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([takes_all])["rows"].result()


def checked_clock(sink: Deployment) -> str:
    lines = CliRunner().invoke(main, ["check", str(sink.sink_file)]).stdout.splitlines()
    return next(line for line in lines if line.split()[1] == "clock")


@pytest.mark.wide
def test_a_control_topic_of_headgate_s_takes_every_clock(
    own_kafka: EmbeddedKafka, shifted: Shifted, tmp_path: Path, away: str
) -> None:
    with shifted():
        own_kafka.restart()
    with deployed(own_kafka, tmp_path) as sink:
        (participant,) = sink.start()
        sink.produce()
        sink.wait_until_lag_zero()
        sink.wait_until(lambda: status(sink.sink_file)[1] == 0, "status is well")
        assert asked(participant, "/readyz") == (200, "ok\n")
        line = checked_clock(sink)
        assert line.startswith("wrong"), line
        assert f"s {away} the brokers' [HG-410] - synchronize the clocks" in line
        sink.stop()
        sink.judge()


@pytest.mark.wide
@pytest.mark.parametrize("away", ["ahead of"], indirect=True)
def test_a_clock_that_an_older_control_topic_refuses_is_named_everywhere(
    own_kafka: EmbeddedKafka, shifted: Shifted, tmp_path: Path
) -> None:
    """Kafka refuses what is more than an hour ahead, where the writers' time counts."""
    admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap})
    admin.create_topics([NewTopic("rows-control", 1, 1)])["rows-control"].result()
    with deployed(own_kafka, tmp_path) as sink:
        (first,) = sink.start()
        sink.produce()
        sink.wait_until_lag_zero()
        sink.kill(first)
        own_kafka.kill()
        with shifted():
            own_kafka.restart()
        (participant,) = sink.start()
        sink.wait_until(lambda: participant.said("HG-410"), "the log names the clock")
        sink.wait_until(lambda: asked(participant, "/readyz")[0] == 503, "it is not ready")
        condition, exit_code, _ = status(sink.sink_file)
        assert exit_code != 0, condition
        text = CliRunner().invoke(main, ["check", str(sink.sink_file)]).stdout
        assert "it takes its writers' time" in text


@pytest.mark.soak
@pytest.mark.parametrize("away", ["ahead of"], indirect=True)
def test_one_that_cannot_speak_after_an_orderly_end_is_no_stopped_sink(
    own_kafka: EmbeddedKafka, shifted: Shifted, tmp_path: Path
) -> None:
    """What was heard last is the goodbye of who was there before; the group knows better."""
    admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap})
    admin.create_topics([NewTopic("rows-control", 1, 1)])["rows-control"].result()
    with deployed(own_kafka, tmp_path) as sink:
        (first,) = sink.start()
        sink.produce()
        sink.wait_until_lag_zero()
        sink.stop(first)
        sink.wait_until(lambda: status(sink.sink_file)[:2] == ("stopped", 0), "it has stopped")
        own_kafka.kill()
        with shifted():
            own_kafka.restart()
        (participant,) = sink.start()
        sink.wait_until(lambda: participant.said("HG-410"), "the log names the clock")
        told = ("not heard", 1)
        sink.wait_until(lambda: status(sink.sink_file)[:2] == told, "status says it")
        notes = look(sink.settings).notes
        expected = "group rows has members that nobody hears on control topic rows-control: rdkafka"
        assert any(note.startswith(expected) for note in notes), notes
        assert asked(participant, "/readyz")[0] == 503
