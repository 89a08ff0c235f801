"""``headgate check`` asks the object store itself, from here and from Spark's executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from integration.spark.cluster import standalone_cluster
from support.object_store import BUCKET, KEY, ObjectStore
from support.store_proxy import Answer, Request, StoreProxy, s3_error
from unit.operations.filled_table import sink_file_text

from headgate.config.load import load
from headgate.config.setting_types import Properties
from headgate.config.sink_sections import WriterKind
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.errors import MissingRights, Unreachable
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.operations.check.table import NotChecked, TableCheck
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing
from headgate.tables.storage import s3_file_io
from headgate.tables.storage.s3_file_io import KeptFiles

pytestmark = pytest.mark.integration

DENIED = s3_error(403, "AccessDenied")


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[StoreProxy]:
    with StoreProxy(object_store.port) as proxy:
        yield proxy


@pytest.fixture
def settings(tmp_path: Path, object_store: ObjectStore, proxy: StoreProxy) -> SinkSettings:
    """A sink whose table is on S3, in a folder of the test's own."""
    (tmp_path / "sink.toml").write_text(sink_file_text(tmp_path))
    settings = load(tmp_path / "sink.toml")
    warehouse = f"s3://{BUCKET}/{tmp_path.name}"
    own = {**settings.catalog.properties, **object_store.s3(proxy.uri), "warehouse": warehouse}
    settings = replace(settings, catalog=replace(settings.catalog, properties=Properties(own)))
    with load_catalog(settings.catalog.name, own) as catalog:
        columns = {"topic": "string", "partition": "int", "offset": "long"}
        create_table_if_missing(catalog, "db.trips", TableDeclaration(columns))
    proxy.pass_on()
    return settings


def asked(settings: SinkSettings) -> TableCheck:
    check = TableCheck(settings)
    check.check_table()
    return check


def test_the_store_is_written_read_and_left_as_it_was(
    settings: SinkSettings, object_store: ObjectStore, tmp_path: Path
) -> None:
    before = object_store.keys(tmp_path.name)
    said = asked(settings).check_storage()
    assert said.startswith(f"s3://{BUCKET}/{tmp_path.name}/db/trips/headgate-check-")
    assert said.endswith("was written, read and removed again")
    left = set(object_store.keys(tmp_path.name)) - set(before)
    assert not [key for key in left if "headgate-check" in key]


@pytest.mark.parametrize(
    ("methods", "operation", "done"),
    [("POST|PUT", "PutObject", "written"), ("DELETE", "DeleteObject", "removed")],
)
def test_what_the_store_refuses_is_named(
    settings: SinkSettings, proxy: StoreProxy, methods: str, operation: str, done: str
) -> None:
    check = asked(settings)
    proxy.refuse(methods, DENIED)
    with pytest.raises(MissingRights, match=f"cannot be {done}: the store refuses {operation}"):
        check.check_storage()


def test_wrong_keys_are_missing_rights_and_not_an_unreachable_catalog(
    settings: SinkSettings, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_file_io, "KEPT", KeptFiles())  # a process that has read nothing yet
    proxy.refuse(".*", s3_error(403, "SignatureDoesNotMatch"))
    with pytest.raises(MissingRights, match="GetObject is refused") as wrong:
        TableCheck(settings).check_table()
    assert wrong.value.code == "HG-103"


def test_a_table_to_be_made_is_tried_in_the_warehouse(
    settings: SinkSettings, proxy: StoreProxy
) -> None:
    check = TableCheck(settings)
    assert f"/{settings.catalog.properties['warehouse'].rpartition('/')[2]}/headgate-check-" in (
        check.check_storage()
    )
    proxy.refuse("POST|PUT", DENIED)
    with pytest.raises(MissingRights, match="PutObject"):
        check.check_storage()
    elsewhere = replace(
        settings, catalog=replace(settings.catalog, properties=Properties({"warehouse": "trips"}))
    )
    with pytest.raises(NotChecked, match="the catalog says when it makes one"):
        TableCheck(elsewhere).check_storage()


def test_the_store_of_the_quarantine_is_tried_as_well(
    settings: SinkSettings, proxy: StoreProxy
) -> None:
    policy = replace(settings.quarantine, policy=Disposal.QUARANTINE)
    keeping = replace(settings, quarantine=policy)
    with load_catalog(settings.catalog.name, settings.catalog.properties) as catalog:
        create_table_if_missing(catalog, "db.trips_quarantine", quarantine_declaration())
    answer = asked(keeping).check_quarantine()
    assert "db/trips_quarantine/headgate-check-" in answer
    assert answer.endswith("was written, read and removed again")
    proxy.refuse("POST|PUT", DENIED)
    with pytest.raises(MissingRights, match="PutObject"):
        asked(keeping).check_quarantine()


def test_a_bucket_that_is_not_there(settings: SinkSettings) -> None:
    table = replace(settings.table, location="s3://absent-bucket/trips")
    with pytest.raises(Unreachable, match=r"NoSuchBucket"):
        TableCheck(replace(settings, table=table)).check_storage()


@pytest.mark.wide
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # py4j's sockets
def test_executors_that_know_no_keys_are_told_before_the_first_batch(
    settings: SinkSettings, proxy: StoreProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    shown = {k: v for k, v in settings.catalog.properties.items() if "access-key" not in k}
    with standalone_cluster(tmp_path, workers=1) as master:
        spark = replace(settings.spark, writer=WriterKind.SPARK, master=master, parallelism=1)
        catalog = replace(settings.catalog, properties=Properties(shown))
        without = replace(settings, spark=spark, catalog=catalog)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

        def signed_by_us(request: Request) -> Answer | None:
            signed = f"Credential={KEY}/" in request.headers.get("authorization", "")
            return None if signed else DENIED

        proxy.judge = signed_by_us
        check = asked(without)
        assert "was written, read and removed" in check.check_storage()
        with pytest.raises(MissingRights, match=r"on executor .* the store refuses") as refused:
            check.check_executors()
        assert "spark.executorEnv" in refused.value.hint
