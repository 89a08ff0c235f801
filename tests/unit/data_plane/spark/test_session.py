"""What opening a session says when Spark cannot start, and what it sends to executors."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headgate.control_protocol.errors import ConfigurationError
from headgate.data_plane.spark.session import (
    SparkOptions,
    error_text,
    open_session,
    write_package_archive,
)


def test_without_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # Those that tests before this one have left in the process.
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigurationError, match=r"JAVA_HOME \(/nowhere\).*install Java 17 or 21"):
        open_session(SparkOptions())


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ConfigurationError, match=r"headgate\[spark\]"):
        open_session(SparkOptions())


def test_the_archive_holds_what_a_task_imports(tmp_path: Path) -> None:
    archive = write_package_archive(tmp_path / "headgate.zip")
    script = (
        "import headgate.data_plane.spark.tasks as tasks, headgate.schemas, sys;"
        "sys.exit(sys.argv[1] not in tasks.__file__)"
    )
    command = [sys.executable, "-c", script, str(archive)]
    environment = {"PYTHONPATH": str(archive)}
    assert subprocess.run(command, env=environment, cwd=tmp_path).returncode == 0
    names = zipfile.ZipFile(archive).namelist()
    assert not [name for name in names if "__pycache__" in name or "/coordinator/" in name]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("broken\n\tat org.apache.spark.X(Y.java:1)", "broken"),
        (
            "An error occurred while calling o7.collect.\n: SparkException: cancelled\n\tat x",
            "SparkException: cancelled",
        ),
        ("", "no reason given"),
    ],
)
def test_a_reason_is_one_line_without_stack_traces(text: str, reason: str) -> None:
    assert error_text(RuntimeError(text)) == f"RuntimeError: {reason}"
