"""Implements ``headgate demo``: the whole system on one machine, and its coordinator's death.

A broker, a topic that fills, and two participants, one of which contains the coordinator. That one
is killed in the middle of a transaction; the other one takes over; the audit checks the result.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
from rich.console import Console

from headgate.config.load import load
from headgate.config.sink_sections import WriterKind
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import HeadgateError
from headgate.kafka.control_topic import ensure_control_topic
from headgate.operations.audit.report import AuditReport
from headgate.operations.demo.failover_scenario import FailoverScenario
from headgate.operations.demo.final_report import (
    Contents,
    audit_and_show,
    read_history_and_first_rows,
    show_contents,
    show_next_commands,
)
from headgate.operations.demo.processes import ParticipantProcess
from headgate.operations.demo.producer import TripStream, ensure_topic
from headgate.operations.demo.s3_server import BUCKET, EmbeddedS3
from headgate.operations.demo.screen import Screen
from headgate.operations.demo.workspace import (
    PARTITIONS,
    TOPIC,
    emptying_and_locking_folder,
    sink_file_text,
)
from headgate.operations.local_kafka.broker import (
    KAFKA_VERSION,
    EmbeddedKafka,
    ensure_broker_jars,
    java_version,
    require_java,
)
from headgate.runtime import early_signals
from headgate.runtime.process_notices import open_control_log

PARTICIPANTS = 2
RECORDS_MIN = 10_000
WIDTH_MAX = 100
UNFOLDED = 200
FOLDER = Path(".headgate/demo")
LOCAL, S3 = "local", "s3"
FATAL_SIGNAL = 128
"""What a shell adds to the number of the signal that ended a command."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose."""

    records: int
    folder: Path
    seed: int
    writer: str
    store: str
    keep: bool


@dataclass(frozen=True, slots=True)
class Show:
    """One run of the demo, once its sink is described."""

    options: Options
    screen: Screen
    sink_file: Path
    settings: SinkSettings


def main(arguments: list[str]) -> int:
    """Return the exit code: 0 only if the coordinator died mid-transaction and nothing was lost."""
    result = _run_from_command_line.main(
        arguments, prog_name="headgate demo", standalone_mode=False
    )
    return int(result or 0)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--records", type=click.IntRange(RECORDS_MIN), default=400_000, help="Trips.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=FOLDER,
    help="Where everything is kept; the next demo there starts over.",
)
@click.option("--seed", default=1, help="Seed for the trips; equal seeds give equal trips.")
@click.option(
    "--writer",
    type=click.Choice([kind.value for kind in WriterKind]),
    default=WriterKind.SPARK.value,
    help="What writes the data files.",
)
@click.option(
    "--store",
    type=click.Choice([LOCAL, S3]),
    default=LOCAL,
    help="Where the table is: in the folder, or on an object store in memory (moto's).",
)
@click.option("--keep", is_flag=True, help="Keep Kafka running afterwards, until Ctrl-C.")
def _run_from_command_line(**chosen: Any) -> int:
    """Run the whole system on this machine and watch it survive a kill.

    Kafka, two participants, and taxi trips that flow into an Iceberg table. Then the coordinator is
    killed in the middle of a transaction. At the end the audit proves that each trip is in the
    table exactly once.
    """
    screen = Screen(_console())
    with _raising_interrupt_on_signals() as received:
        try:
            return _run_demo(Options(**chosen), screen, received)
        except (KeyboardInterrupt, HeadgateError):
            # A Kafka client that is interrupted while it is made fails in some way of its own.
            if not received:
                raise
            screen.show_text("interrupted; nothing was left running")
            return FATAL_SIGNAL + received[0]


def _run_demo(options: Options, screen: Screen, signals: Sequence[int]) -> int:
    require_java()
    screen.show_heading(
        "Kafka topic -> Iceberg table, exactly once, while the coordinator is killed"
    )
    screen.show_text(f"Everything is kept in {options.folder}.\n", "dim")
    with ExitStack() as stage:
        folder = stage.enter_context(emptying_and_locking_folder(options.folder))
        kafka = EmbeddedKafka(folder / "kafka", _fetch_jars(screen))
        with screen.showing_spinner("starting Kafka"):
            stage.enter_context(kafka)
        screen.show_line("Kafka", f"{KAFKA_VERSION} on Java {java_version()}, at {kafka.bootstrap}")
        endpoint = _start_object_store(stage, folder, screen) if options.store == S3 else None
        sink_file = folder / "sink.toml"
        sink_file.write_text(sink_file_text(sink_file, kafka.bootstrap, options.writer, endpoint))
        show = Show(options, screen, sink_file, load(sink_file))
        with ExitStack() as cast:
            play = _set_up_scenario(show, cast)
            play.run(signals)
            _stop_participants(screen, play)
        well = _audit_and_show_verdict(show, play)
        log = play.survivors[0].log
        show_next_commands(
            screen, sink_file, log, kafka_runs=options.keep, is_store_local=endpoint is None
        )
        if options.keep:
            _wait_for_ctrl_c(screen, kafka)
        return 0 if well else 1


