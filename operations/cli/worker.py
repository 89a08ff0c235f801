"""Implements ``headgate worker``: runs the sinks of a folder or of a fleet, or lists a folder's."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.redaction import to_printable_line
from headgate.operations.cli.options import ExitCode, as_json_option, load_worker_settings
from headgate.operations.command_output import describe_next_try, print_json
from headgate.runtime import early_signals
from headgate.runtime.wall_clock import wall_ms

if TYPE_CHECKING:
    from headgate.config.worker_settings import WorkerSettings

_WARM_PARENT = "headgate.operations.cli.warm_parent_process"


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Run the sink of each *.toml in it; files that come, change or go are followed.",
)
@click.option(
    "--memory-mib",
    type=click.IntRange(min=0),
    default=1_024,
    help="With --folder: private memory that a sink's process may take (1,024); 0: any.",
)
@click.option(
    "--state",
    "state_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the sinks' states are told; default: .headgate-worker.json in the folder.",
)
@click.option("--list", "lists", is_flag=True, help="Show the states that the worker tells.")
@as_json_option
@click.pass_context
def worker(
    ctx: click.Context,
    file: Path | None,
    *,
    folder: Path | None,
    memory_mib: int,
    state_file: Path | None,
    lists: bool,
    as_json: bool,
) -> None:
    """Run the sinks of a folder, or of a fleet, each in a process.

    FILE is that of a fleet's workers (docs/guides/fleet.md); --folder needs none
    (docs/guides/workers.md). A sink that fails is tried again, later each time, and delays no
    other.
    """
    if (file is None) is (folder is None):
        raise click.UsageError("name a fleet's FILE, or a --folder")
    verbose = bool(ctx.find_root().params["verbose"])
    if folder is None:
        if lists:
            raise click.UsageError("headgate fleet list shows the sinks of a fleet")
        settings = load_worker_settings(ctx, cast("Path", file))
        _run_fleet_worker(settings, verbose=verbose)
        return
    if lists:
        early_signals.restore_and_resend_signals()
        ctx.exit(_show_sinks_of_worker(folder, state_file, as_json=as_json))
    _run_folder_worker(folder, memory_mib=memory_mib, state_file=state_file, verbose=verbose)


def _run_folder_worker(
    folder: Path, *, memory_mib: int, state_file: Path | None, verbose: bool
) -> None:
    """Block until SIGINT or SIGTERM. Raises ``ConfigurationError``, ``WorkerEnded``."""
    from headgate.runtime.console_log import send_redacted_logs_to_stderr
    from headgate.runtime.fleet.folder import Folder
    from headgate.runtime.fleet.worker import Limits, Worker, warm_parent_command

    send_redacted_logs_to_stderr([], verbose=verbose)
    command = warm_parent_command(_WARM_PARENT, *(["--verbose"] if verbose else []))
    Folder(folder)  # a mistake is told before processes are started
    Worker(lambda: Folder(folder, state_file), command, Limits(memory_mib)).run()


def _run_fleet_worker(settings: WorkerSettings, *, verbose: bool) -> None:
    """As ``_run_folder_worker``, the sinks that fall to this worker of a fleet."""
    from headgate.control_protocol.redacting_loggers import redacting
    from headgate.runtime.console_log import send_redacted_logs_to_stderr
    from headgate.runtime.fleet.fleet_member import FleetMember  # a folder's worker has no client
    from headgate.runtime.fleet.linux_process_calls import machine_or_cgroup_memory_mib
    from headgate.runtime.fleet.worker import Limits, Worker, warm_parent_command

    send_redacted_logs_to_stderr([], verbose=verbose)
    command = warm_parent_command(_WARM_PARENT, *(["--verbose"] if verbose else []))
    jvms_mib = settings.worker.jvms_memory_mib or machine_or_cgroup_memory_mib()
    limits = Limits(settings.worker.memory_mib, jvms_mib)
    with redacting(settings.redaction):
        Worker(lambda: FleetMember(settings, version("headgate")), command, limits).run()


def _show_sinks_of_worker(folder: Path, state_file: Path | None, *, as_json: bool) -> ExitCode:
    """Print the state of each sink, and return the exit code: 1 if one is in error or lost."""
    from headgate.runtime.fleet.folder import STATE_FILE
    from headgate.runtime.fleet.sink_life import LifeState, state_or_lost

    path = state_file or folder / STATE_FILE
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Unreachable(
            f"no worker tells of {folder} in {path}: {error}",
            "start one with headgate worker --folder, or name its --state",
        ) from None
    now_ms = wall_ms()
    try:
        sinks: list[dict[str, Any]] = told["sinks"]
        for sink in sinks:
            sink["state"] = state_or_lost(LifeState(sink["state"]), told["time_ms"], now_ms).value
        lines = [to_printable_line(_status_line(sink)) for sink in sinks]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unreachable(
            f"{path} is no worker's state, or one of another release: {error!r}",
            "name the --state of a headgate worker --folder that runs",
        ) from None
    if as_json:
        print_json(sinks)
    for line in [] if as_json else lines:
        click.echo(line)
    return int(any(sink["state"] in ("error", "lost") for sink in sinks))


def _status_line(sink: dict[str, Any]) -> str:
    from headgate.runtime.fleet.sink_life import LifeState

    line = f"{sink['sink']:<30} {sink['state']:<9}"
    if sink["state"] != LifeState.ERROR.value:
        return f"{line} {sink.get('doing', '')}".rstrip()
    if (next_ms := sink.get("next_try_ms")) is not None:
        line += f" {describe_next_try(next_ms)}"
    return f"{line} {sink['code']} {sink['text']}"
