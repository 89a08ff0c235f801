"""AWS's own serializer for Glue's schema registry: jars from Maven, one JVM."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from support.object_store import KEY, REGION, SECRET, ObjectStore

from headgate.control_protocol.errors import Unreachable
from headgate.operations.java_installation import ensure_jars, require_java, user_cache_folder

VERSION = "1.1.27"
_JARS = (
    f"software.amazon.glue:schema-registry-serde:{VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)
_MAIN = Path(__file__).parents[1] / "integration" / "GlueSerializer.java"


class Written(NamedTuple):
    """What to write: see ``GlueSerializer.java``."""

    kind: str
    compression: str
    name: str
    schema: str
    value: str


def glue_serializer_jars() -> Path:
    """Skips where they cannot be had."""
    try:
        return ensure_jars(user_cache_folder() / f"glue-serializer-{VERSION}", _JARS)
    except Unreachable as error:
        pytest.skip(f"no serializer of AWS's here: {error}")


def serialize_as_aws(store: ObjectStore, values: Iterable[Written]) -> list[bytes]:
    """The values as AWS's serializer writes them, whose schemas it registers."""
    jars = f"{glue_serializer_jars()}/*"
    ended = subprocess.run(
        [
            *(require_java(), "-Xmx384m", "-XX:+UseSerialGC", "-cp", jars, str(_MAIN)),
            *(store.endpoint, REGION, KEY, SECRET),
        ],
        input="".join("\t".join(value) + "\n" for value in values),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4_000:]
    return [base64.b64decode(line) for line in ended.stdout.split()]
