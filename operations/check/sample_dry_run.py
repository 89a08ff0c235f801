"""Asks the question of ``headgate check`` about rows: whether the newest records become some."""

from __future__ import annotations

from headgate.config.sink_settings import SinkSettings
from headgate.config.table_formats import other_kind
from headgate.control_protocol.errors import RecordsWouldStop
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.data_plane.quarantine.rejected_records import ROUTE, TABLE, TOMBSTONE
from headgate.operations.access.kafka import source_topics
from headgate.operations.dry_run import Rehearsal, rehearse

SAMPLE_RECORDS = 200


def rehearsable(settings: SinkSettings) -> bool:
    """Return whether records can be tried here: Iceberg's tables, and no transform by Spark."""
    return other_kind(settings) is None and not settings.transform


def check_rows(settings: SinkSettings) -> str:
    """Take some of the newest records through the sink, as ``run --dry-run`` does.

    Raises ``RecordsWouldStop``, and what a batch of these records would raise.
    """
    with source_topics(settings) as topics:
        partitions = sum(len(topic.partitions) for topic in topics.describe().values())
    return judged(settings, rehearse(settings, max(1, SAMPLE_RECORDS // max(1, partitions))))


def judged(settings: SinkSettings, seen: Rehearsal) -> str:
    """Describe what the records would become. Raises ``RecordsWouldStop``."""
    taken = sum(each.records for each in seen.partitions.values())
    aside = sum(each.quarantined + each.skipped for each in seen.partitions.values())
    records, bad = taken + aside, seen.bad
    if not records:
        return "there are no records yet"
    text = f"the {records} newest records fit the columns"
    if bad:
        unlike = (f"{TOMBSTONE}:", f"{ROUTE}:", f"{TABLE}:")
        found = [each for each in seen.misfits if not each.reason.startswith(unlike)]
        first = "".join(f": {each.at} at {each.offset}, {each.reason}" for each in found[:1])
        text = f"of the {records} newest records {bad} do not fit the columns{first}"
    if others := aside - bad:
        text += f"; {others} have no value, or no table"
    _refuse_stopping(settings, seen, text, none_fits=bad == records)
    return text


def _refuse_stopping(
    settings: SinkSettings, seen: Rehearsal, text: str, *, none_fits: bool
) -> None:
    """Raise ``RecordsWouldStop`` where a start would stop, or keep not one record."""
    aside = settings.quarantine
    if seen.bad and aside.policy is Disposal.FAIL:
        raise RecordsWouldStop(
            f"{text}; quarantine.policy is fail, so the sink would stop there",
            'set quarantine.policy = "quarantine", correct the columns, or mend the producer',
        )
    if none_fits:
        raise RecordsWouldStop(text, "correct [[table.columns]], or format.type and its options")
    if seen.tombstones and not settings.keyed and aside.tombstones is Disposal.FAIL:
        raise RecordsWouldStop(
            f"{text}; quarantine.tombstones is fail, so the sink would stop there",
            'set quarantine.tombstones = "skip" or "quarantine"',
        )
