"""Renders results on the terminal; decides nothing."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from headgate.control_protocol.commit_record import KEY_COUNTS
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.redaction import to_printable_line
from headgate.operations.audit.files import OnProgress
from headgate.operations.audit.report import AuditReport, Verdict
from headgate.operations.status.report import (
    MEND_TABLES,
    FileStatus,
    PartitionStatus,
    RejectedRecord,
    StatusReport,
)
from headgate.runtime.health import LastError
from headgate.runtime.wall_clock import format_utc, wall_ms

if TYPE_CHECKING:
    from headgate.control_protocol.identifiers import SinkName
    from headgate.operations.check.check import Check
    from headgate.operations.dry_run import DryRun
    from headgate.operations.many_tables.list import TablesReport
    from headgate.operations.wait import UntilLatest


_PLACES_SHOWN = 5
_PAST_SHOWN_MS = 24 * 3_600_000
_PAST_CHARACTERS_MAX = 80
_LINE_CHARACTERS_MAX = 2_000
_MARKS = {
    "ok": ("ok", "green"),
    "wrong": ("wrong", "red"),
    "unchecked": ("?", "yellow"),
}
_COLOURS = {
    Verdict.WELL: "bold green",
    Verdict.NOT_PROVEN: "bold yellow",
    Verdict.WRONG: "bold red",
}


def describe_until_latest(sink: SinkName, latest: UntilLatest) -> str:
    """Say whether a run until the topics' ends reached them."""
    why = latest.hold and f", and {latest.hold}"
    if latest.missing:
        places = [f"{at} by {count:,}" for at, count in sorted(latest.missing.items())]
        shown = ", ".join(places[:_PLACES_SHOWN]) + ", ..." * (len(places) > _PLACES_SHOWN)
        return f"{sink}: it ended before the topics' ends were reached: behind {shown}{why}"
    if latest.pending:
        text = f"{sink}: it ended before all tables had received their rows (headgate tables)"
        return f"{text}{why}"
    text = f"{sink}: the table holds all that was in the topics at the start of this run"
    if latest.suspended:
        return f"{text}; rows of suspended tables are pending: {', '.join(latest.suspended)}"
    return text


def show_checks(console: Console, checks: Iterable[Check]) -> None:
    """Show one line each: the mark, the question, the answer, and what to do."""
    for check in checks:
        word, colour = _MARKS[check.state]
        line = Text.assemble(
            (f"{word:<6}", colour), (f"{check.what:<15} ", "bold"), _shorten(check.detail)
        )
        if check.code:
            line.append(f" [{check.code}]", "dim")
        if check.hint:
            line.append(f" - {check.hint}", colour)
        console.print(line, soft_wrap=True)


def show_tables(console: Console, report: TablesReport) -> None:
    changes = KEY_COUNTS if any(t.keys for t in report.tables) else ()
    rows = [
        (
            *(
                t.table,
                t.state,
                t.transaction,
                t.pending_rows,
                _time_text(t.valid_through_ms),
                t.schema_id,
            ),
            *(getattr(t.keys, what, None) for what in changes),
        )
        for t in report.tables
    ]
    headings = ("table", "state", "last", "pending", "valid through", "schema", *changes)
    console.print(_build_text_table(headings, rows))
    counts = Counter(table.state for table in report.tables)
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"
    console.print(
        f"{count_of(len(report.tables), 'table')}: {states}; ledger {report.ledger} at "
        f"{report.transaction}"
    )
    for table in report.tables:
        if table.reason:
            reason = to_printable_line(f"{table.table} {table.state}: {table.reason}")
            console.print(Text(reason), soft_wrap=True)
    if counts["suspended"]:
        console.print(MEND_TABLES)


def show_offsets(console: Console, partitions: Iterable[PartitionStatus]) -> None:
    rows = [
        (p.topic, p.partition, p.next_offset, p.log_begin, p.log_end, p.lag) for p in partitions
    ]
    headings = ("topic", "partition", "next offset", "log begin", "log end", "lag")
    console.print(_build_text_table(headings, rows))


