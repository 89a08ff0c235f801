"""Draws small charts as SVG: no script, and no style but classes of the page's own sheet. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from headgate.control_protocol.redaction import to_printable_line

WIDTH, HEIGHT = 420, 130
_LEFT, _TOP, _BOTTOM = 4, 24, 20
_BAR_HEIGHT, _ROW_HEIGHT = 8, 28


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time, oldest first; ``unit`` follows the largest. ``steps``: no slopes."""

    title: str
    points: Sequence[tuple[int, float]]
    unit: str = ""
    bars: bool = False
    steps: bool = False


def draw_time_series(series: Series, begin_label: str, end_label: str) -> str:
    """Draw one chart; ``begin_label`` and ``end_label`` are written below."""
    values = [value for _, value in series.points]
    if not values:
        return _empty_chart(series.title)
    highest = max(values)
    times = [moment for moment, _ in series.points]
    first, last = times[0], max(times[-1], times[0] + 1)

    def x_of(moment: int) -> float:
        return _LEFT + (moment - first) / (last - first) * (WIDTH - 2 * _LEFT)

    def y_of(value: float) -> float:
        return HEIGHT - _BOTTOM - (value / highest if highest else 0) * (HEIGHT - _TOP - _BOTTOM)

    base = HEIGHT - _BOTTOM
    if series.bars:
        width = max(1.0, (WIDTH - 2 * _LEFT) / len(values) - 1)
        step = (WIDTH - 2 * _LEFT) / len(values)
        drawn = "".join(
            f'<rect class="bar" x="{_LEFT + number * step:.1f}" y="{y_of(value):.1f}" '
            f'width="{width:.1f}" height="{base - y_of(value):.1f}"/>'
            for number, value in enumerate(values)
        )
    else:
        path = f"M{x_of(times[0]):.1f},{y_of(values[0]):.1f}"
        for moment, value in series.points[1:]:
            path += (
                f"H{x_of(moment):.1f}V{y_of(value):.1f}"
                if series.steps
                else (f"L{x_of(moment):.1f},{y_of(value):.1f}")
            )
        drawn = f'<path class="line" d="{path}"/>'
    top = f"max {format_number(highest)}{series.unit}"
    return _svg_element(
        series.title,
        HEIGHT,
        f'<text class="title" x="{_LEFT}" y="14">{_escape(series.title)}</text>'
        f'<text class="small end" x="{WIDTH - _LEFT}" y="14">{_escape(top)}</text>'
        f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{WIDTH - _LEFT}" y2="{base}"/>{drawn}'
        f'<text class="small" x="{_LEFT}" y="{HEIGHT - 6}">{_escape(begin_label)}</text>'
        f'<text class="small end" x="{WIDTH - _LEFT}" y="{HEIGHT - 6}">{_escape(end_label)}</text>',
    )


def draw_bar_chart(
    title: str, values: Mapping[str, float], unit: str = "", shown_max: int = 20
) -> str:
    """Draw horizontal bars, the largest first; the rest are counted."""
    if not values:
        return _empty_chart(title)
    ordered = sorted(values.items(), key=lambda item: (-item[1], item[0]))
    rows, left_out = ordered[:shown_max], len(ordered) - shown_max
    highest = max(value for _, value in rows) or 1
    drawn = []
    for index, (name, value) in enumerate(rows):
        top = 24 + index * _ROW_HEIGHT
        width = max(0.0, value) / highest * (WIDTH - 2 * _LEFT)
        drawn.append(
            f'<text class="small" x="{_LEFT}" y="{top + 14}">{_escape(shorten_name(name))}</text>'
            f'<text class="small end" x="{WIDTH - _LEFT}" y="{top + 14}">'
            f"{_escape(format_number(value) + unit)}</text>"
            f'<rect class="bar" x="{_LEFT}" y="{top + 18}" width="{width:.1f}" '
            f'height="{_BAR_HEIGHT}"><title>{_escape(name)}</title></rect>'
        )
    height = 30 + len(rows) * _ROW_HEIGHT
    if left_out > 0:
        height += 16
        drawn.append(f'<text class="small" x="{_LEFT}" y="{height - 6}">and {left_out} more</text>')
    head = f'<text class="title" x="{_LEFT}" y="14">{_escape(title)}</text>'
    return _svg_element(title, height, head + "".join(drawn))


def format_number(value: float) -> str:
    """Write 1234567 as 1.23 M; small numbers as they are."""
    # From 999,500 on it is 1 M: three figures of thousands would be 1e+03.
    units = ((0.9995e12, 1e12, "T"), (0.9995e9, 1e9, "G"), (0.9995e6, 1e6, "M"), (1e4, 1e3, "k"))
    for least, unit, letter in units:
        if abs(value) >= least:
            return f"{value / unit:.3g} {letter}"
    return f"{value:.0f}" if value == int(value) or abs(value) >= 999.5 else f"{value:.3g}"


def shorten_name(name: str, characters: int = 26) -> str:
    """Leave out the middle of a name, since its end tells partitions apart."""
    if len(name) <= characters:
        return name
    half = (characters - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def _svg_element(title: str, height: int, inside: str) -> str:
    return (
        f'<svg role="img" aria-label="{_escape(title)}" '
        f'viewBox="0 0 {WIDTH} {height}" xmlns="http://www.w3.org/2000/svg">{inside}</svg>'
    )


def _empty_chart(title: str) -> str:
    head = f'<text class="title" x="{_LEFT}" y="14">{_escape(title)}</text>'
    return _svg_element(
        title, 40, f'{head}<text class="small" x="{_LEFT}" y="32">nothing yet</text>'
    )


def _escape(text: str) -> str:
    return escape(to_printable_line(text), quote=True)
