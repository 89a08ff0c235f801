"""Defines ``headgate fleet``: commands that say what is wanted of many sinks, and show what is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.redaction import to_printable_line
from headgate.operations.cli.options import as_json_option, load_worker_settings
from headgate.operations.command_output import describe_next_try, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.config.worker_settings import WorkerSettings
    from headgate.runtime.fleet.fleet_changes import FleetPlanner
    from headgate.runtime.fleet.fleet_view import FleetView, SinkView, WorkerView

WATCH_S = 2.0
_LINES_MAX = 40

_dry_run = click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
_sinks = click.argument("sinks", nargs=-1, required=True)


@click.group()
@click.option(
    "--fleet",
    "file",
    default="worker.toml",
    envvar="HEADGATE_FLEET",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file that the fleet's workers have; or set HEADGATE_FLEET.",
)
@click.pass_context
def fleet(ctx: click.Context, file: Path) -> None:
    """Say what is wanted of many sinks on many workers, and see what is.

    Specs are stored on a topic of Kafka, and followed by `headgate worker FILE`
    (docs/guides/fleet.md). Each command changes all that it names, or nothing.
    """
    ctx.obj = file


def _load_settings_of_fleet(ctx: click.Context) -> WorkerSettings:
    return load_worker_settings(ctx, ctx.obj)


@fleet.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--prune", is_flag=True, help="Remove sinks that the folder does not name.")
@click.option(
    "--memory-mib",
    type=click.IntRange(min=0),
    default=0,
    help="Private memory that each sink's process may take; 0: as its worker says.",
)
@click.option("--check", is_flag=True, help="Ask first what headgate check asks, of what changes.")
@_dry_run
@click.pass_context
def apply(
    ctx: click.Context, folder: Path, *, prune: bool, memory_mib: int, check: bool, dry_run: bool
) -> None:
    """Let the fleet follow the sink files of a folder: all of them, or none.

    A sink that is there keeps its place and its state; one that is new goes to the least loaded
    worker. Creates the fleet's topics if they are missing. With --check nothing changes if a sink
    that is new, or whose file is another one, would not work: its references must be readable here.
    """
    settings = _load_settings_of_fleet(ctx)
    from headgate.runtime.fleet.fleet_changes import Wanting, plan_apply
    from headgate.runtime.fleet.sink_files import read_sink_files, require_memory_for_jvm_per_sink

    files = read_sink_files(folder)
    require_memory_for_jvm_per_sink(files, memory_mib)
    wanted = {name: Wanting(text, memory_mib) for name, text in files.items()}
    plan_change = plan_apply(wanted, prune=prune)
    if check:
        _require_changed_files_would_work(settings, plan_change)
    lines = _change_specs_and_print_lines(
        settings, plan_change, dry_run=dry_run, creates_topics=True
    )
    counts = [sum(line.startswith(sign) for line in lines) for sign in "+~-"]
    changed = "{} added, {} changed, {} removed".format(*counts)
    click.echo(f"{count_of(len(files), 'file')}: {changed}{' (dry run)' if dry_run else ''}")


def _add_state_command(name: str, state: str, text: str) -> click.Command:
    @fleet.command(name, help=text)
    @_sinks
    @_dry_run
    @click.pass_context
    def command(ctx: click.Context, sinks: tuple[str, ...], *, dry_run: bool) -> None:
        settings = _load_settings_of_fleet(ctx)
        from headgate.runtime.fleet.fleet_changes import plan_desired_state
        from headgate.runtime.fleet.sink_life import DesiredState

        _change_specs_or_say_unchanged(
            settings, plan_desired_state(sinks, DesiredState(state)), dry_run=dry_run
        )

    return command


_add_state_command("pause", "paused", "Let sinks fetch nothing until they are resumed.")
_add_state_command("resume", "running", "Let paused sinks fetch again.")
_add_state_command("stop", "stopped", "End the processes of sinks until they are started.")
_add_state_command("start", "running", "Let stopped sinks work again.")


@fleet.command()
@_sinks
@_dry_run
@click.pass_context
def restart(ctx: click.Context, sinks: tuple[str, ...], *, dry_run: bool) -> None:
    """Let the processes of sinks leave in order, and come again; an error is tried at once."""
    settings = _load_settings_of_fleet(ctx)
    from headgate.runtime.fleet.fleet_changes import plan_restart

    _change_specs_or_say_unchanged(settings, plan_restart(sinks), dry_run=dry_run)


@fleet.command()
@_sinks
@_dry_run
@click.pass_context
def remove(ctx: click.Context, sinks: tuple[str, ...], *, dry_run: bool) -> None:
    """Let sinks leave for good; their tables, groups and topics stay."""
    settings = _load_settings_of_fleet(ctx)
    from headgate.runtime.fleet.fleet_changes import plan_remove

    _change_specs_or_say_unchanged(settings, plan_remove(sinks), dry_run=dry_run)


@fleet.command()
@click.argument("sink")
@click.argument("participants", type=click.IntRange(min=1, max=1_000))
@_dry_run
@click.pass_context
def scale(ctx: click.Context, sink: str, *, participants: int, dry_run: bool) -> None:
    """Let so many processes share the partitions of a sink, on different workers if there are."""
    settings = _load_settings_of_fleet(ctx)
    from headgate.runtime.fleet.fleet_changes import plan_scale

    _change_specs_or_say_unchanged(settings, plan_scale(sink, participants), dry_run=dry_run)


@fleet.command()
@_sinks
@click.option("--to", "worker", required=True, help="The worker that shall have them.")
@_dry_run
@click.pass_context
def move(ctx: click.Context, sinks: tuple[str, ...], *, worker: str, dry_run: bool) -> None:
    """Let sinks go to another worker; the balancer leaves them there."""
    settings = _load_settings_of_fleet(ctx)
    from headgate.runtime.fleet.fleet_changes import plan_pinned_move

    _change_specs_or_say_unchanged(settings, plan_pinned_move(sinks, worker), dry_run=dry_run)


@fleet.command()
@click.argument("worker")
@click.option("--timeout", "timeout_s", default=120.0, show_default=True, help="Seconds to wait.")
@_dry_run
@click.pass_context
def drain(ctx: click.Context, worker: str, *, timeout_s: float, dry_run: bool) -> None:
    """Let all sinks of a worker go to the others, and wait for it: before a maintenance.

    Once it is started again, it takes sinks again.
    """
    settings = _load_settings_of_fleet(ctx)
    from headgate.runtime.fleet.fleet_changes import plan_drain

    _change_specs_or_say_unchanged(settings, plan_drain(worker), dry_run=dry_run)
    if not dry_run:
        _wait_until_drained(settings, worker, timeout_s)
        click.echo(f"worker {worker} runs no sink; end it when you like")


@fleet.command("list")
@click.option("--workers", is_flag=True, help="Show the workers instead of the sinks.")
@click.option("--watch", is_flag=True, help="Show it again every two seconds.")
@as_json_option
@click.pass_context
def list_fleet(ctx: click.Context, *, workers: bool, watch: bool, as_json: bool) -> None:
    """Show what is wanted beside what is: states, workers, errors, next tries.

    Exit code 1: a sink is in error or lost, or a spec is not believed; 3: no worker tells anything.
    """
    settings = _load_settings_of_fleet(ctx)
    from headgate.control_protocol.errors import WorkersSilent
    from headgate.runtime.fleet.fleet_topics import WatchedFleet

    with closing(WatchedFleet(settings)) as watched:
        while True:
            found = watched.current_view()
            if watch:
                click.clear()
            if watched.problem:
                click.echo(to_printable_line(watched.problem), err=True)
            _show_fleet(found, shows_workers=workers, as_json=as_json)
            if not watch:
                break
            try:
                watched.follow(WATCH_S)
            except KeyboardInterrupt:
                ctx.exit(0)
    if found.sinks and all(worker.lost for worker in found.workers.values()):
        raise WorkersSilent(
            f"no worker of the fleet {settings.fleet.name} tells anything",
            "start one with headgate worker FILE; sinks that still run go on",
        )
    ctx.exit(int(any(sink.needs_attention for sink in found.sinks.values())))


@fleet.command("show")
@click.argument("sink")
@click.pass_context
def show_sink_file(ctx: click.Context, sink: str) -> None:
    """Print a sink's file as its process reads it, for commands such as headgate status."""
    settings = _load_settings_of_fleet(ctx)
    from headgate.control_protocol.errors import ConfigurationError
    from headgate.runtime.fleet.fleet_records import sink_of_key
    from headgate.runtime.fleet.fleet_topics import FleetReader
    from headgate.runtime.fleet.sink_files import with_fleet_defaults

    with closing(FleetReader(settings)) as reader:
        reader.read_to_end()
        found = reader.current_view().sinks.get(sink)
    if found is None or found.spec is None:
        raise ConfigurationError(f"the fleet has no sink {sink}", "headgate fleet list shows them")
    session_ms = settings.worker.session_timeout_ms
    click.echo(with_fleet_defaults(found.spec.file, sink_of_key(sink), session_ms), nl=False)


