"""Writes a first sink file: it loads as it is, and mentions what else there is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from headgate.config.load import parse
from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.redaction import to_printable_line
from headgate.data_plane.cdc.policy import Envelope
from headgate.data_plane.formats.registry.frames import framer_of_keys_and_values
from headgate.kafka.cluster_queries import Cluster
from headgate.kafka.record_samples import read_newest_records
from headgate.operations.init.infer_columns import ProposedColumn
from headgate.operations.init.infer_record_format import ProposedRecords, propose_from_records

SAMPLE_RECORDS = 1_000

_AUTH = "auth."
"""How the keys of ``[kafka.auth]`` and ``[format.auth]`` begin among the others."""

_KAFKA = {"bootstrap.servers": "127.0.0.1:9092"}

_TEMPLATE = """\
# A headgate sink: Kafka topics into one Iceberg table, exactly once.
# Test it with `headgate check {file}`, start it with `headgate run {file}`; the same file serves
# every participant. All keys with defaults and units are in docs/reference/settings.md. Secrets
# belong into the environment or a file: "${{env:NAME}}" and "${{file:PATH}}" are replaced when
# this is read.

name = "{name}"                      # names the tag that is the sink's lock: never change it

[source]
topics = [{topic}]                  # whoever owns partition 0 of the first runs the coordinator
# group_id = "headgate-{name}"
# group_protocol = "consumer"        # KIP-848, from Kafka 4.0 on; the default is "classic"
start_at = "earliest"                # of the very first start: latest, a time, epoch milliseconds

[kafka]                              # librdkafka's own keys, in quotes
{kafka}
# "security.protocol" = "SASL_SSL"
# "sasl.mechanism" = "SCRAM-SHA-512"
# "sasl.username" = "headgate"
# "sasl.password" = "${{env:KAFKA_PASSWORD}}"
{kafka_auth}
[control]
topic = "headgate-control"           # several sinks may share it
# key = "${{file:control.key}}"        # signs every event (openssl rand -hex 32 > control.key):
#                                      # without it, only friends may write to this topic

[catalog]
name = "default"

[catalog.properties]                 # pyiceberg's own keys
type = "sql"
uri = "sqlite:///{home}/{name}-catalog.db"
warehouse = "file://{home}/{name}-warehouse"
# type = "rest"
# uri = "https://catalog.example.com"
# token = "${{env:CATALOG_TOKEN}}"

[table]
identifier = "{identifier}"
create = true                        # from the columns below, when it is missing
{key}
partition_by = []                    # such as ["day(happened_at)", "bucket(16, id)"]

{columns}
[table.record_columns]               # where each row came from: lets the audit prove every record
topic = "{source}_topic"
partition = "{source}_partition"
offset = "{source}_offset"
timestamp = "{source}_timestamp"

{changes}{format}

[quarantine]
policy = "quarantine"                # where bad records go: {identifier}_quarantine
#                                    # "fail" stops before the first (docs/guides/quarantine.md)
{tombstones}# per_thousand_max = 100             # with more bad records than this the sink stops

[coordinator]
commit_interval_ms = 2_000           # for a first try; in production 60_000: larger files, fewer
#                                    # snapshots, rows that are a minute old
# commit_timeout_ms = 30_000
# target_file_bytes = 134_217_728

[spark]
writer = "in-process"                # "spark" writes with Spark: pip install "headgate[spark]"
# master = "local[*]"
# remote = "sc://127.0.0.1:15002"
"""


_COLUMNS = """\
[[table.columns]]
name = "id"
type = "long"
required = true

[[table.columns]]
name = "happened_at"
type = "timestamptz"

