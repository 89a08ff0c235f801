"""The key by which a table was filled, as its first claim stored it (rule KEY-1)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyiceberg.schema import Schema

from headgate.control_protocol.errors import KeyChanged
from headgate.tables.iceberg.table_creation import require_key_field_ids


def key_property_text(schema: Schema, key: Sequence[str]) -> str:
    """Return the table property for this key: ids, as columns are renamed. Raises ``KeyUnfit``."""
    return json.dumps(sorted(require_key_field_ids(schema, key)))


def require_same_key(table: str, stored: str | None, declared: str | None, *, filled: bool) -> None:
    """Raise ``KeyChanged`` if a ``filled`` table was filled by another key than the wanted one.

    Keys are the ids of their columns; ``None``: no key.
    """
    if stored == declared or not (filled or stored):
        return
    raise KeyChanged(
        f"table {table} was filled {_describe_key(stored)}, "
        f"the settings say {_describe_key(declared)}",
        "put table.key and changes.history back, or fill another table",
    )


def _describe_key(key: str | None) -> str:
    return "without a key" if key is None else f"by the key of columns {key} (their ids)"
