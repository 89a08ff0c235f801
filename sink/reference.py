"""Generates the sink file's reference from the settings: ``python -m headgate.sink.reference``."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from headgate.data.formats.column_rules import Constant
from headgate.kafka import keys as kafka_keys
from headgate.sink.properties import Properties, Secret
from headgate.sink.settings import SinkSettings
from headgate.sink.table_settings import key_of

_HEAD = """\
# The sink file

One TOML file per sink; `headgate init NAME` writes one with comments, `headgate check FILE` tests
it. This page is generated from the code: `python -m headgate.sink.reference > docs/reference.md`.

Any text may refer to a secret instead of holding it: `${env:NAME}` is the environment variable,
`${file:PATH}` the content of the file, `${base64:PATH}` its bytes in base64. What sections of
properties and keys for secrets take from a reference is never printed
([where secrets go](security.md#where-secrets-go)).
"""

_KAFKA = """\
These keys of librdkafka are allowed; write them in quotes, because they contain dots:

{allowed}.

Not allowed, and why:

{refused}
"""


def render() -> str:
    """Return the whole page, in Markdown."""
    lines = [_HEAD, "## Top of the file", ""]
    lines += _table(SinkSettings)
    for name, kind, sentence in _sections(SinkSettings, ""):
        lines += ["", f"## {name}", "", sentence, ""]
        if kind is Properties:
            lines.append(_kafka_keys())
        else:
            lines += _table(kind)
    return "\n".join(lines).rstrip("\n") + "\n"


def _sections(kind: type, at: str) -> Iterator[tuple[str, type, str]]:
    """Yield every section below a dataclass: heading, its dataclass, a sentence."""
    for field, hint in _fields(kind):
        name = f"{at}.{field.name}" if at else field.name
        section = Properties if name == "kafka" else _section_type(hint)
        if section is None:
            continue
        listed = typing.get_origin(hint) is tuple
        yield (f"[[{name}]]" if listed else f"[{name}]"), section, field.metadata["sentence"]
        if section is not Properties:
            yield from _sections(section, name)


def _fields(kind: type) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(kind)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind)]


def _section_type(hint: Any) -> type | None:
    """Return the dataclass (or the Kafka keys) that a field's section is made of."""
    if typing.get_origin(hint) is tuple:
        hint = typing.get_args(hint)[0]
    return hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


def _table(kind: type) -> list[str]:
    lines = ["| key | type | default | unit | |", "|---|---|---|---|---|"]
    for field, hint in _fields(kind):
        if field.name == "kafka" or _section_type(hint) is not None:
            continue
        cells = (
            f"`{key_of(field)}`",
            _type_words(hint),
            _default(field),
            field.metadata.get("unit") or "-",
            field.metadata["sentence"].replace("<", "\\<"),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _type_words(hint: Any) -> str:
    if isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    if hint == Constant:
        return "text, number, boolean, date or time"
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return " or ".join(f"`{member}`" for member in hint)
    if hint is Properties or typing.get_origin(hint) is Mapping:
        return "section of texts"
    if typing.get_origin(hint) is tuple:
        return "list of texts"
    return {str: "text", Secret: "text", int: "whole number", bool: "boolean"}[hint]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "empty"
    if field.default is dataclasses.MISSING:
        return "required"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return f"`{field.default}`" if field.default not in ("", (), None) else "empty"


def _kafka_keys() -> str:
    allowed = ", ".join(f"`{key}`" for key in sorted(kafka_keys.ALLOWED))
    reasons = kafka_keys.REFUSED | {
        f"{prefix}*": reason for prefix, reason in kafka_keys.REFUSED_FAMILIES.items()
    }
    refused = "\n".join(f"- `{key}`: {reason}" for key, reason in sorted(reasons.items()))
    return _KAFKA.format(allowed=allowed, refused=refused)


if __name__ == "__main__":
    sys.stdout.write(render())
