"""Says what a setting may hold: texts, constants, secrets, and properties for a foreign client.

Pydantic builds them from a sink file. Secrets are shown by no ``repr``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum, auto
from hashlib import blake2b
from typing import Annotated, Any
from urllib.parse import parse_qsl

from pydantic import AfterValidator, BeforeValidator, GetCoreSchemaHandler, PlainValidator

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.redaction import MASK, Redaction, with_url_password_masked
from headgate.control_protocol.secret_references import (
    REFERENCE,
    ReferenceUnreadable,
    read_reference,
)
from headgate.data_plane.formats.column_options import Constant
from headgate.tables.jvm_start_hiding_secrets import note_variable_to_hide_from_jvms

# Resolves what a sink file refers to instead of holding it: variables and files.


_LIKE_ONE = re.compile(r"\$\{([\w-]+):[^}]*\}?")


class ReferenceRefused(ValueError):
    """What one setting cannot be; the loader puts the setting's name before the message.

    ``key``: the name inside of a section of properties.
    """

    def __init__(self, message: str, hint: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.key = key


def resolve_references(text: str, *, key_in_error: str | None = None) -> str:
    """Replace ``${env:NAME}``, ``${file:PATH}``, and ``${base64:PATH}`` for a binary file.

    No JVM inherits the variables. Within ``redacting_resolved_references``, what they stood for is
    remembered.
    """
    for kind, name in REFERENCE.findall(text):
        if kind == "env":
            note_variable_to_hide_from_jvms(name)
    if strange := _LIKE_ONE.search(REFERENCE.sub("", text)):
        raise ReferenceRefused(
            f"refers to {strange[0]!r}, which is no reference that headgate knows",
            "write ${env:NAME}, ${file:PATH}, or ${base64:PATH} for a binary file",
            key=key_in_error,
        )
    try:
        return _remember_for_redaction(text, REFERENCE.sub(_read_or_stand_in, text))
    except ReferenceUnreadable as error:
        if _READING.get() is not Reading.REQUIRED:
            return _remember_for_redaction(text, REFERENCE.sub(_stand_in_for, text))
        raise ReferenceRefused(
            f"refers to {error.what}, which {error.why}", error.hint, key=key_in_error
        ) from None


class Reading(Enum):
    """Whether a reference of a sink file is read here; where it is not, another text stands in."""

    REQUIRED = auto()
    IF_PRESENT = auto()
    """Another machine has what is not here."""
    NEVER = auto()
    """The file is a stranger's, who must not learn what this machine holds."""


_READING = ContextVar("reading", default=Reading.REQUIRED)
_STAND_IN = "x" * 32
"""The first half of a text that stands in."""
_RESOLVED: ContextVar[set[str] | None] = ContextVar("resolved", default=None)


@contextmanager
def reading_references_as(reading: Reading) -> Iterator[None]:
    """Parse sink files in this way."""
    token = _READING.set(reading)
    try:
        yield
    finally:
        _READING.reset(token)


def may_look_at_this_machine() -> bool:
    """Return whether what a sink file names may be looked at on this machine."""
    return _READING.get() is not Reading.NEVER


@contextmanager
def redacting_resolved_references() -> Iterator[None]:
    """Mask what references stood for in the error that leaves here: it may repeat a value."""
    token = _RESOLVED.set(resolved := set[str]())
    try:
        yield
    except HeadgateError as error:
        raise Redaction(frozenset(resolved)).redact_in_place(error) from None
    finally:
        _RESOLVED.reset(token)


def holds_stand_in(value: str) -> bool:
    """Return whether something in the value is not read here, so that its form tells nothing."""
    return _READING.get() is not Reading.REQUIRED and _STAND_IN in value


def _stand_in_for(reference: re.Match[str]) -> str:
    """Return a text of 64 characters, another one for each reference: values may have to differ."""
    return _STAND_IN + blake2b(reference[0].encode(), digest_size=16).hexdigest()


def _read_or_stand_in(reference: re.Match[str]) -> str:
    found = (
        read_reference(*reference.groups())
        if may_look_at_this_machine()
        else _stand_in_for(reference)
    )
    return _remember_for_redaction(reference[0], found)


def _remember_for_redaction(text: str, found: str) -> str:
    resolved = _RESOLVED.get()
    if resolved is not None and found != text:
        resolved.add(found)
    return found


_SECRET_NAME = re.compile(
    r"passw|passphrase|secret|token$|credential|authorization|jaas|user\.info|key\.pem|sse\.key|"
    r"sas[._-]token|\.sas\.|connection[._-]string|(access|account|api|private)[._-]?key(?![a-z])",
    re.IGNORECASE,
)
"""The only list: the loader, masks and ``headgate import`` must agree."""
NEVER_SECRET = frozenset({"bootstrap.servers"})


