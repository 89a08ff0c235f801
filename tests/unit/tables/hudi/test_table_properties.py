"""What a Hudi table's properties say of it, and which tables and settings are refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from headgate.control_protocol.columns import Column, ListOf, MapOf, Struct
from headgate.control_protocol.errors import (
    ConfigurationError,
    HudiUnsafe,
    MissingRights,
    TableMissing,
    TableUnfit,
    Unreachable,
)
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.table_format import RowKey, TableSpec
from headgate.control_protocol.testing.contract.world import record
from headgate.tables.hudi import reader
from headgate.tables.hudi.append_table import HudiSinkTable
from headgate.tables.hudi.columns import avro_schema_of, columns_of, find_changed_column
from headgate.tables.hudi.lock_check import BASE_PATH, PROVIDER, URL
from headgate.tables.hudi.reserved_instants import Reservations, StoredCommit
from headgate.tables.hudi.table_format import HudiFormat
from headgate.tables.hudi.table_properties import AUX, HudiLocation, parse_properties
from headgate.tables.hudi.write_configuration import KEY, build_safe_writer_settings

COLUMNS = Struct(
    (
        Column("id", "long"),
        Column("city", "string", required=False),
        Column("fare", "decimal(9, 2)", required=False),
        Column("at", "timestamptz", required=False),
        Column("day", "date", required=False),
        Column("local", "timestamp", required=False),
        Column("raw", "binary", required=False),
    )
)
HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
LOCK = {
    PROVIDER: "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider",
    URL: "zk1:2181",
    BASE_PATH: "/hudi",
}


def wanted(folder: Path, **more: object) -> TableSpec:
    given = {"create": True, "columns": COLUMNS, "properties": LOCK, **more}
    return TableSpec("db.trips", str(folder), **given)  # type: ignore[arg-type]


def table(folder: Path, **properties: str) -> HudiLocation:
    (folder / ".hoodie").mkdir()
    escaped = avro_schema_of("trips", COLUMNS, {}).replace(":", "\\:").replace("=", "\\=")
    told = {
        "hoodie.table.name": "trips",
        "hoodie.table.version": "9",
        "hoodie.table.timeline.timezone": "UTC",
        "hoodie.table.create.schema": escaped,
    }
    told |= {key.replace("__", "."): value for key, value in properties.items()}
    text = "#Updated at 2026\n" + "".join(f"{key}={value}\n" for key, value in told.items())
    (folder / ".hoodie" / "hoodie.properties").write_text(text)
    return HudiLocation.from_spec(wanted(folder))


def test_properties_are_read_as_java_writes_them() -> None:
    text = "#a comment\n!another\na.b=c\\:d\\=e\\\\f\nspace\\ in=\\u0141\nempty=\n"
    assert parse_properties(text) == {"a.b": "c:d=e\\f", "space in": "Ł", "empty": ""}


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("a.b = c d ", "a.b", "c d "),
        ("  a.b\t:\tc", "a.b", "c"),
        ("a.b c=d", "a.b", "c=d"),
        ("a.b==c", "a.b", "=c"),
        ("a\\ b\\\\ = c", "a b\\", "c"),
        ("a.b = c,\\\n    d", "a.b", "c,d"),
        ("a.b = c\\\\\\\nd", "a.b", "c\\d"),
        ("a.b", "a.b", ""),
    ],
)
def test_properties_that_somebody_has_edited_are_read_as_java_reads_them(
    line: str, key: str, value: str
) -> None:
    text = f"  # a = comment\n\nbefore=1\n{line}\nbehind=2\n"
    assert parse_properties(text) == {"before": "1", key: value, "behind": "2"}


@pytest.mark.parametrize("name", ["_hoodie_is_deleted", "_Hoodie_Operation"])
def test_columns_by_which_hudi_tells_rows_that_go_are_refused(tmp_path: Path, name: str) -> None:
    columns = Struct((*COLUMNS.fields, Column(name, "boolean", required=False)))
    with pytest.raises(ConfigurationError, match=name):
        avro_schema_of("trips", columns, {})
    form = json.loads(avro_schema_of("trips", COLUMNS, {}))
    form["fields"].append({"name": name, "type": "boolean"})
    place = table(tmp_path, hoodie__table__create__schema=json.dumps(form).replace(":", "\\:"))
    with pytest.raises(TableUnfit, match=name):
        place.read_config_ensuring_uuid()


def landed(number: int) -> StoredCommit:
    return StoredCommit(f"2026112412000000{number}", number, record(1, number))


def test_who_slept_behind_its_commit_does_not_take_a_later_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore to the earlier one would not be seen."""
    place = table(tmp_path)
    late, other = (Reservations(place, SinkName("sink")) for _ in range(2))
    put = late._folder.put

    def slept(name: str, data: bytes) -> None:
        other.store_landed_commit(landed(2))
        put(name, data)

    with monkeypatch.context() as patched:
        patched.setattr(late._folder, "put", slept)
        late.store_landed_commit(landed(1))
    assert late.read_stored_landed_commit() == other.read_stored_landed_commit() == landed(2)
    late.store_landed_commit(landed(1))
    assert late.read_stored_landed_commit() == landed(2)
    late.store_landed_commit(landed(3))
    assert other.read_stored_landed_commit() == landed(3)
    assert len(place.folder.files_below(f"{AUX}/sink/landed")) == 1


