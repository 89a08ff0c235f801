"""Builds the files of a release: ``python deploy/release/release.py [--ref HEAD] OUT``.

Their bytes depend on the commit and on the tools of ``requirements.txt`` alone, so that somebody
else can build them again and compare: sources come from ``git archive``, every time in an archive
is the commit's, and the C code is compiled by one pinned compiler for all platforms. It is called
through ctypes and needs no header of Python, so a wheel serves every Python that headgate knows.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

REPOSITORY = Path(__file__).resolve().parents[2]
COMPILED = Path("headgate/native/_loops.abi3.so")


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform that has a wheel with compiled loops: tags of the wheel, name of the compiler."""

    tags: tuple[str, ...]
    target: str


PLATFORMS = (
    Platform(("manylinux_2_17_x86_64", "manylinux2014_x86_64"), "x86_64-linux-gnu.2.17"),
    Platform(("manylinux_2_17_aarch64", "manylinux2014_aarch64"), "aarch64-linux-gnu.2.17"),
    # For developers: nobody ran these.
    Platform(("macosx_11_0_arm64",), "aarch64-macos.11.0"),
    Platform(("macosx_11_0_x86_64",), "x86_64-macos.11.0"),
)
ANYWHERE = Platform(("any",), "")
"""The wheel without compiled code: pip takes it where no other fits, and never needs a compiler."""


