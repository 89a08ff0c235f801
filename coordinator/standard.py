"""What statuses are judged by at this moment: offsets, partitions, the folders allowed."""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.identifiers import TransactionNumber
from headgate.control_protocol.ports import CommitAttempt, TableView
from headgate.coordinator.admission import Prefixes, QuarantineStandard, Standard
from headgate.coordinator.ageing import oldest
from headgate.coordinator.moves import term_of
from headgate.coordinator.speech import fixed_set, prefixes, quarantine_ahead
from headgate.coordinator.state import State


def standard(state: State, now_ms: int) -> Standard:
    view = term_of(state).view
    quarantine = None
    if view.quarantine:
        folders = _young(state, view.quarantine, now_ms)
        ahead = quarantine_ahead(state)
        quarantine = QuarantineStandard(view.quarantine.table, folders, ahead)
    # of a partition that is not awaited nothing is known either, so it is in the set (C10)
    folders = _young(state, view, now_ms)
    term = term_of(state)
    return Standard(
        offsets=term.offsets,
        fixed=fixed_set(state),
        table=view.table,
        prefixes=folders,
        quarantine=quarantine,
        committed=term.committed,
        may_skip=state.limits.may_skip,
        closing=term.closing,
        ends=term.ends,
    )


def _young(state: State, table: TableView, now_ms: int) -> Prefixes:
    """P9: without the folders of transactions whose files may have been cleaned up."""
    issued = prefixes(state, table)
    first = oldest(term_of(state).issued, now_ms, state.settings.claim_age_max_ms)
    return replace(issued, oldest=first or TransactionNumber(issued.newest + 1))


def too_old(state: State, attempt: CommitAttempt, now_ms: int) -> bool:
    """P9: with a new claim no attempt can land any more, and the files are nobody's."""
    now = standard(state, now_ms)
    upto = now.prefixes.newest
    aside = attempt.quarantined or ()
    young = all(now.prefixes.allow(file.path, upto) for file in attempt.files) and all(
        now.quarantine is not None and now.quarantine.prefixes.allow(file.path, upto)
        for file in aside
    )
    return not young
