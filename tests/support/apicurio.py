"""Apicurio Registry 3 as a server of its own, and Apicurio's serializer: jars from Maven."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.java_server import java_server
from support.maven import maven_archive

from headgate.control_protocol.errors import Unreachable
from headgate.operations.java_installation import ensure_jars, require_java, user_cache_folder
from headgate.operations.local_kafka.broker import find_free_port

RELEASE = "3.0.9"
SERIALIZER = "2.5.11.Final"
"""The newest whose POMs are all in Maven Central; a server of release 3 answers it, too."""
_SERIALIZER_JARS = (
    f"io.apicurio:apicurio-registry-serdes-avro-serde:{SERIALIZER}",
    "org.slf4j:slf4j-simple:1.7.36",
)
_MAIN = Path(__file__).parents[1] / "integration" / "ApicurioSerializer.java"


@contextmanager
def apicurio_registry(folder: Path) -> Iterator[str]:
    """The address of a server that keeps everything in memory; skips where it cannot be had."""
    archive = f"io.apicurio:apicurio-registry-app:{RELEASE}:tar.gz:all"
    jars = maven_archive(f"apicurio-{RELEASE}", archive)
    port = find_free_port()
    told = {"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)}
    with java_server(folder, f"{jars}/*", ["io.quarkus.runner.GeneratedMain"], port, told):
        yield f"http://127.0.0.1:{port}"


def serialize_as_apicurio(
    url: str, use_id: str, schema: Mapping[str, Any], values: Sequence[Any]
) -> list[tuple[bytes, dict[str, bytes]]]:
    """Avro as Apicurio's serializer writes it, each value with its headers.

    ``use_id``: contentId or globalId.
    """
    try:
        folder = user_cache_folder() / f"apicurio-serializer-{SERIALIZER}"
        jars = ensure_jars(folder, _SERIALIZER_JARS)
    except Unreachable as error:
        pytest.skip(f"no serializer of Apicurio's here: {error}")
    java = [require_java(), "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{jars}/*", str(_MAIN)]
    ended = subprocess.run(
        [*java, f"{url}/apis/registry/v2", use_id, json.dumps(schema)],
        input="".join(f"{json.dumps(value)}\n" for value in values),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4_000:]
    found = []
    for line in ended.stdout.splitlines():
        value, *headers = line.split("\t")
        pairs = (header.partition("=") for header in headers)
        found.append(
            (base64.b64decode(value), {name: base64.b64decode(text) for name, _, text in pairs})
        )
    return found
