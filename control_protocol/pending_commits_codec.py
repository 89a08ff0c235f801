"""Pending commits, secondary tables and suspended tables as texts of the primary table's record;
short ones are legible."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.packed_text import inflated, packed
from headgate.control_protocol.record import PendingCommit, Suspended

PENDING_COMMITS_MAX = 20_000
"""The most that one text names; a coordinator begins again before there are more (D7)."""
TEXT_BYTES_MAX = 1_000 * PENDING_COMMITS_MAX
NUMBER_MAX = 2**63 - 1

_NUMBERS = ("epoch", "transaction", "bytes", "rows", "since-ms")
_DELETES = "deletes"
"""Set only for pending commits of key files: an older version refuses to read such a record."""
_TEXTS = ("coordinator", "incarnation", "follower", "table", "manifest")


def pending_commits_text(pending_commits: Iterable[PendingCommit]) -> str:
    """Return the pending commits as one text, in their order.

    Raises ``ValueError`` for what could not be read again: more than ``PENDING_COMMITS_MAX``, or
    long texts.
    """
    forms = [
        {
            "epoch": pending_commit.transaction.epoch,
            "transaction": pending_commit.transaction.number,
            "coordinator": pending_commit.coordinator.member,
            "incarnation": pending_commit.coordinator.incarnation,
            "follower": pending_commit.secondary,
            "table": pending_commit.table,
            "manifest": pending_commit.manifest,
            "bytes": pending_commit.size_bytes,
            "rows": pending_commit.rows,
            "since-ms": pending_commit.since_ms,
            **({_DELETES: pending_commit.deletes} if pending_commit.deletes else {}),
        }
        for pending_commit in pending_commits
    ]
    text = json.dumps(forms, separators=(",", ":"))
    if len(forms) > PENDING_COMMITS_MAX or len(text) > TEXT_BYTES_MAX:  # ASCII, as json writes it
        raise ValueError(
            f"{len(forms)} pending commits in {len(text)} characters, at most "
            f"{PENDING_COMMITS_MAX} in "
            f"{TEXT_BYTES_MAX} are read"
        )
    return packed(text)


def pending_commits_of(text: str) -> tuple[PendingCommit, ...]:
    """Return the pending commits of a text. Raises ``ValueError`` for anything that is not written
    here."""
    forms = json.loads(inflated(text, TEXT_BYTES_MAX))
    if not isinstance(forms, list) or len(forms) > PENDING_COMMITS_MAX:
        raise ValueError(f"no list of at most {PENDING_COMMITS_MAX} pending commits")
    return tuple(_pending_commit(form) for form in forms)


def secondaries_of(text: str) -> Mapping[str, str]:
    """Return UUIDs by the names of tables. Raises ``ValueError``."""
    form = json.loads(inflated(text, TEXT_BYTES_MAX))
    if not isinstance(form, dict) or not all(isinstance(uuid, str) for uuid in form.values()):
        raise ValueError("no secondary tables with their UUIDs")
    return form


def suspended_text(tables: Iterable[Suspended]) -> str:
    """Return the suspended tables as one text."""
    forms = [
        {"table": p.table, "why": p.why, "since-ms": p.since_ms, "resuming": p.resuming}
        for p in tables
    ]
    return packed(json.dumps(forms, separators=(",", ":")))


def suspended_of(text: str) -> tuple[Suspended, ...]:
    """Return the suspended tables of a text. Raises ``ValueError``."""
    forms = json.loads(inflated(text, TEXT_BYTES_MAX))
    kinds = {"table": str, "why": str, "since-ms": int, "resuming": bool}
    whole = isinstance(forms, list) and all(
        isinstance(form, dict)
        and {name: type(value) for name, value in form.items()} == kinds
        and 0 <= form["since-ms"] <= NUMBER_MAX
        for form in forms
    )
    if not whole:
        raise ValueError("no suspended tables")
    return tuple(Suspended(f["table"], f["why"], f["since-ms"], f["resuming"]) for f in forms)


def _pending_commit(form: Any) -> PendingCommit:
    if not isinstance(form, dict) or form.keys() - {_DELETES} != {*_NUMBERS, *_TEXTS}:
        raise ValueError("a pending commit that has other fields")
    for name in form.keys() - {*_TEXTS}:
        # bool is an int, in Python and so in JSON's answers
        if type(form[name]) is not int or not 0 <= form[name] <= NUMBER_MAX:
            raise ValueError(f"a pending commit whose {name} is no number: {str(form[name])[:40]}")
    if not all(isinstance(form[name], str) for name in _TEXTS):
        raise ValueError("a pending commit with a text that is none")
    return PendingCommit(
        transaction=TransactionId(Epoch(form["epoch"]), TransactionNumber(form["transaction"])),
        coordinator=Sender(form["coordinator"], form["incarnation"]),
        secondary=form["follower"],
        table=form["table"],
        manifest=form["manifest"],
        size_bytes=form["bytes"],
        rows=form["rows"],
        since_ms=form["since-ms"],
        deletes=form.get(_DELETES, 0),
    )
