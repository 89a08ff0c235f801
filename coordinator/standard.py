"""Builds the criteria for a WRITE-STATUS: next offsets, partitions, prefixes of files (C7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import TransactionNumber
from headgate.control_protocol.ports import CommitAttempt, TableView
from headgate.coordinator.admission import Prefixes, SecondaryStandard, Stamped, Standard
from headgate.coordinator.ageing import oldest
from headgate.coordinator.growth import to_be_read
from headgate.coordinator.moves import term_of
from headgate.coordinator.speech import addressed, ahead, fixed_set, prefixes
from headgate.coordinator.state import State


def standard(state: State, now_ms: int) -> Standard:
    # nothing is known of a partition that is not awaited, so it is in the set (C10)
    term = term_of(state)
    return Standard(
        offsets=term.offsets,
        fixed=fixed_set(state) | to_be_read(state),
        table=term.view.table,
        prefixes=_of_primary(state, now_ms),
        secondaries=_secondaries(state, now_ms),
        routed=state.identity.routed,
        suspended=frozenset(term.suspended),
        committed=term.committed,
        may_skip=state.limits.may_skip,
        closing=term.closing,
        ends=term.ends,
        keyed=state.identity.keyed,
    )


def _secondaries(state: State, now_ms: int) -> dict[str, SecondaryStandard]:
    """Return the secondary tables that START names, and routed ones as they were read last."""
    named = addressed(state)
    standards = {
        name: SecondaryStandard(_young(state, secondary, now_ms), ahead(state, secondary))
        for name, secondary in named.items()
    }
    if state.identity.routed:
        for name, secondary in term_of(state).secondaries.items():
            if name not in named:
                young = _young(state, secondary, now_ms)
                keyed = state.identity.routed_keys.of_table(name)
                standards[name] = SecondaryStandard(young, uuid=secondary.uuid, keyed=keyed)
    return standards


def _of_primary(state: State, now_ms: int) -> Prefixes | Stamped:
    """P13: where files are stamped, allow those of the transaction being ended, and no others."""
    term = term_of(state)
    young = _young(state, term.view, now_ms)
    if not term.closing_stamp:
        return young
    return Stamped(term.closing_stamp, term.closing, young.oldest, term.past_stamps)


def _young(state: State, table: TableView, now_ms: int) -> Prefixes:
    """P9: leave out folders of transactions whose files may have been cleaned up."""
    issued = prefixes(state, table)
    first = oldest(term_of(state).issued, now_ms, state.settings.claim_age_max_ms)
    return replace(issued, oldest=first or TransactionNumber(issued.newest + 1))


def too_old(state: State, attempt: CommitAttempt, now_ms: int) -> bool:
    """P9: return whether to claim again: then no attempt can land, and the files are orphans."""
    now = standard(state, now_ms)
    folders: dict[str, Prefixes | Stamped] = {attempt.base.table: now.prefixes}
    folders |= {name: secondary.prefixes for name, secondary in now.secondaries.items()}
    held = [(attempt.base.table, attempt.files)]
    held += [(draft.table.table, draft.files) for draft in term_of(state).drafts]
    return not all(
        folders[table].allow(file.path, now.prefixes.newest)
        for table, files in held
        for file in files
    )


def age_ms(state: State, table: TableView, files: Iterable[WrittenFile], now_ms: int) -> int:
    """Return how old the secondary table's files admitted now are at most (D8).

    Not those that might have been admitted: otherwise a pending commit of a coordinator that has
    led for long would be about to expire as soon as it is decided.
    """
    within = _young(state, table, now_ms)
    first = min(within.transaction(file.path) for file in files)
    said = [at_ms for number, at_ms in term_of(state).issued if number <= first]
    return now_ms - said[-1] if said else 0