def test_who_reads_while_a_later_commit_is_kept_finds_the_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = table(tmp_path)
    reader, other = (Reservations(place, SinkName("sink")) for _ in range(2))
    other.store_landed_commit(landed(1))
    read = reader._folder.read

    def slept(name: str) -> bytes:
        if "1.json" in name:
            other.store_landed_commit(landed(2))
        return read(name)

    monkeypatch.setattr(reader._folder, "read", slept)
    assert reader.read_stored_landed_commit() == landed(2)


def test_a_commit_is_announced_until_it_is_kept_and_others_do_not_hide_it(tmp_path: Path) -> None:
    """Who has lost the lock announces its own, beside what was completed meanwhile."""
    place = table(tmp_path)
    kept = Reservations(place, SinkName("sink"))
    archived = {landed(n).instant: n for n in (1, 2)}
    for number in (1, 2, 3):
        kept.announce_commit(replace(landed(number), tag=0))
    assert kept.find_landed_commits(archived.get) == [landed(2), landed(1)]
    kept.store_landed_commit(landed(2))
    assert kept.find_landed_commits({}.get) == [landed(2)]
    assert kept.find_landed_commits(archived.get) == [landed(2), landed(1)]
    kept.forbid_completion(landed(1).instant)
    assert kept.find_landed_commits(archived.get) == [landed(2)]
    kept.forget_old_instants("20261124170000003")
    assert kept.read_announced_commits() == []


def test_a_commit_that_a_former_version_announced_is_found(tmp_path: Path) -> None:
    place = table(tmp_path)
    kept = Reservations(place, SinkName("sink"))
    kept._write_stored_commit(kept._formerly_coming, replace(landed(1), tag=0))
    assert kept.find_landed_commits({landed(1).instant: 1}.get) == [landed(1)]
    kept.store_landed_commit(landed(2))
    assert kept.read_announced_commits() == []


def test_who_reads_while_an_announced_commit_is_kept_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = table(tmp_path)
    reader, other = (Reservations(place, SinkName("sink")) for _ in range(2))
    other.announce_commit(replace(landed(1), tag=0))
    read = reader._folder.read

    def slept(name: str) -> bytes:
        other.store_landed_commit(landed(1))
        return read(name)

    monkeypatch.setattr(reader._folder, "read", slept)
    assert reader.find_landed_commits({}.get) == [landed(1)]


def test_what_a_former_version_kept_is_read_until_something_is_kept(tmp_path: Path) -> None:
    place = table(tmp_path)
    kept = Reservations(place, SinkName("sink"))
    kept.store_landed_commit(landed(1))
    written, formerly = f"{AUX}/sink/landed/1.json", f"{AUX}/sink/newest.json"
    place.folder.put(formerly, place.folder.read(written))
    place.folder.remove_quietly([written])
    assert kept.read_stored_landed_commit() == landed(1)
    kept.store_landed_commit(landed(2))
    assert kept.read_stored_landed_commit() == landed(2)
    with pytest.raises(FileNotFoundError):
        place.folder.read(formerly)


def test_columns_come_back_as_they_were_declared() -> None:
    assert columns_of("t", avro_schema_of("t", COLUMNS, {"city": "where"})) == COLUMNS


NESTED = Struct(
    (
        Column("at", Struct((Column("x", "long"), Column("fare", "decimal(9, 2)")))),
        Column("fare", "decimal(4, 1)"),
        Column("stops", ListOf(Column("", Struct((Column("when", "timestamptz"),)), False))),
        Column("more", MapOf("string", Column("", "binary", required=False)), required=False),
    )
)


