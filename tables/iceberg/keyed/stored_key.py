"""By which key a table was filled, as its first claim stored it (rule U1)."""

from __future__ import annotations

from headgate.control_protocol.key_errors import KeyChanged


def refuse_other_key(table: str, stored: str | None, wanted: str | None, *, filled: bool) -> None:
    """Raise ``KeyChanged`` where a table that was ``filled`` by one key is to be filled by another.

    Keys are the ids of their columns; ``None``: no key.
    """
    if stored == wanted or not (filled or stored):
        return
    raise KeyChanged(
        f"table {table} was filled {_said(stored)}, the settings say {_said(wanted)}",
        "put table.key back, or fill another table",
    )


def _said(key: str | None) -> str:
    return "without a key" if key is None else f"by the key of columns {key} (their ids)"
