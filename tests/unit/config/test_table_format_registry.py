"""Which kinds of tables a sink file can name, and what is refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from repository.tree import ROOT
from support import able_folder, folder_kind

from headgate.config.configuration_fingerprint import settings_to_agree_on
from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_format_registry import (
    describe_weaker_guarantee,
    known_format_names,
    plugin_format,
    plugin_format_of_table,
    primary_table_spec,
    routed_spec_to_create,
    secondary_table_spec,
    spark_conf_for_format_commits,
    traits_of_format,
)
from headgate.config.table_settings import ColumnSettings, TableSettings
from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.errors import (
    ConfigurationError,
    GuaranteeTooWeak,
    HudiUnsafe,
    TableFormatLacks,
    TableFormatUnknown,
    TablesUnfit,
)
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, Landed
from headgate.control_protocol.table_format import Capability, Guarantee, RowKey
from headgate.control_protocol.testing import FakeCatalog, FakeSource, FakeTable, FakeTopics
from headgate.control_protocol.testing.contract.world import record
from headgate.data_plane.routing.routes import RAW_NAME_PROPERTY
from headgate.operations.access.tables import (
    open_primary,
    open_tables_for_reading,
)
from headgate.operations.status.status import read_status
from headgate.runtime.catalogs import spark_options
from headgate.runtime.process import is_stopped_by_operator
from headgate.runtime.sink_tables import SinkTables, open_tables_creating_nothing
from headgate.tables.hudi.table_format import HudiFormat
from headgate.tables.hudi.table_properties import HudiLocation

RECORD = record(1, 0, sink="trips")
BEGIN = """
name = "trips"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
"""
COLUMN = '[[table.columns]]\nname = "id"\ntype = "long"\n'


def sink(table: str, more: str = COLUMN) -> SinkSettings:
    return parse(f'{BEGIN}[table]\nidentifier = "city.trips"\n{table}\n{more}')


def delta(table: str = "", more: str = COLUMN) -> SinkSettings:
    return sink(f'type = "delta"\nlocation = "/lake/trips"\n{table}', more)


def hudi(table: str = "", more: str = COLUMN) -> SinkSettings:
    lock = "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
    given = (
        f'[table.properties]\n"hoodie.write.lock.provider" = "{lock}"\n'
        '"hoodie.write.lock.zookeeper.url" = "zk1"\n'
        '"hoodie.write.lock.zookeeper.base_path" = "/hudi"\n'
    )
    writer = "" if "[spark]" in more else '[spark]\nwriter = "in-process"\n'
    begin = f'type = "hudi"\nlocation = "/lake/trips"\n{table}'
    return sink(begin, f"{more}\n{given}{writer}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return folder_kind.install(tmp_path, monkeypatch)


def test_iceberg_is_what_a_file_means_that_names_no_kind() -> None:
    settings = sink("")
    assert plugin_format(settings) is None
    assert traits_of_format(settings).guarantee is Guarantee.EXACTLY_ONCE
    assert traits_of_format(settings).capabilities == frozenset(Capability)
    assert not settings_to_agree_on(settings)["table.type"]


def test_members_agree_on_the_kind() -> None:
    assert settings_to_agree_on(delta())["table.type"] == "delta"


def test_a_package_brings_a_kind_by_its_entry_point(folder: Any) -> None:
    assert known_format_names() == ["delta", "folder", "hudi", "iceberg"]
    settings = sink('type = "folder"\nlocation = "/lake/trips"\ncreate = true')
    assert type(plugin_format(settings)).__name__ == folder.FolderFormat.__name__


def test_hg150_a_kind_that_nobody_brings() -> None:
    with pytest.raises(TableFormatUnknown, match=r"table\.type cannot be 'dalta'") as told:
        sink('type = "dalta"')
    assert "did you mean delta" in told.value.hint


def test_hg152_less_than_exactly_once_has_to_be_accepted(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder.FolderFormat, "guarantee", Guarantee.AT_LEAST_ONCE)
    wanted = 'type = "folder"\nlocation = "/lake/trips"\ncreate = true\n'
    with pytest.raises(GuaranteeTooWeak, match="hold records at least once"):
        sink(wanted)
    settings = sink(f"{wanted}accept_duplicates = true")
    assert traits_of_format(settings).guarantee is Guarantee.AT_LEAST_ONCE


ON_DEV = 'type = "folder"\nlocation = "{}"\ncreate = true\nbranch = "dev"\n'


def test_a_kind_with_branches_commits_to_the_one_that_the_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, place = tmp_path / "package", tmp_path / "trips"
    package.mkdir()
    able_folder.install(package, monkeypatch)
    settings = sink(ON_DEV.format(place))
    kind = plugin_format(settings)
    assert kind
    kind.create(primary_table_spec(settings))
    with ExitStack() as opening, closing(SinkTables(settings, opening).open_primary()) as table:
        assert isinstance(table.commit(CommitAttempt(table.read(), RECORD)), Landed)
    with open_tables_for_reading(settings) as opened:
        reader = opened.reader
        assert reader.history().branch == "dev"
        assert [each.record for each in reader.history().commits] == [RECORD]
    assert kind.file_schema(primary_table_spec(settings)).uuid == reader.view().uuid
    assert [each.name for each in place.iterdir()] == ["log-dev"], "nothing is on main"


def test_hg151_branches_are_refused_to_a_kind_that_does_not_declare_them(
    folder: Any,
) -> None:
    with pytest.raises(TableFormatLacks, match=r"table\.branch: tables of format folder"):
        sink(ON_DEV.format("/lake/trips"))


@pytest.mark.parametrize(
    ("table", "more"),
    [
        ("", f"{COLUMN}[maintenance]\ncompact = true"),
        ('sort_by = ["id"]', COLUMN),
        ("", f'{COLUMN}[catalog]\nbackend = "java"\n[spark]\nmaster = "local[1]"'),
    ],
)
def test_hg151_whatever_a_kind_declares_icebergs_settings_are_icebergs_alone(
    folder: Any, monkeypatch: pytest.MonkeyPatch, table: str, more: str
) -> None:
    monkeypatch.setattr(folder.FolderFormat, "capabilities", frozenset(Capability))
    placed = 'type = "folder"\nlocation = "/lake/trips"\ncreate = true\n'
    with pytest.raises(TableFormatLacks, match="tables of format folder do not support that"):
        sink(f"{placed}{table}", more)


@pytest.mark.parametrize("declared", ["maintenance", "rollback", "atomic over tables"])
def test_hg151_a_kind_that_declares_what_no_port_carries(
    folder: Any, monkeypatch: pytest.MonkeyPatch, declared: str
) -> None:
    able = frozenset({Capability.KEYS, declared})
    monkeypatch.setattr(folder.FolderFormat, "capabilities", able)
    with pytest.raises(
        TableFormatLacks, match=f"format folder declare {declared}, for which there is no"
    ):
        sink('type = "folder"\nlocation = "/lake/trips"\ncreate = true')


KEYED = """
[[table.columns]]
name = "id"
type = "long"
required = true
[table.record_columns]
partition = "at_partition"
offset = "at_offset"
"""


def test_a_kind_that_takes_key_files_is_told_the_key(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = 'type = "folder"\nlocation = "/lake/trips"\ncreate = true\nkey = ["id"]'
    with pytest.raises(TableFormatLacks, match=r"table\.key: tables of format folder"):
        sink(wanted, KEYED)
    monkeypatch.setattr(folder.FolderFormat, "capabilities", frozenset({Capability.KEYS}))
    told = primary_table_spec(sink(wanted, KEYED))
    assert told.key == RowKey(("id",), "at_partition", "at_offset")
    with pytest.raises(
        TableFormatLacks, match=r'on_partitions_added = "wait": tables of format folder'
    ):
        sink(wanted, f'{KEYED}[changes]\non_partitions_added = "wait"')
    assert primary_table_spec(delta()).key is None


MANY = """
name = "shop"
[source]
topics = ["shop.orders"]
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
[spark]
writer = "in-process"
[[tables.route]]
topic = "^shop\\\\.(?P<n>.+)$"
to = "db.{n}"
[tables]
type = "TYPE"
ledger = "db.ledger"
"""
REFRESHED = "valid_through_refresh_ms = 3600000\n"
UUIDS = 'columns = [{ name = "id", type = "uuid" }]'
PLACED = '[tables.create]\nlocation = "/lake/{namespace}/{table}"\n'


def many(said: str, kind: str = "delta") -> SinkSettings:
    return parse(MANY.replace("TYPE", kind) + said)


def test_ledger_quarantine_and_tables_are_found_by_their_names() -> None:
    settings = many(f"{REFRESHED}{PLACED}")
    assert primary_table_spec(settings).location == "/lake/db/ledger"
    assert (
        secondary_table_spec(settings, "db.ledger_quarantine").location
        == "/lake/db/ledger_quarantine"
    )
    routed = secondary_table_spec(settings, "db.orders")
    assert (routed.location, routed.create) == ("/lake/db/orders", False)
    assert settings_to_agree_on(settings)["table.type"] == "delta"
    said = many(f'{REFRESHED}{PLACED}[quarantine]\nlocation = "/lake/db/ledger_quarantine"')
    assert said.quarantine.location == "/lake/db/ledger_quarantine"
    apart = many(f'{REFRESHED}{PLACED}[quarantine]\nlocation = "/aside/bad"')
    assert secondary_table_spec(apart, "db.ledger_quarantine").location == "/aside/bad"


KEEPS = '[quarantine]\npolicy = "quarantine"\n'
APART = f"""{KEEPS}type = "iceberg"
[quarantine.catalog.properties]
type = "rest"
uri = "http://catalog"
"s3.secret-access-key" = "aside-secret"
"""


def test_lead_and_quarantine_have_each_their_own_kind_and_catalog() -> None:
    settings = delta(more=COLUMN + APART)
    primary, aside = "city.trips", "city.trips_quarantine"
    assert settings.has_quarantine_of_other_format
    assert (settings.table_type_of(primary), settings.table_type_of(aside)) == ("delta", "iceberg")
    assert settings.quarantine.catalog.properties["uri"] == "http://catalog"
    assert not settings.catalog.properties
    assert plugin_format_of_table(settings, primary) is not None
    assert plugin_format_of_table(settings, aside) is None
    assert settings.redaction("aside-secret") == "***"
    assert settings_to_agree_on(settings)["quarantine.type"] == "iceberg"


@pytest.mark.parametrize("said", ["", 'type = "delta"\n'])
def test_a_quarantine_is_of_the_tables_kind_where_nothing_else_is_said(said: str) -> None:
    settings = delta(more=f"{COLUMN}{KEEPS}{said}")
    assert not settings.has_quarantine_of_other_format
    assert settings.table_type_of("city.trips_quarantine") == "delta"
    assert settings_to_agree_on(settings) == settings_to_agree_on(delta(more=COLUMN + KEEPS))


@pytest.mark.parametrize(
    ("made", "said", "error", "why"),
    [
        (delta, 'type = "icberg"', TableFormatUnknown, "quarantine.type cannot be 'icberg'"),
        (delta, 'type = "hudi"', TableFormatLacks, "format delta has no quarantine of format hudi"),
        (
            sink,
            'type = "delta"',
            TableFormatLacks,
            "format iceberg has no quarantine of format delta",
        ),
        (
            delta,
            'catalog.properties = { uri = "x" }',
            ConfigurationError,
            "quarantine.catalog is set",
        ),
        (
            sink,
            'type = "iceberg"\ncatalog.name = "other"',
            ConfigurationError,
            "quarantine.catalog is set",
        ),
        (
            delta,
            'type = "iceberg"\nlocation = "/lake/trips/"',
            ConfigurationError,
            "quarantine.location is table.location",
        ),
        (
            delta,
            'type = "iceberg"\ncatalog.backend = "java"',
            TableFormatLacks,
            "no catalog in Java",
        ),
    ],
)
def test_what_a_quarantine_cannot_be(
    made: Callable[..., SinkSettings], said: str, error: type[ConfigurationError], why: str
) -> None:
    more = f"{COLUMN}{KEEPS}{said}\n"
    with pytest.raises(error, match=why):
        made("", more)


def test_a_kind_without_a_quarantine_of_its_own_may_have_an_iceberg_one(
    folder: Any,
) -> None:
    placed = 'type = "folder"\nlocation = "/lake/trips"\ncreate = true\naccept_duplicates = true\n'
    with pytest.raises(TableFormatLacks, match="a quarantine: tables of format folder"):
        sink(placed, COLUMN + KEEPS)
    assert sink(placed, COLUMN + APART).has_quarantine_of_other_format


def test_many_tables_and_their_quarantine_may_be_in_other_namespaces() -> None:
    placed = f"{REFRESHED}{PLACED}".replace("{namespace}/", "")
    named = APART.replace('type = "iceberg"', 'table = "other.bad"\ntype = "iceberg"')
    settings = many(f"{placed}{named}")
    assert settings.table_type_of("other.bad") == "iceberg"
    assert settings.table_type_of("db.orders") == "delta"


def test_what_records_show_stands_before_declared_columns_of_a_table_that_is_made() -> None:
    shown = Struct((Column("id", "string", required=False), Column("more", "long", required=False)))
    table = TableSettings(identifier="db.orders", columns=(ColumnSettings(name="ID", type="long"),))
    wanted = routed_spec_to_create(many(f"{REFRESHED}{PLACED}"), table, "shop.orders", shown)
    assert [(c.name, c.type) for c in wanted.columns.fields] == [("more", "long"), ("ID", "long")]
    assert wanted.properties == {RAW_NAME_PROPERTY: "shop.orders"}


@pytest.mark.parametrize(
    ("said", "error", "why"),
    [
        (REFRESHED, TablesUnfit, "does not end with"),
        (
            f'{REFRESHED}[tables.create]\nlocation = "/lake/{{table}}/t"',
            TablesUnfit,
            "does not end",
        ),
        (
            f'{REFRESHED}[tables.create]\nlocation = "/lake/{{namespace}}/{{table}}/{{table}}"',
            TablesUnfit,
            "or has it twice",
        ),
        (
            f'{REFRESHED}{PLACED}[quarantine]\ntable = "other.orders"'.replace("{namespace}/", ""),
            TablesUnfit,
            "the same for several tables",
        ),
        (
            f'{REFRESHED}{PLACED}[quarantine]\nlocation = "/lake/db/orders/"',
            TablesUnfit,
            "may be that of a table",
        ),
        (PLACED, ConfigurationError, "could be gone from the table's log"),
        (
            f'{REFRESHED}{PLACED}[[tables.table]]\nmatch = "db.a"\nlocation = "/elsewhere"',
            TablesUnfit,
            "location is set",
        ),
        (f"atomic = true\n{REFRESHED}{PLACED}", TableFormatLacks, "tables.atomic"),
        (
            f'{REFRESHED}{PLACED}[tables.schema]\nunknown_fields = "evolve"',
            TableFormatLacks,
            "unknown_fields",
        ),
        (
            f'{REFRESHED}{PLACED}schema = "declared"\n[[tables.table]]\nmatch = "db.a"\n{UUIDS}',
            ConfigurationError,
            "Delta has no type for uuid",
        ),
    ],
)
def test_what_many_delta_tables_cannot_be(said: str, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        many(said)


def test_a_kind_is_shown_the_namespace_of_each_route(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    able = frozenset({Capability.SECONDARY_TABLES, Capability.MANY_TABLES})
    monkeypatch.setattr(folder.FolderFormat, "capabilities", able)
    monkeypatch.setattr(
        folder.FolderFormat, "require_supported", lambda _, wanted: asked.append(wanted.name)
    )
    more = '[[tables.route]]\ntopic = "events"\nto = "two.parts.{topic}"\n'
    many(f"{REFRESHED}{PLACED}{more}", "folder")
    assert asked[:2] == ["db.table", "two.parts.table"]


def test_hg151_a_kind_that_cannot_fill_many_tables(folder: Any) -> None:
    with pytest.raises(TableFormatLacks, match=r"\[tables\]: tables of format"):
        many(f"{REFRESHED}{PLACED}", "folder")


LOCKED = (
    'properties = { "hoodie.write.lock.provider" = '
    '"org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider", '
    '"hoodie.write.lock.zookeeper.url" = "zk1", "hoodie.write.lock.zookeeper.base_path" = "/hudi", '
    '"hoodie.write.lock.zookeeper.lock_key" = "shop", "hoodie.table.type" = "MERGE_ON_READ" }\n'
)


def test_all_of_many_hudi_tables_are_written_as_the_file_says_of_new_ones() -> None:
    settings = many(f"{PLACED}{LOCKED}", "hudi")
    asked = {
        "ledger": primary_table_spec(settings),
        "orders": secondary_table_spec(settings, "db.orders"),
        "ledger_quarantine": secondary_table_spec(settings, "db.ledger_quarantine"),
    }
    for name, wanted in asked.items():
        place = HudiLocation.from_spec(wanted)
        assert place.settings["hoodie.write.lock.zookeeper.lock_key"] == f"shop_{name}"
        assert ("hoodie.table.type" in place.settings) == (name == "orders")
        assert place.follows == (name != "ledger")


@pytest.mark.parametrize(
    ("said", "error", "why"),
    [
        (PLACED, HudiUnsafe, "hoodie.write.lock.provider is not set"),
        (
            f"{PLACED}{LOCKED.replace('hoodie.table.type', 'delta.type')}",
            ConfigurationError,
            r"tables\.create\.properties\.delta\.type is set",
        ),
        (
            f"{PLACED}{LOCKED.replace('zookeeper.url', 'zookeeper.port')}",
            HudiUnsafe,
            r"hoodie\.write\.lock\.zookeeper\.url is not set",
        ),
        (f"atomic = true\n{PLACED}{LOCKED}", TableFormatLacks, "tables.atomic"),
        (f'{PLACED}{LOCKED}sort_by = ["id"]', TableFormatLacks, r"tables\.create\.sort_by"),
        (
            f'{PLACED}{LOCKED}[tables.schema]\nunknown_fields = "evolve"',
            TableFormatLacks,
            "unknown_fields",
        ),
        (
            f'{PLACED}{LOCKED}schema = "declared"\n[[tables.table]]\nmatch = "db.a"\n{UUIDS}',
            ConfigurationError,
            "no column of a Hudi table is made of uuid",
        ),
    ],
)
def test_what_many_hudi_tables_cannot_be(said: str, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        many(said, "hudi")


@pytest.mark.parametrize("kind", ["delta", "hudi", "folder"])
def test_hg135_a_sink_of_many_tables_has_no_other(folder: Any, kind: str) -> None:
    many = '[tables]\nledger = "db.l"\n[[tables.route]]\ntopic = "(?P<n>.+)"\nto = "db.{n}"'
    with pytest.raises(TablesUnfit, match=r"both table and tables\.ledger"):
        sink(f'type = "{kind}"\nlocation = "/lake/trips"', many)


@pytest.mark.parametrize(
    ("table", "more"),
    [
        ('key = ["id"]', KEYED),
        ('branch = "audit"', COLUMN),
        ('sort_by = ["id"]', COLUMN),
        ("", f'{COLUMN}[table.schema]\nunknown_fields = "evolve"'),
        ("", f'{COLUMN}[quarantine]\npolicy = "quarantine"\ndead_letter_topic = "dead"'),
        ("", f"{COLUMN}[maintenance]\ncompact = true"),
        ("", f"{COLUMN}[maintenance]\nexpire_after_ms = 86400000"),
        ("", f'{COLUMN}[catalog]\nbackend = "java"\n[spark]\nmaster = "local[1]"'),
    ],
)
def test_hg151_what_delta_has_not_is_refused_by_name(table: str, more: str) -> None:
    with pytest.raises(TableFormatLacks, match="tables of format delta do not support that"):
        delta(table, more)


@pytest.mark.parametrize(
    ("table", "more", "said"),
    [
        ('branch = "audit"', COLUMN, "format hudi do not support that"),
        ('sort_by = ["id"]', COLUMN, r"table\.sort_by: tables of format hudi"),
        (
            'key = ["id"]',
            f'{KEYED}[changes]\non_partitions_added = "wait"',
            '"wait": tables of format',
        ),
        (
            "",
            f'{COLUMN}[catalog]\nbackend = "java"\n[spark]\nmaster = "local[1]"',
            r"catalog\.backend: tables of format hudi",
        ),
        (
            "",
            f'{COLUMN}[table.schema]\nunknown_fields = "evolve"',
            "format hudi do not support that",
        ),
        (
            "",
            f'{COLUMN}[quarantine]\npolicy = "quarantine"\ndead_letter_topic = "dead"',
            "format hudi do not support that",
        ),
        ("", f"{COLUMN}[maintenance]\ncompact = true", "format hudi do not support that"),
        ("", f'{COLUMN}[spark]\nremote = "sc://127.0.0.1"', r"spark\.remote"),
    ],
)
def test_hg151_what_hudi_has_not_is_refused_by_name(table: str, more: str, said: str) -> None:
    with pytest.raises(TableFormatLacks, match=said):
        hudi(table, more)


JARS = '[catalog.properties]\n"spark.jars" = "/hudi.jar"\n"spark.master" = "local[1]"\n'


def test_one_session_writes_the_files_of_a_hudi_table_and_commits_them() -> None:
    settings = hudi(more=f'{COLUMN}{JARS}[spark]\nmaster = "local[4]"')
    options = spark_options(settings)
    assert options.master == "local[4]"
    assert options.conf["spark.jars"] == "/hudi.jar"
    assert options.conf["spark.serializer"].endswith("KryoSerializer")
    assert "spark.master" not in options.conf
    assert spark_conf_for_format_commits(hudi(more=f"{COLUMN}{JARS}")) is None
    assert spark_conf_for_format_commits(sink("")) is None


@pytest.mark.parametrize(
    "conf", ['"spark.jars" = "/other.jar"', '"spark.serializer" = "org.example.Serializer"']
)
def test_hg100_a_session_that_could_not_commit_is_refused(conf: str) -> None:
    more = f"{COLUMN}{JARS}[spark]\n[spark.conf]\n"
    hudi(more=f'{more}"spark.jars" = "/hudi.jar"')
    with pytest.raises(ConfigurationError, match=r"one session writes and commits"):
        hudi(more=f"{more}{conf}")


@pytest.mark.parametrize(
    ("table", "more", "said"),
    [
        ("", f'{COLUMN}[catalog.properties]\nuri = "sqlite:///x"', "uri is set, but a Delta"),
        ("", f"{COLUMN}[coordinator]\ntag_refresh_interval_ms = 172800000", "before it is renewed"),
        ("create = true\npartition_by = ['day(id)']", COLUMN, "not one of its columns"),
        ("create = true\npartition_by = ['id']", COLUMN, "by all of its columns"),
        ("create = true", COLUMN.replace("long", "uuid"), "Delta has no type for uuid"),
        ("create = true", COLUMN.replace("long", "lang"), "table.columns: "),
    ],
)
def test_what_a_delta_table_cannot_be(table: str, more: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        delta(table, more)


@pytest.mark.parametrize("location", ["", "trips", "abfs://lake/trips", "/lake/../trips"])
def test_a_delta_table_is_found_by_its_location(location: str) -> None:
    with pytest.raises(ConfigurationError, match=r"table\.location"):
        sink(f'type = "delta"\nlocation = "{location}"')


def test_hg151_commands_for_iceberg_alone_say_so() -> None:
    said = r"city\.trips is a table of format delta"
    with open_tables_creating_nothing(delta()) as tables:
        needed = (
            tables.require_catalog_format,
            tables.require_maintained_format,
            tables.require_rollback_format,
            tables.require_row_deletion_format,
        )
        for each in needed:
            with pytest.raises(TableFormatLacks, match=said):
                each()


def test_the_page_of_kinds_says_what_they_declare() -> None:
    page = (ROOT / "docs/table-formats/comparison.md").read_text()
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    said = {row[0]: row[1:] for row in rows if row}
    for column, settings in enumerate((sink(""), delta(), hudi())):
        traits = traits_of_format(settings)
        assert said[""][column] == settings.table.type
        assert said["promise"][column] == traits.guarantee
        able = {each for each in Capability if said[each.value][column].startswith("yes")}
        assert able == traits.capabilities


def test_a_weaker_promise_is_told_wherever_people_look(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = 'type = "folder"\nlocation = "/lake/trips"\ncreate = true\naccept_duplicates = true'
    assert describe_weaker_guarantee(sink(wanted)) is None
    monkeypatch.setattr(folder.FolderFormat, "guarantee", Guarantee.IDEMPOTENT)
    assert (
        describe_weaker_guarantee(sink(wanted))
        == "tables of format folder hold records exactly once by key"
    )
    monkeypatch.setattr(
        "headgate.operations.status.status._read_source_logs_or_note_failure", lambda *_, **__: {}
    )
    monkeypatch.setattr(
        "headgate.operations.status.status._read_control_tail_or_note_failure", lambda *_: []
    )
    monkeypatch.setattr(
        "headgate.operations.status.status.find_start_error_of_table", lambda _: None
    )
    assert describe_weaker_guarantee(sink(wanted)) in read_status(sink(wanted)).notes


@pytest.mark.parametrize("stamps", [True, False])
def test_what_a_table_stamps_its_files_with_reaches_the_coordinator(
    monkeypatch: pytest.MonkeyPatch, stamps: bool
) -> None:
    class Table(FakeTable):
        if stamps:

            def new_token(self) -> str:
                return "/lake/trips/*_7.parquet"

    table = Table(FakeCatalog(), SinkName("trips"))
    topics = FakeTopics(FakeSource(), ())
    monkeypatch.setattr(HudiFormat, "open", lambda *_: table)
    with ExitStack() as opening:
        found = SinkTables(hudi(), opening).open_coordinator_ports(hudi(), topics, opening)
    assert found.new_token() == ("/lake/trips/*_7.parquet" if stamps else "")
    assert found.table.read() == table.read()


def test_whoever_looks_at_a_table_of_a_kind_closes_it(
    folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = list[Any]()

    def close(table: Any) -> None:
        closed.append(table)

    monkeypatch.setattr(folder.FolderTable, "close", close)
    settings = sink(f'type = "folder"\nlocation = "{tmp_path}/trips"\ncreate = true')
    kind = plugin_format(settings)
    assert kind
    kind.create(primary_table_spec(settings))
    assert not is_stopped_by_operator(settings)
    assert len(closed) == 1
    with open_primary(settings) as primary:
        primary.read()
        assert len(closed) == 1
    assert len(closed) == 2