[[table.columns]]
name = "text"
type = "string"
# from = "payload.text"              # a path into the record; more in docs/guides/columns.md
# default = "none"                   # where a record has no such field
"""

_APPENDED = {
    "key": '# key = ["id"]  # records replace and delete rows: docs/guides/upserts-and-deletes.md',
    "changes": "",
    "tombstones": 'tombstones = "quarantine"            # of records without a value\n',
}


def propose_and_write_sink_file(
    name: str,
    folder: Path,
    *,
    topic: str | None = None,
    kafka: Mapping[str, str] = MappingProxyType({}),
    format: Mapping[str, str] = MappingProxyType({}),  # noqa: A002 - the section's name
) -> tuple[Path, ProposedRecords | None]:
    """Write ``NAME.toml``, never over another file; with a ``topic``, for the records it holds.

    ``kafka`` are client properties; ``format`` has the options of the record format, and its
    ``type`` if that is known. Keys that begin with ``auth.`` are those of ``[kafka.auth]`` and
    ``[format.auth]``. References to secrets stay references in the file. Raises
    ``ConfigurationError``; with a topic also ``Unreachable``, and nothing is written then.
    """
    path = folder / f"{name}.toml"
    text = build_sink_file_text(name, folder, topic, kafka, format=format)
    settings = parse(text)  # refuses an invalid sink name before anything is written
    records: ProposedRecords | None = None
    if topic is not None:
        Cluster(settings.kafka).count_brokers()  # its error names the address
        reading = framer_of_keys_and_values(settings.format.options, settings.format.key_options)
        newest = read_newest_records(settings.kafka, topic, SAMPLE_RECORDS, reading)
        records = propose_from_records(newest, settings.format, is_format_given="type" in format)
        text = build_sink_file_text(name, folder, topic, kafka, format=format, records=records)
        parse(text)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigurationError(f"{path} exists already", "choose another name") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    return path, records


def build_sink_file_text(
    name: str,
    folder: Path,
    topic: str | None,
    kafka: Mapping[str, str],
    *,
    format: Mapping[str, str] = MappingProxyType({}),  # noqa: A002 - the section's name
    records: ProposedRecords | None = None,
) -> str:
    """Return the text of the file, fitted to the records if they are known.

    Raises ``ConfigurationError`` if no column can be proposed.
    """
    parts = {
        "name": name,
        "file": f"{name}.toml",
        "home": folder.resolve(),
        "identifier": f"default.{name}",
        "topic": _toml_string(topic or name),
        "kafka": "\n".join(_toml_lines_of(_KAFKA | _without_auth_keys(kafka))),
        "kafka_auth": _auth_section("kafka.auth", kafka),
        "source": _unused_prefix_of_record_columns(records),
    }
    if records is None:
        format_text = _section_of_format(format.get("type", _format_taking_options(format)), format)
        return _TEMPLATE.format(**parts, **_APPENDED, format=format_text, columns=_COLUMNS)
    changes = _settings_for_changes(records)
    kept = format if records.takes_given_format_options(is_format_given="type" in format) else {}
    return _TEMPLATE.format(
        **parts,
        **changes.template_parts,
        format=_section_of_format(records.format_name, kept),
        columns=_columns_section(topic or name, records, changes.key),
    )


def _unused_prefix_of_record_columns(records: ProposedRecords | None) -> str:
    """Return a prefix that no proposed column has, as those of a table that a sink filled do."""
    taken = [column.name.lower() for column in records.proposal.columns] if records else []
    prefixes = chain(["kafka", "source"], (f"source{number}" for number in count(1)))
    return next(p for p in prefixes if not any(name.startswith(f"{p}_") for name in taken))


def _format_taking_options(options: Mapping[str, str]) -> str:
    """Return a format that takes these options."""
    if any(name.startswith("glue.") for name in options):
        return "glue-registry"
    return "avro-registry" if "registry.url" in options else "json"


def _toml_lines_of(properties: Mapping[str, str]) -> list[str]:
    return [f"{_toml_string(key)} = {_toml_string(value)}" for key, value in properties.items()]


def _without_auth_keys(given: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in given.items() if not key.startswith(_AUTH)}


def _auth_section(section: str, given: Mapping[str, str]) -> str:
    """Return the section for the keys that begin with ``auth.``; empty without one."""
    own = {key.removeprefix(_AUTH): text for key, text in given.items() if key.startswith(_AUTH)}
    if not own:
        return ""
    lines = (
        f"{'.'.join(map(_toml_string, key.split('.')))} = {_toml_string(own[key])}" for key in own
    )
    return "\n".join(["", f"[{section}]", *lines, ""])


def _section_of_format(name: str, given: Mapping[str, str]) -> str:
    options = {key: value for key, value in _without_auth_keys(given).items() if key != "type"}
    lines = ["[format]", f"type = {_toml_string(name)}"]
    if options:
        lines += ["", "[format.options]", *_toml_lines_of(options)]
    return "\n".join([*lines, _auth_section("format.auth", given)]).rstrip("\n")


class _ChangeTexts(NamedTuple):
    """The template's texts for changes, and the columns of their key: none for plain records."""

    template_parts: Mapping[str, str]
    key: Sequence[str]


def _settings_for_changes(records: ProposedRecords) -> _ChangeTexts:
    """Return the file's settings for changes, and the columns of their key."""
    texts = dict(_APPENDED)
    if records.envelope is Envelope.PLAIN or not records.proposal.columns:
        return _ChangeTexts(texts, ())
    key, guessed = records.choose_key()
    if not key:
        return _ChangeTexts(texts, ())
    why = "a guess: it must be the primary key" if guessed else "as the messages' keys have it"
    texts["key"] = f"key = {json.dumps(key)}  # {why}"
    texts["tombstones"] = ""  # changes.tombstones says what a record without a value does
    texts["changes"] = (
        f"[changes]{' ' * 28}# docs/guides/upserts-and-deletes.md\n"
        f"envelope = {_toml_string(records.envelope)}\n\n"
    )
    return _ChangeTexts(texts, key)


def _columns_section(topic: str, records: ProposedRecords, key: Sequence[str]) -> str:
    proposal = records.proposal
    if not proposal.columns:
        raise ConfigurationError(
            f"topic {topic}: no column can be proposed from {records.describe_records()}",
            "write the columns by hand (headgate init without --from-topic has an example), or say "
            "how the records are encoded: --registry URL, or --format type=NAME",
        )
    lines = [
        f"# Proposed from {records.describe_records()}.",
        "# Check that they hold for all others.",
    ]
    for column in proposal.columns:
        lines += [*_column_lines(column), *(["required = true"] if column.name in key else []), ""]
    lines += [f"# Left out, {_toml_string(name)}: {reason}" for name, reason in proposal.left_out]
    return "\n".join(lines) + "\n" * bool(proposal.left_out)


def _column_lines(column: ProposedColumn) -> list[str]:
    rules = {"from": column.path, "unit": column.unit}
    return [
        *([f"# {to_printable_line(column.note)}"] if column.note else []),
        "[[table.columns]]",
        f"name = {_toml_string(column.name)}",
        f"type = {_toml_string(column.type)}",
        *(f"{rule} = {_toml_string(text)}" for rule, text in rules.items() if text),
        *(["as_text = true  # its values are of several kinds"] if column.as_text else []),
    ]


def _toml_string(text: str) -> str:
    """Return a TOML string; JSON's escapes are a subset of TOML's."""
    return json.dumps(text)
