"""Generates the reference of both files from their settings: ``python -m
headgate.config.reference_page``.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from headgate.config.kafka_auth_settings import KafkaAuthSettings
from headgate.config.section_schema import Key, keys_of
from headgate.config.setting_types import Properties, Secret
from headgate.config.sink_settings import SinkSettings
from headgate.config.telemetry_and_http_settings import HttpSettings
from headgate.config.worker_settings import WorkerSettings
from headgate.data_plane.formats.column_options import Constant
from headgate.kafka import client_settings as kafka_keys

_HEAD = """\
# The sink file

One TOML file per sink; `headgate init NAME` writes one with comments, `headgate check FILE` tests
it. This page is generated from the code:
`python -m headgate.config.reference_page > docs/reference/settings.md`.

Any text may refer to a secret instead of holding it: `${env:NAME}` is the environment variable,
`${file:PATH}` the content of the file, `${base64:PATH}` its bytes in base64. What sections of
properties and keys for secrets take from a reference is never printed
([where secrets go](../guides/security.md#where-secrets-go)).
"""

_WORKERS_HEAD = """\
# The worker's file

One TOML file for `headgate worker`, `headgate fleet` and `headgate serve --fleet`
([guide](../guides/fleet.md)). Its sections `[kafka]`, `[kafka.auth]` and `[http]` are those of a
sink file.
"""

_KAFKA = """\
These keys of librdkafka are allowed; write them in quotes, because they contain dots:

{allowed}.

A participant that dies without a word is missed after `session.timeout.ms`, and others then read
its partitions: {session_ms} ms in Kafka's classic protocol, unless the file sets it,
`heartbeat.interval.ms` or `max.poll.interval.ms`; in a [fleet](../guides/fleet.md) as long as
workers are waited for. With `group_protocol = "consumer"` brokers decide
(`group.consumer.session.timeout.ms`, 45,000 unless set).

Not allowed, and why:

{refused}
"""


def render_reference_page() -> str:
    """Return the whole page, in Markdown."""
    lines = [_HEAD, "## Top of the file", ""]
    lines += _render_key_table(SinkSettings)
    lines += _render_sections(SinkSettings)
    lines += [
        "",
        _WORKERS_HEAD.rstrip("\n"),
        *_render_sections(WorkerSettings, heading_prefix="Worker: "),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _render_sections(kind_of_file: type, heading_prefix: str = "") -> list[str]:
    lines = []
    for name, kind, sentence in _iterate_sections(kind_of_file, ""):
        if heading_prefix and kind in _OF_BOTH:
            continue
        lines += ["", f"## {heading_prefix}{name}", "", sentence, ""]
        if kind is Properties:
            lines.append(_render_kafka_keys())
        else:
            lines += _render_key_table(kind)
    return lines


_OF_BOTH = (Properties, KafkaAuthSettings, HttpSettings)
"""Sections that both files have: described once."""


def _iterate_sections(section_type: type, dotted_prefix: str) -> Iterator[tuple[str, type, str]]:
    """Yield every section below a dataclass: heading, its dataclass, a sentence."""
    for key in keys_of(section_type).values():
        name = f"{dotted_prefix}.{key.name}" if dotted_prefix else key.name
        section = Properties if name == "kafka" else key.inner_section
        if section is None:
            continue
        listed = typing.get_origin(key.hint) is tuple
        yield (f"[[{name}]]" if listed else f"[{name}]"), section, key.description
        if section is not Properties:
            yield from _iterate_sections(section, name)


def _render_key_table(kind: type) -> list[str]:
    lines = ["| key | type | default | unit | |", "|---|---|---|---|---|"]
    for key in keys_of(kind).values():
        if key.name == "kafka" or key.inner_section:
            continue
        cells = (
            f"`{key.name}`",
            _describe_type(key.hint),
            _describe_default(key),
            key.unit or "-",
            key.description.replace("<", "\\<").replace("|", "\\|"),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _describe_type(hint: Any) -> str:
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
    if isinstance(hint, type) and issubclass(hint, Secret):
        return "text"
    return {str: "text", int: "whole number", bool: "boolean"}[hint]


def _describe_default(key: Key) -> str:
    value = key.field.default
    if key.is_required:
        return "required"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value or value == 0 else "empty"


def _render_kafka_keys() -> str:
    allowed = ", ".join(f"`{key}`" for key in sorted(kafka_keys.ALLOWED))
    reasons = kafka_keys.REFUSED | {
        f"{prefix}*": reason for prefix, reason in kafka_keys.REFUSED_FAMILIES.items()
    }
    refused = "\n".join(f"- `{key}`: {reason}" for key, reason in sorted(reasons.items()))
    session_ms = f"{kafka_keys.SESSION_TIMEOUT_MS:,}"
    return _KAFKA.format(allowed=allowed, refused=refused, session_ms=session_ms)


if __name__ == "__main__":
    sys.stdout.write(render_reference_page())
