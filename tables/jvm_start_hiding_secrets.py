"""Starts PySpark's JVM without showing anybody its configuration: it holds secrets.

PySpark gives each key as an argument of the JVM, where every user of the machine can read it. Here
the keys travel in a file that only this user may read, and that is gone once the JVM is up. The
session sets them again through its own connection.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headgate.control_protocol.errors import SecretInArguments
from headgate.control_protocol.secret_references import WITHHELD

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_FILE = "--properties-file"
_SHOWS_SECRETS = "spark.redaction.regex"
_SPARKS_OWN = "(?i)secret|password|token|access[.]?key"
"""The default of ``_SHOWS_SECRETS``; a key of ours comes beside it."""

_STARTING = threading.Lock()
_withheld: dict[str, None] = {}
"""Environment variables that sink files take secrets from, and no child is to inherit."""

_IDENTITY = re.compile(r"(AWS|AZURE|GOOGLE|GCE|KRB5)_.*|KRB5CCNAME")
"""Variables by which the machine's own identity is found, of the JVM's clients, too."""

_WAYS = re.compile(
    r"(JAVA|SPARK|PYSPARK|HADOOP|HIVE|YARN|LC|LD|SSL|XDG)_.*|PYTHON[A-Z]*|.*_(PROXY|proxy)|"
    r"HOME|PATH|USER|LOGNAME|PWD|SHELL|LANG|TERM|TZ|TMPDIR|HOSTNAME"
)
"""Variables by which children find their way, unless such a name sounds secret."""

_SOUNDS_SECRET = re.compile(r"PASS|SECRET|TOKEN|CREDENTIAL|KEY", re.IGNORECASE)


def note_variable_to_hide_from_jvms(name: str) -> None:
    """Let no JVM inherit the variable, unless it is one of those that belong to the machine."""
    way = _WAYS.fullmatch(name) and not _SOUNDS_SECRET.search(name)
    if not way and not _IDENTITY.fullmatch(name):
        _withheld[name] = None


def start_jvm_unless_running(spark_context_class: Any, conf: Mapping[str, str]) -> None:
    """Start the JVM of PySpark's ``SparkContext`` class, unless there is one already."""
    with _STARTING:
        if spark_context_class._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:  # noqa: SLF001 - PySpark gives no other way
            return
        with _hiding_conf_from_arguments(conf), _hiding_secret_variables():
            spark_context_class._ensure_initialized()  # noqa: SLF001 - as above


def with_spark_redaction(conf: Mapping[str, str], secret_keys: Collection[str]) -> dict[str, str]:
    """Return a copy with which Spark's page and event log mask the values of these keys.

    The values stay in it. By itself, Spark masks keys that sound secret. Hadoop's keys are shown
    without their prefix.
    """
    bare = sorted({re.escape(name.removeprefix("spark.hadoop.")) for name in secret_keys})
    if not bare:
        return dict(conf)
    masked = conf.get(_SHOWS_SECRETS, _SPARKS_OWN)
    return {**conf, _SHOWS_SECRETS: f"{masked}|(?:{'|'.join(bare)})$"}


def require_no_secret_arguments(
    conf: Mapping[str, str], secret_keys: Collection[str], section: str
) -> None:
    """Raise ``SecretInArguments`` for secrets in a JVM's options, which are its arguments."""
    for name in sorted(secret_keys):
        if name in conf and name.endswith("JavaOptions"):
            raise SecretInArguments(
                f'{section}."{name}" refers to a secret, and these options are arguments of the '
                "JVM, which every user of its machine can read",
                'write the options into a file that only this user may read, and "@/path/of/it" '
                "here: Java reads it",
            )


@contextmanager
def _hiding_conf_from_arguments(conf: Mapping[str, str]) -> Iterator[None]:
    before = os.environ.get(_ARGUMENTS)
    defaults, arguments = _split_off_defaults_file(shlex.split(before or "pyspark-shell"))
    texts = [defaults.read_text(encoding="utf-8")] if defaults.is_file() else []
    texts += [
        _properties_line(key, value) for key, value in conf.items() if key.startswith("spark.")
    ]
    with _private_file_with("\n".join(texts)) as path:
        os.environ[_ARGUMENTS] = shlex.join([_FILE, path, *arguments])
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(_ARGUMENTS, None)
            else:
                os.environ[_ARGUMENTS] = before


@contextmanager
def _private_file_with(text: str) -> Iterator[str]:
    """Yield the path of a file for this user only.

    On Linux it is one of this process, on no disk: nothing is left even if the process is killed.
    """
    if sys.platform != "linux":
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="headgate-jvm-") as file:
            file.write(text)
            file.flush()
            yield file.name
        return
    with os.fdopen(os.memfd_create("spark.properties"), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


@contextmanager
def _hiding_secret_variables() -> Iterator[None]:
    for name in [name for name in _withheld if name in os.environ]:
        WITHHELD[name] = os.environ[name]
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(WITHHELD)
        WITHHELD.clear()


def _split_off_defaults_file(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the file of defaults that ours stands in for, and the arguments without its name.

    Spark reads one such file: the one that is named, else its own.
    """
    for at, word in enumerate(arguments[:-1]):
        if word == _FILE:
            return Path(arguments[at + 1]), [*arguments[:at], *arguments[at + 2 :]]
        if word.startswith(f"{_FILE}="):
            return Path(word.partition("=")[2]), [*arguments[:at], *arguments[at + 1 :]]
    return _spark_defaults_file(), list(arguments)


def _spark_defaults_file() -> Path:
    if folder := os.environ.get("SPARK_CONF_DIR"):
        return Path(folder) / "spark-defaults.conf"
    spec = find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    home = os.environ.get("SPARK_HOME") or (places[0] if places else "")
    return Path(home) / "conf" / "spark-defaults.conf"


def _properties_line(key: str, value: str) -> str:
    """Return the line of a file of Java's ``Properties`` that says exactly this."""
    return f"{_escape_property(key)}={_escape_property(value)}"


def _escape_property(text: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(plain, escaped)
    return re.sub(r"([=: #!])", r"\\\1", text)
