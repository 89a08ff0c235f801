"""QUARANTINE-1 to QUARANTINE-5: the quarantine, what statuses say of it, and what is left out where
it is ahead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family, Planted

from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.testing import FakeBatchWriter
from headgate.coordinator import (
    machine,
    phase_steps,
    secondary_pending_commits,
    status_validation,
)
from headgate.coordinator.state import Sample, State
from headgate.participant import batches
from headgate.participant import machine as participant

FAMILY = Family()


@FAMILY.replaces("PENDING-3", (secondary_pending_commits, "_build_delivery"))
def quarantine_counts_for_itself(right: Any, primary: Any, pending: Any, secondary: Any) -> Any:
    """The secondary table's record says the transaction after the one that was delivered."""
    delivery = right(primary, pending, secondary)
    one = delivery.record.transaction
    after = replace(one, number=one.number + 1)
    return replace(delivery, record=replace(delivery.record, transaction=after))


@FAMILY.replaces("QUARANTINE-2", (machine, "validate_statuses"))
def judged_apart(right: Any, statuses: Any, by: Any) -> Any:
    """The quarantine's files are in, whatever becomes of the claims that they belong to."""
    verdict = right(statuses, by)
    aside: dict[str, dict[str, Any]] = {name: {} for name in by.secondaries}
    for heard in statuses:
        for table in heard.status.tables:
            if table.table in aside:
                aside[table.table].update({file.path: file for file in table.files})
    files = {name: tuple(known.values()) for name, known in aside.items() if known}
    return replace(verdict, secondary_files=files)


def _of_primary(tables: Any, writing: Any) -> Any:
    return tuple(table for table in tables if table.table == writing.table.table)


@FAMILY.replaces("QUARANTINE-2", (batches, "_table_statuses"))
def bad_records_unsaid(right: Any, writing: Any, state: Any) -> Any:
    """A status does not name the quarantine's files."""
    return _of_primary(right(writing, state), writing)


@FAMILY.patches("QUARANTINE-2")
def bad_records_unsaid_and_uncounted() -> tuple[Planted, ...]:
    """A status does not name the quarantine's files, and nobody counts them."""
    tables = batches._table_statuses
    return (
        (batches, "_table_statuses", lambda *given: _of_primary(tables(*given), given[0])),
        (status_validation, "_check_quarantine", lambda *_: None),
    )


@FAMILY.patches("QUARANTINE-2")
def dropped_without_its_bad_records() -> tuple[Planted, ...]:
    """When work is dropped, the quarantine's files of it stay; nobody counts them."""
    dropped = batches.drop_unannounced_work

    def drops(state: Any) -> Any:
        before, after = state.work, dropped(state)
        work = replace(
            after.work,
            quarantine_files=before.quarantine_files,
            secondary_files=before.secondary_files,
        )
        return replace(after, work=work)

    return (
        (status_validation, "_check_quarantine", lambda *_: None),
        (participant, "drop_unannounced_work", drops),
        (batches, "drop_unannounced_work", drops),
    )


@FAMILY.replaces(
    "QUARANTINE-3",
    (phase_steps, "secondary_offsets_ahead"),
    (status_validation, "secondary_offsets_ahead"),
)
def start_says_nothing_of_it(right: Any, state: State, secondary: Any) -> Offsets:
    """START does not say where the quarantine is ahead."""
    return Offsets()


@FAMILY.replaces("QUARANTINE-3", (FakeBatchWriter, "_records_already_in_secondaries"))
def quarantine_not_asked(right: Any, self: Any, batch: Batch) -> Any:
    """Who reads such a range again does not ask what the quarantine holds of it."""
    return frozenset()


@FAMILY.replaces("QUARANTINE-3", (FakeBatchWriter, "_records_already_in_secondaries"))
def decided_anew(right: Any, self: Any, batch: Batch) -> Any:
    """What is bad now, below the quarantine's offsets, is taken for what it holds."""
    ahead = batch.quarantine.offsets if batch.quarantine else {}
    return frozenset(
        record
        for at, span in batch.ranges.items()
        if span.begin < ahead.get(at, 0)
        for record in self._source.records(at, OffsetRange(span.begin, ahead[at]))
        if self.bad(record)
    )


@FAMILY.replaces("QUARANTINE-5", (machine, "_updated_bad_record_sample"))
def any_number_of_bad_records(right: Any, state: State, verdict: Any) -> Sample:
    """The coordinator does not count the bad records of a transaction."""
    return Sample()
