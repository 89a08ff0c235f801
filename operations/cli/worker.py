"""Runs a worker of a folder or of a fleet, and lists what a folder's worker tells."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.redaction import printable
from headgate.operations.terminal import describe_next_try, print_json
from headgate.runtime.console_log import log_to_stderr
from headgate.runtime.fleet.folder import STATE_FILE, Folder
from headgate.runtime.fleet.processes import memory_here_mib
from headgate.runtime.fleet.sink_life import LifeState, shown_state
from headgate.runtime.fleet.worker import Limits, Worker, warm_parent_command

if TYPE_CHECKING:
    from headgate.config.worker_settings import WorkerSettings

_WARM_PARENT = "headgate.operations.cli.warm_parent"


def run_worker(folder: Path, *, memory_mib: int, state_file: Path | None, verbose: bool) -> None:
    """Block until SIGINT or SIGTERM. Raises ``ConfigurationError``, ``WorkerEnded``."""
    log_to_stderr([], verbose=verbose)
    command = warm_parent_command(_WARM_PARENT, *(["--verbose"] if verbose else []))
    Folder(folder)  # a mistake is told before processes are started
    Worker(lambda: Folder(folder, state_file), command, Limits(memory_mib)).run()


def run_fleet_worker(settings: WorkerSettings, *, verbose: bool) -> None:
    """As ``run_worker``, the sinks that fall to this worker of a fleet."""
    from headgate.runtime.fleet.fleet_member import FleetMember  # a folder's worker has no client

    log_to_stderr([], verbose=verbose)
    command = warm_parent_command(_WARM_PARENT, *(["--verbose"] if verbose else []))
    jvms_mib = settings.worker.jvms_memory_mib or memory_here_mib()
    limits = Limits(settings.worker.memory_mib, jvms_mib)
    Worker(lambda: FleetMember(settings, version("headgate")), command, limits).run()


def list_sinks(folder: Path, state_file: Path | None, *, as_json: bool) -> int:
    """Print the state of each sink, and return the exit code: 1 if one is in error or lost."""
    path = state_file or folder / STATE_FILE
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Unreachable(
            f"no worker tells of {folder} in {path}: {error}",
            "start one with headgate worker --folder, or name its --state",
        ) from None
    now_ms = time.time_ns() // 1_000_000
    sinks: list[dict[str, Any]] = told["sinks"]
    for sink in sinks:
        sink["state"] = shown_state(LifeState(sink["state"]), told["time_ms"], now_ms).value
    if as_json:
        print_json(sinks)
    for sink in [] if as_json else sinks:
        click.echo(printable(_line(sink)))
    return int(any(sink["state"] in ("error", "lost") for sink in sinks))


def _line(sink: dict[str, Any]) -> str:
    line = f"{sink['sink']:<30} {sink['state']:<9}"
    if sink["state"] != LifeState.ERROR.value:
        return f"{line} {sink.get('doing', '')}".rstrip()
    if (next_ms := sink.get("next_try_ms")) is not None:
        line += f" {describe_next_try(next_ms)}"
    return f"{line} {sink['code']} {sink['text']}"
