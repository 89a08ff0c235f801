"""Prints tables for people, and one JSON line per run for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from comparison.measure import Measured
from comparison.reading import READERS
from comparison.upserts import Reads

_MEGABYTE = 1_000_000
_BILLION_PER_HOUR = 1e9 / 3600


def show(title: str, runs: Sequence[Measured], rival: str | None) -> None:
    """``rival``: whose figures the ratios divide by."""
    table = Table(title=title)
    for heading in ("system", "steady", "ratio", "rows/CPU-s", "ratio", "CPU-h,\n1e9 rows",
                    "wall s", "start CPU-s"):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "system" else "right")
    for heading in (
        "peak MB",
        "without JVM",
        "files",
        "commits",
        "p50/p99 ms",
        "apart ms",
        "exact",
    ):
        table.add_column(heading, justify="right")
    theirs = next((run for run in runs if run.system == rival), None)
    for run in runs:
        table.add_row(*_cells(run, theirs))
    Console(width=160).print(table)


def _ratio(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.2f}" if ours and theirs else "-"


def _half_and_most(times_ms: tuple[float, float] | None) -> str:
    return f"{times_ms[0]:,.0f}/{times_ms[1]:,.0f}" if times_ms else "-"


def _cells(run: Measured, theirs: Measured | None) -> list[str]:
    return [
        run.system,
        f"{run.steady:,.0f}" if run.steady else "-",
        _ratio(run.steady, theirs.steady if theirs else None),
        f"{run.rows_per_cpu_s:,.0f}",
        _ratio(run.rows_per_cpu_s, theirs.rows_per_cpu_s if theirs else None),
        f"{_BILLION_PER_HOUR / run.rows_per_cpu_s:.2f}" if run.rows_per_cpu_s else "-",
        f"{run.wall_s:.1f}",
        f"{run.start_cpu_s:.1f}",
        f"{run.memory_bytes / _MEGABYTE:,.0f}",
        f"{run.lean_bytes / _MEGABYTE:,.0f}",
        str(run.found.files),
        str(run.found.snapshots),
        _half_and_most(run.delays_ms),
        _half_and_most(run.apart_ms),
        "yes" if run.exact else "NO",
    ]


def show_reads(title: str, reads: Sequence[Reads]) -> None:
    """The ratios divide by the first table's figures."""
    table = Table(title=title)
    table.add_column("table")
    for heading in (f"{reader}, {unit}" for reader in READERS for unit in ("CPU-s", "ratio")):
        table.add_column(heading, justify="right")
    table.add_column("made, CPU-s", justify="right")
    for one in reads:
        cells = [one.table]
        for reader in READERS:
            took, easy = one.by[reader], reads[0].by[reader]
            cells.append(f"{took.cpu_s:.2f}" if took else "no end")
            cells.append(_ratio(took and took.cpu_s, easy and easy.cpu_s))
        cells.append("-" if one.made_cpu_s is None else f"{one.made_cpu_s:.2f}")
        table.add_row(*cells)
    Console(width=150).print(table)


def line(title: str, run: Measured) -> str:
    """Return everything measured, as one JSON line."""
    return json.dumps({"title": title, **asdict(run)})
