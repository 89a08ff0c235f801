"""What a task of Spark is given, searched for every secret that the sink file holds."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType
from pyspark import cloudpickle
from support.local_catalog import local_catalog
from support.planted import (
    PUBLIC,
    SECRETS,
    environment,
    needle,
    places,
    section_toml,
    sections_with_secrets,
)

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.spark import stages
from headgate.data_plane.spark.tasks import write_share, writer_of_shares
from headgate.runtime.catalogs import open_catalog
from headgate.runtime.sink_tables import SinkTables

READ_WITH = {
    ("kafka", "sasl.password"),
    ("kafka", "ssl.key.password"),
    ("format.options", "registry.basic.auth.user.info"),
    ("format.key_options", "registry.basic.auth.user.info"),
    ("shape.hash_key", ""),
}
"""What a task needs to read records; a table on a store takes the keys for that store, too."""


def settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> SinkSettings:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    catalog = f'type = "sql"\nuri = "sqlite:///{folder}/catalog.sqlite"\n'
    return parse(
        'name = "sink"\n[source]\ntopics = ["trips"]\n'
        '[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'
        f"{section_toml('kafka')}"
        f"[control]\n{section_toml('control.key')}{section_toml('control.accepted_key')}"
        f'[catalog]\nname = "local"\n[catalog.properties]\n{catalog}'
        f'warehouse = "{folder.as_uri()}/warehouse"\n'
        f"{section_toml('catalog.properties')}"
        f'[format]\ntype = "avro-registry"\nkey_type = "avro-registry"\n'
        f'[format.options]\n"registry.url" = "http://127.0.0.1:1"\n{section_toml("format.options")}'
        f'[format.key_options]\n"registry.url" = "http://127.0.0.1:1"\n'
        f"{section_toml('format.key_options')}"
        f'[table]\nidentifier = "db.t"\n[table.record_columns]\nkey = "id"\n'
        f"[spark.conf]\n{section_toml('spark.conf')}"
        f"[telemetry.otlp_headers]\n{section_toml('telemetry.otlp_headers')}"
        f'[shape]\nhash = ["id"]\n{section_toml("shape.hash_key")}'
        f'[lineage]\nurl = "http://127.0.0.1:1"\n{section_toml("lineage.token")}'
        f'[signal]\nurl = "http://127.0.0.1:1"\n{section_toml("signal.token")}'
        f"[http]\n{section_toml('http.viewer_token')}{section_toml('http.operator_token')}"
    )


def test_the_planted_file_has_a_secret_wherever_one_may_stand() -> None:
    assert set(sections_with_secrets()) - PUBLIC == set(SECRETS)


def test_tasks_get_what_reading_and_writing_takes_and_no_other_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = local_catalog(tmp_path)
    table = local.catalog.create_table("db.t", Schema(NestedField(1, "id", StringType())))
    sink = settings(tmp_path, monkeypatch)
    catalog = open_catalog(sink)
    start = TableStart("db.t", str(table.metadata.table_uuid), 0, 0, f"{table.location()}/data/1-")
    ranges = {TopicPartition("trips", 0): OffsetRange(0, 5)}
    batch = Batch(1, TransactionId(Epoch(1), TransactionNumber(1)), start, ranges, 1 << 27)
    tasks: list[bytes] = []
    shown: list[str] = []

    def write(plan: WriterPlan) -> BatchOutcome:
        functions = [
            writer_of_shares(partial(write_share, plan), [batch]),
            stages.share_packing_stage(plan, batch, [batch]),
            stages.packet_writing_stage(plan, batch),
            stages.share_decoding_stage(plan, batch, [batch]),
        ]
        tasks.extend(map(cloudpickle.dumps, functions))
        shown.append(repr(plan))
        return BatchFailed(1, "not written")

    SinkTables.from_open_catalog(sink, catalog).build_planning().write_planned(batch, write)
    found = {place for place in places() if any(needle(*place).encode() in task for task in tasks)}
    assert found == READ_WITH
    assert len(shown) == 1
    assert not [place for place in places() if needle(*place) in shown[0]]
