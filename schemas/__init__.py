"""The Avro schemas of control events and a fleet's records, with fingerprints; of files' details.

A schema file never changes once released: a fingerprint names it on the wire, and readers of an
older release know it by that. What must change becomes ``v2`` beside ``v1``, read by both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """One message's schema: parsed JSON, and its CRC-64-AVRO fingerprint as it is on the wire."""

    name: str
    fingerprint: bytes
    definition: dict[str, Any]


def control_schemas() -> list[MessageSchema]:
    """Every control event's schema, under the names that ``fingerprints.json`` gives."""
    return _read_schemas_in("control")


def fleet_schemas() -> list[MessageSchema]:
    """The schemas of what stands on a fleet's two topics."""
    return _read_schemas_in("fleet")


def _read_schemas_in(folder: str) -> list[MessageSchema]:
    v1 = files(__name__).joinpath(folder, "v1")
    frozen = json.loads(v1.joinpath("fingerprints.json").read_text("utf-8"))
    return [
        MessageSchema(
            name,
            bytes.fromhex(fingerprint),
            json.loads(v1.joinpath(f"{name}.avsc").read_text("utf-8")),
        )
        for name, fingerprint in frozen.items()
    ]


def file_detail_schema(name: str) -> Any:
    """The schema of a file's detail, as parsed JSON: ``iceberg-v1``."""
    return json.loads(files(__name__).joinpath("files", f"{name}.avsc").read_text("utf-8"))
