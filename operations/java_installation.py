"""Finds the installed Java, and fetches jars through Ivy without any Java build tool.

PySpark's wheel contains Apache Ivy, which needs only Java itself, so neither Maven nor Docker is
required. ``HEADGATE_IVY_SETTINGS`` (the path of an Ivy settings file) can name a mirror.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headgate.control_protocol.errors import ConfigurationError, Unreachable

SUPPORTED_JAVA = (17, 21)
"""The releases that both Spark 4.1 and Kafka 4.3 support."""

Progress = Callable[[int, int], None]
"""Called with the number of jars downloaded so far and of all jars."""


def user_cache_folder() -> Path:
    """Return the per-user folder for what can be fetched again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headgate"


def java_command() -> str:
    """Return the Java that Spark would start too: ``JAVA_HOME`` before the path."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def java_version() -> int | None:
    """Return the feature release of ``java_command`` (17 for 17.0.15).

    ``None`` without a working one.
    """
    try:
        output = subprocess.run(
            [java_command(), "-version"], capture_output=True, text=True, check=True
        ).stderr
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match.group(1)) if match else None


def require_java() -> str:
    """Return the command of a supported Java.

    Raises ``ConfigurationError`` in one line otherwise.
    """
    version = java_version()
    if version in SUPPORTED_JAVA:
        return java_command()
    installed = (
        f"{java_command()!r} is Java {version}" if version else f"no {java_command()!r} here"
    )
    raise ConfigurationError(
        f"need Java 17 or 21 for Spark and the embedded Kafka, {installed}",
        "install one, or set JAVA_HOME to it",
    )


NAME_ANOTHER = "name another folder: --folder"


@contextmanager
def translating_folder_errors(folder: Path, way_out: str) -> Iterator[None]:
    """Raise ``ConfigurationError`` where a file of the folder, or itself, cannot be made."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or folder} cannot be written: {error.strerror}", way_out
        ) from error


def ensure_jars(
    folder: Path,
    coordinates: Sequence[str],
    *,
    transitive: bool = True,
    on_progress: Progress | None = None,
) -> Path:
    """Return ``folder``, holding the jars of the ``group:artifact:version`` coordinates.

    The folder appears whole or not at all, and a second caller waits for the first. Raises
    ``ConfigurationError`` without Java or PySpark, or if the folder cannot be made, ``Unreachable``
    if Ivy cannot resolve.
    """
    if folder.is_dir():
        return folder
    require_java()
    with translating_folder_errors(folder, "set XDG_CACHE_HOME to a folder of yours"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _holding_file_lock(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():
                _fetch_jars(
                    folder, _ivy_module_xml(coordinates, transitive=transitive), on_progress
                )
    return folder


def _fetch_jars(folder: Path, module_xml: str, on_progress: Progress | None) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        module = Path(scratch) / "ivy.xml"
        module.write_text(module_xml)
        _run_ivy(module, on_progress or (lambda _done, _total: None))
        (Path(scratch) / "jars").rename(folder)


@contextmanager
def _holding_file_lock(lock: Path) -> Iterator[None]:
    # The kernel drops the lock with its holder, so a killed download blocks nobody.
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _ivy_module_xml(coordinates: Sequence[str], *, transitive: bool) -> str:
    lines = [
        f'<dependency org="{group}" name="{artifact}" rev="{version}" conf="default"'
        f' transitive="{str(transitive).lower()}"/>'
        for group, artifact, version in (coordinate.split(":") for coordinate in coordinates)
    ]
    return (
        '<ivy-module version="2.0"><info organisation="headgate" module="jars"/>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


_ENDED_BY_SIGNAL = {
    code for number in (signal.SIGINT, signal.SIGTERM) for code in (-number, 128 + number)
}


def _run_ivy(module: Path, on_progress: Progress) -> None:
    scratch = module.parent
    settings = os.environ.get("HEADGATE_IVY_SETTINGS")
    command = [
        *(java_command(), "-jar", str(_ivy_jar())),
        *(("-settings", settings) if settings else ()),
        *("-ivy", str(module), "-cache", str(scratch / "cache")),
        # Some of Kafka's dependencies (snappy, snakeyaml) are packaged as OSGi bundles.
        *("-types", "jar", "bundle"),
        *("-retrieve", f"{scratch}/jars/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    complaints: list[str] = []
    done = total = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ivy:
        for line in ivy.stdout or ():
            total += line.startswith("\tfound ")
            if "[SUCCESSFUL ]" in line:
                done += 1
                on_progress(done, total)
            elif "not found" in line or "rror" in line or "FAILED" in line:
                complaints.append(line.strip(":\t\n "))
    if ivy.returncode in _ENDED_BY_SIGNAL:  # Ctrl-C is for it, too
        raise Unreachable("Ivy was ended while it fetched jars", "start the command again")
    if ivy.returncode:
        raise Unreachable(
            f"Ivy could not fetch jars: {'; '.join(complaints[:5]) or f'exit {ivy.returncode}'}",
            "is the network there? HEADGATE_IVY_SETTINGS names an Ivy settings file for a mirror",
        )


def _ivy_jar() -> Path:
    spark = importlib.util.find_spec("pyspark")
    jars = Path(spark.origin).parent / "jars" if spark and spark.origin else Path()
    ivy = next(iter(sorted(jars.glob("ivy-*.jar"))), None)
    if ivy is None:
        raise ConfigurationError(
            "PySpark, whose Ivy fetches the jars, is not installed",
            "pip install 'headgate[spark]'",
        )
    return ivy
