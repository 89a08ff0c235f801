"""Writes a first sink file: it loads as it is, and mentions what else there is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from headgate.config.load import parse
from headgate.control_protocol.errors import ConfigurationError
from headgate.data_plane.cdc.policy import Envelope
from headgate.kafka.cluster import Cluster
from headgate.kafka.record_samples import newest_records
from headgate.operations.init.infer_cdc import ProposedChanges, propose_changes
from headgate.operations.init.infer_columns import Proposal, propose_columns

SAMPLE_RECORDS = 1_000

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
identifier = "default.{name}"
create = true                        # from the columns below, when it is missing
{key}
partition_by = []                    # such as ["day(happened_at)", "bucket(16, id)"]

{columns}
[table.record_columns]               # where each row came from: lets the audit prove every record
topic = "kafka_topic"
partition = "kafka_partition"
offset = "kafka_offset"
timestamp = "kafka_timestamp"

{changes}[format]
type = "{format}"

[coordinator]
commit_interval_ms = 60_000          # how fresh the table is; 1_000 is fine too
# commit_timeout_ms = 30_000
# target_file_bytes = 134_217_728

[spark]
writer = "spark"                     # "in-process" needs neither Spark nor Java
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
    "format": "json",
}


def init(
    name: str,
    folder: Path,
    *,
    topic: str | None = None,
    kafka: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Path, Proposal | None]:
    """Write ``NAME.toml``, never over another file; with a ``topic``, for the records it holds.

    ``kafka`` are client properties; references to secrets stay references in the file. Raises
    ``ConfigurationError``; with a topic also ``Unreachable``, and nothing is written then.
    """
    path = folder / f"{name}.toml"
    text, proposal = build_sink_file(name, folder, topic, kafka)
    settings = parse(text)  # refuses an invalid sink name before anything is written
    if topic is not None:
        Cluster(settings.kafka).brokers()  # its error names the address
        changes = propose_changes(newest_records(settings.kafka, topic, SAMPLE_RECORDS))
        text, proposal = build_sink_file(name, folder, topic, kafka, changes=changes)
        parse(text)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigurationError(f"{path} exists already", "choose another name") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    return path, proposal


def build_sink_file(
    name: str,
    folder: Path,
    topic: str | None,
    kafka: Mapping[str, str],
    *,
    changes: ProposedChanges | None = None,
) -> tuple[str, Proposal | None]:
    """Return the text of the file, fitted to the records if they are known.

    Raises ``ConfigurationError`` if no column can be proposed.
    """
    parts = {
        "name": name,
        "file": f"{name}.toml",
        "home": folder.resolve(),
        "topic": _quote(topic or name),
        "kafka": "\n".join(
            f"{_quote(key)} = {_quote(value)}" for key, value in (_KAFKA | dict(kafka)).items()
        ),
    }
    if changes is None:
        return _TEMPLATE.format(**parts, **_APPENDED, columns=_COLUMNS), None
    proposal = replace(propose_columns(changes.rows), records=changes.looks.records)
    texts, key = _changes_settings(changes, proposal)
    columns = _columns(topic or name, proposal, key)
    return _TEMPLATE.format(**parts, **texts, columns=columns), proposal


def _changes_settings(
    changes: ProposedChanges, proposal: Proposal
) -> tuple[Mapping[str, str], Sequence[str]]:
    """Return the file's settings for changes, and the columns of their key."""
    texts = {**_APPENDED, "format": changes.format_name}
    if changes.envelope is Envelope.PLAIN or not proposal.columns:
        return texts, ()
    key, guessed = changes.choose_key(proposal)
    if not key:
        return texts, ()
    why = "a guess: it must be the primary key" if guessed else "as the messages' keys have it"
    texts["key"] = f"key = {json.dumps(key)}  # {why}"
    texts["changes"] = (
        f"[changes]{' ' * 28}# docs/guides/upserts-and-deletes.md\n"
        f"envelope = {_quote(changes.envelope)}\n\n"
    )
    return texts, key


def _columns(topic: str, proposal: Proposal, key: Sequence[str]) -> str:
    if not proposal.columns:
        raise ConfigurationError(
            f"topic {topic}: no column can be proposed from {proposal.records} records; "
            f"{proposal.others} of them are not JSON objects",
            "write the columns by hand: headgate init without --from-topic has an example",
        )
    lines = [f"# Proposed from {proposal.records} records: check that they hold for all others."]
    for name, type_text in proposal.columns:
        lines += ["[[table.columns]]", f"name = {_quote(name)}", f"type = {_quote(type_text)}"]
        lines += ["required = true", ""] if name in key else [""]
    lines += [f"# Left out, {_quote(name)}: {reason}" for name, reason in proposal.left_out]
    return "\n".join(lines) + "\n" * bool(proposal.left_out)


def _quote(text: str) -> str:
    """Return a TOML string; JSON's escapes are a subset of TOML's."""
    return json.dumps(text)
