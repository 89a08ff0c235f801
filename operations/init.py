"""A sink file to begin with: it loads as it is, and says what else there is."""

from __future__ import annotations

from pathlib import Path

from headgate.control_protocol.errors import ConfigurationError
from headgate.sink.load import parse

_TEMPLATE = """\
# A headgate sink: Kafka topics into one Iceberg table, exactly once.
# Test it with `headgate check {file}`, start it with `headgate run {file}`; the same file serves
# every participant. All keys with defaults and units are in docs/reference.md. Secrets belong into
# the environment or a file: "${{env:NAME}}" and "${{file:PATH}}" are replaced when this is read.

name = "{name}"                      # names the tag that is the sink's lock: never change it

[source]
topics = ["{name}"]                  # whoever owns partition 0 of the first runs the coordinator
# group_id = "headgate-{name}"
# group_protocol = "consumer"        # KIP-848, from Kafka 4.0 on; the default is "classic"
start_at = "earliest"                # of the very first start: latest, a time, epoch milliseconds

[kafka]                              # librdkafka's own keys, in quotes
"bootstrap.servers" = "127.0.0.1:9092"
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
partition_by = []                    # such as ["day(happened_at)", "bucket(16, id)"]

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

[table.record_columns]               # where each row came from: lets the audit prove every record
topic = "kafka_topic"
partition = "kafka_partition"
offset = "kafka_offset"
timestamp = "kafka_timestamp"

[format]
type = "json"

[coordinator]
commit_interval_ms = 60_000          # how fresh the table is; 1_000 is fine too
# commit_timeout_ms = 30_000
# target_file_bytes = 134_217_728

[spark]
writer = "spark"                     # "in-process" needs neither Spark nor Java
# master = "local[*]"
# remote = "sc://127.0.0.1:15002"
"""


def init(name: str, folder: Path) -> Path:
    """Write ``NAME.toml``, never over another file. Raises ``ConfigurationError``."""
    path = folder / f"{name}.toml"
    text = _TEMPLATE.format(name=name, file=path.name, home=folder.resolve())
    parse(text)  # refuses a name that cannot be a sink's before anything is written
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigurationError(f"{path} exists already", "choose another name") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    return path
