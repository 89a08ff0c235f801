"""Hudi's bundle for Spark 3.5; ``python -m hudi_tables.bundle`` fetches it."""

from __future__ import annotations

from pathlib import Path

from headgate.operations.demo.java import cache_folder, fetch_jars

BUNDLE = "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0"


def fetched() -> Path:
    """Where its jar is. Raises as ``fetch_jars``."""
    folder = fetch_jars(cache_folder() / "hudi-spark3.5-1.2.0", [BUNDLE], transitive=False)
    (jar,) = folder.iterdir()
    return jar


if __name__ == "__main__":
    print(fetched())
