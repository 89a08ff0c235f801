"""The tutorials are typed as they stand: files, commands, and the answers that they promise."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PAGES = Path(__file__).parents[3] / "docs/getting-started"
FENCE = re.compile(
    r"(?:<!-- (?P<verb>file|edit): (?P<path>\S+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
NOT_TYPED = ("pip install", "headgate kafka")
"""What the fixtures have done: headgate is installed, and a broker answers."""

LOOKS = 120
"""How often ``headgate status`` is asked before the sink counts as hanging."""


class Newcomer:
    """Types one block of a page after the other in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run: subprocess.Popen[bytes] | None = None

    def type(self, match: re.Match[str]) -> None:
        if match["verb"] == "file":
            (self._folder / match["path"]).write_text(match["text"])
        elif match["verb"] == "edit":
            self._edit(self._folder / match["path"], match["text"])
        elif match["language"] == "bash":
            for line in match["text"].splitlines():
                self.answers(line)
        elif match["language"] == "text":
            assert match["text"].strip() in self.output

    def _edit(self, path: Path, changes: str) -> None:
        text = path.read_text()
        for line in changes.splitlines():
            if "=" in line:
                key = line.split("=")[0].strip()
                text, edits = re.subn(rf"^{key} = [^#\n]*", line + "  ", text, flags=re.MULTILINE)
                assert edits == 1, f"{path.name} has {edits} lines of {key}"
        path.write_text(text)

    def answers(self, line: str) -> str:
        """Type a command, and return what it says; a run goes on behind the next ones."""
        if line.startswith(NOT_TYPED):
            return ""
        words = shlex.split(line)
        if words[:2] == ["headgate", "run"] and "--dry-run" not in words:
            self._run = subprocess.Popen(self._found(words), cwd=self._folder, env=self._env())
            for _ in range(LOOKS):
                if self._all_is_committed():
                    return ""
            raise AssertionError("the records did not get into the table")
        self.output = self._answer(words)
        return self.output

    def _all_is_committed(self) -> bool:
        assert self._run is not None
        assert self._run.poll() is None, "headgate run ended"
        sink = self._run.args[-1]  # type: ignore[index]
        status = subprocess.run(
            self._found(["headgate", "status", sink, "--json"]),
            cwd=self._folder,
            env=self._env(),
            capture_output=True,
            check=False,
        )
        report = json.loads(status.stdout) if status.stdout else {}
        return report.get("condition") == "idle" and report.get("lag") == 0

    def _answer(self, words: list[str]) -> str:
        done = subprocess.run(
            self._found(words), cwd=self._folder, env=self._env(), capture_output=True, check=False
        )
        text = done.stdout.decode() + done.stderr.decode()
        assert done.returncode == 0, f"{shlex.join(words)}\n{text}"
        return text

    def _found(self, words: list[str]) -> list[str]:
        return [str(Path(sys.executable).with_name(words[0])), *words[1:]]

    def _env(self) -> dict[str, str]:
        return {**os.environ, "COLUMNS": "200"}

    def close(self) -> None:
        if self._run is not None:
            self._run.send_signal(signal.SIGTERM)
            assert self._run.wait(60) == 0


def typed(page: str, folder: Path, replaced: dict[str, str]) -> Newcomer:
    text = (PAGES / page).read_text().split("\n## Your own topic")[0]
    for word, own in replaced.items():
        text = text.replace(word, own)
    with closing(Newcomer(folder)) as typist:
        for match in FENCE.finditer(text):
            typist.type(match)
    return typist


def own(name: str) -> str:
    """Return a name for a topic and all that is called after it: the broker is shared."""
    return f"{name}_{uuid.uuid4().hex[:8]}"


@pytest.mark.wide
def test_the_tutorial_of_the_first_sink_does_what_it_says(tmp_path: Path, bootstrap: str) -> None:
    replaced = {"trips": own("trips"), "127.0.0.1:9092": bootstrap}
    assert typed("first-sink.md", tmp_path, replaced).output.strip() == "1000"


@pytest.mark.wide
def test_the_tutorial_of_many_tables_does_what_it_says(tmp_path: Path, bootstrap: str) -> None:
    replaced = {"events": own("events"), "127.0.0.1:9092": bootstrap}
    assert "1 in quarantine" in typed("many-tables.md", tmp_path, replaced).output
