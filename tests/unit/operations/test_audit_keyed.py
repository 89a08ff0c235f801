"""Point 6: the audit of a keyed table says what is wrong, and what it did not compare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from keyed_world import COLUMNS, NAME, SINK, Event, KeyedWorld
from local_catalog import LocalCatalog, local_catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow

from headgate.operations.audit import audit
from headgate.operations.audit_report import AuditReport, Verdict
from headgate.sink.load import parse

SINK_FILE = """
name = "{sink}"
[source]
topics = ["topic"]
group_id = "group"
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[catalog]
name = "{catalog}"
[catalog.properties]
{properties}
[table]
identifier = "{table}"
key = ["id"]
[table.record_columns]
partition = "from_partition"
offset = "from_offset"
"""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCatalog]:
    made = local_catalog(tmp_path)
    yield made
    made.catalog.close()


@pytest.fixture
def world(local: LocalCatalog) -> KeyedWorld:
    made = KeyedWorld.made(local.catalog, 2)
    made.commit([put(n) for n in range(9)])
    made.commit([put(n) for n in range(3)], [Event((8,))])
    return made


def put(key: int) -> Event:
    return Event((key,), "a")


def judged(local: LocalCatalog) -> AuditReport:
    properties = "\n".join(f'{name} = "{value}"' for name, value in local.properties.items())
    text = SINK_FILE.format(sink=SINK, catalog=local.name, properties=properties, table=NAME)
    return audit(parse(text), with_source=False)


def test_point_6_what_was_not_compared_is_unproven(local: LocalCatalog, world: KeyedWorld) -> None:
    assert world.loaded()
    report = judged(local)
    assert report.findings == ()
    assert report.verdict is Verdict.NOT_PROVEN
    assert report.live_rows == 8
    assert "each of 8 live rows has a key of its own" in report.proven
    assert "8 rows are live: as many as the commits inserted and did not delete" in report.proven
    assert "was not compared with the source" in report.unproven[0]


def test_point_6_a_key_that_is_there_twice_is_found(local: LocalCatalog, world: KeyedWorld) -> None:
    """Somebody else appends a row whose key is there, and nobody asks him for his key."""
    row = dict.fromkeys(COLUMNS) | {"id": 5, "name": ""}
    table = world.loaded()
    kind = schema_to_pyarrow(table.schema(), include_field_ids=False)
    table.append(pa.Table.from_pylist([row], kind))
    report = judged(local)
    (found,) = report.findings
    assert (found.what, found.evidence) == ("key-twice", "9 live rows have 8 different keys")
    assert any("others changed the table" in told for told in report.unproven)


def test_point_6_a_delete_file_that_is_gone_is_found(
    local: LocalCatalog, world: KeyedWorld
) -> None:
    ((file,),) = world.delete_files().values()
    world.loaded().io.delete(file.file_path)
    assert "file-missing" in {found.what for found in judged(local).findings}