# -------------------------------------------------------------------------------------- changing


def _change_specs_and_print_lines(
    settings: WorkerSettings,
    plan_change: FleetPlanner,
    *,
    dry_run: bool,
    creates_topics: bool = False,
) -> list[str]:
    """Make the change, print how it differs, and return the lines."""
    from headgate.operations.control.operator_claim import current_actor
    from headgate.runtime.fleet.fleet_topics import change_fleet

    plan = change_fleet(
        settings, plan_change, current_actor(), dry_run=dry_run, creates=creates_topics
    )
    shown = plan.lines if dry_run else [line for line in plan.lines if not line.startswith(" ")]
    some = shown if dry_run else shown[:_LINES_MAX]
    for line in some:
        click.echo(to_printable_line(line))
    if len(shown) > len(some):
        click.echo(f"... and {len(shown) - len(some)} more")
    return [*plan.lines]


def _require_changed_files_would_work(settings: WorkerSettings, plan_change: FleetPlanner) -> None:
    """Check each sink whose file would be new. Raises ``FleetFilesUnfit`` if one would not work."""
    from headgate.control_protocol.errors import FleetFilesUnfit
    from headgate.operations.check.check import State
    from headgate.operations.check.fleet_files import check_sink_files
    from headgate.operations.command_output import console
    from headgate.operations.render_command_results import show_checks
    from headgate.runtime.fleet.fleet_changes import file_texts_of_changed_sinks
    from headgate.runtime.fleet.fleet_topics import change_fleet
    from headgate.runtime.fleet.sink_files import with_fleet_defaults

    plan = change_fleet(settings, plan_change, actor="", dry_run=True, creates=True)
    session_ms = settings.worker.session_timeout_ms
    texts = {
        sink: with_fleet_defaults(text, sink, session_ms)
        for sink, text in file_texts_of_changed_sinks(plan).items()
    }
    answers = check_sink_files(texts)
    wrong = {
        sink: found
        for sink, every in answers.items()
        if (found := [each for each in every if each.state is State.WRONG])
    }
    for sink, found in wrong.items():
        click.echo(f"{sink}:")
        show_checks(console(), found)
    if wrong:
        raise FleetFilesUnfit(
            f"{len(wrong)} of {len(answers)} sinks that would change would not work, so nothing "
            f"was changed: {', '.join(wrong)}",
            "correct what is said of each above, and apply again; or leave --check out",
        )
    click.echo(f"{count_of(len(answers), 'changed file')}: each would work")


