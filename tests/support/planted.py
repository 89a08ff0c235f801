"""A sink file with a secret of its own wherever one may stand, to be searched for elsewhere."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from uuid import uuid4

from headgate.config.setting_types import Properties, Secret
from headgate.config.sink_settings import SinkSettings

TAG = uuid4().hex[:12]
"""In each of this process's secrets: others on the machine may search at the same time."""

PUBLIC = frozenset({"table.properties", "tables.create.properties", "kafka_auth.extensions"})
"""Sections whose values become the table's own metadata, which is what they are for, or where a
reference to a secret is refused."""

SECRETS: Mapping[str, tuple[str, ...]] = {
    "kafka": ("sasl.password", "ssl.key.password"),
    "control.key": ("",),
    "control.accepted_key": ("",),
    "catalog.properties": (
        *("credential", "token", "password", "header.X-Own", "glue.secret-access-key"),
        *("s3.access-key-id", "s3.secret-access-key", "s3.session-token"),
        *("client.access-key-id", "client.secret-access-key", "client.session-token"),
        *("gcs.oauth2.token", "adls.account-key", "adls.sas-token.there", "adls.client-secret"),
        *("oss.access-key-secret", "hdfs.kerberos_ticket"),
    ),
    "quarantine.catalog.properties": ("credential", "s3.secret-access-key"),
    "format.options": ("registry.basic.auth.user.info",),
    "format.key_options": ("registry.basic.auth.user.info",),
    "spark.conf": ("spark.hadoop.fs.s3a.secret.key", "spark.own.opaque"),
    "telemetry.otlp_headers": ("Authorization",),
    "shape.hash_key": ("",),
    "lineage.token": ("",),
    "signal.token": ("",),
    "http.viewer_token": ("",),
    "http.operator_token": ("",),
}
"""By section, or by key that takes nothing but a secret, the names that hold one."""


def needle(section: str, name: str = "") -> str:
    """The secret that stands there, long enough for every key."""
    place = f"{section}.{name}" if name else section
    user = "me:" if name.endswith("user.info") else ""
    return f"{user}needle-{TAG}-" + place.replace(".", "-").replace("_", "-") + "-0123456789abcdef"


def variable(section: str, name: str = "") -> str:
    """The environment variable that the sink file takes it from."""
    return "PLANTED_" + "".join(c if c.isalnum() else "_" for c in f"{section}_{name}".upper())


def places() -> list[tuple[str, str]]:
    return [(section, name) for section, names in SECRETS.items() for name in names]


def environment() -> dict[str, str]:
    """What the process of the sink must have in its environment."""
    return {variable(*place): needle(*place) for place in places()}


def reference(section: str, name: str = "") -> str:
    return f"${{env:{variable(section, name)}}}"


def sections_with_secrets(kind: type = SinkSettings, at: str = "") -> Iterator[str]:
    """Every section of properties, and every key for a secret, that a sink file can have."""
    for name, hint in typing.get_type_hints(kind).items():
        place = f"{at}.{name}" if at else name
        texts = typing.get_origin(hint) is Mapping and str in typing.get_args(hint)[1:]
        if texts or hint in (Secret, Properties):
            yield place
        elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from sections_with_secrets(hint, place)


def section_toml(section: str) -> str:
    """The section's secrets as lines of a sink file, each a reference."""
    names = SECRETS[section]
    if names == ("",):
        return f"{section.rpartition('.')[2]} = {reference(section)!r}".replace("'", '"') + "\n"
    return "".join(f'"{name}" = "{reference(section, name)}"\n' for name in names)
