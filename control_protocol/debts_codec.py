"""Debts, followers and parked tables as texts of the lead's record; short ones are legible."""

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
from headgate.control_protocol.record import Debt, Parked

DEBTS_MAX = 20_000
"""The most that one text names; a coordinator begins again before there are more (D7)."""
TEXT_BYTES_MAX = 1_000 * DEBTS_MAX
NUMBER_MAX = 2**63 - 1

_NUMBERS = ("epoch", "transaction", "bytes", "rows", "since-ms")
_DELETES = "deletes"
"""Set only for debts of key files: an older version refuses to read such a record."""
_TEXTS = ("coordinator", "incarnation", "follower", "table", "manifest")


def debts_text(debts: Iterable[Debt]) -> str:
    """Return the debts as one text, in their order.

    Raises ``ValueError`` for what could not be read again: more than ``DEBTS_MAX``, or long texts.
    """
    forms = [
        {
            "epoch": debt.transaction.epoch,
            "transaction": debt.transaction.number,
            "coordinator": debt.coordinator.member,
            "incarnation": debt.coordinator.incarnation,
            "follower": debt.follower,
            "table": debt.table,
            "manifest": debt.manifest,
            "bytes": debt.size_bytes,
            "rows": debt.rows,
            "since-ms": debt.since_ms,
            **({_DELETES: debt.deletes} if debt.deletes else {}),
        }
        for debt in debts
    ]
    text = json.dumps(forms, separators=(",", ":"))
    if len(forms) > DEBTS_MAX or len(text) > TEXT_BYTES_MAX:  # ASCII, as json writes it
        raise ValueError(
            f"{len(forms)} debts in {len(text)} characters, at most {DEBTS_MAX} in "
            f"{TEXT_BYTES_MAX} are read"
        )
    return packed(text)


def debts_of(text: str) -> tuple[Debt, ...]:
    """Return the debts of a text. Raises ``ValueError`` for anything that is not written here."""
    forms = json.loads(inflated(text, TEXT_BYTES_MAX))
    if not isinstance(forms, list) or len(forms) > DEBTS_MAX:
        raise ValueError(f"no list of at most {DEBTS_MAX} debts")
    return tuple(_debt(form) for form in forms)


def followers_of(text: str) -> Mapping[str, str]:
    """Return UUIDs by the names of tables. Raises ``ValueError``."""
    form = json.loads(inflated(text, TEXT_BYTES_MAX))
    if not isinstance(form, dict) or not all(isinstance(uuid, str) for uuid in form.values()):
        raise ValueError("no followers with their UUIDs")
    return form


def parked_text(tables: Iterable[Parked]) -> str:
    """Return the parked tables as one text."""
    forms = [
        {"table": p.table, "why": p.why, "since-ms": p.since_ms, "resuming": p.resuming}
        for p in tables
    ]
    return packed(json.dumps(forms, separators=(",", ":")))


def parked_of(text: str) -> tuple[Parked, ...]:
    """Return the parked tables of a text. Raises ``ValueError``."""
    forms = json.loads(inflated(text, TEXT_BYTES_MAX))
    kinds = {"table": str, "why": str, "since-ms": int, "resuming": bool}
    whole = isinstance(forms, list) and all(
        isinstance(form, dict)
        and {name: type(value) for name, value in form.items()} == kinds
        and 0 <= form["since-ms"] <= NUMBER_MAX
        for form in forms
    )
    if not whole:
        raise ValueError("no parked tables")
    return tuple(Parked(f["table"], f["why"], f["since-ms"], f["resuming"]) for f in forms)


def _debt(form: Any) -> Debt:
    if not isinstance(form, dict) or form.keys() - {_DELETES} != {*_NUMBERS, *_TEXTS}:
        raise ValueError("a debt that has other fields")
    for name in form.keys() - {*_TEXTS}:
        # bool is an int, in Python and so in JSON's answers
        if type(form[name]) is not int or not 0 <= form[name] <= NUMBER_MAX:
            raise ValueError(f"a debt whose {name} is no number: {str(form[name])[:40]}")
    if not all(isinstance(form[name], str) for name in _TEXTS):
        raise ValueError("a debt with a text that is none")
    return Debt(
        transaction=TransactionId(Epoch(form["epoch"]), TransactionNumber(form["transaction"])),
        coordinator=Sender(form["coordinator"], form["incarnation"]),
        follower=form["follower"],
        table=form["table"],
        manifest=form["manifest"],
        size_bytes=form["bytes"],
        rows=form["rows"],
        since_ms=form["since-ms"],
        deletes=form.get(_DELETES, 0),
    )