def test_nested_columns_come_back_as_they_were_declared() -> None:
    assert columns_of("t", avro_schema_of("t", NESTED, {})) == NESTED


def test_no_two_types_of_a_schema_have_one_name() -> None:
    found: list[str] = []

    def look(form: object) -> None:
        if isinstance(form, list):
            for each in form:
                look(each)
        elif isinstance(form, dict):
            if form.get("type") in ("record", "fixed"):
                found.append(f"{form.get('namespace', 'hoodie')}.{form['name']}")
            for each in form.values():
                look(each)

    look(json.loads(avro_schema_of("at", NESTED, {})))
    assert len(found) == len(set(found)) == 5


def test_what_no_column_is_made_of_is_refused_by_name() -> None:
    keys = Struct((Column("at", MapOf("long", Column("", "string"))),))
    with pytest.raises(ConfigurationError, match="'at'"):
        avro_schema_of("t", keys, {})
    with pytest.raises(ConfigurationError, match=r"'at\.x'"):
        avro_schema_of("t", Struct((Column("at", Struct((Column("x", "uuid"),))),)), {})
    with pytest.raises(ConfigurationError, match=r"'at\.1st'"):
        avro_schema_of("t", Struct((Column("at", Struct((Column("1st", "long"),))),)), {})
    with pytest.raises(ConfigurationError, match="_hoodie_file_name"):
        avro_schema_of("t", Struct((Column("_hoodie_file_name", "string"),)), {})


def test_a_column_changed_inside_of_another_is_seen_and_nothing_that_may_be_missing() -> None:
    def told(kind: str, required: bool) -> Struct:
        inside = Struct((Column("x", kind, required),))
        return Struct((Column("at", ListOf(Column("", inside, required))),))

    assert (
        find_changed_column(told("long", True), avro_schema_of("t", told("long", False), {}))
        is None
    )
    assert (
        find_changed_column(told("long", True), avro_schema_of("t", told("int", True), {})) == "at"
    )


def test_a_secondary_is_written_as_its_primary_is_under_a_lock_of_its_own(
    tmp_path: Path,
) -> None:
    primary = {
        **LOCK,
        "hoodie.write.lock.zookeeper.lock_key": "trips",
        "hoodie.keep.max.commits": "9",
        "hoodie.index.type": "BLOOM",
        "hoodie.table.type": "MERGE_ON_READ",
        KEY: "id",
    }
    place = HudiLocation.from_spec(TableSpec("db.bad", str(tmp_path), primary=primary))
    assert place.settings["hoodie.write.lock.zookeeper.lock_key"] == "trips_bad"
    assert place.settings["hoodie.keep.max.commits"] == "9"
    assert place.settings["hoodie.write.lock.wait_time_ms"] == "5000"
    assert not {"hoodie.index.type", "hoodie.table.type", KEY} & place.settings.keys()
    assert place.participant_files_address == f"file://{tmp_path}/.hoodie/.aux/headgate/staged"


def test_rows_of_a_secondary_are_kept_as_its_own_properties_say(tmp_path: Path) -> None:
    lock_key = "hoodie.write.lock.zookeeper.lock_key"
    own = {**LOCK, lock_key: "trips", KEY: "id", "hoodie.index.type": "BLOOM"}
    place = HudiLocation.from_spec(TableSpec("db.a", str(tmp_path), properties=own, primary=own))
    assert place.settings[KEY] == "id"
    assert place.settings[lock_key] == "trips_a"
    assert "hoodie.index.type" not in place.settings
    key = RowKey(("id",), "at_partition", "at_offset")
    keyed = HudiLocation.from_spec(
        TableSpec("db.a", str(tmp_path), properties=own, primary=own, key=key)
    )
    assert keyed.settings["hoodie.index.type"] == "BLOOM"
    ledger = HudiLocation.from_spec(TableSpec("db.l", str(tmp_path), primary=own, ledger=True))
    assert (ledger.follows, KEY in ledger.settings) == (False, False)


def test_what_a_table_is_to_keep_of_ours_lies_beside_it(tmp_path: Path) -> None:
    place = table(tmp_path)
    assert place.file_schema().properties == {}
    place.store_own_properties({"headgate.raw-name": "Shop.Orders", PROVIDER: "any"})
    assert place.file_schema().properties == {"headgate.raw-name": "Shop.Orders"}


