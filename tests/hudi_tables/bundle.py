"""Hudi's bundle for Spark 3.5, and Hadoop's client of S3; ``python -m hudi_tables.bundle`` fetches
them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headgate.operations.java_installation import ensure_jars, user_cache_folder

BUNDLE = "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0"
S3 = ("org.apache.hadoop:hadoop-aws:3.3.4", "com.amazonaws:aws-java-sdk-bundle:1.12.262")
"""Of the Hadoop that PySpark 3.5 brings, and the SDK that this one was built with."""


def fetched() -> Path:
    """Where its jar is. Raises as ``ensure_jars``."""
    (jar,) = _jars("hudi-spark3.5-1.2.0", [BUNDLE])
    return jar


def with_s3() -> str:
    """What ``spark.jars`` says for tables on S3. Raises as ``ensure_jars``."""
    return ",".join(map(str, [fetched(), *_jars("hadoop-aws-3.3.4", S3)]))


def _jars(folder: str, coordinates: Sequence[str]) -> list[Path]:
    return sorted(
        ensure_jars(user_cache_folder() / folder, coordinates, transitive=False).iterdir()
    )


if __name__ == "__main__":
    print(with_s3())