def _start_object_store(stage: ExitStack, folder: Path, screen: Screen) -> str:
    """Start the object store, which ends with the stage, and return its address."""
    with screen.showing_spinner("starting the object store"):
        endpoint = stage.enter_context(EmbeddedS3(folder)).endpoint
    screen.show_line("S3", f"moto's server at {endpoint}, bucket {BUCKET}, in memory")
    return endpoint


def _fetch_jars(screen: Screen) -> Path:
    with screen.showing_download(f"Apache Kafka {KAFKA_VERSION} (44 MB), once") as on_progress:
        return ensure_broker_jars(on_progress=on_progress)


def _set_up_scenario(show: Show, cast: ExitStack) -> FailoverScenario:
    options, screen, settings = show.options, show.screen, show.settings
    bootstrap = settings.kafka["bootstrap.servers"]
    ensure_topic(bootstrap, TOPIC, partitions=PARTITIONS)
    ensure_control_topic(settings.kafka, settings.control.topic)
    screen.show_line(
        "topic", f"{TOPIC} with {PARTITIONS} partitions; {options.records:,} trips to come"
    )
    participants = [
        cast.enter_context(
            ParticipantProcess(show.sink_file, show.sink_file.with_name(f"participant-{n}.log"))
        )
        for n in range(1, PARTICIPANTS + 1)
    ]
    spark = ", each with a Spark of its own" if options.writer == WriterKind.SPARK else ""
    pids = " and ".join(str(participant.pid) for participant in participants)
    screen.show_line("processes", f"headgate run sink.toml as pids {pids}{spark}")
    log = open_control_log(settings)
    cast.callback(log.close)
    stream = TripStream(bootstrap, TOPIC, records=options.records, seed=options.seed)
    cast.callback(stream.stop)
    stream.start()
    return FailoverScenario(screen, log, stream, participants)


def _stop_participants(screen: Screen, play: FailoverScenario) -> None:
    screen.show_line(
        "all in", "the stream is over, and the table holds as many records", "bold green"
    )
    for survivor in play.survivors:
        with screen.showing_spinner(f"stopping pid {survivor.pid}"):
            survivor.stop()
        screen.show_line("stopped", f"pid {survivor.pid} ended in order when asked to")


def _audit_and_show_verdict(show: Show, play: FailoverScenario) -> bool:
    screen = show.screen
    held = read_history_and_first_rows(show.settings)
    show_contents(screen, held)
    report = audit_and_show(screen, show.settings)
    complaints = [
        *_describe_kill_doubts(play, held),
        *_why_records_are_not_proven(show.options.records, report),
    ]
    screen.show_text()
    for complaint in complaints:
        screen.show_text(complaint, "bold red")
    if not complaints and play.kill and play.taken_over_s is not None:
        screen.show_text(
            f"Pid {play.kill.pid} was killed in the middle of transaction {play.kill.transaction}; "
            f"pid {play.survivors[0].pid} took over {play.taken_over_s:.1f} s later; "
            f"nothing was lost, nothing came twice. All in {screen.elapsed_s:.0f} s.",
            "bold green",
        )
    return not complaints


def _describe_kill_doubts(play: FailoverScenario, contents: Contents) -> Iterator[str]:
    """Yield why the demo proves nothing about a coordinator's death, if so."""
    kill = play.kill
    if kill is None:
        yield "No coordinator was killed: no transaction had rows on their way. Try more --records."
    elif kill.by_signal != signal.SIGKILL:
        yield f"Pid {kill.pid} had ended by itself before it was killed."
    elif contents.has_reached_within_epoch(kill.transaction):
        yield f"Transaction {kill.transaction} had landed already when its coordinator was killed."
    elif play.taken_over_s is None:
        yield "Nobody took over."


def _why_records_are_not_proven(sent: int, report: AuditReport) -> Iterator[str]:
    """Yield why the demo proves nothing about the records, if so."""
    if not report.is_well:
        yield "The audit found something wrong: see above."
    produced, in_table = (
        report.sum_over_partitions("produced"),
        report.sum_over_partitions("in_table"),
    )
    if not sent == produced == in_table:
        yield f"{sent} were sent; {produced} are in Kafka, {in_table} in the table."


def _wait_for_ctrl_c(screen: Screen, kafka: EmbeddedKafka) -> None:
    screen.show_text(f"\nKafka runs at {kafka.bootstrap} until you press Ctrl-C.", "dim")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        screen.show_text("Kafka is stopped.", "dim")


def _console() -> Console:
    """Return a console that does not fold what goes to a file or a pipe."""
    console = Console(highlight=False)
    width = min(console.width, WIDTH_MAX) if console.is_terminal else UNFOLDED
    return Console(highlight=False, width=width)


@contextmanager
def _raising_interrupt_on_signals() -> Iterator[list[int]]:
    """Make SIGTERM end the demo as Ctrl-C does, closing everything it has opened.

    Yields the signals that were received.
    """
    received: list[int] = []

    def unwind(number: int, _frame: FrameType | None) -> NoReturn:
        received.append(number)
        raise KeyboardInterrupt

    ends = (signal.SIGINT, signal.SIGTERM)
    heard = [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: early_signals.handler_before_catch(number) for number in heard}
    try:
        early_signals.take_over_signals(unwind, heard)
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