def test_partitions_of_a_secondary_are_those_of_its_staged_files(tmp_path: Path) -> None:
    hive = {HIVE_STYLE: "true", "hoodie.datasource.write.partitionpath.urlencode": "true"}
    told = {key.replace(".", "__"): value for key, value in hive.items()}
    table(tmp_path, hoodie__table__partition__fields="city", **told)
    place = HudiLocation.from_spec(wanted(tmp_path, primary=LOCK))
    layout = place.file_schema()
    assert (layout.partition_by, layout.marking) == (("city",), None)
    assert layout.location == place.participant_files_address


def test_a_table_has_one_identity_until_it_is_made_anew(tmp_path: Path) -> None:
    place = table(tmp_path)
    config = place.read_config_ensuring_uuid()
    assert place.read_config_ensuring_uuid() == config
    (tmp_path / AUX / "uuid").unlink()
    assert place.read_config_ensuring_uuid().uuid != config.uuid


def test_who_only_reads_a_table_that_no_sink_has_filled_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys may not allow it to write."""
    place, java = table(tmp_path), Mock()
    java.load_meta_client.side_effect = OSError("no Java")
    read_only = HudiSinkTable(place, SinkName("sink"), java=lambda *_: java)
    with pytest.raises(Unreachable, match="no Java"):
        read_only.read_without_storing_copy()
    monkeypatch.setattr(reader, "HudiJava", Mock())
    monkeypatch.setattr(reader, "open_table", Mock())
    assert reader.HudiReader(place, SinkName("sink")).columns()
    assert not (tmp_path / AUX).exists()
    with pytest.raises(Unreachable, match="no Java"):
        read_only.read()
    assert (tmp_path / AUX / "uuid").exists()


def test_a_store_that_refuses_to_keep_the_uuid_asks_for_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = table(tmp_path)
    refused = PermissionError("PutObject: Access Denied")
    monkeypatch.setattr(type(place.folder), "put_if_absent", Mock(side_effect=refused))
    with pytest.raises(MissingRights, match="PutObject"):
        place.read_config_ensuring_uuid()


def test_partitions_and_keys_are_taken_from_the_table(tmp_path: Path) -> None:
    place = table(
        tmp_path,
        hoodie__table__recordkey__fields="id",
        hoodie__table__partition__fields="city",
        hoodie__datasource__write__hive_style_partitioning="true",
        hoodie__datasource__write__partitionpath__urlencode="true",
        hoodie__table__keygenerator__type="SIMPLE",
    )
    marking = place.read_config_ensuring_uuid().marking
    assert (marking.key, marking.partition_by) == ("id", ("city",))
    assert (marking.hive_style, marking.url_encoded) == (True, True)
    assert place.file_schema().partition_by == ("city",)


def test_properties_that_are_being_written_are_read_from_those_before(
    tmp_path: Path,
) -> None:
    place = table(tmp_path)
    config = place.read_config_ensuring_uuid()
    now = tmp_path / ".hoodie" / "hoodie.properties"
    before = now.rename(now.with_name("hoodie.properties.backup"))
    assert place.read_config_ensuring_uuid() == config
    now.write_text(before.read_text()[:60])
    assert place.read_config_ensuring_uuid() == config


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"hoodie__table__version": "6"}, "version 6"),
        ({"hoodie__table__base__file__format": "ORC"}, "another format"),
        ({"hoodie__table__metadata__partitions": "files,bloom_filters"}, "Bloom"),
        ({"hoodie__populate__meta__fields": "false"}, "without Hudi's columns"),
        ({"hoodie__table__cdc__enabled": "true"}, "logs its changes"),
        ({"hoodie__datasource__write__drop__partition__columns": "true"}, "leaves partition"),
        ({"hoodie__table__recordkey__fields": "id,city"}, "record keys"),
        ({"hoodie__table__recordkey__fields": "fare"}, "fare"),
        ({"hoodie__table__recordkey__fields": "city"}, "city may be null"),
        ({"hoodie__table__partition__fields": "city"}, "as they are"),
        (
            {
                "hoodie__table__partition__fields": "city",
                "hoodie__datasource__write__hive_style_partitioning": "true",
            },
            "as they are",
        ),
        ({"hoodie__table__timeline__timezone": "LOCAL"}, "zone LOCAL"),
        ({"hoodie__table__partition__fields": "day"}, "day"),
        ({"hoodie__table__partition__fields": "city:SIMPLE"}, "partitions in a way"),
        (
            {
                "hoodie__table__recordkey__fields": "id",
                "hoodie__table__keygenerator__type": "COMPLEX",
            },
            "ComplexKeyGenerator",
        ),
    ],
)
def test_tables_that_appends_would_have_to_heed_are_refused(
    tmp_path: Path, properties: dict[str, str], why: str
) -> None:
    with pytest.raises(TableUnfit, match=why):
        table(tmp_path, **properties).read_config_ensuring_uuid()


def test_a_table_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(TableMissing):
        HudiLocation.from_spec(wanted(tmp_path)).read_config_ensuring_uuid()
    with pytest.raises(TableMissing):
        HudiFormat().create(wanted(tmp_path, create=False))


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {PROVIDER: "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"},
        {PROVIDER: "org.apache.hudi.client.transaction.lock.InProcessLockProvider"},
        {**LOCK, "hoodie.write.concurrency.mode": "SINGLE_WRITER"},
        {**LOCK, "hoodie.clean.failed.writes.policy": "EAGER"},
        {**LOCK, "hoodie.metadata.enable": "false"},
        {**LOCK, "hoodie.write.markers.type": "TIMELINE_SERVER_BASED"},
        {**LOCK, "hoodie.index.type": "bloom"},
        {**LOCK, "hoodie.table.timeline.timezone": "LOCAL"},
        {key: value for key, value in LOCK.items() if key != URL},
        {**LOCK, URL: " "},
        {key: value for key, value in LOCK.items() if key != BASE_PATH},
    ],
)
def test_settings_that_break_the_promise_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(HudiUnsafe):
        build_safe_writer_settings("trips", properties)


@pytest.mark.parametrize(
    ("key", "value", "keyed"),
    [
        ("hoodie.compact.inline", "true", None),
        ("hoodie.log.compaction.inline", "TRUE", None),
        ("hoodie.clustering.inline", "true", None),
        ("hoodie.datasource.clustering.inline.enable", "true", None),
        ("hoodie.compact.schedule.inline", "true", None),
        ("hoodie.clustering.schedule.inline", "true", None),
        ("hoodie.clustering.async.enabled", "true", None),
        ("hoodie.datasource.clustering.async.enable", "true", None),
        ("hoodie.datasource.compaction.async.enable", "true", None),
        ("hoodie.partition.ttl.inline", "true", None),
        ("hoodie.populate.meta.fields", "false", None),
        ("hoodie.write.table.version", "6", None),
        ("hoodie.base.file.format", "ORC", None),
        ("hoodie.table.base.file.format", "HFILE", None),
        ("hoodie.table.cdc.enabled", "true", None),
        ("hoodie.datasource.write.drop.partition.columns", "true", None),
        ("hoodie.base.path", "/lake/other", None),
        ("hoodie.metadata.index.bloom.filter.enable", "true", False),
        ("hoodie.record.merge.mode", "EVENT_TIME_ORDERING", True),
        ("hoodie.write.record.merge.mode", "CUSTOM", True),
        ("hoodie.table.ordering.fields", "at", True),
        ("hoodie.table.precombine.field", "at", True),
        ("hoodie.datasource.write.precombine.field", "at", True),
        ("hoodie.payload.ordering.field", "at", True),
        ("hoodie.datasource.write.payload.class", "a.Payload", True),
        ("hoodie.compaction.payload.class", "a.Payload", True),
        ("hoodie.write.record.merge.custom.implementation.classes", "a.Merger", True),
        ("hoodie.datasource.write.record.merger.impls", "a.Merger", True),
        ("hoodie.record.merge.strategy.id", "an-id", True),
        ("hoodie.table.partial.update.mode", "IGNORE_DEFAULTS", True),
    ],
)
def test_settings_that_work_against_commits_are_refused_by_name(
    key: str, value: str, keyed: bool | None
) -> None:
    """With ``keyed`` for tables with a key, or for those without alone."""
    for with_key in (False, True):
        if keyed is None or keyed == with_key:
            with pytest.raises(HudiUnsafe, match=rf"{re.escape(key)} = {value}, but "):
                build_safe_writer_settings("trips", {**LOCK, key: value}, keyed=with_key)
        else:
            build_safe_writer_settings("trips", {**LOCK, key: value}, keyed=with_key)


def test_settings_that_say_what_a_sink_does_anyway_are_passed_on() -> None:
    said = {
        "hoodie.compact.inline": "false",
        "hoodie.populate.meta.fields": "true",
        "hoodie.write.table.version": "8",
        "hoodie.table.base.file.format": "parquet",
        "hoodie.record.merge.mode": "commit_time_ordering",
    }
    settings = build_safe_writer_settings("trips", {**LOCK, **said}, keyed=True)
    assert {key: settings[key] for key in said} == said


def test_a_lock_that_hudi_names_after_the_table_s_place_needs_no_folder() -> None:
    provider = "org.apache.hudi.client.transaction.lock.ZookeeperBasedImplicitBasePathLockProvider"
    assert URL in build_safe_writer_settings("trips", {PROVIDER: provider, URL: "zk1"})
    with pytest.raises(HudiUnsafe, match=f"{URL} is not set"):
        build_safe_writer_settings("trips", {PROVIDER: provider})


def test_a_lock_s_server_that_is_no_address_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    for url in ("zk1:", "zk1:21a,zk2"):
        with pytest.raises(ConfigurationError, match="no host and port"):
            HudiFormat().require_supported(wanted(tmp_path / "t", properties={**LOCK, URL: url}))


def test_what_the_sink_file_says_of_hudi_is_passed_on() -> None:
    settings = build_safe_writer_settings("trips", {**LOCK, "hoodie.keep.min.commits": "30"})
    assert settings["hoodie.keep.min.commits"] == "30"
    assert settings["hoodie.write.concurrency.mode"] == "OPTIMISTIC_CONCURRENCY_CONTROL"


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"partition_by": ("at",)}, ConfigurationError),
        ({"partition_by": ("gone",)}, ConfigurationError),
        ({"properties": {**LOCK, "hoodie.table.type": "NEITHER"}}, HudiUnsafe),
        ({"properties": {**LOCK, "other": "x"}}, ConfigurationError),
        ({"storage": {"uri": "sqlite:///x"}}, ConfigurationError),
        ({"properties": {**LOCK, HIVE_STYLE: "false"}}, ConfigurationError),
        ({"properties": {**LOCK, KEY: "id,city"}}, ConfigurationError),
        ({"properties": {**LOCK, KEY: "gone"}}, ConfigurationError),
        ({"properties": {**LOCK, KEY: "at"}}, ConfigurationError),
        ({"properties": {**LOCK, KEY: "city"}}, ConfigurationError),
        ({"properties": {**LOCK, KEY: "id"}, "partition_by": ("id", "city")}, ConfigurationError),
    ],
)
def test_a_sink_file_is_refused_before_anything_is_made(
    tmp_path: Path, more: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        HudiFormat().require_supported(wanted(tmp_path / "t", **more))
    assert not [*tmp_path.iterdir()]


def test_a_required_column_may_be_the_record_key(tmp_path: Path) -> None:
    more = {"properties": {**LOCK, KEY: "id"}, "partition_by": ("city",)}
    HudiFormat().require_supported(wanted(tmp_path, storage={"spark.jars": "hudi.jar"}, **more))


@pytest.mark.parametrize(
    ("columns", "column"),
    [
        (COLUMNS, None),
        (Struct((*COLUMNS.fields, Column("more", "long"))), "more"),
        (Struct(COLUMNS.fields[:-1]), "raw"),
        (Struct((Column("id", "int"), *COLUMNS.fields[1:])), "id"),
        (Struct((Column("id", "long", required=False), *COLUMNS.fields[1:])), None),
    ],
)
def test_columns_that_somebody_changed_are_told(columns: Struct, column: str | None) -> None:
    assert find_changed_column(COLUMNS, avro_schema_of("t", columns, {})) == column


@pytest.mark.parametrize(
    "location",
    [
        *("", "/lake/*/trips", "/lake/../trips", "gs://lake/trips", "s3://lake", "s3://lake/"),
        *("s3://lake//trips", "s3://lake/*/trips", "s3://lake/../trips"),
    ],
)
def test_only_folders_of_this_machine_and_of_s3_are_filled(location: str) -> None:
    with pytest.raises(ConfigurationError, match=r"table\.location"):
        HudiFormat().require_supported(
            TableSpec("db.t", location, columns=COLUMNS, properties=LOCK)
        )


def test_properties_that_are_replaced_between_two_looks_are_no_missing_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = "hoodie.table.name=trips\n"
    looks = iter([None, None, whole, whole, None])
    monkeypatch.setattr(HudiLocation, "_read_text_or_none", lambda *_: next(looks))
    found = HudiLocation("db.trips", "file:///lake/trips")._read_properties()
    assert found == {"hoodie.table.name": "trips"}