def _change_specs_or_say_unchanged(
    settings: WorkerSettings, plan_change: FleetPlanner, *, dry_run: bool
) -> None:
    if not _change_specs_and_print_lines(settings, plan_change, dry_run=dry_run):
        click.echo("nothing to change: the specs say so already")


def _wait_until_drained(settings: WorkerSettings, worker: str, timeout_s: float) -> None:
    from headgate.control_protocol.errors import Unreachable, WorkersSilent
    from headgate.runtime.fleet.fleet_topics import WatchedFleet

    until_s = time.monotonic() + timeout_s
    with closing(WatchedFleet(settings)) as watched:
        while not watched.is_drained(worker):
            if time.monotonic() > until_s:
                hint = "the spec stays; headgate fleet list --workers shows how far it is"
                if watched.problem:
                    raise Unreachable(
                        f"whether worker {worker} has given all its sinks away is not known: "
                        f"{watched.problem}",
                        hint,
                    )
                raise WorkersSilent(
                    f"others have not taken all sinks of worker {worker} within {timeout_s:g} s",
                    f"{hint}; those of a static member (worker.static_member) are kept for its "
                    "worker.session_timeout_ms: ask again with a longer --timeout",
                )
            watched.follow(0.5)


# --------------------------------------------------------------------------------------- showing


def _show_fleet(found: FleetView, *, shows_workers: bool, as_json: bool) -> None:
    show_sink: Callable[[Any], str] = _sink_line
    some: Mapping[str, Any] = found.workers if shows_workers else found.sinks
    if as_json:
        from headgate.operations.status.fleet_documents import sink_document, worker_document

        document: Callable[[Any], Any] = worker_document if shows_workers else sink_document
        print_json([document(each) for each in some.values()])
        return
    show_one = _worker_line if shows_workers else show_sink
    for each in some.values():
        click.echo(to_printable_line(show_one(each)))


def _sink_line(sink: SinkView) -> str:
    line = f"{sink.key:<30} {sink.state.value:<9} {_worker_name_or_dash(sink):<16}"
    parts = [*_status_parts(sink)]
    return " ".join([line, *parts]).rstrip()


def _worker_name_or_dash(sink: SinkView) -> str:
    return (sink.observed.worker if sink.observed else sink.worker) or "-"


def _status_parts(sink: SinkView) -> Iterator[str]:
    if sink.spec is None:
        yield "unwanted"
    elif sink.drift:
        yield f"wanted {sink.spec.state.value}" if sink.drift == "state" else "runs another file"
    if sink.next_try_ms is not None:
        yield describe_next_try(sink.next_try_ms)
    if sink.error_code:
        yield f"{sink.error_code} {sink.error_text}"
    elif sink.observed:
        yield sink.observed.doing
    if sink.refused:
        yield sink.refused


def _worker_line(worker: WorkerView) -> str:
    observed = worker.observed
    state = "lost" if worker.lost else "leaving" if observed.leaving else "works"
    counts = (
        f"{count_of(observed.processes, 'sink')}, {count_of(len(observed.slots), 'slot')}, "
        f"headgate {observed.release}"
    )
    return f"{observed.worker:<30} {state:<9} {counts}"
