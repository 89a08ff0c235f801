"""Maintains a sink's tables once: compaction, expiry, orphans; whether the sink runs or not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator

from pyiceberg.catalog import Catalog

from headgate.control_protocol.errors import MaintenanceUnfit
from headgate.control_protocol.identifiers import tag_name
from headgate.operations.table_access import (
    opened_aside,
    opened_catalog,
    opened_lead,
    refuse_other_kind,
)
from headgate.sink.maintenance.beside import locations, maintained
from headgate.sink.maintenance.rounds import Done, OnProgress, Round
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.catalog import catalog_failure

STEPS = ("compact", "expire", "orphans")
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

    Raises ``MaintenanceUnfit`` for a table that is not maintained, ``TableMissing``,
    ``Unreachable``.
    """
    if not settings.apart:
        refuse_other_kind(settings)
    with opened_lead(settings) as lead:
        record = lead.read().record
    known = maintained(settings, record)
    if strange := sorted(set(tables) - set(known)):
        raise MaintenanceUnfit(
            f"{', '.join(strange)} is not maintained by this sink", f"it has: {', '.join(known)}"
        )
    with (opened_aside if settings.apart else opened_catalog)(settings) as catalog:
        there = locations(catalog, known)
        for name in known:
            if name not in there and (name in tables or not tables):
                yield Done(name, left=["the table is not there"])
            elif name in tables or not tables:
                one = Round(
                    settings,
                    catalog,
                    name,
                    beside=tuple(at for other, at in there.items() if other != name),
                    dry_run=dry_run,
                    quiet=behind_a_commit(settings, catalog, name),
                    ending=ending or threading.Event(),
                    on_progress=on_progress,
                )
                try:
                    _do(one, steps)
                except Exception as error:
                    raise catalog_failure(error, f"{name} is not maintained") from error
                yield one.done


def _do(one: Round, steps: Collection[str]) -> None:
    for step in (one.compact, one.expire, one.remove_orphans):
        if step.__name__.removeprefix("remove_") in steps:
            step()


def behind_a_commit(settings: SinkSettings, catalog: Catalog, table: str) -> Callable[[], None]:
    """Return a function that waits until a live sink has just committed.

    Its next commit is then an interval away. A sink that has not committed for two intervals and
    time-outs is not waited for.
    """
    tag = tag_name(settings.name, settings.table.branch)
    waits_s = (
        settings.coordinator.commit_interval_ms + settings.coordinator.commit_timeout_ms
    ) / 1000

    def place() -> tuple[int | None, float]:
        metadata = catalog.load_table(table).metadata
        ref = metadata.refs.get(tag)
        snapshot = metadata.snapshot_by_id(ref.snapshot_id) if ref else None
        if snapshot is None:
            return None, float("inf")
        return snapshot.snapshot_id, time.time() - snapshot.timestamp_ms / 1000

    def wait() -> None:
        before, age_s = place()
        until_s = time.monotonic() + waits_s
        while age_s < 2 * waits_s and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
            now, age_s = place()
            if now != before:
                return

    return wait
