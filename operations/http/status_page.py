"""Renders the status page: HTML and SVG generated here, without scripts, forms or foreign parts.

Every text from outside is escaped where it is put into the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from headgate.control_protocol.commit_record import KEY_COUNTS
from headgate.control_protocol.counted_nouns import count_of
from headgate.operations.http.charts import Series, draw_bar_chart, draw_time_series, format_number
from headgate.operations.http.page_parts import (
    describe_age,
    describe_duration,
    escape_text,
    quote_for_path,
    render_facts,
    render_page,
    render_table,
)
from headgate.operations.status.report import CommitSummary, StatusReport
from headgate.runtime.health import EXIT_CODES, Condition
from headgate.runtime.wall_clock import format_utc


def sink_page(report: StatusReport, now_ms: int) -> str:
    """Return the page with everything about one sink."""
    condition = f"{report.condition}{', paused' if _is_paused_beside_condition(report) else ''}"
    body = [
        '<p class="pale"><a href="/">all sinks</a></p>',
        f"<h1>{escape_text(report.sink)}</h1>",
        f'<p><span class="state{_css_class_of(report.condition)}">{escape_text(condition)}</span>',
        f' <span class="pale">into {escape_text(f"{report.table} ({report.branch})")}</span></p>',
        _error_html(report),
        *(f'<p class="error">{escape_text(note)}</p>' for note in report.notes),
        _render_facts(report, now_ms),
        f'<h2>Course</h2><div class="pictures">{_render_charts(report)}</div>',
        "<h2>Partitions</h2>",
        _partition_table(report),
        "<h2>Participants</h2>",
        _participant_table(report),
        "<h2>Last commits</h2>",
        _table_of_commits(report.transactions[:20]),
        *_rejected_records_html(report),
    ]
    return render_page(f"{report.sink}: {report.condition}", body, now_ms)


def index_page(sinks: Mapping[str, StatusReport | str], now_ms: int) -> str:
    """Return one line for each sink, or its error if it could not be asked."""
    rows = []
    for name, report in sorted(sinks.items()):
        link = f'<a href="/sinks/{quote_for_path(name)}">{escape_text(name)}</a>'
        if isinstance(report, str):
            rows.append(
                (link, '<span class="state unknown">not known</span>', "", "", escape_text(report))
            )
            continue
        colour = _css_class_of(report.condition)
        state = f'<span class="state{colour}">{escape_text(report.condition)}</span>'
        last_error = report.last_error
        error = f"{last_error.code} {last_error.text}" if last_error and not last_error.past else ""
        lag = "-" if report.total_lag is None else format_number(report.total_lag)
        rows.append(
            (
                link,
                state,
                lag,
                describe_age(report.last_rows_committed_ms, now_ms),
                escape_text(error),
            )
        )
    heads = ("sink", "state", "lag", "last rows", "error")
    return render_page("headgate", ["<h1>Sinks</h1>", render_table(heads, rows, {2}, {4})], now_ms)


def _is_paused_beside_condition(report: StatusReport) -> bool:
    return report.paused and report.condition != Condition.PAUSED


def _css_class_of(condition: str) -> str:
    code = EXIT_CODES[Condition(condition)]
    return {0: "", 1: " bad"}.get(code, " unknown")


def _error_html(report: StatusReport) -> str:
    last_error = report.last_error
    if last_error is None:
        return ""
    label = "Past error" if last_error.past else "Error"
    who = f" ({escape_text(last_error.member)})" if last_error.member else ""
    past = " past" if last_error.past else ""
    again = ""
    if last_error.next_try_ms and not last_error.past:
        again = f" Next try: {format_utc(last_error.next_try_ms)}."
    text = f"{who}: {escape_text(last_error.text)}{again}"
    return f'<p class="error{past}"><b>{label} {escape_text(last_error.code)}</b>{text}</p>'


def _render_facts(report: StatusReport, now_ms: int) -> str:
    ages = [*report.lag_seconds.values()]
    facts = {
        "lag": "-" if report.total_lag is None else count_of(report.total_lag, "record"),
        **(
            {"of which held": count_of(report.held_record_count, "record")}
            if report.held_record_count
            else {}
        ),
        "oldest record not in the table": f"{describe_duration(max(ages))} old" if ages else "-",
        "valid through": describe_age(report.valid_through_ms, now_ms),
        "last rows": describe_age(report.last_rows_committed_ms, now_ms),
        "epoch": str(report.epoch),
        "transaction": report.transaction or "-",
        "open transaction": report.open_transaction or "-",
        "coordinator": (report.coordinator or "-").partition("#")[0],
        "participants": str(len(report.participants)) if report.participants_known else "-",
        **({"stopped by": report.stopped_by} if report.stopped_by else {}),
        **(
            {"pending for quarantine": count_of(report.pending_rows, "row")}
            if report.pending_rows
            else {}
        ),
        **({"stalled": ", ".join(report.stalled)} if report.stalled else {}),
    }
    return render_facts(facts)


def _render_charts(report: StatusReport) -> str:
    course = [c for c in reversed(report.transactions) if not c.claim]
    times = [c.committed_ms for c in course]
    begin, end = (_time_text(times[0]), _time_text(times[-1])) if times else ("", "")
    fresh = [
        (c.committed_ms, max(0, c.committed_ms - c.valid_through_ms) / 1000)
        for c in course
        if c.valid_through_ms is not None
    ]
    epochs = [
        (c.committed_ms, float(c.transaction.partition(".")[0]))
        for c in reversed(report.transactions)
    ]
    lags = {f"{p.topic}/{p.partition}": float(p.lag) for p in report.partitions if p.lag}
    owned = {p.member: float(len(p.partitions)) for p in report.participants}
    gaps = [(b.committed_ms, (b.committed_ms - a.committed_ms) / 1000) for a, b in pairwise(course)]
    drawn = [
        draw_time_series(
            Series("Rows per commit", [(c.committed_ms, c.records) for c in course], bars=True),
            begin,
            end,
        ),
        draw_time_series(Series("Valid-through behind its commit", fresh, " s"), begin, end),
        draw_time_series(Series("Time since the commit before", gaps, " s"), begin, end),
        draw_time_series(Series("Epoch", epochs, steps=True), begin, end),
        draw_bar_chart("Lag by partition", lags, " records"),
        draw_bar_chart("Partitions by owner", owned),
    ]
    return "".join(f'<div class="picture">{picture}</div>' for picture in drawn)


def _partition_table(report: StatusReport) -> str:
    owners = {at: p.member for p in report.participants for at in p.partitions}
    rows = []
    for p in report.partitions:
        at = f"{p.topic}/{p.partition}"
        numbers = (p.next_offset, p.log_begin, p.log_end, p.lag)
        shown = ("-" if n is None else f"{n:,}" for n in numbers)
        state = "stalled" if at in report.stalled else ""
        rows.append((escape_text(at), *shown, escape_text(owners.get(at, "-")), state))
    heads = ("partition", "next offset", "log begin", "log end", "lag", "owner", "")
    return render_table(heads, rows, {1, 2, 3, 4})


def _participant_table(report: StatusReport) -> str:
    rows = [
        (
            escape_text(p.member),
            escape_text(p.state),
            str(len(p.partitions)),
            f"{p.buffered_records:,}",
            f"{describe_duration(p.seen_ms_ago / 1000)} ago",
        )
        for p in report.participants
    ]
    return render_table(("participant", "state", "partitions", "buffered", "seen"), rows, {2, 3})


def _table_of_commits(commits: Sequence[CommitSummary]) -> str:
    rows = []
    changes = KEY_COUNTS if any(c.keys for c in commits) else ()
    for c in commits:
        counts = Counter(rows=c.records, quarantined=c.quarantined, skipped=c.skipped)
        counts.update({what: getattr(c.keys, what, 0) for what in changes})
        numbers = ("-" if c.claim else f"{counts[name]:,}" for name in counts)
        what = f"{c.transaction} (claim)" if c.claim else c.transaction
        rows.append((escape_text(what), str(c.snapshot_id), _time_text(c.committed_ms), *numbers))
    heads = ("transaction", "snapshot", "committed", "rows", "quarantined", "skipped", *changes)
    return render_table(heads, rows, set(range(3, len(heads))))


def _rejected_records_html(report: StatusReport) -> list[str]:
    if not report.rejected_records:
        return []
    rows = [
        (
            escape_text(f"{b.topic}/{b.partition}"),
            f"{b.offset:,}",
            escape_text(b.transaction),
            escape_text(b.reason),
        )
        for b in report.rejected_records
    ]
    heads = ("partition", "offset", "transaction", "reason")
    return ["<h2>Last rejected records</h2>", render_table(heads, rows, {1}, {3})]


def _time_text(moment_ms: int) -> str:
    return format_utc(moment_ms, "%m-%d %H:%M:%S")
