"""What docstrings and comments name in double backticks exists: a renamed thing is renamed there,
too."""

from __future__ import annotations

import builtins
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator

import pytest
from repository.tree import ROOT

NAMED = re.compile(r"``([A-Za-z_][\w.]*)(?:\(\))?``")
ELSEWHERE = ("tests/", "benchmarks/", "examples/")
WHERE_WORDS_ARE_EXPLAINED = ("docs", "schemas", "native", "pyproject.toml")

FOREIGN = {
    *("Supports", "requirements.txt", "sha256sum", "epoch"),
    *("alter_table", "Configuration"),  # Hive's, Hadoop's
    *("DataStreamWriter", "PartitionPathEncodeUtils"),  # Spark's, Hudi's
    *("ReachableFileCleanup", "MergeAppend", "add_files"),  # Iceberg's
    *("KafkaSettings", "IncludeTableAlterOperations", "HandleSourceTableTruncated"),  # AWS DMS's
    *("rd_kafka_message_t", "epoll", "__connect.errors.", "auth."),
}
"""Names of others, and beginnings of names."""


def product_files() -> list[str]:
    listed = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True)
    return [name for name in listed.split() if not name.startswith(ELSEWHERE)]


def references(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each reference in a docstring or comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or token.string.startswith('"""'):
            for found in NAMED.finditer(token.string):
                yield token.start[0] + token.string[: found.start()].count("\n"), found[1]


def words(source: str) -> Iterator[str]:
    """Yield every name in the code, and every word of its short texts (keys, messages)."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.string
        elif token.type == tokenize.STRING and not token.string.startswith('"""'):
            yield from re.findall(r"\w+", token.string)


def test_what_docstrings_name_exists() -> None:
    files = product_files()
    if not files:
        pytest.skip("no git here")
    sources = {name: (ROOT / name).read_text() for name in files}
    known = {word for source in sources.values() for word in words(source)}
    known |= {part for name in files for part in re.split(r"[/.]", name)} | set(dir(builtins))
    for place in WHERE_WORDS_ARE_EXPLAINED:
        pages = [ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*.*")
        for page in pages:
            if page.suffix in {".md", ".avsc", ".c", ".h", ".toml"}:
                known |= set(re.findall(r"\w+", page.read_text()))
    gone = [
        f"{name}:{line} ``{named}``"
        for name, source in sources.items()
        for line, named in references(source)
        if named not in FOREIGN and not known.issuperset(filter(None, named.split(".")))
    ]
    assert not gone, "rename them, or add a name of others to FOREIGN:\n" + "\n".join(gone)
