"""Holds pass-through properties, and hides the secrets among them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from headgate.control_protocol.redaction import MASK, without_url_password

_SECRET_NAME = re.compile(
    r"passw|secret|token$|credential|access-key|key\.pem|account-key|sas-token|user\.info|"
    r"authorization",
    re.IGNORECASE,
)
_PAIR_NAME = re.compile(r"credential$|user\.info$")
"""Properties of the form ``user:password``."""

NEVER_SECRET = frozenset({"bootstrap.servers"})


class Secret:
    """A text that ``repr`` never shows."""

    __slots__ = ("text",)

    def __init__(self, text: str = "") -> None:
        self.text = text

    def __bool__(self) -> bool:
        return bool(self.text)

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Secret({MASK if self.text else ''})"


class Properties(Mapping[str, str]):
    """Immutable names and values for a foreign client. ``repr`` and ``shown`` mask secrets.

    A value is a secret when it came from a reference (``secret_names``) or when its name says so.
    ``parts``: what references inside of values stood for.
    """

    __slots__ = ("_parts", "_secret_names", "_values")

    def __init__(
        self,
        values: Mapping[str, str] | None = None,
        secret_names: frozenset[str] = frozenset(),
        parts: frozenset[str] = frozenset(),
    ) -> None:
        self._parts = parts
        self._values = dict(values or {})
        by_name = {name for name in self._values if _SECRET_NAME.search(name)}
        self._secret_names = (secret_names | by_name) - NEVER_SECRET

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return self._values == other._values if isinstance(other, Properties) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"Properties({self.shown()})"

    def shown(self) -> dict[str, str]:
        """Return the properties with secrets masked."""
        return {
            name: MASK if name in self._secret_names else without_url_password(value)
            for name, value in self._values.items()
        }

    @property
    def secret_names(self) -> frozenset[str]:
        """Return the names of the values that must never be shown."""
        return self._secret_names & self._values.keys()

    @property
    def secrets(self) -> frozenset[str]:
        """Return the texts that must never be shown, on their own or in others."""
        whole = {name: self._values[name] for name in self.secret_names}
        passwords = (v.partition(":")[2] for name, v in whole.items() if _PAIR_NAME.search(name))
        return self._parts.union(whole.values(), filter(None, passwords))
