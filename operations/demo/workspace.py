"""Manages the demo's folder: created by each run, one at a time, and never somebody else's."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from headgate.control_protocol.errors import ConfigurationError
from headgate.operations.demo.s3_server import BUCKET
from headgate.operations.demo.trips import TRIP_COLUMNS
from headgate.operations.java_installation import NAME_ANOTHER, translating_folder_errors

_MARK = ".headgate-demo"


@contextmanager
def emptying_and_locking_folder(folder: Path) -> Iterator[Path]:
    """Yield the folder, absolute and empty. What a former demo left in it is removed.

    Raises ``ConfigurationError`` if it holds anything else, or if a demo is running in it.
    """
    folder = folder.resolve()
    mark = folder / _MARK
    with ExitStack() as holding:
        with translating_folder_errors(folder, NAME_ANOTHER):
            if folder.exists() and any(folder.iterdir()) and not mark.exists():
                raise ConfigurationError(
                    f"{folder} is not empty and not a demo's folder", "name another one: --folder"
                )
            folder.mkdir(parents=True, exist_ok=True)
            held = holding.enter_context(mark.open("w"))
            _lock_or_refuse(held.fileno(), folder)
            for old in folder.iterdir():
                if old != mark:
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
        yield folder  # what fails from here on is not the folder's fault


def _lock_or_refuse(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(
            f"another demo is running in {folder}", "wait for it, or name another one: --folder"
        ) from None


# Writes the demo's sink file: a real one, with a comment wherever somebody may wonder.


SINK = "trips"
TOPIC = "trips"
TABLE = "demo.trips"
CONTROL_TOPIC = "headgate-control"
PARTITIONS = 4
CATALOG_FILE = "catalog.db"

_TEMPLATE = """\
# The sink of `headgate demo`: taxi trips from Kafka into one Iceberg table, exactly once.
# Each participant was started with `headgate run {file}`, all with this same file.
# Every key with its default and unit is in docs/reference/settings.md; `headgate init NAME` writes
# a new sink file to begin with.

name = "{sink}"                       # names the tag that is the sink's lock: never change it

[source]
topics = ["{topic}"]                   # whoever owns partition 0 runs the coordinator
start_at = "earliest"                # of the very first start; afterwards the table knows

[kafka]                              # librdkafka's own keys, in quotes
"bootstrap.servers" = "{bootstrap}"
"session.timeout.ms" = 6_000         # a killed participant is missed after so long
"heartbeat.interval.ms" = 1_500

[control]
topic = "{control}"           # one partition; coordinator and participants talk there

[catalog]
name = "default"

[catalog.properties]                 # pyiceberg's own keys: rest, glue, hive or sql
type = "sql"
uri = "sqlite:///{folder}/{catalog}"
{warehouse}

[table]
identifier = "{table}"
create = true                        # from the columns below, when it is missing
partition_by = ["day(pickup_at)"]

{columns}
[table.record_columns]               # where each row came from: lets the audit prove every record
topic = "kafka_topic"
partition = "kafka_partition"
offset = "kafka_offset"
timestamp = "kafka_timestamp"

[format]
type = "json"

[coordinator]
commit_interval_ms = 3_000           # for those who watch; the default is a minute

[participant]
presence_interval_ms = 1_000         # for those who watch as well; the default is 5_000

[spark]
writer = "{writer}"
{master}"""

_HERE = 'warehouse = "file://{folder}/warehouse"'

_ON_S3 = """\
warehouse = "s3://{bucket}/warehouse"
"s3.endpoint" = "{endpoint}"
"s3.region" = "us-east-1"
"s3.access-key-id" = "demo"
"s3.secret-access-key" = "nobody-asks"  # elsewhere: "${{env:NAME}}\""""

_COLUMN = """\
[[table.columns]]
name = "{name}"
type = "{type}"
"""


def sink_file_text(path: Path, bootstrap: str, writer: str, endpoint: str | None = None) -> str:
    """Return the text for ``path``, an absolute path, whose folder will hold catalog and warehouse.

    ``endpoint``: the object store that holds the warehouse instead.
    """
    place = _HERE if endpoint is None else _ON_S3
    columns = "\n".join(_COLUMN.format(name=name, type=kind) for name, kind in TRIP_COLUMNS.items())
    spark = writer == "spark"
    return _TEMPLATE.format(
        file=path.name,
        folder=path.parent,
        catalog=CATALOG_FILE,
        warehouse=place.format(folder=path.parent, bucket=BUCKET, endpoint=endpoint),
        sink=SINK,
        topic=TOPIC,
        table=TABLE,
        control=CONTROL_TOPIC,
        bootstrap=bootstrap,
        writer=writer,
        columns=columns,
        master='master = "local[1]"                  # or spark://..., yarn, k8s://...\n'
        if spark
        else "",
    )
