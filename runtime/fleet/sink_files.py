"""Reads the sink files that a fleet should follow: all of them are fit, or none is followed."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from headgate.config.cleartext_secrets import find_keys_with_cleartext_secrets
from headgate.config.load import parse_with_document, read_text
from headgate.config.setting_types import Reading, reading_references_as
from headgate.config.sink_sections import GroupProtocol, WriterKind
from headgate.control_protocol.errors import (
    ConfigurationError,
    FleetFilesUnfit,
    HeadgateError,
    SecretInClear,
    SinksClash,
)
from headgate.control_protocol.identifiers import SinkName
from headgate.kafka.client_settings import SESSION_KEYS

FILE_BYTES_MAX = 512 * 1024
"""A spec has room for it, with its own fields and a signature."""
_NAMED_MAX = 20
_SESSION_MS_MAX = 45_000
"""Kafka's default: no client takes a session that is longer than its poll interval."""


def read_sink_files(folder: Path) -> Mapping[SinkName, str]:
    """Return the text of each file ``*.toml``, by the sink that it names (FLEET-6).

    References need not be readable here: workers read them, and check what form the values have.
    Raises ``FleetFilesUnfit``, which names every file that is wrong, also for a folder without any.
    """
    require_folder(folder)
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


def require_folder(folder: Path) -> None:
    """Raise ``ConfigurationError`` unless this is a folder, as far as it may be looked at."""
    why = "is no folder"
    try:
        if S_ISDIR(folder.stat().st_mode):
            return
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    raise ConfigurationError(f"{folder} {why}", "name the folder that holds the sink files")


def read_sink_file(path: Path) -> tuple[SinkName, str]:
    """Return the sink that a file names, and its text. Raises ``ConfigurationError``."""
    text = read_text(path)
    return require_valid_sink_file(path, text, Reading.IF_PRESENT), text


def require_valid_sink_file(path: Path, text: str, reading: Reading) -> SinkName:
    """Return the sink that a file of this text names. Raises ``ConfigurationError``."""
    if len(text.encode()) > FILE_BYTES_MAX:
        raise ConfigurationError(
            f"{path}: is longer than {FILE_BYTES_MAX // 1024} KiB", "a spec has no more room"
        )
    with reading_references_as(reading):
        settings, document = parse_with_document(path, text)
    if clear := find_keys_with_cleartext_secrets(document):
        raise SecretInClear(
            f"{path}: {', '.join(clear)} holds a secret in clear text, which all who may read the "
            "fleet's topic would read",
            "write ${file:PATH} or ${env:NAME}",
        )
    return settings.name


@lru_cache(maxsize=2)
def parse_sink_document(text: str) -> Mapping[str, Any] | None:
    """Return what a sink file says; ``None`` if it cannot be read, which its process tells.

    The last one is kept, with the draft that is made of it: several ask in turn.
    """
    try:
        return tomllib.loads(text)
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------ memory


JVM_MIB_MIN = 1_500
"""A process that writes with a Spark of its own takes no less, with its JVM (FLEET-13)."""


@lru_cache(maxsize=4_096)  # the balancer asks of the same files each ten seconds
def has_own_jvm(sink_file_text: str) -> bool:
    """Return whether a sink of this file writes with a Spark that runs beside its process."""
    document = parse_sink_document(sink_file_text)
    spark = document.get("spark", {}) if document is not None else None
    if not isinstance(spark, dict):
        return False
    return spark.get("writer", WriterKind.SPARK) == WriterKind.SPARK and not spark.get("remote")


def require_memory_for_jvm_per_sink(texts: Mapping[SinkName, str], mib_per_sink: int) -> None:
    """Raise ``FleetFilesUnfit`` if a sink would be killed as soon as its JVM works."""
    small = [name for name, text in texts.items() if has_own_jvm(text)]
    if 0 < mib_per_sink < JVM_MIB_MIN and small:
        raise FleetFilesUnfit(
            f"{mib_per_sink} MiB are not enough for {', '.join(small[:_NAMED_MAX])}: "
            f"with Spark's JVM a sink takes {JVM_MIB_MIN:,} and more",
            'promise more, or set spark.writer = "in-process", or spark.remote',
        )


# ------------------------------------------------------------------------ as its process reads it


def default_control_topic_of_fleet_sink(sink: SinkName) -> str:
    """Return the control topic that a sink of a fleet has for itself."""
    return f"headgate-control-{sink}"


def with_fleet_defaults(text: str, sink: SinkName, session_timeout_ms: int) -> str:
    """Return a sink file's text with what a fleet sets, where the file does not (FLEET-11).

    A control topic of its own: a thousand sinks on one topic would read a million events of each
    other for each of their own. And the workers' session time-out: a killed process keeps its
    partitions for so long, also when a new one has long been there.
    """
    text = _with_setting_if_missing(
        text, "control", "topic", default_control_topic_of_fleet_sink(sink)
    )
    if _needs_no_session_timeout(text):
        return text
    session_ms = min(session_timeout_ms, _SESSION_MS_MAX)
    return _with_setting_if_missing(text, "kafka", "session.timeout.ms", session_ms)


def _needs_no_session_timeout(text: str) -> bool:
    """Return whether the file, or the brokers of KIP-848's protocol, say how long a session is."""
    document = parse_sink_document(text) or {}
    source, kafka = document.get("source"), document.get("kafka")
    if not isinstance(source, dict) or not isinstance(kafka, dict):
        return True
    is_classic = source.get("group_protocol", GroupProtocol.CLASSIC) == GroupProtocol.CLASSIC
    return not is_classic or not SESSION_KEYS.isdisjoint(kafka)


def _with_setting_if_missing(text: str, section: str, key: str, value: str | int) -> str:
    """Return the text with this key, unless it has it, or cannot be read."""
    document = parse_sink_document(text)
    if document is None:
        return text
    there = document.get(section, {})
    if not isinstance(there, dict) or key in there:
        return text
    wanted = {**document, section: {**there, key: value}}
    drafts = _drafts_with_line(text, section, f"{json.dumps(key)} = {json.dumps(value)}")
    return next((each for each in drafts if parse_sink_document(each) == wanted), text)


def _drafts_with_line(text: str, section: str, line: str) -> Iterator[str]:
    """Yield the text with the line where the section may take it."""
    yield f"{text.rstrip()}\n\n[{section}]\n{line}\n"
    header = rf"^[ \t]*\[[ \t]*{section}[ \t]*\][^\n]*$"
    yield re.sub(header, lambda found: f"{found[0]}\n{line}", text, count=1, flags=re.MULTILINE)
    yield f"{section}.{line}\n{text}"
