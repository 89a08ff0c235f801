"""Finds secrets that stand in a sink file as they are, where a reference is possible.

A sink file on a machine is protected as a file is; one that travels over a topic is read by all who
may read that. Keys that take nothing but references are none of this module's business.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from headgate.config.section_schema import keys_of
from headgate.config.setting_types import (
    Properties,
    is_secret_name,
    password_of_pair,
    secrets_in_url_query,
)
from headgate.config.sink_sections import secret_url_paths
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.redaction import with_url_password_masked
from headgate.control_protocol.secret_references import REFERENCE

_REMOTE_TOKEN = re.compile(r";token=[^;]")
"""Where the address of a Spark Connect server holds a secret."""


def find_keys_with_cleartext_secrets(document: Mapping[str, Any]) -> list[str]:
    """Return the keys of a valid sink file that hold a secret as it is; their values are not.

    ``document`` is what ``load.parse_with_document`` returns.
    """
    return [*_keys_with_cleartext_secrets_below(document, SinkSettings, "")]


def _keys_with_cleartext_secrets_below(
    section: Mapping[str, Any], section_type: type, dotted_prefix: str
) -> Iterator[str]:
    keys = keys_of(section_type)
    for name, value in section.items():
        key, where = keys.get(name), f"{dotted_prefix}.{name}" if dotted_prefix else name
        if key is None:
            continue
        inner = key.inner_section
        if inner and isinstance(value, dict):
            yield from _keys_with_cleartext_secrets_below(value, inner, where)
        elif inner and isinstance(value, list):
            for number, each in enumerate(value):
                yield from _keys_with_cleartext_secrets_below(each, inner, f"{where}[{number}]")
        elif isinstance(value, dict):
            is_properties = key.hint is Properties or typing.get_origin(key.hint) is Mapping
            for each, text in value.items() if is_properties else ():
                if (
                    _holds_more_than_references(each, text)
                    if is_secret_name(each)
                    else _has_cleartext_url_secret(text)
                ):
                    yield f'{where}."{each}"'
        elif _has_cleartext_url_secret(value) or (
            where == "signal.url"  # the path of a web hook is a secret, that of lineage is known
            and not REFERENCE.search(value)
            and any(secret_url_paths(value))
        ):
            yield where


def _holds_more_than_references(name: str, value: Any) -> bool:
    if not isinstance(value, str) or not REFERENCE.search(value):
        return bool(value)
    return bool(password_of_pair(name, REFERENCE.sub("", value)))


def _has_cleartext_url_secret(value: Any) -> bool:
    """Return whether an address holds a password, or a token, that is no reference."""
    if not isinstance(value, str):
        return False
    left = REFERENCE.sub("", value)
    return (
        with_url_password_masked(left) != left
        or bool(_REMOTE_TOKEN.search(left))
        or bool(secrets_in_url_query(left))
    )
