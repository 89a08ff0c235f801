"""Defines ``headgate``: thin commands, each of which hands over to one module.

Exit codes: 0 well, 1 found wrong, 2 bad usage or configuration, 3 unreachable. An error is one line
with its code and what to do; ``--verbose`` (or ``HEADGATE_VERBOSE=1``) shows where it arose.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import traceback
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import click

from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    LogUnreadable,
    RetryLater,
)
from headgate.control_protocol.redaction import to_printable_line
from headgate.operations.cli.delete_rows import delete
from headgate.operations.cli.fleet import fleet
from headgate.operations.cli.maintain import maintain
from headgate.operations.cli.offsets import offsets
from headgate.operations.cli.options import (
    as_json_option,
    deleted_back_option,
    echo_next_offsets,
    fleet_file_option,
    load_all_settings,
    load_settings,
    load_worker_settings,
    require_either_sinks_or_fleet,
    sink_file,
    sink_files,
    warn_if_fleet_may_undo,
    worst_exit_code,
)
from headgate.operations.cli.status import status
from headgate.operations.cli.stop_and_start import restart, start, stop
from headgate.operations.cli.worker import worker
from headgate.operations.command_output import console, print_json
from headgate.runtime import early_signals
from headgate.tables.storage.damaged_file_error import FileDamaged

if TYPE_CHECKING:
    from headgate.config.sink_settings import SinkSettings


GROUPS = {
    "Begin": ("demo", "kafka", "init", "check", "run", "worker", "fleet"),
    "Look": ("status", "audit", "events", "offsets", "tables", "wait", "serve"),
    "Act": ("pause", "resume", "stop", "start", "restart", "rollback", "delete", "maintain"),
    "Set up": ("rights", "import", "takeover"),
}
"""The commands in the order in which people meet them."""

ENTRY_POINT_GROUP = "headgate.commands"
"""Where a package offers a command: the entry point's name, and a ``click.Command``."""


