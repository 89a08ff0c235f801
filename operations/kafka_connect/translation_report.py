"""Notes of each key of a connector's configuration what became of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headgate.config.setting_types import is_secret_name
from headgate.control_protocol.redaction import with_url_password_masked


class Verdict(StrEnum):
    """What became of a key, from the best to the worst."""

    KEPT = "kept"
    NOT_NEEDED = "not needed"
    MISSING = "missing here"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Fate:
    """One key and what became of it; ``text`` never holds its value if that may be a secret."""

    key: str
    verdict: Verdict
    text: str

    def __str__(self) -> str:
        return f"{self.verdict.value:<12}  {self.key}: {self.text}"


_TEMPLATE = re.compile(r"\$\{([^}]*)\}")
_NOT_IN_NAME = re.compile(r"[^A-Z0-9]+")
_PREFIXES = re.compile(
    r"^(iceberg\.(catalog|kafka|hadoop)|consumer\.override|consumer|value\.converter)\."
    r"(schema\.)?(registry\.)?"
)


@dataclass(slots=True)
class Report:
    """A connector's keys with those of its worker behind them, and what is known of each by now.

    ``document`` becomes the sink file. Each key has one fate: the first that is told.
    """

    keys: Mapping[str, str]
    worker: Mapping[str, str]
    document: dict[str, Any] = field(default_factory=dict)
    fates: dict[str, Fate] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def connector_value(self, key: str, default: str = "") -> str:
        """Return the connector's value."""
        return self.keys.get(key, default).strip()

    def connector_list(self, key: str) -> list[str]:
        """Return what the connector's value names, between commas."""
        return [name for part in self.connector_value(key).split(",") if (name := part.strip())]

    def connector_or_worker_value(self, key: str) -> str:
        """Return the connector's value, else the worker's."""
        return (self.keys.get(key) or self.worker.get(key, "")).strip()

    def is_connector_value_true(self, key: str) -> bool:
        return self.connector_value(key).lower() == "true"

    def keys_below(self, prefix: str) -> dict[str, str]:
        """Return the connector's keys below a prefix, without it."""
        return {k.removeprefix(prefix): v for k, v in self.keys.items() if k.startswith(prefix)}

    def note_first_fate(self, key: str, verdict: Verdict, text: str) -> None:
        """Note what became of a key, unless that is noted already.

        Of a key that nobody wrote only what is wrong is noted.
        """
        written = key in self.keys or key in self.worker
        if written or verdict in (Verdict.MISSING, Verdict.REFUSED):
            self.fates.setdefault(key, Fate(key, verdict, text))

    def note_kept(self, key: str, text: str) -> None:
        names = [name for name, of in self.variables.items() if of == key]
        read = f", read from {' and '.join(names)}" if names else ""
        self.note_first_fate(key, Verdict.KEPT, f"as {text}{read}")

    def note_dropped(self, keys: Iterable[str], why: str) -> None:
        for key in keys:
            self.note_first_fate(key, Verdict.NOT_NEEDED, why)

    def note_refused(self, key: str, why: str) -> None:
        self.note_first_fate(key, Verdict.REFUSED, why)

    def note_to_add_by_hand(self, key: str, what: str) -> None:
        self.note_first_fate(key, Verdict.MISSING, what)

    def ensure_section(self, *path: str) -> dict[str, Any]:
        """Return a section of the sink file, made where it is not there yet."""
        found = self.document
        for name in path:
            found = found.setdefault(name, {})
        return found

    def to_sink_file_value(self, key: str, prefix: str, value: str) -> str:
        """Return a value as the sink file may have it: secrets and templates by reference.

        ``prefix`` begins the names of variables, such as CATALOG.
        """
        name = _PREFIXES.sub("", key)
        fallback = self._find_name_of_no_other_variable(f"{prefix}_{name}")
        may_be_secret = is_secret_name(name) or with_url_password_masked(value) != value
        if may_be_secret and not _TEMPLATE.fullmatch(value):
            return self.add_variable_reference(key, fallback)
        names = {inside: _variable_name_in(inside) for inside in _TEMPLATE.findall(value)}
        unnamed = [inside for inside, own_name in names.items() if not own_name]
        for number, inside in enumerate(unnamed, 1):
            names[inside] = fallback if number == 1 else f"{fallback}_{number}"
        return _TEMPLATE.sub(lambda m: self.add_variable_reference(key, names[m[1]]), value)

    def add_variable_reference(self, key: str, name: str) -> str:
        """Return the reference to a variable that a person sets, and remember for which key."""
        name = _to_variable_name(name)
        self.variables.setdefault(name, key)
        return f"${{env:{name}}}"

    def _find_name_of_no_other_variable(self, name: str) -> str:
        """Return this name, or a longer one where the connector refers to a variable of this."""
        theirs = {
            _to_variable_name(_variable_name_in(inside))
            for value in (*self.keys.values(), *self.worker.values())
            for inside in _TEMPLATE.findall(value)
        }
        while any(_to_variable_name(f"{name}{end}") in theirs for end in ("", "_2")):
            name = f"SINK_{name}"
        return name


def _to_variable_name(text: str) -> str:
    name = _NOT_IN_NAME.sub("_", text.upper()).strip("_")
    return f"_{name}" if name[:1].isdigit() else name


def _variable_name_in(inside: str) -> str:
    """Return the name that a reference of Connect's or a template has for a variable, if any."""
    provider, _, rest = inside.rpartition(":")
    is_variable = provider.partition(":")[0] in ("", "env") and re.fullmatch(r"\w+", rest)
    return rest if is_variable else ""