def main() -> None:
    """Build everything twice into a folder, require the same bytes, and print the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Text)
    parser.add_argument("out", type=Path, help="a folder that is empty, or does not exist")
    parser.add_argument("--ref", default="HEAD", help="what to build (HEAD)")
    given = parser.parse_args()
    out: Path = given.out.resolve()
    if out.exists() and any(out.iterdir()):
        sys.exit(f"{out} is not empty")
    with TemporaryDirectory() as scratch:
        again = Path(scratch) / "again"
        for folder in (out, again):
            folder.mkdir(parents=True, exist_ok=True)
            build(given.ref, folder)
        if (sums := _sums(out)) != (others := _sums(again)):
            sys.exit(f"two builds differ:\n{sums}\n{others}")
        _write_sbom(out, Path(scratch))
    sums = _sums(out)
    (out / "SHA256SUMS").write_text(sums)
    print(sums, end="")


def build(ref: str, out: Path) -> None:
    """Build the source distribution, and from it, so that it alone is enough, each wheel."""
    os.umask(0o022)  # modes of files go into the archives
    with TemporaryDirectory() as scratch:
        _build(ref, out, Path(scratch))


def _build(ref: str, out: Path, scratch: Path) -> None:
    epoch = int(_output("git", "-C", REPOSITORY, "log", "-1", "--format=%ct", ref))
    os.environ |= {
        "SOURCE_DATE_EPOCH": str(epoch),
        "PYTHONHASHSEED": "0",
        "LC_ALL": "C",
        "TZ": "UTC",
        "CC": "no-compiler",  # setup.py does without: what is compiled here is put in afterwards
        "ZIG_GLOBAL_CACHE_DIR": str(scratch / "zig"),
    }
    tree = scratch / "tree"
    tree.mkdir()
    archive = subprocess.run(
        ["git", "-C", REPOSITORY, "archive", ref], check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
    _run(sys.executable, "-m", "build", "-q", "-n", "--sdist", "--outdir", scratch / "sdist", tree)
    sdist = _repack(next((scratch / "sdist").iterdir()), out, epoch)

    with tarfile.open(sdist) as packed:
        packed.extractall(scratch / "from", filter="data")
    source = next((scratch / "from").iterdir())
    _run(sys.executable, "-m", "build", "-q", "-n", "--wheel", "--outdir", scratch, source)
    _run(sys.executable, "-m", "wheel", "unpack", "-d", scratch / "open", *scratch.glob("*.whl"))
    content = next((scratch / "open").iterdir())
    for platform in (ANYWHERE, *PLATFORMS):
        _pack(content, source / "native" / "loops.c", platform, out)
    for wheel in sorted(out.glob("*manylinux*.whl")):
        _require_tags(wheel)


def _repack(sdist: Path, out: Path, epoch: int) -> Path:
    """Write the archive once more, with sorted names and nothing of this machine or moment."""
    made = out / sdist.name
    with (
        tarfile.open(sdist) as given,
        gzip.GzipFile(made, "wb", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member in sorted(given.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid = epoch, 0, 0
            member.uname, member.gname, member.pax_headers = "", "", {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            archive.addfile(member, given.extractfile(member) if member.isfile() else None)
    return made


def _pack(content: Path, loops: Path, platform: Platform, out: Path) -> None:
    """Write the wheel of a platform from the unpacked one."""
    library = content / COMPILED
    library.unlink(missing_ok=True)
    if platform.target:
        # A library of macOS bears its own name, which is otherwise the path of this build.
        named = (f"-Wl,-install_name,{library.name}",) if "macos" in platform.target else ()
        # -fno-sanitize: this compiler adds checks of its own unless it is told not to.
        _run(
            *(sys.executable, "-m", "ziglang", "cc", "-target", platform.target),
            *("-O3", "-g0", "-fPIC", "-shared", "-fno-sanitize=all", "-s", *named),
            *(f"-ffile-prefix-map={loops.parent}=native", loops, "-o", library),
        )
    metadata = next(content.glob("*.dist-info")) / "WHEEL"
    kept = [
        line
        for line in metadata.read_text().splitlines()
        if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))
    ]
    pure = str(not platform.target).lower()
    tags = [f"Tag: py3-none-{tag}" for tag in platform.tags]
    metadata.write_text("\n".join([*kept, f"Root-Is-Purelib: {pure}", *tags]) + "\n")
    _run(sys.executable, "-m", "wheel", "pack", "-d", out, content)


def _require_tags(wheel: Path) -> None:
    """End unless auditwheel finds that the compiled code runs where the wheel's name says."""
    said = _output(sys.executable, "-m", "auditwheel", "show", wheel)
    pattern = r"manylinux_(\d+)_(\d+)_([a-z0-9_]+)"
    *promised, machine = re.search(pattern, wheel.name).groups()
    found = re.search(f'"{pattern}"', said)
    # It may well run with an older C library than the one that is promised.
    if found is None or found[3] != machine or _numbers(found.groups()[:2]) > _numbers(promised):
        sys.exit(f"{wheel.name} does not run where its name says:\n{said}")


def _numbers(version: Sequence[str]) -> tuple[int, ...]:
    return tuple(map(int, version))


def _write_sbom(out: Path, scratch: Path) -> None:
    """Write what an installation consists of (SBOM, CycloneDX), as the images install it.

    What wheels contain beside Python code, such as librdkafka, is listed only where they say so.
    """
    made = scratch / "installed"
    _run(sys.executable, "-m", "venv", "--without-pip", made)
    pip = (sys.executable, "-m", "pip", "--python", made / "bin" / "python", "install", "-q")
    _run(*pip, "--require-hashes", "-r", REPOSITORY / "deploy" / "requirements.lock")
    _run(*pip, "--no-deps", "--no-index", "--find-links", out, "headgate")
    version = next(out.glob("*.tar.gz")).name.removesuffix(".tar.gz")
    _run(
        *(sys.executable, "-m", "cyclonedx_py", "environment", made / "bin" / "python"),
        *("--output-reproducible", "--output-file", out / f"{version}.cdx.json"),
    )


def _sums(folder: Path) -> str:
    """Return what ``sha256sum`` prints for the files of a folder."""
    return "".join(f"{_sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir()))


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def _output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class _Text(argparse.RawDescriptionHelpFormatter):
    """Shows the module's text as it is written."""


if __name__ == "__main__":
    main()
