"""Reads the sink files that a fleet should follow: all of them are fit, or none is followed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headgate.config.clear_secrets import find_clear_secrets
from headgate.config.load import parse_at
from headgate.config.setting_types import absent_references_allowed
from headgate.control_protocol.errors import (
    ConfigurationError,
    FleetFilesUnfit,
    HeadgateError,
    SecretInClear,
    SinksClash,
)
from headgate.control_protocol.identifiers import SinkName

FILE_BYTES_MAX = 512 * 1024
"""A wish has room for it, with its own fields and a signature."""
_NAMED_MAX = 20


def read_sink_files(folder: Path) -> Mapping[SinkName, str]:
    """Return the text of each file ``*.toml``, by the sink that it names (FLEET-6).

    References need not be readable here: workers read them. Raises ``FleetFilesUnfit``, which names
    every file that is wrong, also for a folder without any.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is no folder", "name the folder with the sink files")
    texts: dict[SinkName, str] = {}
    files: dict[SinkName, Path] = {}
    wrong: list[HeadgateError] = []
    for path in sorted(folder.glob("*.toml")):
        if path.name.startswith("."):
            continue
        try:
            name, text = read_sink_file(path)
            if name in files:
                raise SinksClash(
                    f"{path.name} and {files[name].name} name the same sink, {name}",
                    "give each sink one file",
                )
        except HeadgateError as error:
            wrong.append(error)
        else:
            texts[name], files[name] = text, path
    if wrong:
        shown = [str(error) for error in wrong[:_NAMED_MAX]]
        more = [f"and {len(wrong) - _NAMED_MAX} more"] if len(wrong) > _NAMED_MAX else []
        raise FleetFilesUnfit(
            f"{len(wrong)} of {len(texts) + len(wrong)} sink files are wrong, so nothing was "
            "changed:\n" + "\n".join([*shown, *more]),
            "correct them, and apply again",
        )
    if not texts:
        # A mistaken path, with --prune, would remove every sink of the fleet.
        raise FleetFilesUnfit(
            f"{folder} holds no sink file (*.toml), so nothing was changed",
            "name the folder with the sink files; headgate fleet remove takes sinks away",
        )
    return texts


def read_sink_file(path: Path) -> tuple[SinkName, str]:
    """Return the sink that a file names, and its text. Raises ``ConfigurationError``."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is not UTF-8 text") from None
    return check_sink_file(path, text), text


def check_sink_file(path: Path, text: str) -> SinkName:
    """Return the sink that a file of this text names. Raises ``ConfigurationError``."""
    if len(text.encode()) > FILE_BYTES_MAX:
        raise ConfigurationError(
            f"{path}: is longer than {FILE_BYTES_MAX // 1024} KiB", "a wish has no more room"
        )
    with absent_references_allowed():
        settings, document = parse_at(path, text)
    if clear := find_clear_secrets(document):
        raise SecretInClear(
            f"{path}: {', '.join(clear)} holds a secret in clear text, which all who may read the "
            "fleet's topic would read",
            "write ${file:PATH} or ${env:NAME}",
        )
    return settings.name


# ---------------------------------------------------------------------------------- control topic

_CONTROL = re.compile(r"^[ \t]*\[[ \t]*control[ \t]*\][^\n]*$", re.MULTILINE)


def control_topic_of(sink: SinkName) -> str:
    """Return the control topic that a sink of a fleet has for itself."""
    return f"headgate-control-{sink}"


def with_own_control_topic(text: str, sink: SinkName) -> str:
    """Return a sink file's text with a control topic of its own, if it names none (FLEET-11).

    A thousand sinks on one topic would read a million events of each other for each of their own.
    """
    try:
        document = tomllib.loads(text)
    except ValueError:
        return text  # its process says so
    control = document.get("control", {})
    if not isinstance(control, dict) or "topic" in control:
        return text
    line = f'topic = "{control_topic_of(sink)}"'
    wanted = {**document, "control": {**control, "topic": control_topic_of(sink)}}
    return next((each for each in _with_line(text, line) if _reads_as(each, wanted)), text)


def _with_line(text: str, line: str) -> Iterator[str]:
    """Yield the text with the line where a section [control] may take it."""
    yield f"{text.rstrip()}\n\n[control]\n{line}\n"
    yield _CONTROL.sub(lambda header: f"{header[0]}\n{line}", text, count=1)
    yield f"control.{line}\n{text}"


def _reads_as(text: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except ValueError:
        return False
