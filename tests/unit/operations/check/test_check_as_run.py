"""``check`` refuses a table that is not there yet as a start does, by the same code."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from unit.operations.check.test_records import encoded
from unit.operations.check.test_records import settings as of_records

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import (
    CatalogRefused,
    ConfigurationError,
    HeadgateError,
    RecordsWouldStop,
    Unreachable,
    WriteFailed,
)
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.operations.check import table as state
from headgate.operations.check.check import (
    Questions,
    _check_http_and_telemetry,
    _check_spark_connect_server,
    _require_reachable_standalone_master,
)
from headgate.operations.check.records import check_envelopes_of_values
from headgate.operations.check.table import NotChecked, TableCheck
from headgate.tables.iceberg.catalog import load_catalog

FILE = """
name = "trips"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[spark]
writer = "in-process"
[catalog.properties]
type = "{type}"
uri = "sqlite:///{folder}/catalog.sqlite"
{warehouse}
[table]
identifier = "db.trips"
create = true
{table}
[[table.columns]]
name = "id"
type = "long"
{more}
"""


def settings(folder: Path, table: str = "", more: str = "", **said: str) -> SinkSettings:
    warehouse = said.get("warehouse", f'warehouse = "{folder.as_uri()}/warehouse"')
    kind = said.get("type", "sql")
    return parse(FILE.format(folder=folder, table=table, more=more, warehouse=warehouse, type=kind))


def asked(sink: SinkSettings) -> HeadgateError | None:
    """What ``check`` says of the catalog and of a table that is not there."""
    check = TableCheck(sink)
    try:
        check.check_catalog()
        check.check_table()
    except HeadgateError as error:
        return error
    return None


@pytest.mark.parametrize("known", [False, True], ids=["no catalog yet", "a catalog"])
@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('properties = { "write.parquet.compression-codec" = "zst" }', "zst"),
        ('properties = { "write.format.default" = "csv" }', "csv"),
        ("", ""),
    ],
)
def test_a_new_table_that_could_not_be_written_is_refused(
    tmp_path: Path, table: str, said: str, known: bool
) -> None:
    sink = settings(tmp_path, table)
    if known:
        load_catalog("default", sink.catalog.properties).close()
    error = asked(sink)
    if not said:
        assert error is None
        return
    assert isinstance(error, ConfigurationError)
    assert said in error.message


@pytest.mark.parametrize("warehouse", ["", 'warehouse = ""'])
def test_a_new_table_without_a_place_is_refused(tmp_path: Path, warehouse: str) -> None:
    error = asked(settings(tmp_path, warehouse=warehouse))
    assert isinstance(error, ConfigurationError)
    assert "nothing says where table db.trips would be created" in error.message
    assert asked(settings(tmp_path, f'location = "{tmp_path}/t"', warehouse=warehouse)) is None
    sink = settings(tmp_path, warehouse=warehouse)
    with load_catalog("default", sink.catalog.properties) as catalog:
        catalog.create_namespace("db", {"location": f"{tmp_path}/there"})
    assert asked(sink) is None


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("what", ["data", "metadata"])
def test_files_that_a_property_puts_elsewhere_are_tried_there(
    tmp_path: Path, exists: bool, what: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    sink = settings(tmp_path, f'properties = {{ "write.{what}.path" = "{elsewhere.as_uri()}" }}')
    if exists:
        with load_catalog("default", sink.catalog.properties) as catalog:
            catalog.create_namespace("db")
            schema = Schema(NestedField(1, "id", LongType()))
            catalog.create_table("db.trips", schema, properties=dict(sink.table.properties))
    check = TableCheck(sink)
    check.check_catalog()
    check.check_table()
    assert f"{elsewhere} may be written" in check.check_storage()
    shutil.rmtree(elsewhere, ignore_errors=True)
    elsewhere.write_text("no folder")
    with pytest.raises(HeadgateError, match="elsewhere"):
        check.check_storage()


def test_executors_are_asked_where_the_data_files_go(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    sink = settings(tmp_path, f'properties = {{ "write.data.path" = "{elsewhere.as_uri()}" }}')
    check = TableCheck(replace(sink, spark=replace(sink.spark, master="spark://127.0.0.1:1")))
    check.check_catalog()
    check.check_table()
    with pytest.raises(NotChecked, match=f"has the folder {elsewhere.as_uri()} is not asked"):
        check.check_executors()


def test_a_rest_catalog_in_a_database_is_refused(tmp_path: Path) -> None:
    error = asked(settings(tmp_path, type="rest"))
    assert isinstance(error, CatalogRefused)
    assert "does not answer at a sqlite address" in error.message


@pytest.mark.parametrize("made", ["folder", "text"])
def test_a_database_that_is_none_is_a_matter_of_configuration(tmp_path: Path, made: str) -> None:
    place = tmp_path / "catalog.sqlite"
    place.mkdir() if made == "folder" else place.write_text("no database at all, for sure")
    error = asked(settings(tmp_path))
    assert isinstance(error, ConfigurationError)
    assert error.exit_code == 2


def test_a_catalog_of_which_nothing_is_said_is_refused_in_our_words(tmp_path: Path) -> None:
    text = FILE.format(folder=tmp_path, table="", more="", warehouse="", type="sql")
    begin, end = text.index("[catalog.properties]"), text.index("[table]")
    error = asked(parse(text[:begin] + text[end:]))
    assert isinstance(error, ConfigurationError)
    assert "nothing says what it is" in error.message
    assert "[catalog.properties]" in error.hint


def test_a_certificate_that_is_not_there_is_refused(tmp_path: Path) -> None:
    more = '[http]\nlisten = "127.0.0.1:0"\ncertificate = "/no/c.pem"\nkey = "/no/k.pem"\n'
    with pytest.raises(ConfigurationError, match=r"http.certificate /no/c.pem"):
        _check_http_and_telemetry(settings(tmp_path, more=more))
    assert "without TLS" in _check_http_and_telemetry(
        settings(tmp_path, more='[http]\nlisten = "127.0.0.1:0"\n')
    )


@pytest.mark.parametrize(
    ("module", "extra"), [("uvicorn", "headgate[http]"), ("prometheus_client", "headgate[metrics]")]
)
def test_a_library_that_serving_needs_is_refused_by_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    monkeypatch.delitem(sys.modules, "headgate.operations.http.server", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=module) as caught:
        _check_http_and_telemetry(settings(tmp_path, more='[http]\nlisten = "127.0.0.1:0"\n'))
    assert extra in caught.value.hint


def test_a_fault_that_two_questions_meet_is_told_once(tmp_path: Path) -> None:
    questions = Questions(settings(tmp_path))

    def meet() -> str:
        raise ConfigurationError("the warehouse is no storage", "choose another")

    for what in ("table", "storage"):
        questions.ask(what, meet)
    assert [(each.detail, each.hint, each.exit_code) for each in questions.answers] == [
        ("the warehouse is no storage", "choose another", 2),
        ("the same as table", "", 2),
    ]


def test_a_spark_connect_server_that_does_not_answer_is_unreachable() -> None:
    with pytest.raises(Unreachable, match=r"nothing answers at 127.0.0.1:1"):
        _check_spark_connect_server("sc://127.0.0.1:1/;token=secret-token")


@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "spark://127.0.0.1:1,127.0.0.1:2"])
def test_a_master_of_spark_that_does_not_answer_is_unreachable(master: str) -> None:
    with pytest.raises(Unreachable, match=f"spark.master: nothing answers at {master}"):
        _require_reachable_standalone_master(master)
    for other in ("", "local[2]", "yarn", "k8s://https://127.0.0.1:1"):
        _require_reachable_standalone_master(other)


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = TableCheck(settings(tmp_path))
    assert "may be written" in check.check_storage()
    monkeypatch.setattr(state, "_ROOM_BYTES_MIN", 1 << 80)
    with pytest.raises(WriteFailed, match="bytes left"):
        check.check_storage()


@pytest.mark.parametrize(
    ("values", "lines", "hint"),
    [
        ([b"\x01\x02", b"{nor this"], "", "json reads none of them"),
        ([b'{"id": 1}', b"{nor this"], "", 'quarantine.policy = "quarantine"'),
        ([b'{"id": 1}', None], "", 'quarantine.tombstones = "skip"'),
        ([b"\x01\x02"], 'policy = "quarantine"', "json reads none of them"),
    ],
)
def test_records_at_which_a_start_would_stop_are_wrong(
    values: list[bytes | None], lines: str, hint: str
) -> None:
    sink = _with(of_records(keyed=False), lines)
    with pytest.raises(RecordsWouldStop) as caught:
        check_envelopes_of_values(sink, "shop", values)
    assert hint in caught.value.hint


def test_records_that_go_aside_are_no_fault() -> None:
    lines = 'policy = "quarantine"\ntombstones = "skip"'
    text = check_envelopes_of_values(
        _with(of_records(keyed=False), lines), "shop", [*encoded({"id": 1}), b"{", None]
    )
    assert "1 not to be read" in text


def _with(sink: SinkSettings, quarantine: str) -> SinkSettings:
    named = dict(line.split(" = ") for line in quarantine.splitlines())
    unset = {"policy": Disposal.FAIL, "tombstones": Disposal.FAIL}
    said = unset | {key: Disposal(value.strip('"')) for key, value in named.items()}
    return replace(sink, quarantine=replace(sink.quarantine, **said))
