"""Decides from the table as it is now what a commit that did not simply land means (C8)."""

from __future__ import annotations

from enum import Enum

from headgate.control_protocol.ports import CommitAttempt, Lineage, TableView
from headgate.control_protocol.record import CommitRecord


class Resolution(Enum):
    LANDED = "one of our attempts is under the tag"
    AGAIN = "our tag is untouched: the same files, a fresh snapshot, on the new branch head"
    SUPERSEDED = "another coordinator holds this epoch or a higher one"
    RECOVER = "the table is not what we knew: begin again with a new epoch"


def resolve(attempt: CommitAttempt, view: TableView) -> Resolution:
    """Judge by the table alone; nothing that the catalog answered before matters.

    Attempts still under way cannot harm: each requires the tag that it was built on, so that at
    most one of them lands, and ``same_commit`` recognises whichever did.
    """
    ours, base = attempt.record, attempt.base
    if view.uuid != base.uuid:
        return Resolution.RECOVER
    if view.lineage not in (Lineage.CONTAINS_TAG, Lineage.FRESH):
        return Resolution.RECOVER  # even if it landed: the branch no longer holds it
    if ours.same_commit(view.record):
        return Resolution.LANDED
    if view.tag == base.tag:
        return Resolution.AGAIN
    if ours.claim:
        return Resolution.RECOVER  # C2: refused; read again, and claim above what is there
    return Resolution.SUPERSEDED if rival(ours, view) else Resolution.RECOVER


def rival(ours: CommitRecord, view: TableView) -> bool:
    """Return whether another coordinator moved the tag.

    An older record of our own means that the catalog once confirmed a commit that it did not keep.
    """
    theirs = view.record
    return (
        theirs is not None
        and theirs.transaction.epoch >= ours.transaction.epoch
        and theirs.coordinator != ours.coordinator
    )
