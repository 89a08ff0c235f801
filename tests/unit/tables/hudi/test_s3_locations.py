"""A Hudi table on S3: spellings of addresses, and Hadoop's settings for the store."""

from __future__ import annotations

import pickle

import pytest

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.table_format import TableSpec
from headgate.tables.hudi.lock_check import BASE_PATH, PROVIDER, URL
from headgate.tables.hudi.s3_locations import (
    hadoop_settings,
    require_supported_location,
    to_hadoop_address,
)
from headgate.tables.hudi.table_format import HudiFormat
from headgate.tables.hudi.table_properties import HudiLocation

LOCK = {
    PROVIDER: "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider",
    URL: "zk1:2181",
    BASE_PATH: "/hudi",
}
STORE = {
    "s3.endpoint": "http://127.0.0.1:9000",
    "s3.region": "eu-central-1",
    "s3.access-key-id": "key",
    "s3.secret-access-key": "secret",
    "s3.request-timeout": "7",
}
SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
TEMPORARY = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"


def wanted(location: str = "s3://lake/trips", **storage: str) -> TableSpec:
    columns = Struct((Column("id", "long"),))
    return TableSpec("db.trips", location, columns=columns, properties=LOCK, storage=storage)


@pytest.mark.parametrize(
    "given", ["s3://lake/a/trips", "s3a://lake/a/trips/", "s3n://lake/a/trips"]
)
def test_a_table_on_s3_has_one_name_for_us_and_one_for_hadoop(given: str) -> None:
    place = HudiLocation.from_spec(wanted(given))
    assert place.location == "s3://lake/a/trips"
    assert place.base_path == "s3a://lake/a/trips"
    assert to_hadoop_address("file:///lake/trips/city=%2F") == "/lake/trips/city=%2F"


def test_keys_of_the_store_are_told_to_hadoop_once_they_are_in_the_sink_file() -> None:
    assert hadoop_settings("s3://lake/trips", STORE) == {
        "fs.s3a.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.endpoint.region": "eu-central-1",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": "key",
        "fs.s3a.secret.key": "secret",
        "fs.s3a.aws.credentials.provider": SIMPLE,
        "fs.s3a.connection.establish.timeout": "3000",
        "fs.s3a.connection.timeout": "7000",
    }
    more = {**STORE, "s3.session-token": "token", "s3.force-virtual-addressing": "true"}
    told = hadoop_settings("s3://lake/trips", more)
    assert told["fs.s3a.session.token"] == "token"
    assert told["fs.s3a.aws.credentials.provider"] == TEMPORARY
    assert told["fs.s3a.path.style.access"] == "false"
    assert hadoop_settings(require_supported_location("/lake/trips"), STORE) == {}


def test_without_keys_hadoop_looks_for_them_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    told = hadoop_settings("s3://lake/trips", {})
    assert not {key for key in told if "timeout" not in key}


def test_keys_of_a_store_are_taken_where_one_is_and_no_others() -> None:
    kind, spark = HudiFormat(), {"spark.jars": "hudi.jar"}
    kind.require_supported(wanted(**STORE, **spark))
    assert HudiLocation.from_spec(wanted(**STORE, **spark)).storage == STORE
    with pytest.raises(ConfigurationError, match=r"s3\.access-key-id"):
        kind.require_supported(wanted("/lake/trips", **STORE))
    with pytest.raises(ConfigurationError, match=r"s3\.role-arn"):
        kind.require_supported(wanted(**STORE, **{"s3.role-arn": "arn:aws:iam::1:role/r"}))


def test_the_writers_settings_travel_without_the_jvms() -> None:
    place = HudiLocation.from_spec(wanted(**STORE, **{"spark.jars": "hudi.jar"}))
    assert pickle.loads(pickle.dumps(place.storage)) == STORE
    assert "secret" not in str(place.spark)
