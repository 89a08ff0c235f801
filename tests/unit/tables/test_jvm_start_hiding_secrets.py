"""What PySpark's JVM is started with: nothing that a stranger, or the JVM's children, could see."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from headgate.control_protocol.secret_references import read_environment_variable
from headgate.tables.jvm_start_hiding_secrets import (
    note_variable_to_hide_from_jvms,
    start_jvm_unless_running,
    with_spark_redaction,
)

ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


class Context:
    """The part of PySpark's ``SparkContext`` that starts a JVM; keeps what that would inherit."""

    def __init__(self, failure: Exception | None = None) -> None:
        self._gateway: Any = None
        self._failure = failure

    def _ensure_initialized(self) -> None:
        self.environment = dict(os.environ)
        self.words = shlex.split(os.environ[ARGUMENTS])
        self.path = Path(self.words[self.words.index("--properties-file") + 1])
        self.text, self.mode = self.path.read_text(), self.path.stat().st_mode
        self.seen = read_environment_variable("PLANTED_SECRET")
        if self._failure:
            raise self._failure
        self._gateway = object()


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv(ARGUMENTS, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


def test_its_configuration_is_in_a_file_that_is_gone_afterwards() -> None:
    context = Context()
    start_jvm_unless_running(context, {"spark.own": "secret-value", "other": "ignored by Spark"})
    assert context.words[-1] == "pyspark-shell"
    assert not any("secret-value" in word for word in context.words)
    assert context.text == "spark.own=secret-value"
    assert context.mode & 0o077 == 0
    assert ARGUMENTS not in os.environ
    assert not context.path.exists()


def test_what_the_sink_file_takes_a_secret_from_is_not_inherited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLANTED_SECRET", "here")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the machine's own")
    secret = ("PLANTED_SECRET", "LDAP_PASSWORD", "HIVE_TOKEN", "SSL_KEY_PASSWORD", "PATHS")
    for name in (*secret, "AWS_SECRET_ACCESS_KEY", "HOME", "PATH", "JAVA_HOME", "PYTHONPATH"):
        monkeypatch.setenv(name, os.environ.get(name, "here"))
        note_variable_to_hide_from_jvms(name)
    context = Context(RuntimeError("no Java"))
    with pytest.raises(RuntimeError):
        start_jvm_unless_running(context, {})
    assert [name for name in secret if name in context.environment] == []
    assert context.environment["AWS_SECRET_ACCESS_KEY"] == "the machine's own"
    assert {"HOME", "PATH", "JAVA_HOME", "PYTHONPATH"} <= context.environment.keys()
    assert context.seen == "here", "a sink file that is read meanwhile finds it"
    assert os.environ["PLANTED_SECRET"] == "here"


def test_the_defaults_that_spark_would_read_still_count(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.of.defaults  1\n")
    context = Context()
    start_jvm_unless_running(context, {"spark.own": "2"})
    assert context.text == "spark.of.defaults  1\n\nspark.own=2"


@pytest.mark.parametrize("between", [" ", "="])
def test_a_file_of_properties_that_is_named_counts_instead_of_the_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, between: str
) -> None:
    (tmp_path / "own.conf").write_text("spark.of.a.person 3\n")
    named = f"--properties-file{between}{tmp_path}/own.conf --jars a.jar x"
    monkeypatch.setenv(ARGUMENTS, named)
    context = Context()
    start_jvm_unless_running(context, {"spark.own": "2"})
    assert context.text == "spark.of.a.person 3\n\nspark.own=2"
    assert context.words[2:] == ["--jars", "a.jar", "x"]
    assert os.environ[ARGUMENTS] == named


def test_a_value_arrives_as_it_is_whatever_it_holds() -> None:
    context = Context()
    start_jvm_unless_running(context, {"spark.odd": "a=b: c#d\\e!\n\t\rf"})
    (line,) = context.text.splitlines()
    key, said = re.split(r"(?<!\\)=", line, maxsplit=1)
    plain = re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t", "r": "\r"}.get(m[1], m[1]), said)
    assert (key, plain) == ("spark.odd", "a=b: c#d\\e!\n\t\rf")


def test_a_jvm_that_runs_already_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    context._gateway = object()
    start_jvm_unless_running(context, {"spark.own": "1"})
    assert not hasattr(context, "words")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    context = Context()
    start_jvm_unless_running(context, {})
    assert not hasattr(context, "words")


def test_spark_masks_what_it_shows_of_secrets_and_what_it_masks_by_itself() -> None:
    conf = {"spark.own.opaque": "x", "spark.hadoop.fs.own.thing": "y", "spark.plain": "z"}
    masked = with_spark_redaction(conf, {"spark.own.opaque", "spark.hadoop.fs.own.thing"})
    pattern = re.compile(masked["spark.redaction.regex"].replace("(?i)", "", 1), re.IGNORECASE)
    for name in ("spark.own.opaque", "spark.hadoop.fs.own.thing", "fs.own.thing", "a.password"):
        assert pattern.search(name), name
    assert not pattern.search("spark.plain")
    assert with_spark_redaction(conf, set()) == conf
    theirs = with_spark_redaction({"spark.redaction.regex": "mine", "spark.a": "b"}, {"spark.a"})
    assert theirs["spark.redaction.regex"] == r"mine|(?:spark\.a)$"