def show_event(console: Console, event: Mapping[str, Any]) -> None:
    """Show one line of the control topic; whatever strangers wrote there stays on that line."""
    moment = _time_text(event["time_ms"]) or "-"
    line = Text.assemble(
        (f"{moment}  ", "dim"),
        (f"{event['epoch']}.{event['transaction']:<5} ", "cyan"),
        (f"{event['event']:<16} ", "bold"),
        to_printable_line(f"{event['member']:<24} {event['text']}"),
    )
    console.print(line, soft_wrap=True)


def show_status(console: Console, report: StatusReport) -> None:
    colour = "bold" if report.exit_code == 0 else "bold red"
    paused = ", paused" if report.paused and report.condition != "paused" else ""
    console.print(
        Text.assemble(
            (report.sink, "bold"),
            f" into {report.table} ({report.branch}): ",
            (report.condition + paused, colour),
        )
    )
    if report.last_error:
        _show_error(console, report.last_error, wall_ms())
    facts = {
        "epoch": report.epoch,
        "coordinator": report.coordinator,
        "last transaction": report.transaction,
        "open transaction": report.open_transaction,
        "last rows": _time_text(report.last_rows_committed_ms),
        "valid through": _time_text(report.valid_through_ms),
        "lag": report.total_lag,
        **({"of which held": report.held_record_count} if report.held_record_count else {}),
        **({"stopped by": report.stopped_by} if report.stopped_by else {}),
        **({"pending": report.pending_rows} if report.pending_rows else {}),
    }
    for name, value in facts.items():
        console.print(Text.assemble((f"  {name:<18}", "dim"), _cell_text(value)), soft_wrap=True)
    show_offsets(console, report.partitions)
    changes = KEY_COUNTS if any(t.keys for t in report.transactions) else ()
    console.print(
        _build_text_table(
            (*("transaction", "snapshot", "committed", "rows", "quarantined", "skipped"), *changes),
            [
                (
                    t.transaction,
                    t.snapshot_id,
                    _time_text(t.committed_ms),
                    "claim" if t.claim else t.records,
                    t.quarantined,
                    t.skipped,
                    *(getattr(t.keys, what, 0) for what in changes),
                )
                for t in report.transactions
            ],
        )
    )
    console.print(
        _build_text_table(
            ("participant", "state", "partitions", "buffered", "seen"),
            [
                (
                    p.member,
                    p.state,
                    len(p.partitions),
                    p.buffered_records,
                    _seconds_ago_text(p.seen_ms_ago),
                )
                for p in report.participants
            ],
        )
    )
    _show_rejected_records(console, report.rejected_records)
    show_notes(console, report.notes)


def show_statuses(console: Console, statuses: Iterable[FileStatus]) -> None:
    """Show one line for each: its file, its report, or why there is none."""
    rows: list[tuple[object, ...]] = []
    for each in statuses:
        report = each.report
        if report is None:
            rows.append((each.file, "not known", None, None, None, each.error))
            continue
        last_error = report.last_error
        what = next(iter(report.notes), "") if report.exit_code else ""
        if last_error and not last_error.past:
            what = f"{last_error.code} {last_error.text}"
        rows.append(
            (
                report.sink,
                report.condition,
                report.total_lag,
                report.epoch,
                _time_text(report.last_rows_committed_ms),
                what,
            )
        )
    console.print(
        _build_text_table(("sink", "condition", "lag", "epoch", "last rows", "error"), rows)
    )


def _show_rejected_records(console: Console, records: Iterable[RejectedRecord]) -> None:
    for bad in records:
        where = f"{bad.topic} partition {bad.partition} offset {bad.offset}"
        text = to_printable_line(f"{where}, in transaction {bad.transaction}: {bad.reason}")
        console.print(Text.assemble((f"  {'rejected record':<18}", "dim"), text), soft_wrap=True)


def _show_error(console: Console, error: LastError, now_ms: int) -> None:
    if error.past:
        _show_past_error_of_last_day(console, error, now_ms)
        return
    when = f", {_time_text(error.time_ms)}" if error.time_ms else ""
    whose = f" [{error.member}{when}]" if error.member else ""
    if error.next_try_ms:
        whose += f", next try {_time_text(error.next_try_ms)}"
    mark = (f"  {'last error':<18}", "red")
    text = to_printable_line(f"{error.code} {error.text}")
    console.print(Text.assemble(mark, text, (to_printable_line(whose), "dim")), soft_wrap=True)


