"""Renders the status page: HTML and SVG generated here, without scripts, forms or foreign parts.

Every text from outside is escaped where it is put into the page.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import pairwise

from headgate.control_protocol.commit_record import KEY_COUNTS
from headgate.control_protocol.redaction import printable
from headgate.operations.http.charts import Series, draw_bar_chart, draw_line_chart, format_number
from headgate.operations.status.report import CommitSummary, StatusReport
from headgate.runtime.health import EXIT_CODES, Condition

REFRESH_S = 10

STYLE = """
:root{--ink:#1b2230;--pale:#5c6675;--line:#d7dce3;--back:#f6f7f9;--card:#fff;--bar:#2f6fb5;
--good:#1d7a3f;--bad:#b3261e;--warn:#8a5a00}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ee;--pale:#9aa4b2;--line:#333b47;
--back:#14181e;--card:#1c222b;--bar:#6ba4e7;--good:#5fc98a;--bad:#ff8a80;--warn:#f0b955}}
*{box-sizing:border-box}
body{margin:0;padding:16px;background:var(--back);color:var(--ink);
font:15px/1.45 system-ui,"DejaVu Sans",sans-serif}
main{max-width:1160px;margin:0 auto}
h1{font-size:22px;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:16px;margin:24px 0 8px}
a{color:var(--bar)}
.pale{color:var(--pale)}
.state{display:inline-block;padding:2px 12px;border-radius:12px;color:var(--card);
background:var(--good);font-weight:600}
.state.bad{background:var(--bad)}.state.unknown{background:var(--warn)}
.error{border-left:4px solid var(--bad);background:var(--card);padding:8px 12px;margin:12px 0;
overflow-wrap:anywhere}
.error.past{border-color:var(--line);color:var(--pale)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:8px;margin:12px 0}
.facts div,.picture{background:var(--card);border:1px solid var(--line);border-radius:6px;
padding:8px 12px;overflow-wrap:anywhere;min-width:0}
.facts span{display:block;color:var(--pale);font-size:13px}
.facts b{font-size:17px;font-weight:600}
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:8px}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--ink);font-size:10.5px}
svg .title{font-weight:600}svg .small{fill:var(--pale);font-size:9.5px}
@media (max-width:520px){svg text{font-size:15px}svg .small{font-size:13.5px}}
svg .end{text-anchor:end}
svg .bar{fill:var(--bar)}svg .line{fill:none;stroke:var(--bar);stroke-width:2}
svg .axis{stroke:var(--line)}
.wide{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:6px}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{padding:5px 10px;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
tr:last-child td{border-bottom:0}
td.long{white-space:normal;overflow-wrap:anywhere;min-width:180px}
"""
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


def sink_page(report: StatusReport, now_ms: int) -> str:
    """Return the page with everything about one sink."""
    condition = f"{report.condition}{', paused' if _also_paused(report) else ''}"
    body = [
        '<p class="pale"><a href="/">all sinks</a></p>',
        f"<h1>{_escape(report.sink)}</h1>",
        f'<p><span class="state{_colour(report.condition)}">{_escape(condition)}</span>',
        f' <span class="pale">into {_escape(report.table)} ({_escape(report.branch)})</span></p>',
        _error(report),
        *(f'<p class="error">{_escape(note)}</p>' for note in report.notes),
        _render_facts(report, now_ms),
        f'<h2>Course</h2><div class="pictures">{_render_charts(report)}</div>',
        "<h2>Partitions</h2>",
        _partitions(report),
        "<h2>Participants</h2>",
        _participants(report),
        "<h2>Last commits</h2>",
        _commits(report.transactions[:20]),
        *_rejected_records(report),
    ]
    return _page(f"{report.sink}: {report.condition}", body, now_ms)


def index_page(sinks: Mapping[str, StatusReport | str], now_ms: int) -> str:
    """Return one line for each sink, or its error if it could not be asked."""
    rows = []
    for name, report in sorted(sinks.items()):
        link = f'<a href="/sinks/{_escape(name)}">{_escape(name)}</a>'
        if isinstance(report, str):
            rows.append(
                (link, '<span class="state unknown">not known</span>', "", "", _escape(report))
            )
            continue
        state = f'<span class="state{_colour(report.condition)}">{_escape(report.condition)}</span>'
        last_error = report.last_error
        error = f"{last_error.code} {last_error.text}" if last_error and not last_error.past else ""
        lag = "-" if report.lag is None else format_number(report.lag)
        rows.append((link, state, lag, _ago(report.last_rows_ms, now_ms), _escape(error)))
    heads = ("sink", "state", "lag", "last rows", "error")
    return _page("headgate", ["<h1>Sinks</h1>", _table(heads, rows, {2}, {4})], now_ms)


def _page(title: str, body: Iterable[str], now_ms: int) -> str:
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}"><link rel="icon" href="data:,">'
        f"<title>{_escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f'{"".join(body)}<p class="pale">As of {_format_epoch_ms(now_ms)}; '
        f"refreshed every {REFRESH_S} s.</p></main></body></html>"
    )


def _format_epoch_ms(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _also_paused(report: StatusReport) -> bool:
    return report.paused and report.condition != Condition.PAUSED


def _colour(condition: str) -> str:
    code = EXIT_CODES[Condition(condition)]
    return {0: "", 1: " bad"}.get(code, " unknown")


def _error(report: StatusReport) -> str:
    last_error = report.last_error
    if last_error is None:
        return ""
    label = "Past error" if last_error.past else "Error"
    who = f" ({_escape(last_error.member)})" if last_error.member else ""
    past = " past" if last_error.past else ""
    again = ""
    if last_error.next_try_ms and not last_error.past:
        again = f" Next try: {_format_epoch_ms(last_error.next_try_ms)}."
    text = f"{who}: {_escape(last_error.text)}{again}"
    return f'<p class="error{past}"><b>{label} {_escape(last_error.code)}</b>{text}</p>'


def _render_facts(report: StatusReport, now_ms: int) -> str:
    ages = [*report.lag_seconds.values()]
    facts = {
        "lag": "-" if report.lag is None else f"{report.lag:,} records",
        **({"of which held": f"{report.held_records:,} records"} if report.held_records else {}),
        "oldest record not in the table": f"{_duration(max(ages))} old" if ages else "-",
        "valid through": _ago(report.valid_through_ms, now_ms),
        "last rows": _ago(report.last_rows_ms, now_ms),
        "epoch": str(report.epoch),
        "transaction": report.transaction or "-",
        "open transaction": report.open_transaction or "-",
        "coordinator": (report.coordinator or "-").partition("#")[0],
        "participants": str(len(report.participants)) if report.participants_known else "-",
        **({"stopped by": report.stopped_by} if report.stopped_by else {}),
        **(
            {"pending for quarantine": f"{report.pending_rows:,} rows"}
            if report.pending_rows
            else {}
        ),
        **({"stalled": ", ".join(report.stalled)} if report.stalled else {}),
    }
    items = (f"<div><span>{_escape(k)}</span><b>{_escape(v)}</b></div>" for k, v in facts.items())
    return f'<div class="facts">{"".join(items)}</div>'


def _render_charts(report: StatusReport) -> str:
    course = [c for c in reversed(report.transactions) if not c.claim]
    times = [c.committed_ms for c in course]
    begin, end = (_time(times[0]), _time(times[-1])) if times else ("", "")
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
        draw_line_chart(
            Series("Rows per commit", [(c.committed_ms, c.records) for c in course], bars=True),
            begin,
            end,
        ),
        draw_line_chart(Series("Valid-through behind its commit", fresh, " s"), begin, end),
        draw_line_chart(Series("Time since the commit before", gaps, " s"), begin, end),
        draw_line_chart(Series("Epoch", epochs, steps=True), begin, end),
        draw_bar_chart("Lag by partition", lags, " records"),
        draw_bar_chart("Partitions by owner", owned),
    ]
    return "".join(f'<div class="picture">{picture}</div>' for picture in drawn)


def _partitions(report: StatusReport) -> str:
    owners = {at: p.member for p in report.participants for at in p.partitions}
    rows = []
    for p in report.partitions:
        at = f"{p.topic}/{p.partition}"
        numbers = (p.next_offset, p.log_begin, p.log_end, p.lag)
        shown = ("-" if n is None else f"{n:,}" for n in numbers)
        state = "stalled" if at in report.stalled else ""
        rows.append((_escape(at), *shown, _escape(owners.get(at, "-")), state))
    heads = ("partition", "next offset", "log begin", "log end", "lag", "owner", "")
    return _table(heads, rows, {1, 2, 3, 4})


def _participants(report: StatusReport) -> str:
    rows = [
        (
            _escape(p.member),
            _escape(p.state),
            str(len(p.partitions)),
            f"{p.buffered_records:,}",
            f"{_duration(p.seen_ms_ago / 1000)} ago",
        )
        for p in report.participants
    ]
    return _table(("participant", "state", "partitions", "buffered", "seen"), rows, {2, 3})


def _commits(commits: Sequence[CommitSummary]) -> str:
    rows = []
    changes = KEY_COUNTS if any(c.keys for c in commits) else ()
    for c in commits:
        counts = Counter(rows=c.records, quarantined=c.quarantined, skipped=c.skipped)
        counts.update({what: getattr(c.keys, what, 0) for what in changes})
        numbers = ("-" if c.claim else f"{counts[name]:,}" for name in counts)
        what = f"{c.transaction} (claim)" if c.claim else c.transaction
        rows.append((_escape(what), str(c.snapshot_id), _time(c.committed_ms), *numbers))
    heads = ("transaction", "snapshot", "committed", "rows", "quarantined", "skipped", *changes)
    return _table(heads, rows, set(range(3, len(heads))))


def _rejected_records(report: StatusReport) -> list[str]:
    if not report.rejected_records:
        return []
    rows = [
        (
            _escape(f"{b.topic}/{b.partition}"),
            f"{b.offset:,}",
            _escape(b.transaction),
            _escape(b.reason),
        )
        for b in report.rejected_records
    ]
    heads = ("partition", "offset", "transaction", "reason")
    return ["<h2>Last bad records</h2>", _table(heads, rows, {1}, {3})]


def _table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Iterable[int],
    long: Iterable[int] = (),
) -> str:
    """Return a table; ``rows`` are HTML already."""
    kinds = {**dict.fromkeys(numbers, ' class="n"'), **dict.fromkeys(long, ' class="long"')}
    head = "".join(f"<th{kinds.get(i, '')}>{_escape(h)}</th>" for i, h in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(f"<td{kinds.get(i, '')}>{c}</td>" for i, c in enumerate(row)) + "</tr>"
        for row in rows
    )
    if not body:
        body = f'<tr><td class="pale" colspan="{len(heads)}">none</td></tr>'
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _escape(text: str) -> str:
    return escape(printable(text), quote=True)


def _time(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%m-%d %H:%M:%S")


def _ago(moment_ms: int | None, now_ms: int) -> str:
    return "-" if moment_ms is None else f"{_duration((now_ms - moment_ms) / 1000)} ago"


def _duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:.0f} d"
