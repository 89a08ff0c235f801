"""Makes a container image without a container engine: ``image.py WHEEL LOCK OUT``.

OUT becomes a folder of the OCI image layout, which ``skopeo copy oci:OUT docker://...`` uploads:
Debian's base system with Python, and above it the packages of LOCK, whose hashes are required, and
the wheel. Needs Linux, root and ``mmdebstrap``. ``deploy/Containerfile`` makes the same with an
engine, and the image with Spark.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# libstdc++: Debian's Python does without, numpy and Arrow do not.
DEBIAN = ("python3", "ca-certificates", "tini", "libstdc++6")
RELEASE, PYTHON = "bookworm", "3.11"
ROOT = "opt/headgate"
COMMAND = b"""#!/usr/bin/python3
import sys
from headgate.operations.cli.entry import main
sys.exit(main())
"""
CONFIG = {
    # Nothing is written but to /tmp: run it with a read-only root and a tmpfs there.
    "User": "65532:65532",
    "Env": [
        f"PATH=/{ROOT}/bin:/usr/bin:/bin",
        f"PYTHONPATH=/{ROOT}",
        "PYTHONDONTWRITEBYTECODE=1",
        "HEADGATE_LOG=json",
        "HOME=/tmp",
    ],
    "Entrypoint": ["/usr/bin/tini", "--", "headgate"],
    "Cmd": ["run", "/etc/headgate/sink.toml"],
    "WorkingDir": "/tmp",
    "StopSignal": "SIGTERM",
}
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def main() -> None:
    """Make the image of a wheel, and print the digest that a deployment names."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("wheel", "lock", "out"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    blobs: Path = given.out / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    os.umask(0o022)
    with TemporaryDirectory() as scratch:
        base, packages = Path(scratch) / "base.tar", Path(scratch) / "packages"
        _run(
            *("mmdebstrap", "--quiet", "--variant=essential", f"--include={','.join(DEBIAN)}"),
            *(RELEASE, base),
        )
        pip = (sys.executable, "-m", "pip", "install", "-qq", "--target", packages)
        there = ("--python-version", PYTHON, "--platform", "manylinux_2_28_x86_64")
        older = ("--platform", "manylinux_2_17_x86_64", "--only-binary", ":all:")
        _run(*pip, *there, *older, "--require-hashes", "-r", given.lock)
        _run(*pip, *there, *older, "--no-deps", "--no-index", given.wheel)
        layers = [_layer(base.open("rb"), blobs), _layer(_archive_packages(packages), blobs)]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": CONFIG,
        "rootfs": {"type": "layers", "diff_ids": [inner for _, inner in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            **_blob(config, blobs),
        },
        "layers": [layer for layer, _ in layers],
    }
    version = given.wheel.name.split("-")[1]
    named = {
        "mediaType": MANIFEST,
        **_blob(manifest, blobs),
        "annotations": {"org.opencontainers.image.ref.name": version},
    }
    index = {"schemaVersion": 2, "manifests": [named]}
    (given.out / "index.json").write_text(json.dumps(index))
    (given.out / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    print(named["digest"])


def _archive_packages(packages: Path) -> BytesIO:
    """Return the installed packages as an archive that depends on their content alone."""
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:

        def add(name: str, content: bytes, mode: int) -> None:
            member = tarfile.TarInfo(f"{ROOT}/{name}")
            member.size, member.mode = len(content), mode
            archive.addfile(member, BytesIO(content))

        for path in sorted(packages.rglob("*")):
            # Commands of the packages bear this machine's Python; __pycache__ its times.
            if path.is_file() and "__pycache__" not in path.parts and path.parent.name != "bin":
                name = path.relative_to(packages).as_posix()
                add(name, path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644)
        add("bin/headgate", COMMAND, 0o755)
    made.seek(0)
    return made


def _layer(tar: Any, blobs: Path) -> tuple[dict[str, object], str]:
    """Compress an archive into a blob; return its descriptor, and the digest of what is inside."""
    inner, part = hashlib.sha256(), blobs / "part"
    with tar, part.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
        while chunk := tar.read(1 << 20):
            inner.update(chunk)
            packed.write(chunk)
    with part.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    size = part.stat().st_size
    part.rename(blobs / digest)
    described = {"mediaType": LAYER, "digest": f"sha256:{digest}", "size": size}
    return described, f"sha256:{inner.hexdigest()}"


def _blob(value: Mapping[str, object], blobs: Path) -> dict[str, object]:
    content = json.dumps(value, sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, env=os.environ | {"SOURCE_DATE_EPOCH": "0"})


if __name__ == "__main__":
    main()
