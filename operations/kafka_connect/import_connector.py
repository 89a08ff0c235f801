"""Implements ``headgate import``: a connector's file in, sink file and fates of keys out."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from headgate.config.load import parse
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import ConfigurationError, ConnectorRefused, HeadgateError
from headgate.control_protocol.redaction import to_printable_line
from headgate.control_protocol.secret_references import REFERENCE
from headgate.operations.kafka_connect.connector_file import (
    read_connect_worker_file,
    read_connector_file,
)
from headgate.operations.kafka_connect.translation import Translated, translate_connector
from headgate.operations.kafka_connect.translation_report import Fate, Verdict

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STAND_IN = "stand-in-for-a-value-of-the-environment-0123456789"
_PAIR = re.compile(r"USER_INFO|CREDENTIAL")
_LEVELS = (Verdict.REFUSED, Verdict.MISSING, Verdict.KEPT, Verdict.NOT_NEEDED)


def import_connector(
    connector: Path,
    *,
    worker: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    left_out: Sequence[str] = (),
    topic: str = "",
    folder: Path | None = None,
    say: Callable[[str], object] = print,
) -> tuple[Fate, ...]:
    """Write ``NAME.toml`` for each sink into the folder, never over another file.

    Returns what has to be added by hand; without a ``folder`` nothing is written. Raises
    ``ConnectorFileUnfit``, and ``ConnectorRefused`` for what a sink cannot do: nothing is written.
    """
    shared = {**(read_connect_worker_file(worker) if worker else {}), **(overrides or {})}
    sinks = translate_connector(
        read_connector_file(connector), shared, left_out=left_out, topic=topic
    )
    for sink in sinks:
        for text in _describe_fates(sink, is_only_sink=len(sinks) == 1):
            say(to_printable_line(text))
    for sink in sinks:
        _require_usable_sink(connector, sink)
    if folder is not None:
        for path in _write_sink_files(folder, connector, sinks):
            say(f"{path} is written; next: headgate check {path}")
    return tuple(fate for sink in sinks for fate in sink.fates_to_add_by_hand)


def _describe_fates(sink: Translated, *, is_only_sink: bool) -> Iterator[str]:
    if not is_only_sink:
        yield f"sink {sink.name}:"
    for level in _LEVELS:
        yield from (str(fate) for fate in sink.fates if fate.verdict is level)
    if sink.variables:
        names = ", ".join(f"{name} ({key})" for name, key in sink.variables.items())
        yield f"set in the environment: {names}"


def _require_usable_sink(connector: Path, sink: Translated) -> None:
    if refused := sink.refused_fates:
        raise ConnectorRefused(
            f"{connector}: {count_of(len(refused), 'key has', 'keys have')} no counterpart: "
            + ", ".join(fate.key for fate in refused),
            "see above what each would be here; --leave-out KEY goes on without one, and the table "
            "then gets other rows than the connector gave it",
        )
    with tempfile.TemporaryDirectory() as folder:
        _require_loadable(
            connector, _point_references_at_stand_in_files(to_toml(sink.document), Path(folder))
        )


def _require_loadable(connector: Path, text: str) -> None:
    try:
        parse(text)
    except HeadgateError as error:
        raise ConnectorRefused(
            f"{connector}: the sink file that it makes would not load: {error}",
            "what is above says where its settings come from",
        ) from None


def _point_references_at_stand_in_files(text: str, folder: Path) -> str:
    """Return the text with stand-ins for its references: to files, which are written for them."""
    (folder / "one").write_text(_STAND_IN)
    (folder / "pair").write_text(f"user:{_STAND_IN}")

    def reference_to_stand_in(found: re.Match[str]) -> str:
        return f"${{file:{folder / ('pair' if _PAIR.search(found[2]) else 'one')}}}"

    return REFERENCE.sub(reference_to_stand_in, text)


def _write_sink_files(folder: Path, connector: Path, sinks: Sequence[Translated]) -> list[Path]:
    paths = [folder / f"{sink.name}.toml" for sink in sinks]
    if there := next((path for path in paths if path.exists()), None):
        raise ConfigurationError(f"{there} exists already", "move it, or work in another folder")
    for path, sink in zip(paths, sinks, strict=True):
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(_heading_comment(connector, sink) + to_toml(sink.document))
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    return paths


def _heading_comment(connector: Path, sink: Translated) -> str:
    lines = [
        f"# Made from {connector.name} by `headgate import`.",
        *(f"# {to_printable_line(str(fate))}" for fate in sink.fates_to_add_by_hand),
        *(
            f"# ${{env:{name}}} is for {to_printable_line(key)}"
            for name, key in sink.variables.items()
        ),
    ]
    return "\n".join(lines) + "\n\n"


def to_toml(document: Mapping[str, object]) -> str:
    """Return sections of texts, numbers, booleans, lists and sections as TOML."""
    return "\n".join(_section_lines(document, ())).strip() + "\n"


def _section_lines(section: Mapping[str, object], at: tuple[str, ...]) -> Iterator[str]:
    plain = {k: v for k, v in section.items() if not _is_section(v)}
    for key, value in plain.items():
        yield f"{_toml_key(key)} = {_toml_value(value)}"
    for key, value in section.items():
        if key in plain:
            continue
        where = ".".join(_toml_key(part) for part in (*at, key))
        if isinstance(value, Mapping):
            yield from ("", f"[{where}]", *_section_lines(value, (*at, key)))
        elif isinstance(value, list):
            for each in value:
                yield from ("", f"[[{where}]]", *_section_lines(each, (*at, key)))


def _is_section(value: object) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)
    )


def _toml_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}"
    # JSON's texts and lists of them are TOML's, but for a character that only JSON leaves alone.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
