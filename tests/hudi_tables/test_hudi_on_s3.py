"""Hudi tables on S3 where S3 differs from a disk, and each kind of commit once."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hudi_tables.world import KINDS, ROWS_PER_FILE, HudiOnS3World, rows
from support.object_store import BUCKET, ObjectStore
from support.store_proxy import StoreProxy

from headgate.control_protocol.errors import PutsUnconditional
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.tables.hudi.base_files import MARKERS, NOTED, instant_of_file
from headgate.tables.hudi.table_format import HudiFormat
from headgate.tables.hudi.write_client import HudiJava


@pytest.mark.parametrize("kind", ["keyed", "secondary", "keyed secondary table"])
def test_staged_rows_become_hudis_and_nothing_of_ours_stays(
    object_store: ObjectStore, spark: Any, lock: dict[str, str], kind: str
) -> None:
    world = HudiOnS3World(object_store, spark, lock, **KINDS[kind])
    table = world.open()
    view = table.read() if world.place.follows else claim_table(table)
    for number in (1, 2):
        said = record(1, number, 3 * number)
        if world.place.follows:
            said = replace(said, primary="uuid-of-the-lead")
        view = require_landed(commit(table, view, said, world.write_file(number)))
    assert world.visible_file_numbers() == [1, 2]
    by_spark = world.spark.read.format("hudi").load(world.place.base_path)
    assert by_spark.count() == 2 * ROWS_PER_FILE
    left = [name for name in world.keys(".hoodie/.aux/headgate/") if name.endswith(".parquet")]
    assert len(left) == int(world.place.follows), "the newest delivery's, which may be lost still"
    assert not world.keys(NOTED)


def test_no_commit_or_clustering_keeps_connections_to_the_store(
    object_store: ObjectStore, spark: Any, lock: dict[str, str]
) -> None:
    """Each looks up files in the metadata table, whose log blocks Hudi 1.2.0 leaves open."""
    before = connections(spark, object_store)
    world = HudiOnS3World(object_store, spark, lock, **KINDS["keyed"])
    table = world.open()
    view = claim_table(table)
    for number in (1, 2):
        view = require_landed(
            commit(table, view, record(1, number, 3 * number), world.write_file(number))
        )
    world.compact()
    assert world.visible_file_numbers() == [1, 2]
    assert connections(spark, object_store) <= before


def connections(spark: Any, store: ObjectStore) -> int:
    """Count the JVM's sockets to the store, as Linux lists them."""
    jvm = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}")
    mine = set()
    for descriptor in (jvm / "fd").iterdir():
        with suppress(FileNotFoundError):
            mine.add(str(descriptor.readlink()))
    tables = "".join((jvm / "net" / name).read_text() for name in ("tcp", "tcp6"))
    listed = [line.split() for line in tables.splitlines()]
    to_store = [each for each in listed if each[2].endswith(f":{store.port:04X}")]
    return sum(f"socket:[{each[9]}]" in mine for each in to_store)


def test_a_file_whose_upload_ends_behind_a_commit_is_removed_by_the_next(
    object_store: ObjectStore, spark: Any, lock: dict[str, str]
) -> None:
    """Its marker has gone with the commit: Hudi looks for it no more."""
    world = HudiOnS3World(object_store, spark, lock)
    table = world.open()
    view = claim_table(table)
    stamp = table.new_token()
    (good,) = world.write(rows(1), stamp)
    (late,) = world.write(rows(7), stamp)
    name = late.path.removeprefix(f"{world.place.location}/")
    folder = world.place.folder
    whole = folder.read(name)
    folder.remove_quietly([name])
    view = require_landed(commit(table, view, record(1, 1, 3), good))
    assert not world.keys(MARKERS)
    folder.put(name, whole)
    assert name in world.data_files()
    (next_one,) = world.write(rows(2), table.new_token())
    require_landed(commit(table, view, record(1, 2, 6), next_one))
    assert name not in world.data_files()
    assert len(world.data_files()) == 2
    assert not world.keys(NOTED)
    assert world.visible_file_numbers() == [1, 2]


def test_a_file_whose_upload_ends_behind_a_rollback_is_removed(
    object_store: ObjectStore, spark: Any, lock: dict[str, str]
) -> None:
    world = HudiOnS3World(object_store, spark, lock)
    table = world.open()
    view = claim_table(table)
    (late,) = world.write(rows(7), table.new_token())
    name = late.path.removeprefix(f"{world.place.location}/")
    whole = world.place.folder.read(name)
    again = world.open()
    view = claim_table(again, 2)
    java = HudiJava(world.place, world.place.read_config_ensuring_uuid().schema)
    assert not java.is_completed_on_active_timeline(
        java.load_meta_client(), instant_of_file(late.path)
    )
    world.place.folder.put(name, whole)
    for number in (1, 2):
        (file,) = world.write(rows(number), again.new_token())
        view = require_landed(commit(again, view, record(2, number, 3 * number), file))
    assert name not in world.data_files()
    assert world.visible_file_numbers() == [1, 2]


def test_hg157_a_store_that_overwrites_is_refused(
    object_store: ObjectStore, spark: Any, lock: dict[str, str]
) -> None:
    world = HudiOnS3World(object_store, spark, lock)
    world.place.folder.remove_quietly([".hoodie/.aux/headgate/uuid"])
    with StoreProxy(object_store.port) as proxy:
        proxy.dropped = {"if-none-match"}
        storage = {**world.wanted.storage, "s3.endpoint": proxy.uri}
        with pytest.raises(PutsUnconditional, match="overwrites what is there"):
            HudiFormat().file_schema(replace(world.wanted, storage=storage))
    written = object_store.keys()
    assert not [key for key in written if "trial" in key]
    assert HudiFormat().file_schema(world.wanted).uuid


def test_the_tables_beside_one_are_listed(
    object_store: ObjectStore, spark: Any, lock: dict[str, str]
) -> None:
    world = HudiOnS3World(object_store, spark, lock)
    assert list(HudiFormat().list_table_names(world.wanted)) == ["trips"]


NO_CLIENT = """
import sys
from headgate.tables.hudi.jvm import open_spark_context
from headgate.tables.hudi.s3_locations import hadoop_settings
from headgate.control_protocol.errors import HudiMissing
try:
    open_spark_context({"spark.jars": sys.argv[1]}, hadoop_settings("s3://lake/t", {}))
except HudiMissing as error:
    print(error.code, error.message, error.hint)
"""


def test_hg156_without_hadoops_client_of_s3_a_sink_says_what_is_missing(
    bundle: Path,
) -> None:
    run = [sys.executable, "-c", NO_CLIENT, str(bundle)]
    told = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert told.startswith("HG-156 Spark has no client of S3"), told
    assert "hadoop-aws" in told
    assert "Exception:" not in told.partition("\n")[2]


def test_secrets_are_not_among_what_a_jvm_is_started_with(
    object_store: ObjectStore, spark: Any, lock: dict[str, str]
) -> None:
    world = HudiOnS3World(object_store, spark, lock)
    secret = world.wanted.storage["s3.secret-access-key"]
    told = subprocess.check_output(["ps", "-eo", "args"], text=True)
    assert secret not in "".join(line for line in told.splitlines() if "java" in line)
    assert secret not in repr(spark.sparkContext.getConf().getAll())
    assert BUCKET in world.place.location