class _Headgate(click.Group):
    """Lists its commands in groups, and reports a foreseen failure in one line, with its code.

    Commands of this module come first, then those of other packages; the demo's are found like
    theirs, so that nothing of a sink needs what they need.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *entry_points(group=ENTRY_POINT_GROUP).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if own := super().get_command(ctx, cmd_name):
            return own
        for point in entry_points(group=ENTRY_POINT_GROUP, name=cmd_name):
            try:
                return cast("click.Command", point.load())
            except Exception as error:  # noqa: BLE001 - a stranger's module, imported just now
                return _build_failing_command(cmd_name, f"from {point.value}: {error}")
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        grouped = {name for names in GROUPS.values() for name in names}
        others = tuple(name for name in known if name not in grouped)
        for group, names in {**GROUPS, "Of other packages": others}.items():
            shown = [(name, command) for name in names if (command := known.get(name))]
            if shown:
                with formatter.section(group):
                    formatter.write_dl(
                        [(name, command.get_short_help_str(100)) for name, command in shown]
                    )

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except OSError as found:  # --help and --version write as they are parsed
            error = _to_headgate_error_or_raise(found)
            click.echo(f"headgate: {error}", err=True)
            raise click.exceptions.Exit(error.exit_code) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (HeadgateError, FileDamaged, OSError) as found:
            error = _to_headgate_error_or_raise(found)
            text = f"headgate: {error}"
            if ctx.params["verbose"]:
                text = "".join(traceback.format_exception(error)).rstrip()
            settings: SinkSettings | None = ctx.obj
            click.echo(settings.redact(text) if settings else text, err=True)
            ctx.exit(error.exit_code)


def _to_headgate_error_or_raise(found: HeadgateError | FileDamaged | OSError) -> HeadgateError:
    """Return the error that is told in a line; any other of the operating system is raised."""
    if isinstance(found, HeadgateError):
        return found
    if isinstance(found, FileDamaged):
        return LogUnreadable(str(found))
    if found.errno not in (errno.ENOSPC, errno.EDQUOT):
        raise found
    try:
        sys.stdout.flush()
    except OSError:  # what is left would be written again, and fail again, as Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    where = found.filename or "the output"
    return RetryLater(
        f"{where} cannot be written: {found.strerror}",
        "the command ended there: make space, and repeat it",
    )


def _build_failing_command(name: str, why: str) -> click.Command:
    """Return a command that says why there is none: ``--help`` has to list the others."""

    @click.command(
        name,
        short_help="Cannot be loaded; run it to see why.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def command() -> NoReturn:
        raise ConfigurationError(
            f"command {name} cannot be loaded {why}", "install again the package that offers it"
        )

    return command


@click.group(cls=_Headgate, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headgate", prog_name="headgate")
@click.option("--verbose", is_flag=True, envvar="HEADGATE_VERBOSE", help="Show where errors arise.")
def main(verbose: bool) -> None:  # noqa: FBT001, ARG001 - read from the context
    """Move Kafka topics into lake tables, exactly once."""
    # Arrow reads this when it is loaded, so it comes before any import of Arrow (decision 0010).
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # Our errors report what goes wrong; only ``run`` shows the log.
    logging.getLogger("headgate").addHandler(logging.NullHandler())


_ROLES = click.Choice(["sink", "operator", "viewer"])


@main.command()
@click.argument("name")
@click.option("--from-topic", "topic", metavar="TOPIC", help="Propose columns from its records.")
@click.option(
    "--kafka",
    multiple=True,
    metavar="KEY=VALUE",
    help="A key of Kafka's client: bootstrap.servers=HOST:PORT; auth.KEY for [kafka.auth].",
)
@click.option("--registry", metavar="URL", help="The schema registry of the topic's records.")
@click.option(
    "--format",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="How the records are encoded: type=NAME, or an option of that format.",
)
def init(
    name: str,
    topic: str | None,
    kafka: tuple[str, ...],
    *,
    registry: str | None,
    options: tuple[str, ...],
) -> None:
    """Write NAME.toml, a commented sink file.

    With --from-topic, with columns that fit the topic's newest records. JSON, and what a schema
    registry describes (--registry), are recognized.
    """
    from headgate.operations.init.sink_file_template import propose_and_write_sink_file as write

    given = {} if registry is None else {"registry.url": registry}
    given |= _parse_pairs("--format", options, "type=avro-registry")
    keys = _parse_pairs("--kafka", kafka, "bootstrap.servers=HOST:PORT")
    path, records = write(name, Path(), topic=topic, kafka=keys, format=given)
    if records:
        columns, without = records.proposal.columns, records.proposal.left_out
        left_out = f", {len(without)} left out" if without else ""
        seen = f"{records.describe_records()} of {topic} ({records.format_name})"
        click.echo(f"{count_of(len(columns), 'column')} proposed from {seen}{left_out}")
        if records.looks.why:
            why = to_printable_line(records.looks.why)
            click.echo(f"bad records will go to the quarantine; the first: {why}")
    click.echo(f"{path} is written; next: edit it, then headgate check {path}")


def _parse_pairs(option: str, texts: tuple[str, ...], example: str) -> dict[str, str]:
    pairs = {key: value for key, _, value in (text.partition("=") for text in texts)}
    if "" in pairs or not all("=" in text for text in texts):
        raise click.UsageError(f"{option} takes KEY=VALUE, such as {example}")
    return pairs


@main.command()
@sink_file
@as_json_option
@click.option("--role", type=_ROLES, help="Check only what this role needs; else the sink's.")
@click.option("--kafka", is_flag=True, help="Report what its cluster can do, tried on a new topic.")
@click.option("--catalog", is_flag=True, help="Report what its catalog can do, on scratch tables.")
@click.option("--offline", is_flag=True, help="Check only the sink file, without a broker.")
@click.pass_context
def check(
    ctx: click.Context,
    sink: Path,
    *,
    as_json: bool,
    role: str | None,
    kafka: bool,
    catalog: bool,
    offline: bool,
) -> None:
    """Check settings, reachability and rights.

    Nothing that it writes as a test stays (docs/guides/catalogs.md). With --kafka, only the cluster
    is asked, on a topic that is made for it and deleted; with --catalog, only the catalog, on two
    tables that are made for it and dropped.
    """
    settings = load_settings(ctx, sink)
    if kafka + catalog + offline > 1:
        raise click.UsageError("choose one of --kafka, --catalog and --offline")
    if role and (kafka or catalog or offline):
        raise click.UsageError("--role is for the rights, which the other options do not check")
    from headgate.operations.check.catalog_report import check_catalog_by_trial
    from headgate.operations.check.check import check as ask
    from headgate.operations.check.check import check_offline, exit_code_of
    from headgate.operations.check.cluster_report import check_kafka_by_trial
    from headgate.operations.check.required_grants import Role
    from headgate.operations.render_command_results import show_checks

    if offline:
        answers = check_offline(settings)
    elif catalog:
        answers = check_catalog_by_trial(settings, lambda text: click.echo(text, err=True))
    else:
        answers = check_kafka_by_trial(settings) if kafka else ask(settings, Role(role or "sink"))
    if as_json:
        print_json([asdict(answer) for answer in answers])
    else:
        show_checks(console(), answers)
    ctx.exit(exit_code_of(answers))


@main.command()
@click.argument("sinks", nargs=-1, type=click.Path(dir_okay=False, path_type=Path))
@fleet_file_option
@click.option("--listen", default="", metavar="HOST:PORT", help="Else http.listen, or port 8080.")
@click.pass_context
def serve(
    ctx: click.Context, sinks: tuple[Path, ...], fleet_file: Path | None, listen: str
) -> None:
    """Serve a status page and metrics over HTTP (docs/guides/http.md).

    Of sink files, or with --fleet of all sinks of a fleet.
    """
    require_either_sinks_or_fleet(sinks, fleet_file)
    if fleet_file is not None:
        settings = load_worker_settings(ctx, fleet_file)
        from headgate.operations.http.app import serve_fleet
        from headgate.runtime.console_log import send_redacted_logs_to_stderr

        send_redacted_logs_to_stderr([])
        serve_fleet(settings, listen)
        return
    every = load_all_settings(ctx, sinks)
    from headgate.operations.http.app import serve_sinks as serve_all
    from headgate.runtime.console_log import send_redacted_logs_to_stderr

    send_redacted_logs_to_stderr(list(every.values()))
    serve_all(every, listen)


@main.command()
@sink_file
@click.option("--follow", is_flag=True, help="Continue with new events.")
@click.option("--last", type=click.IntRange(min=0), default=50, help="Number of past events (50).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on each line.")
@click.pass_context
def events(ctx: click.Context, sink: Path, *, follow: bool, last: int, as_json: bool) -> None:
    """Show the events on the control topic."""
    settings = load_settings(ctx, sink)
    from headgate.operations.render_command_results import show_event
    from headgate.operations.status.event_tail import event_as_json
    from headgate.operations.status.event_tail import tail_events as said

    shown = console()
    try:
        for fields in map(event_as_json, said(settings, last, follow=follow)):
            if as_json:
                click.echo(settings.redact(json.dumps(fields)))
            else:
                show_event(shown, fields)
    except KeyboardInterrupt:
        ctx.exit(0)


@main.command()
@sink_file
@as_json_option
@click.option("--no-source", is_flag=True, help="Examine only the table, not the source.")
@click.option("--accept-unproven", is_flag=True, help="Exit with 0 when nothing is wrong.")
@click.pass_context
def audit(
    ctx: click.Context, sink: Path, *, as_json: bool, no_source: bool, accept_unproven: bool
) -> None:
    """Prove that every record is in the table exactly once.

    The verdict is well, not proven, or wrong (docs/reference/audit.md).

    Exits with 0 only if all is well; see --accept-unproven.
    """
    settings = load_settings(ctx, sink)
    from headgate.operations.audit.audit import audit as judge
    from headgate.operations.render_command_results import show_audit, showing_progress

    with showing_progress() as on_progress:
        report = judge(settings, with_source=not no_source, on_progress=on_progress)
    if as_json:
        print_json(report.as_json())
    else:
        show_audit(console(), report)
    ctx.exit(report.exit_code(accept_unproven=accept_unproven))


@main.command()
@sink_file
@click.argument("action", type=click.Choice(["show", "resume"]), default="show")
@click.argument("names", nargs=-1, metavar="[TABLE]...")
@click.option("--replay/--reread", default=None, help="Also write missed records, or expired rows.")
@as_json_option
@click.pass_context
def tables(
    ctx: click.Context,
    sink: Path,
    action: str,
    names: tuple[str],
    *,
    replay: bool | None,
    as_json: bool,
) -> None:
    """List the tables of a sink with many, or resume them.

    docs/guides/many-tables.md says what they show.
    """
    settings = load_settings(ctx, sink)
    from headgate.operations.cli.tables import Afterwards, resume_and_report, show_table_list

    afterwards = {None: None, True: Afterwards.REPLAY, False: Afterwards.REREAD}[replay]
    if action == "resume":
        if as_json:
            raise click.UsageError("--json goes with show, not with resume")
        ctx.exit(resume_and_report(settings, names, afterwards))
    else:
        show_table_list(ctx, settings, names, afterwards=afterwards, as_json=as_json)


@main.command()
@sink_files
@click.option(
    "--dry-run",
    "dry_run_records",
    type=click.IntRange(min=1),
    is_flag=False,
    flag_value=1_000,
    metavar="[RECORDS]",
    help="Show what the newest records of each partition (1,000) would become; write nothing.",
)
@click.option(
    "--until-latest",
    is_flag=True,
    help="End when the table holds all that is in the topics now; exit code 1 if it ends before, "
    "as where the sink stays stopped or paused, or if rows of suspended tables are pending.",
)
@click.pass_context
def run(
    ctx: click.Context, sinks: tuple[Path, ...], *, dry_run_records: int | None, until_latest: bool
) -> None:
    """Run a participant of each sink until SIGINT or SIGTERM."""
    if dry_run_records is not None and until_latest:
        raise click.UsageError("--dry-run writes nothing, so it does not go with --until-latest")
    if len(sinks) > 1:
        if dry_run_records is not None or until_latest:
            raise click.UsageError("--dry-run and --until-latest take one sink file")
        _run_several(ctx, sinks)
    if dry_run_records is not None:
        early_signals.restore_and_resend_signals()
    settings = load_settings(ctx, sinks[0])
    if dry_run_records is not None:
        from headgate.operations.dry_run import dry_run_newest_records
        from headgate.operations.render_command_results import show_dry_run

        seen = dry_run_newest_records(settings, dry_run_records)
        show_dry_run(console(), seen)
        ctx.exit(1 if seen.needs_attention else 0)
    verbose = bool(ctx.find_root().params["verbose"])
    if until_latest:
        from headgate.operations.cli.run import run_until_latest
        from headgate.operations.render_command_results import describe_until_latest

        latest = run_until_latest(settings, verbose=verbose)
        click.echo(describe_until_latest(settings.name, latest))
        ctx.exit(0 if latest.is_reached and not latest.suspended else 1)
    from headgate.operations.cli.run import run as participate

    participate(settings, verbose=verbose, sink_file=sinks[0])


def _run_several(ctx: click.Context, sinks: tuple[Path, ...]) -> NoReturn:
    files = load_all_settings(ctx, sinks)
    from headgate.operations.cli.run import run_several

    errors = run_several(files, verbose=bool(ctx.find_root().params["verbose"]))
    for name, error in errors.items():
        click.echo(f"headgate: sink {name}: {error}", err=True)
    ctx.exit(worst_exit_code(error.exit_code for error in errors.values()))


@main.command()
@sink_file
@click.option(
    "--through",
    "moment",
    required=True,
    metavar="TIME",
    help="A time with its zone, such as 2026-01-31T06:00:00Z, or epoch milliseconds.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=3_600.0,
    metavar="SECONDS",
    help="Give up after this time (3,600): exit code 1, with what is behind.",
)
@click.pass_context
def wait(ctx: click.Context, sink: Path, moment: str, timeout_s: float) -> None:
    """Wait until the table holds every record up to a time."""
    settings = load_settings(ctx, sink)
    from headgate.config.sink_sections import parse_timestamp_ms
    from headgate.operations.wait import wait_and_describe_tables_behind

    behind = wait_and_describe_tables_behind(
        settings, parse_timestamp_ms(moment, "--through"), timeout_s
    )
    for text in behind:
        click.echo(text)
    if not behind:
        click.echo(f"{settings.name}: complete up to {moment}")
    ctx.exit(1 if behind else 0)


@main.command()
@sink_file
@click.pass_context
def pause(ctx: click.Context, sink: Path) -> None:
    """Make the sink stop fetching until it is resumed."""
    settings = load_settings(ctx, sink)
    from headgate.operations.control.pause import pause_sink as ask

    record = ask(settings)
    click.echo("paused: nothing is fetched until headgate resume")
    warn_if_fleet_may_undo(settings, "pause")
    echo_next_offsets(record)


@main.command()
@sink_file
@click.option(
    "--accept",
    "accepted",
    multiple=True,
    metavar="CODE=CHOICE",
    help="Resolve the error that stopped the sink, once: HG-201=follow-table, for example.",
)
@deleted_back_option
@click.pass_context
def resume(
    ctx: click.Context, sink: Path, accepted: tuple[str, ...], *, deleted_back: bool
) -> None:
    """Make a paused sink fetch again.

    With --accept, resolve what stopped it.
    """
    settings = load_settings(ctx, sink)
    if accepted:
        from headgate.operations.control.resolve_stop import resolve_stop_of_sink

        for error in resolve_stop_of_sink(settings, accepted, deleted_back=deleted_back):
            click.echo(f"accepted, once: {error}")
        click.echo("start the sink: it continues from there")
        return
    if deleted_back:
        raise click.UsageError("only headgate resume --accept reads records again")
    from headgate.operations.control.pause import is_paused
    from headgate.operations.control.pause import resume_sink as ask

    was_paused = is_paused(settings)
    record = ask(settings)
    if record.stopped:
        click.echo("not paused, but stopped by a person: headgate start SINK ends that")
    elif was_paused:
        click.echo("resumed")
    else:
        click.echo("it was not paused: headgate status SINK says what it does")
    echo_next_offsets(record)


@main.command()
@click.argument("sink", required=False, type=click.Path(dir_okay=False, path_type=Path))
@fleet_file_option
@click.option(
    "--role",
    type=click.Choice(["sink", "worker", "operator", "viewer"]),
    help="sink (without --fleet), worker (with it), operator or viewer; default: the first.",
)
@click.option("--principal", default="PRINCIPAL", help="Kafka's user, and the database's.")
@click.pass_context
def rights(
    ctx: click.Context,
    sink: Path | None,
    fleet_file: Path | None,
    *,
    role: str | None,
    principal: str,
) -> None:
    """Print the rights that a role needs (docs/guides/security.md).

    They are commands to paste: for a sink file, or with --fleet for a fleet's topics.
    """
    require_either_sinks_or_fleet([sink] if sink else [], fleet_file)
    if role == ("sink" if fleet_file else "worker"):
        raise click.UsageError(f"--role {role} is for {'a sink file' if fleet_file else '--fleet'}")
    if fleet_file is not None:
        of_fleet = load_worker_settings(ctx, fleet_file)
        from headgate.operations.check.required_grants import FleetRole, fleet_grant_commands

        commands = fleet_grant_commands(of_fleet, FleetRole(role or "worker"), principal)
    else:
        settings = load_settings(ctx, cast("Path", sink))
        from headgate.operations.check.required_grants import Role, sink_grant_commands

        commands = sink_grant_commands(settings, Role(role or "sink"), principal)
    click.echo(commands, nl=False)


@main.command()
@sink_file
@click.argument("to", metavar="TRANSACTION|TAG")
@click.option("--drop-foreign", is_flag=True, help="Also remove others' snapshots.")
@deleted_back_option
@click.option("--dry-run", is_flag=True, help="Show what it would do; change nothing.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
@click.option("--to-branch", "branch", metavar="NAME", help="Only create this branch, to look at.")
@click.pass_context
def rollback(
    ctx: click.Context,
    sink: Path,
    to: str,
    *,
    drop_foreign: bool,
    deleted_back: bool,
    dry_run: bool,
    yes: bool,
    branch: str | None,
) -> None:
    """Take table and offsets back together (docs/guides/rollback.md).

    The sink has to be stopped.
    """
    settings = load_settings(ctx, sink)
    from headgate.operations.control.rollback import (
        carry_out_rollback,
        make_rollback_branches,
        plan_rollback,
    )

    looks = branch is not None
    plan = plan_rollback(
        settings, to, drop_foreign=drop_foreign, deleted_back=deleted_back, look_only=looks
    )
    click.echo(str(plan))
    if dry_run:
        return
    if branch is not None:
        make_rollback_branches(settings, plan, branch)
        click.echo(f"branch {branch} of {settings.table.identifier} shows it, for seven days")
        return
    if not yes:
        click.confirm("Go back?", abort=True)
    carry_out_rollback(settings, plan)
    click.echo("done; the next start continues from there")


for command in (worker, fleet, status, offsets, stop, start, restart, delete, maintain):
    main.add_command(command)
