"""Renders the pages of a fleet: all of its sinks and workers, and one sink. Pure.

Nothing here asks a sink, a catalog or a group. Every text comes from records that others wrote, and
is escaped where it is put into the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from headgate.control_protocol.counted_nouns import count_of
from headgate.operations.http.charts import draw_bar_chart, format_number
from headgate.operations.http.fleet_knowledge import Known
from headgate.operations.http.page_parts import (
    describe_age,
    describe_duration,
    escape_text,
    quote_for_path,
    render_facts,
    render_page,
    render_table,
)
from headgate.runtime.fleet.fleet_view import Drift, FleetView, SinkView, WorkerView
from headgate.runtime.fleet.placement import worker_loads
from headgate.runtime.fleet.sink_life import DesiredState, LifeState
from headgate.runtime.wall_clock import format_utc

ROWS_PER_PAGE = 200
_CHARTED = 12
_TEXT_SHOWN = 400
_COLOURS = {
    LifeState.ERROR: " bad",
    LifeState.LOST: " bad",
    LifeState.IDLE: " unknown",
    LifeState.STARTING: " unknown",
    LifeState.STOPPING: " unknown",
}
_DRIFTS = {
    Drift.FILE: "works with another file than the wanted one",
    Drift.STATE: "is not as is wanted",
    Drift.UNWANTED: "is wanted by nobody",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """Which sinks of the list somebody wants to see. ``kind``: a state, ``drift``, ``refused``."""

    text: str = ""
    kind: str = ""
    number: int = 1

    def escaped_page_url(self) -> str:
        named = {"q": self.text, "show": self.kind, "page": str(self.number)}
        told = {k: v for k, v in named.items() if v and (k, v) != ("page", "1")}
        return escape_text(f"/?{urlencode(told)}" if told else "/")


def fleet_page(known: Known, choice: Choice) -> str:
    """Return the list of sinks, those that need somebody first, then the worst lag first."""
    fleet = known.fleet
    chosen = [
        sink for sink in sort_by_urgency(fleet.sinks.values()) if _matches_filter(sink, choice)
    ]
    pages = max(1, -(-len(chosen) // ROWS_PER_PAGE))
    number = min(max(1, choice.number), pages)
    shown = chosen[(number - 1) * ROWS_PER_PAGE : number * ROWS_PER_PAGE]
    alive = sum(not worker.lost for worker in fleet.workers.values())
    sinks = count_of(len(fleet.sinks), "sink")
    body = [
        f"<h1>Fleet {escape_text(known.name)}</h1>",
        f'<p class="pale">{sinks} on {count_of(alive, "worker")}</p>',
        _staleness_html(known),
        _unowned_slots_html(known),
        _filter_links(fleet, choice),
        _search_form(choice),
        _sink_table(shown, known.now_ms),
        _page_links(len(chosen), len(fleet.sinks), pages, replace(choice, number=number)),
        "<h2>Workers</h2>",
        _worker_table(fleet, known.now_ms),
        f'<h2>Load</h2><div class="pictures">{_charts_html(fleet)}</div>',
    ]
    return render_page(f"Fleet {known.name}", body, known.now_ms)


def fleet_sink_page(known: Known, sink: SinkView) -> str:
    """Return what is wanted of one sink, and what is seen of it."""
    now_ms = known.now_ms
    body = [
        '<p class="pale"><a href="/">all sinks</a></p>',
        f"<h1>{escape_text(sink.key)}</h1>",
        f'<p>{_state_badge(sink)} <span class="pale">{_worker_and_slot_html(sink)}</span></p>',
        _staleness_html(known),
        *(f'<p class="error">{text}</p>' for text in _problem_lines_html(sink, now_ms)),
        render_facts({name: _shorten(value) for name, value in _fact_rows(sink, now_ms)}),
    ]
    if sink.spec is not None:
        status = f"/sinks/{quote_for_path(sink.key)}/status"
        body.append(f'<p><a href="{status}">offsets, commits, participants</a>: asks the sink</p>')
    if sink.elsewhere:
        rows = [
            (escape_text(each.worker), str(each.slot), escape_text(each.state.value))
            for each in sink.elsewhere
        ]
        body += [
            "<h2>Told of it elsewhere</h2>",
            render_table(("worker", "slot", "state"), rows, {1}),
        ]
    return render_page(f"{sink.key}: {sink.state.value}", body, now_ms)


def unread_fleet_page(name: str, problem: str, now_ms: int) -> str:
    """Return the page of a fleet of which nothing was read yet."""
    body = [
        f"<h1>Fleet {escape_text(name)}</h1>",
        f'<p class="error"><b>Nothing is known yet</b>: {escape_text(problem)}</p>',
    ]
    return render_page(f"Fleet {name}", body, now_ms)


# -------------------------------------------------------------------------------------- the list


def sort_by_urgency(sinks: Iterable[SinkView]) -> list[SinkView]:
    """Return those that need somebody first; then the largest lag first, what is unknown last."""

    def rank(sink: SinkView) -> tuple[bool, int, str]:
        lag = sink.observed.lag_records if sink.observed else None
        return (not sink.needs_attention, 1 if lag is None else -lag, sink.key)

    return sorted(sinks, key=rank)


def _matches_filter(sink: SinkView, choice: Choice) -> bool:
    if choice.kind and choice.kind not in _show_filters_matching(sink):
        return False
    words = choice.text.casefold().split()
    if not words:
        return True
    told = sink.observed
    said = (
        sink.key,
        sink.worker,
        told.worker if told else "",
        sink.error_code,
        sink.error_text,
        sink.refused,
    )
    text = "\n".join(said).casefold()
    return all(word in text for word in words)


def _show_filters_matching(sink: SinkView) -> set[str]:
    kinds = {sink.state.value}
    if sink.drift:
        kinds.add("drift")
    if sink.refused:
        kinds.add("refused")
    return kinds


def _filter_links(fleet: FleetView, choice: Choice) -> str:
    counts: Counter[str] = Counter()
    for sink in fleet.sinks.values():
        counts.update(_show_filters_matching(sink))
    kinds = [*(state.value for state in LifeState), "drift", "refused"]
    links = [_choice_link("all", len(fleet.sinks), "", choice)]
    links += [
        _choice_link(kind, counts[kind], kind, choice)
        for kind in kinds
        if counts[kind] or kind == choice.kind
    ]
    return f'<div class="choices">{"".join(links)}</div>'


def _choice_link(label: str, count: int, kind: str, choice: Choice) -> str:
    current = ' aria-current="true"' if kind == choice.kind else ""
    link = replace(choice, kind=kind, number=1).escaped_page_url()
    return f'<a href="{link}"{current}>{escape_text(label)} {count:,}</a>'


def _search_form(choice: Choice) -> str:
    kept = f'<input type="hidden" name="show" value="{escape_text(choice.kind)}">'
    return (
        '<form action="/" method="get">'
        f'<input type="search" name="q" value="{escape_text(choice.text)}" maxlength="200" '
        'placeholder="sink, worker, code or text" aria-label="Search">'
        f"{kept if choice.kind else ''}<button>Search</button></form>"
    )


def _sink_table(sinks: Sequence[SinkView], now_ms: int) -> str:
    heads = ("sink", "state", "lag", "worker", "since", "next try", "error")
    rows = ([*_sink_row(sink, now_ms)] for sink in sinks)
    return render_table(heads, rows, {2}, {6}, cards=True)


def _sink_row(sink: SinkView, now_ms: int) -> Iterable[str]:
    yield f'<a href="/sinks/{quote_for_path(sink.key)}">{escape_text(sink.key)}</a>'
    yield _state_badge(sink)
    lag = sink.observed.lag_records if sink.observed else None
    yield "" if lag is None else format_number(lag)
    yield escape_text(_worker_text_of(sink))
    yield describe_age(sink.since_ms, now_ms) if sink.since_ms else ""
    yield _next_try_text(sink, now_ms)
    said = f"{sink.error_code} {sink.error_text}".strip()
    yield escape_text(_shorten("; ".join(filter(None, (said, sink.refused)))))


def _state_badge(sink: SinkView) -> str:
    state = f'<span class="state{_COLOURS.get(sink.state, "")}">{sink.state.value}</span>'
    spec = sink.spec
    if spec is None:
        return f'{state} <span class="pale">not wanted</span>'
    if sink.drift is Drift.FILE:
        return f'{state} <span class="pale">another file</span>'
    if sink.drift or DesiredState.RUNNING != spec.state.value != sink.state.value:
        return f'{state} <span class="pale">wanted {escape_text(spec.state.value)}</span>'
    return state


def _next_try_text(sink: SinkView, now_ms: int) -> str:
    if sink.next_try_ms is None:
        return ""
    left_ms = sink.next_try_ms - now_ms
    return "now" if left_ms <= 0 else f"in {describe_duration(left_ms / 1_000)}"


def _worker_text_of(sink: SinkView) -> str:
    return sink.observed.worker if sink.observed else sink.worker


def _page_links(matching: int, total: int, pages: int, choice: Choice) -> str:
    said = f"{matching:,} of {total:,} sinks" if matching != total else count_of(total, "sink")
    if pages == 1:
        return f'<p class="pale">{said}</p>'
    links = []
    for label, number in (("before", choice.number - 1), ("next", choice.number + 1)):
        if 1 <= number <= pages:
            links.append(
                f'<a href="{replace(choice, number=number).escaped_page_url()}">{label}</a>'
            )
    where = f'<span class="pale">{said}, page {choice.number} of {pages}</span>'
    return f'<div class="choices">{where}{"".join(links)}</div>'


# ------------------------------------------------------------------------------ workers and load


def _worker_table(fleet: FleetView, now_ms: int) -> str:
    heads = ("worker", "state", "sinks", "slots", "memory", "release", "told")
    rows = ([*_worker_row(worker, now_ms)] for worker in fleet.workers.values())
    return render_table(heads, rows, {2, 3, 4}, cards=True)


def _worker_row(worker: WorkerView, now_ms: int) -> Iterable[str]:
    told = worker.observed
    state, colour = ("lost", " bad") if worker.lost else ("works", "")
    if told.leaving and not worker.lost:
        state, colour = "leaves", " unknown"
    yield escape_text(told.worker)
    yield f'<span class="state{colour}">{state}</span>'
    yield str(told.processes)
    yield str(len(told.slots))
    yield _mib_text(told.memory_bytes)
    yield escape_text(told.release)
    yield describe_age(worker.told_ms, now_ms)


def _charts_html(fleet: FleetView) -> str:
    lags = {
        sink.key: float(sink.observed.lag_records)
        for sink in fleet.sinks.values()
        if sink.observed and sink.observed.lag_records
    }
    loads = worker_loads(fleet)
    drawn = (
        draw_bar_chart("Lag by sink", lags, " records", _CHARTED),
        draw_bar_chart("Load by worker", loads, shown_max=_CHARTED),
    )
    return "".join(f'<div class="picture">{picture}</div>' for picture in drawn)


# -------------------------------------------------------------------------------------- one sink


def _problem_lines_html(sink: SinkView, now_ms: int) -> Iterable[str]:
    if sink.error_code or sink.error_text:
        again = f"; next try {_next_try_text(sink, now_ms)}" if sink.next_try_ms is not None else ""
        text = escape_text(_shorten(sink.error_text, 4_000) + again)
        yield f"<b>{escape_text(sink.error_code)}</b> {text}"
    if sink.drift:
        yield f"<b>Drift</b>: it {_DRIFTS[sink.drift]}"
    if sink.refused:
        yield f"<b>Refused</b>: {escape_text(sink.refused)}"


def _fact_rows(sink: SinkView, now_ms: int) -> Iterable[tuple[str, str]]:
    spec, told = sink.spec, sink.observed
    yield "in this state since", describe_age(sink.since_ms, now_ms) if sink.since_ms else "-"
    yield "told", describe_age(sink.told_ms, now_ms) if sink.told_ms else "never"
    yield "next try", _next_try_text(sink, now_ms) or "-"
    if told:
        yield "tries, ends", f"{told.tries:,}, {told.restarts:,}"
        if told.doing:
            yield "doing", told.doing
        yield "lag", "-" if told.lag_records is None else count_of(told.lag_records, "record")
        yield "partitions", "-" if told.partitions is None else f"{told.partitions:,}"
        yield "coordinates", {True: "yes", False: "no", None: "-"}[told.leads]
        yield "memory", _mib_text(told.memory_bytes) or "-"
        used = told.cpu_permille
        yield "processor, lately", "-" if used is None else f"{used / 10:.1f} % of a core"
        yield "file that it works with", told.revision or "-"
    if spec:
        yield "wanted", spec.state.value
        yield "wanted file", spec.revision
        yield "applied by", spec.actor or "-"
        yield "applied", describe_age(sink.applied_ms, now_ms)
        yield "spec", f"number {spec.number}, slot {spec.slot}{', pinned' if spec.pinned else ''}"
        if spec.memory_mib:
            yield "memory that it may take", f"{spec.memory_mib:,} MiB"


def _worker_and_slot_html(sink: SinkView) -> str:
    worker, owner = _worker_text_of(sink), sink.worker
    said = f"on {worker}" if worker else "on no worker"
    if owner != worker:
        said += f"; its slot {sink.slot} is {f'of {owner}' if owner else 'of nobody'}"
    return escape_text(said)


# ------------------------------------------------------------------------------------ said often


def _staleness_html(known: Known) -> str:
    """Say how old the knowledge is, where nothing newer can be had."""
    if not known.problem:
        return ""
    age, at = describe_duration(known.age_ms / 1_000), format_utc(known.now_ms)
    return (
        f'<p class="error"><b>What stands here is {age} old</b>, of {at}, and nothing newer can be '
        f"read: {escape_text(known.problem)}</p>"
    )


def _unowned_slots_html(known: Known) -> str:
    unowned = known.unowned_slots
    if not unowned or not known.fleet.sinks:
        return ""
    waiting = sum(sink.slot in unowned for sink in known.fleet.sinks.values())
    said = f"{count_of(len(unowned), 'slot')} of {known.slots} without an owner"
    return f'<p class="error"><b>{said}</b>: {count_of(waiting, "sink")} in them</p>'


def _mib_text(amount: int | None) -> str:
    return "" if amount is None else f"{amount / (1 << 20):,.0f} MiB"


def _shorten(text: str, characters: int = _TEXT_SHOWN) -> str:
    return text if len(text) <= characters else f"{text[:characters]}…"
