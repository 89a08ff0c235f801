"""Compiles the text of a ``.proto`` into descriptors, with protoc in a process of its own.

Texts are strangers': a process that is bounded in time and memory reads them, in an empty folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from headgate.control_protocol.errors import DescriptorUnfit, Unreachable
from headgate.control_protocol.redaction import to_printable_line
from headgate.data_plane.formats.protobuf.descriptors import UnfitTypes, split_descriptor_set

COMPILE_S_MAX = 20
_MEMORY_BYTES_MAX = 2 * 1024**3
_OUT_BYTES_MAX = 16 * 1024 * 1024
_QUOTED_CHARACTERS = 300
_NAME_BYTES_MAX = 200
MAIN = "headgate.schema.proto"
"""The file's name while it is compiled; none of its imports can have it."""

_NAME = re.compile(r"[\w.+-]+(/[\w.+-]+)*\.proto")
_COMPILE = f"""
import importlib.resources, resource, sys
try:
    from grpc_tools import protoc
except ImportError:
    sys.exit(77)
resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY_BYTES_MAX}, {_MEMORY_BYTES_MAX}))
resource.setrlimit(resource.RLIMIT_FSIZE, ({_OUT_BYTES_MAX}, {_OUT_BYTES_MAX}))
known = importlib.resources.files("grpc_tools") / "_proto"
sys.exit(protoc.main(["protoc", "-I.", f"-I{{known}}", "--include_imports", *sys.argv[1:]]))
"""
_NO_COMPILER = 77
_OUT = "out.desc"
_SIGNALS_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def compile_proto_text(text: str, imports: Mapping[str, str]) -> list[bytes]:
    """Return the descriptors of the imports, and last of the text itself.

    ``imports``: texts by the names that they are imported by. Raises ``UnfitTypes`` for a text that
    is not right, ``DescriptorUnfit`` without a compiler, ``Unreachable`` if it does not finish.
    """
    with tempfile.TemporaryDirectory(prefix="headgate-proto-") as name:
        folder = Path(name)
        for at, content in {**imports, MAIN: text}.items():
            _require_valid_import(at)
            path = folder / at
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content, encoding="utf-8", errors="surrogatepass")
            except (FileExistsError, IsADirectoryError, NotADirectoryError):
                # Not the disk's fault, which would be tried again for ever.
                raise UnfitTypes(f"it imports a file and a folder of one name, {at!r}") from None
        ended = _run_protoc(folder)
        if ended.returncode == _NO_COMPILER:
            raise DescriptorUnfit(
                "the schema registry gives a .proto as text, and there is no compiler for it",
                "pip install 'headgate[protobuf-text]', on Spark's workers too",
            )
        if ended.returncode:
            lines = ended.stderr.decode(errors="replace").strip().split("\n")
            said = to_printable_line("; ".join(lines))[:_QUOTED_CHARACTERS]
            if _is_interrupted_or_without_space(ended.returncode, lines):
                raise Unreachable(f"protoc cannot compile a schema here: {said or 'it was ended'}")
            raise UnfitTypes(f"protoc refuses it: {said}")
        with contextlib.suppress(OSError):
            return split_descriptor_set((folder / _OUT).read_bytes())
    raise UnfitTypes("protoc wrote nothing")


def _require_valid_import(name: str) -> None:
    is_name = _NAME.fullmatch(name) and ".." not in PurePosixPath(name).parts
    if not is_name or len(name.encode()) > _NAME_BYTES_MAX:
        raise UnfitTypes(
            f"it imports {to_printable_line(name)[:60]!r}, which is no name of a .proto file"
        )
    if name.startswith("google/protobuf/"):
        raise UnfitTypes(f"it brings a {name} of its own")


def _is_interrupted_or_without_space(code: int, lines: Sequence[str]) -> bool:
    """Return whether the schema is not to blame; one that takes too much ends it otherwise."""
    too_long = os.strerror(errno.EFBIG)
    return -code in _SIGNALS_FROM_OUTSIDE or any(
        line.startswith(f"{_OUT}: ") and too_long not in line for line in lines
    )


def _run_protoc(folder: Path) -> subprocess.CompletedProcess[bytes]:
    told = [sys.executable, "-c", _COMPILE, f"--descriptor_set_out={_OUT}", MAIN]
    try:
        return subprocess.run(  # noqa: S603 - our own program; texts are in files
            told,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=COMPILE_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unreachable(f"protoc has not compiled a schema within {COMPILE_S_MAX} s") from None