def is_secret_name(name: str) -> bool:
    """Return whether a property of this name is a secret, whatever it holds."""
    return bool(_SECRET_NAME.search(name)) and name not in NEVER_SECRET


_PAIR_NAME = re.compile(r"credential$|user\.info$")
"""Properties of the form ``user:password``."""


def password_of_pair(name: str, value: str) -> str:
    """Return the password if properties of this name are ``user:password``, else nothing."""
    return value.partition(":")[2] if _PAIR_NAME.search(name) else ""


def query_of_url(url: str) -> str:
    return url.partition("?")[2].partition("#")[0] if "://" in url else ""


def secrets_in_url_query(url: str) -> list[str]:
    """Return what stands under names of secrets in a URL's query."""
    return [value for name, value in parse_qsl(query_of_url(url)) if is_secret_name(name)]


class WrongType(ValueError):
    """A setting holds something else than ``expected``; ``key`` is as in ``ReferenceRefused``."""

    def __init__(self, expected: str, *, key: str | None = None) -> None:
        super().__init__(expected)
        self.expected = expected
        self.key = key


def _resolve_references_in_constant(value: object) -> object:
    if not isinstance(value, str | int | float):
        raise WrongType("a text, a number, a boolean, a date or a time")
    return resolve_references(value) if isinstance(value, str) else value


Text = Annotated[str, AfterValidator(resolve_references)]
TextOrNumber = Annotated[Text, BeforeValidator(lambda v: str(v) if type(v) is int else v)]
ConstantText = Annotated[Constant, PlainValidator(_resolve_references_in_constant)]


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

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, handler: GetCoreSchemaHandler) -> Any:
        return handler.generate_schema(Annotated[Any, PlainValidator(cls.from_reference)])

    @classmethod
    def from_reference(cls, value: object) -> Secret:
        """Take a text that must come from outside the sink file; an error does not repeat it."""
        if not isinstance(value, str) or not REFERENCE.fullmatch(value):
            raise ReferenceRefused(
                "must be a reference to a secret", "write ${file:PATH} or ${env:NAME}"
            )
        return cls(resolve_references(value))


class SecretReference(Secret):
    """A secret that is read again where and when it is used; ``reference`` says from where."""

    __slots__ = ("reference",)

    def __init__(self, text: str = "", reference: str = "") -> None:
        super().__init__(text)
        self.reference = reference

    @classmethod
    def from_reference(cls, value: object) -> SecretReference:
        """Read it now as well, so that a reference to nothing is an error of the sink file."""
        found = Secret.from_reference(value)
        return cls(found.text, str(value))


class Properties(Mapping[str, str]):
    """Immutable names and values for a foreign client, whose ``repr`` masks secrets.

    A value is a secret when it came from a reference (``secret_names``), when its name says so, or
    a name in the query of its URL. ``parts``: what references inside of values stood for.
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
        found = {
            name
            for name, value in self._values.items()
            if _SECRET_NAME.search(name) or secrets_in_url_query(value)
        }
        self._secret_names = (secret_names | found) - NEVER_SECRET

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
        return f"Properties({self.masked_values()})"

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, handler: GetCoreSchemaHandler) -> Any:
        return handler.generate_schema(Annotated[Any, PlainValidator(cls.from_section)])

    @classmethod
    def from_section(cls, section: object) -> Properties:
        """Take names and texts, with references resolved.

        Numbers and booleans become their text. Raises ``WrongType``, ``ReferenceRefused``.
        """
        if not isinstance(section, dict):
            raise WrongType("a section")
        values, secret_names = {}, set()
        parts: set[str] = set()
        for name, item in section.items():
            if not isinstance(item, str | int | float):
                raise WrongType("a text, a number or a boolean", key=name)
            text = str(item).lower() if isinstance(item, bool) else str(item)
            values[name] = resolve_references(text, key_in_error=name)
            if values[name] != text:
                secret_names.add(name)
                texts = [] if name in NEVER_SECRET else REFERENCE.finditer(text)
                parts.update(resolve_references(each[0], key_in_error=name) for each in texts)
        return cls(values, frozenset(secret_names), frozenset(parts))

    def with_value(self, name: str, value: str) -> Properties:
        """Return these and one more, which is no secret."""
        return Properties({**self._values, name: value}, self._secret_names, self._parts)

    def without(self, name: str) -> Properties:
        left = {key: value for key, value in self._values.items() if key != name}
        return Properties(left, self._secret_names, self._parts)

    def masked_values(self) -> dict[str, str]:
        """Return the properties with secrets masked."""
        return {
            name: MASK if name in self._secret_names else with_url_password_masked(value)
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
        passwords = filter(None, (password_of_pair(*item) for item in whole.items()))
        queries = (secrets_in_url_query(value) for value in whole.values())
        return self._parts.union(whole.values(), passwords, *queries)


Texts = Annotated[Mapping[str, str], PlainValidator(Properties.from_section)]
