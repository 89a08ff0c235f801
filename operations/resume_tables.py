"""Ending the parking of tables: an event on the control topic, and the ledger's answer (I5)."""

from __future__ import annotations

from collections.abc import Collection

from headgate.control_protocol.errors import ConfigurationError, TableStillParked
from headgate.control_protocol.events import Resume
from headgate.control_protocol.record import CommitRecord, Parked
from headgate.operations.pause import ask
from headgate.operations.table_access import opened_table
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.history import read_history


def resume_tables(
    settings: SinkSettings, names: Collection[str], patience_s: float | None = None
) -> tuple[str, ...]:
    """Ask the running sink to fill these parked tables again; without names, all of them.

    Returns their names. Raises ``TableStillParked`` where something is still wrong,
    ``ConfigurationError`` for a table that is not parked, and as ``pause``.
    """
    parked = _parked(settings)
    strangers = sorted(set(names) - parked.keys())
    if strangers or not parked:
        raise ConfigurationError(
            f"{', '.join(strangers) or 'no table of this sink'} is not parked",
            "headgate tables SINK lists those that are",
        )
    wanted = {name: parked[name] for name in (names or parked) if not parked[name].resuming}

    def answered(record: CommitRecord) -> bool:
        now = {each.table: each for each in record.parked}
        return all(
            name not in now or now[name].resuming or now[name].since_ms > before.since_ms
            for name, before in wanted.items()
        )

    record = ask(settings, Resume(tuple(sorted(wanted))), answered, patience_s)
    left = [p for p in record.parked if p.table in wanted and not p.resuming]
    if left:
        raise TableStillParked(
            "; ".join(f"{parked.table} stays parked: {parked.why}" for parked in left),
            "mend it, and ask again",
        )
    return tuple(sorted(wanted))


def _parked(settings: SinkSettings) -> dict[str, Parked]:
    if not settings.tables:
        raise ConfigurationError("this sink fills one table", "only tables of routes are parked")
    with opened_table(settings) as ledger:
        record = read_history(ledger, settings.name, settings.table.branch).record
    return {each.table: each for each in (record.parked if record else ())}
