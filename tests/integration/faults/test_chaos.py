"""Tests that ``make chaos`` itself works: a strike on each catalog, judged like a long run."""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from integration.faults.chaos import figures, run
from rich.console import Console

pytestmark = pytest.mark.integration


@pytest.mark.wide
@pytest.mark.parametrize(
    "catalog", ["sqlite", *(pytest.param(c, marks=pytest.mark.soak) for c in ("postgres", "rest"))]
)
def test_a_short_run_is_clean(tmp_path: Path, catalog: str) -> None:
    _is_clean(tmp_path, catalog=catalog, store="local")


@pytest.mark.soak
@pytest.mark.parametrize("catalog", ["sqlite", "vending"])
def test_so_is_one_on_s3(tmp_path: Path, catalog: str) -> None:
    _is_clean(tmp_path, catalog=catalog, store="s3")


@pytest.mark.soak
def test_keys_that_live_for_40_s_are_renewed_before_they_expire(tmp_path: Path) -> None:
    """Beside others' work a batch may outlive its keys; what is seen is printed."""
    seen = _run(tmp_path, catalog="vending", store="s3", minutes=2.2, calm=True)
    print({name: seen[name] for name in ("commits", "gap_s", "refused_keys")})
    assert seen["commits"] > 10


@pytest.mark.soak
def test_so_is_one_on_a_delta_table(tmp_path: Path) -> None:
    """With a quarantine beside it, which fails as the table does."""
    _is_clean(tmp_path, catalog="sqlite", store="s3", table="delta", bad_every=50)


@pytest.mark.soak
def test_so_is_one_on_postgresql_tables(tmp_path: Path) -> None:
    """With a quarantine in the same database."""
    _is_clean(tmp_path, catalog="sqlite", store="local", table="postgres", bad_every=50)


def _is_clean(home: Path, **of: Any) -> None:
    seen = _run(home, **of)
    assert seen["all"]["injected"] >= 1
    assert seen["rows"] > 0
    assert bool(seen["quarantined"]) is bool(of.get("bad_every"))


def _run(home: Path, **of: Any) -> Mapping[str, Any]:
    own = {"table": "iceberg", "rate": 500, "writer": "in-process", "calm": False, "bad_every": 0}
    brief = {"minutes": 0.01, "seed": 7, "participants": 2}
    return run(Namespace(**{**own, **brief, **of}), home, Console(width=100))


def test_figures_are_of_the_nearest_rank() -> None:
    times = [float(n) for n in range(1, 201)]
    random.Random(1).shuffle(times)
    assert figures(times, 198.5) == {
        "injected": 200,
        "p50_s": 100.5,
        "p99_s": 198.0,
        "bound_s": 198.5,
        "over": 2,
    }
    assert figures([3.0], None)["p99_s"] == 3.0