def _show_past_error_of_last_day(console: Console, error: LastError, now_ms: int) -> None:
    """Show a past error in a few words and for one day; after that only the present matters."""
    age_ms = now_ms - (error.time_ms or now_ms)
    if age_ms > _PAST_SHOWN_MS:
        return
    shortened = textwrap.shorten(error.text, _PAST_CHARACTERS_MAX, placeholder=" ...")
    text = to_printable_line(f"{error.code}, {_describe_minutes_or_hours_ago(age_ms)}: {shortened}")
    console.print(Text.assemble((f"  {'past error':<18}{text}", "dim")), soft_wrap=True)


def show_audit(console: Console, report: AuditReport) -> None:
    """Show the audit, with the verdict last so that it stays on the screen."""
    quarantined = report.quarantined_rows is not None
    rows = [
        (
            p.topic,
            p.partition,
            p.begin,
            p.next_offset,
            p.produced,
            p.in_table,
            *([p.in_quarantine] if quarantined else []),
            p.lost,
            p.twice,
            p.lag,
        )
        for p in report.partitions
    ]
    headings = (
        *("topic", "partition", "began", "next offset", "produced", "in table"),
        *(["quarantined"] if quarantined else []),
        *(_word_for_missing_records(report), "twice", "lag"),
    )
    console.print(_build_text_table(headings, rows))
    console.print(
        f"{count_of(report.commits, 'commit')} and {count_of(report.claims, 'claim')} in epochs "
        f"{', '.join(map(str, report.epochs)) or 'none'}; {count_of(report.live_files, 'file')} "
        f"with {count_of(report.live_rows, 'row')}{_quarantined_and_skipped_text(report)}",
        highlight=False,
        soft_wrap=True,
    )
    for text in report.proven:
        console.print(Text.assemble(("proven    ", "green"), text), soft_wrap=True)
    for text in report.remarks:
        console.print(Text.assemble(("          ", "dim"), text), soft_wrap=True)
    for text in report.waiting:
        console.print(Text.assemble(("held      ", "cyan"), text), soft_wrap=True)
    for text in report.unproven:
        console.print(Text.assemble(("unproven  ", "yellow"), text), soft_wrap=True)
    for finding in report.findings:
        console.print(
            Text.assemble(("wrong     ", "red"), (f"{finding.what}: ", "bold"), finding.evidence),
            soft_wrap=True,
        )
    console.print(_verdict_text(report), soft_wrap=True)


def _word_for_missing_records(report: AuditReport) -> str:
    """Say which records the table lacks: none is lost before that is found."""
    words = {Verdict.NOT_PROVEN: "absent", Verdict.WELL: "deleted by persons"}
    return words.get(report.verdict, "lost") if report.sum_over_partitions("lost") else "lost"


def _verdict_text(report: AuditReport) -> Text:
    colour = _COLOURS[report.verdict]
    produced, present = (
        report.sum_over_partitions("produced"),
        report.sum_over_partitions("in_table"),
    )
    lost, twice = report.sum_over_partitions("lost"), report.sum_over_partitions("twice")
    if produced is not None and present is not None:
        lost_words = f"{lost:,} {_word_for_missing_records(report)}" if lost else "none lost"
        twice = max(twice or 0, sum(report.surplus.values()))
        twice_words = f"{twice:,} twice" if twice else "none twice"
        kept = report.sum_over_partitions("in_quarantine")
        kept_words = f", {kept:,} in quarantine" if kept is not None else ""
        where = f"{present:,} in the table{kept_words}"
        words = f"{produced:,} produced, {where}, {lost_words}, {twice_words}"
    else:
        words = f"{count_of(report.committed_records, 'row')} committed"
    if report.findings:
        verdict = f"{len(report.findings)} found wrong"
    elif report.unproven:
        verdict = "not proven"
    else:
        verdict = "well"
    return Text(f"{report.sink} into {report.table}: {words}: {verdict}", colour)


