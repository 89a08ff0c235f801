"""Proposes a sink file's settings for records that change rows: envelope, format, rows and key.

Only JSON is examined, with embedded schemas or without, as for proposed columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headgate.data_plane.cdc.detection import ENVELOPE_FIELDS, EnvelopeCounts, count_envelopes
from headgate.data_plane.cdc.policy import Envelope
from headgate.data_plane.formats.format_registry import record_format
from headgate.kafka.record_samples import KeyAndValue
from headgate.operations.init.infer_columns import Proposal

_KINDS = ("long", "string", "date", "decimal")
"""Types of columns that a key may be guessed from."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProposedChanges:
    """How records change rows; ``rows``: the rows, as JSON.

    ``key``: columns that message keys name, if they do.
    """

    format_name: str
    looks: EnvelopeCounts
    rows: tuple[bytes, ...]
    key: tuple[str, ...]

    @property
    def envelope(self) -> Envelope:
        return self.looks.envelope or Envelope.PLAIN

    def choose_key(self, proposal: Proposal) -> tuple[tuple[str, ...], bool]:
        """Return the columns of the key, and whether they are a guess: the first suitable one."""
        known = dict(proposal.columns)
        if self.key and all(name in known for name in self.key):
            return self.key, False
        fit = (name for name, kind in proposal.columns if kind.startswith(_KINDS))
        return tuple(name for name, _ in zip(fit, range(1), strict=False)), True


def propose_changes(records: Sequence[KeyAndValue]) -> ProposedChanges:
    """Look at records about which nothing is known."""
    values = [value for _, value in records]
    name, looks = "json", count_envelopes(values, partial(record_format, "json", {}))
    enclosed = count_envelopes(values, partial(record_format, "connect-json", {}))
    if enclosed.envelopes.total() > looks.records // 2:
        name, looks = "connect-json", enclosed
    documents = [_document(value, name) for value in values]
    envelope = looks.envelope or Envelope.PLAIN
    rows = [_row(document, envelope) for document in documents if document is not None]
    keys = [_document(key, name) for key, _ in records]
    return ProposedChanges(
        name,
        looks,
        tuple(json.dumps(row).encode() for row in rows if row is not None),
        _common_value(key for key in keys if key),
    )


def _document(value: bytes | None, format_name: str) -> Document | None:
    try:
        document = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    if format_name == "connect-json" and isinstance(document, dict):
        document = document.get("payload")
    return document if isinstance(document, dict) else None


def _row(document: Document, envelope: Envelope) -> Document | None:
    """Return the row in a value, as far as it shows one."""
    if envelope is Envelope.PLAIN:
        return document
    nested = {Envelope.DEBEZIUM: ("after", "before"), Envelope.DMS: ("data",)}
    for name in nested.get(envelope, ()):
        if isinstance(document.get(name), dict):
            return dict(document[name])
    if envelope is Envelope.DEBEZIUM or (envelope is Envelope.DMS and "metadata" in document):
        return None
    return {name: value for name, value in document.items() if name not in ENVELOPE_FIELDS}


def _common_value(keys: Iterable[Document]) -> tuple[str, ...]:
    """Return the fields of the keys, if all have the same."""
    found = {tuple(key) for key in keys}
    return found.pop() if len(found) == 1 else ()
