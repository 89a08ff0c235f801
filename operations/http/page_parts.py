"""Has what pages share: style sheet, policy, frame, table, and words for times. Pure.

Every text from outside is escaped where it is put into a page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from urllib.parse import quote

from headgate.control_protocol.redaction import to_printable_line
from headgate.runtime.wall_clock import format_utc

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
.choices{display:flex;flex-wrap:wrap;gap:6px 14px;align-items:center;margin:12px 0}
.choices a[aria-current]{font-weight:600;color:var(--ink);text-decoration:none}
form{display:flex;gap:6px;margin:12px 0}
input,button{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);
border-radius:6px;padding:5px 10px}
input{flex:1 1 auto;min-width:0;max-width:420px}
@media (max-width:520px){.cards table,.cards tbody,.cards tr,.cards td{display:block}
.cards tr:first-child:not(:last-child){display:none}
.cards tr{padding:8px 2px;border-bottom:1px solid var(--line)}.cards tr:last-child{border:0}
.cards td,.cards td.n,.cards td.long{border:0;padding:1px 10px;text-align:left;
white-space:normal;overflow-wrap:anywhere}
.cards td:empty{display:none}.cards td[data-head]:not(:empty)::before{content:attr(data-head) " ";
color:var(--pale)}}
"""
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src data:; base-uri 'none'; "
    "frame-ancestors 'none'; form-action"
)
POLICY = f"{_POLICY} 'none'"
SEARCH_POLICY = f"{_POLICY} 'self'"
"""Of a page with a search, which asks this server by GET."""


def render_page(title: str, body: Iterable[str], now_ms: int) -> str:
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}"><link rel="icon" href="data:,">'
        f"<title>{escape_text(title)}</title><style>{STYLE}</style></head><body><main>"
        f'{"".join(body)}<p class="pale">As of {format_utc(now_ms)}; '
        f"refreshed every {REFRESH_S} s.</p></main></body></html>"
    )


def render_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    number_columns: Iterable[int],
    long_columns: Iterable[int] = (),
    *,
    cards: bool = False,
) -> str:
    """Return a table; ``rows`` are HTML already. ``cards``: one for each row on a phone."""
    kinds = {
        **dict.fromkeys(number_columns, ' class="n"'),
        **dict.fromkeys(long_columns, ' class="long"'),
    }
    head = "".join(f"<th{kinds.get(i, '')}>{escape_text(h)}</th>" for i, h in enumerate(heads))
    told = [f' data-head="{escape_text(h)}"' if cards and i else "" for i, h in enumerate(heads)]
    body = "".join(
        "<tr>"
        + "".join(f"<td{kinds.get(i, '')}{told[i]}>{c}</td>" for i, c in enumerate(row))
        + "</tr>"
        for row in rows
    )
    if not body:
        body = f'<tr><td class="pale" colspan="{len(heads)}">none</td></tr>'
    kind = "wide cards" if cards else "wide"
    return f'<div class="{kind}"><table><tr>{head}</tr>{body}</table></div>'


def render_facts(facts: Mapping[str, str]) -> str:
    """Return named values as a grid of boxes."""
    items = (
        f"<div><span>{escape_text(name)}</span><b>{escape_text(value)}</b></div>"
        for name, value in facts.items()
    )
    return f'<div class="facts">{"".join(items)}</div>'


def escape_text(text: str) -> str:
    return escape(to_printable_line(text), quote=True)


def quote_for_path(key: str) -> str:
    """Return a sink's key as part of a path: a ``#`` in it begins no fragment."""
    return escape_text(quote(key, safe=""))


def describe_age(moment_ms: int | None, now_ms: int) -> str:
    return "-" if moment_ms is None else f"{describe_duration((now_ms - moment_ms) / 1000)} ago"


def describe_duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:.0f} d"