def _quarantined_and_skipped_text(report: AuditReport) -> str:
    kept = f", {report.quarantined_rows:,} quarantined" if report.quarantined_rows else ""
    return kept + (f", {report.skipped_records:,} skipped" if report.skipped_records else "")


def show_dry_run(console: Console, seen: DryRun) -> None:
    """Show what records would become, and what would happen to those that do not fit."""
    rows = [
        (at.topic, at.partition, result.range.begin, result.range.end, result.records, result.bad)
        for at, result in seen.partitions.items()
    ]
    console.print(_build_text_table(("topic", "partition", "from", "to", "rows", "bad"), rows))
    for table in seen.tables:
        name = f"{table.table} " if seen.many else ""
        for row in table.rows:
            text = _shorten(name + json.dumps(row, default=_printable))
            console.print(Text.assemble(("row       ", "green"), text), soft_wrap=True)
    for misfit in seen.misfits:
        text = _shorten(to_printable_line(f"{misfit.at} offset {misfit.offset}: {misfit.reason}"))
        console.print(Text.assemble(("bad       ", "red"), text), soft_wrap=True)
    if seen.many:
        lines = [(t.table, t.exists, t.records, t.files, t.file_bytes) for t in seen.tables]
        console.print(_build_text_table(("table", "is there", "rows", "files", "bytes"), lines))
    console.print(
        Text(_describe_dry_run(seen), "red" if seen.needs_attention else "green"), soft_wrap=True
    )


def _describe_dry_run(seen: DryRun) -> str:
    records, files, size_bytes = (
        sum(getattr(table, what) for table in seen.tables)
        for what in ("records", "files", "file_bytes")
    )
    words = (
        f"{count_of(records, 'row')} in {count_of(files, 'file')} of {size_bytes:,} bytes, "
        f"{seen.bad_record_count:,} bad"
    )
    filtered = seen.filtered_record_count
    why = "shape.where, maintenance.rows_late or a transform"
    words += f", {filtered:,} left out by {why}" if filtered else ""
    words += f", {seen.tombstones:,} without a value" if seen.tombstones else ""
    if seen.tombstones and seen.stops_at_tombstone:
        words += " (quarantine.tombstones is fail: the sink would stop there)"
    if seen.many:
        words += f", {seen.unmatched:,} unmatched"
        words += f", {seen.diverted:,} for tables that are gone" if seen.diverted else ""
        words += f", for {count_of(len(seen.tables), 'table')}"
        return f"{words}; nothing was written there"
    (table,) = seen.tables
    words += f", {count_of(table.deletes, 'delete')}" if table.deletes else ""
    there = table.table if table.exists else f"{table.table}, which does not exist yet"
    return f"{words}, for {there}; nothing was written there"


def _shorten(text: str) -> str:
    """Leave out the end of a line that nobody could read anyway."""
    left_out = len(text) - _LINE_CHARACTERS_MAX
    return text if left_out <= 0 else f"{text[:_LINE_CHARACTERS_MAX]} ... {left_out:,} more"


def _printable(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else to_printable_line(str(value))


def show_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        text = to_printable_line(note)  # notes quote clients' names, catalogs and stores
        console.print(Text.assemble(("note ", "yellow"), text), soft_wrap=True)


def _build_text_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for position, heading in enumerate(headings):
        numbers = all(isinstance(row[position], int | None) for row in rows)
        table.add_column(heading, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell_text(value) for value in row))
    return table


def _cell_text(value: object) -> Text:
    return Text("-" if value is None or value == "" else to_printable_line(str(value)))


def _time_text(epoch_ms: int | None) -> str | None:
    return None if epoch_ms is None else format_utc(epoch_ms)


def _describe_minutes_or_hours_ago(milliseconds: int) -> str:
    minutes = max(0, milliseconds) // 60_000
    return f"{minutes} min ago" if minutes < 120 else f"{minutes // 60} h ago"


def _seconds_ago_text(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f} s ago"


# Shows a progress bar to a waiting person, and nothing to a script.


@contextmanager
def showing_progress() -> Iterator[OnProgress]:
    """Yield a callback that draws on standard error, one bar per kind of work; gone when done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        tasks: dict[str, int] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(bars.task_ids[tasks[what]], completed=done, total=total or None)

        yield on_progress
