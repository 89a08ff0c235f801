"""Commands in the documents exist, and their examples are right."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click
import pytest
from repository.tree import ROOT

from headgate.config.load import parse, parse_worker_text
from headgate.control_protocol.errors import HeadgateError

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")),
)
LOADED_ELSEWHERE = "docs/guides/platforms.md"
"""Its sink files are loaded by ``test_platform_page``."""
FENCE = re.compile(
    r"(?P<mark><!-- *(?P<word>[\w-]+)(?:: \S+)? *-->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
REFERENCE = re.compile(r"\$\{(?:env|file):[^}]+\}")
REST_OF_THE_FILE = {
    "name": 'name = "trips"\n',
    "source": '[source]\ntopics = ["trips"]\n',
    "kafka": '[kafka]\n"bootstrap.servers" = "127.0.0.1:9092"\n',
    "table": '[table]\nidentifier = "city.trips"\n',
    "tables": '[tables]\nledger = "city.ledger"\n',
}


@dataclass(frozen=True)
class Snippet:
    """A fenced block; ``mark`` is the word of an HTML comment right above it.

    ``part`` marks some sections of a sink file, ``fragment`` TOML that cannot be loaded alone,
    ``run`` Python that is to be run; ``edit`` lines of a file, which ``test_getting_started`` types
    with all others that a tutorial names.
    """

    at: str
    language: str
    text: str
    mark: str


def snippets(language: str) -> list[Snippet]:
    found = []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(
                Snippet(f"{document}:{line}", match["language"], match["text"], match["word"] or "")
            )
    return [snippet for snippet in found if snippet.language == language]


def test_toml_is_a_sink_file(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {}
    for snippet in snippets("toml"):
        try:
            load(snippet, monkeypatch)
        except (tomllib.TOMLDecodeError, HeadgateError) as error:
            wrong[snippet.at] = str(error)
    assert wrong == {}


def load(snippet: Snippet, monkeypatch: pytest.MonkeyPatch) -> None:
    text = snippet.text
    for number, reference in enumerate(sorted(set(REFERENCE.findall(text)))):
        monkeypatch.setenv(f"SECRET_{number}", f"name:{number:040}")
        text = text.replace(reference, f"${{env:SECRET_{number}}}")
    said = tomllib.loads(text)
    if snippet.mark in ("fragment", "edit") or snippet.at.startswith(LOADED_ELSEWHERE):
        return
    if snippet.mark == "worker":
        parse_worker_text(text)
        return
    parse(completed(text, said) if snippet.mark == "part" else text)


def completed(text: str, said: Mapping[str, Any]) -> str:
    """Add the sections that a part of a sink file leaves out."""
    fills = "tables" if "tables" in said else "table"
    named = {"table", "tables"} - {fills} | {key for key in said if key != fills}
    if {"identifier", "ledger"} & set(said.get(fills, {})):
        named.add(fills)
    missing = {key: more for key, more in REST_OF_THE_FILE.items() if key not in named}
    return missing.pop("name", "") + text + "".join(missing.values())


def test_python_compiles_and_runs_where_marked() -> None:
    for snippet in snippets("python"):
        code = compile(snippet.text, snippet.at, "exec")
        if snippet.mark == "run":
            exec(code, {"__name__": "__main__"})


def test_commands_exist() -> None:
    unknown = [
        f"{snippet.at}: {line}"
        for snippet in snippets("bash")
        for line in snippet.text.replace("\\\n", " ").splitlines()
        if line.strip() and not line.lstrip().startswith("#") and not exists(line)
    ]
    assert unknown == []


def test_the_page_of_commands_has_every_command() -> None:
    from headgate.operations.cli.main import main

    page = (ROOT / "docs/reference/commands.md").read_text()
    known = set(main.list_commands(click.Context(main)))
    assert set(re.findall(r"^\| `headgate (\w+)", page, re.MULTILINE)) == known


def exists(line: str) -> bool:
    words = shlex.split(line, comments=True)
    while words and "=" in words[0]:  # settings before the command
        words.pop(0)
    command, *rest = words
    if command == "make":
        targets = [word for word in rest if "=" not in word]
        return all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in targets)
    if command == "headgate":
        return subcommand_exists(rest)
    if (ROOT / command).exists() or command in {"cd", "docker", "pip", "protoc", "spark-submit"}:
        return all((ROOT / word).exists() for word in rest if word.endswith(".py"))
    return shutil.which(command) is not None


def subcommand_exists(words: list[str]) -> bool:
    from headgate.operations.cli.main import main

    group: click.Command = main
    for word in words:
        if isinstance(group, click.Group) and not word.startswith("-"):
            found = group.get_command(click.Context(group), word)
            if found is None:
                return False
            group = found
    return True


def test_links_lead_somewhere() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in [
            *ROOT.glob("*.md"),
            *ROOT.glob("docs/**/*.md"),
            *ROOT.glob("control_protocol/**/*.md"),
            *ROOT.glob("*/*.md"),
        ]
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
        if "://" not in target and not (document.parent / target).exists()
    ]
    assert broken == []


def test_the_paths_that_documents_name_are_there() -> None:
    text = "\n".join((ROOT / document).read_text() for document in DOCUMENTS)
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text))
    ours = {path for path in named if (ROOT / path.split("/")[0]).is_dir()}
    assert {path for path in ours if not (ROOT / path).exists()} == set()
