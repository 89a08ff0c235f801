"""Maintains a sink's tables once: compaction, expiry, orphans; whether the sink runs or not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import MaintenanceUnfit
from headgate.runtime.maintenance.scheduler import (
    find_table_locations,
    suspension_reasons,
    tables_to_maintain,
    tables_with_files,
)
from headgate.runtime.maintenance.table_maintenance import Done, OnProgress, Round
from headgate.runtime.sink_tables import (
    SinkTables,
    open_tables_creating_nothing,
    translate_table_error,
)

STEPS = ("rows", "compact", "expire", "orphans")
_LOOK_S = 0.2


def maintain(
    settings: SinkSettings,
    tables: Collection[str],
    steps: Collection[str],
    *,
    dry_run: bool,
    on_progress: OnProgress,
    ending: threading.Event | None = None,
) -> Iterator[Done]:
    """Do the steps on these tables, or on all that the sink maintains; yield each result.

    A table that fails stops no other: its result says why. Raises ``MaintenanceUnfit`` for a table
    that is not maintained, and what reading the sink's own table raises.
    """
    with open_tables_creating_nothing(settings) as opened:
        catalog = opened.require_maintained_format().catalog
        with closing(opened.open_primary()) as primary:
            view = primary.read()
        known, suspended = tables_to_maintain(settings, view), suspension_reasons(view)
        if strange := sorted(set(tables) - set(known)):
            raise MaintenanceUnfit(
                f"{', '.join(strange)} is not maintained by this sink",
                f"it has: {', '.join(known)}",
            )
        places = find_table_locations(catalog, tables_with_files(settings, view))
        for name in known if not tables else [name for name in known if name in tables]:
            if name in suspended:
                yield Done(name, left=[f"it is suspended: {suspended[name]}"])
            elif name in places.unread:
                yield Done(name, failed=str(places.unread[name]))
            elif name not in places.locations:
                yield Done(name, left=["the table is not there"])
            else:
                one = Round(
                    settings,
                    catalog,
                    name,
                    beside=places.other_locations(name),
                    unread=tuple(places.unread),
                    dry_run=dry_run,
                    quiet=waiter_for_calm_after_commit(opened, name),
                    ending=ending or threading.Event(),
                    on_progress=on_progress,
                )
                try:
                    _maintain_table(one, steps)
                except Exception as error:  # noqa: BLE001 - it becomes one of ours
                    one.done.failed = str(translate_table_error(error, f"{name} is not maintained"))
                yield one.done


def _maintain_table(one: Round, steps: Collection[str]) -> None:
    calls = (one.expire_rows, one.compact, one.expire_snapshots, one.remove_orphans)
    for name, call in zip(STEPS, calls, strict=True):
        if name in steps:
            call()


def waiter_for_calm_after_commit(tables: SinkTables, table: str) -> Callable[[], None]:
    """Return a function that waits until a live sink has committed, at most half an interval ago.

    Its next commit is then half an interval away, or more. A sink that has not committed for two
    intervals and time-outs is not waited for.
    """
    settings, maintained, spec = (
        tables.settings,
        tables.require_maintained_format(),
        tables.table_spec_of(table),
    )
    calm_s = settings.coordinator.commit_interval_ms / 2000
    waits_s = (
        settings.coordinator.commit_interval_ms + settings.coordinator.commit_timeout_ms
    ) / 1000

    def newest_commit_and_age() -> tuple[int | None, float]:
        newest = maintained.newest_commit(spec, settings.name)
        if newest is None:
            return None, float("inf")
        return newest.snapshot_id, time.time() - newest.committed_at_s

    def wait() -> None:
        before, age_s = newest_commit_and_age()
        until_s = time.monotonic() + waits_s
        while calm_s < age_s < 2 * waits_s and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
            now, age_s = newest_commit_and_age()
            if now != before:
                return

    return wait
