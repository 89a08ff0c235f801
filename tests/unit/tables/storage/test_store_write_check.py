"""A store that does not answer, or whose client is missing, is named in time, with what to do."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.config.load import parse
from headgate.control_protocol.errors import ConfigurationError, HeadgateError, Unreachable
from headgate.runtime.start_checks import require_answering_store
from headgate.tables.storage.store_write_check import require_writable_store, translate_store_error

BRIEFLY_S = 0.3


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_google_s_client_that_goes_on_for_minutes_is_given_up(silent: str) -> None:
    with pytest.raises(Unreachable, match="cannot be written: the store: no answer") as caught:
        require_writable_store({"gcs.service.host": silent}, "gs://bucket/table", BRIEFLY_S)
    assert "gs://bucket/table/headgate-check-" in caught.value.message
    assert "GOOGLE_APPLICATION_CREDENTIALS" in caught.value.hint
    assert "gcs.service.host" in caught.value.hint


def test_a_store_of_s3_that_does_not_answer_is_given_up(silent: str) -> None:
    keys = {"s3.endpoint": silent, "s3.access-key-id": "a", "s3.secret-access-key": "b"}
    with pytest.raises(Unreachable, match="no answer within") as caught:
        require_writable_store({**keys, "s3.region": "us-east-1"}, "s3://bucket/table", BRIEFLY_S)
    assert caught.value.hint == "check endpoint, region and bucket"


@pytest.mark.parametrize(
    ("error", "location", "kind", "hint"),
    [
        (OSError("Unable to load libjvm"), "hdfs://n:1/t", ConfigurationError, "JAVA_HOME"),
        (
            OSError("Prior attempt to load libhdfs failed"),
            "hdfs://n:1/t",
            ConfigurationError,
            "CLASSPATH",
        ),
        (OSError("HDFS connection failed"), "hdfs://n:1/t", Unreachable, "name node"),
        (
            ModuleNotFoundError("No module named 'adlfs'"),
            "abfss://c@a/t",
            ConfigurationError,
            "headgate[adls]",
        ),
        (OSError("no such host"), "abfss://c@a/t", Unreachable, "adls.account-name"),
        (OSError("not reached"), "s3://b/t", Unreachable, "endpoint, region and bucket"),
    ],
)
def test_the_hint_is_about_the_store_that_was_asked(
    error: Exception, location: str, kind: type[HeadgateError], hint: str
) -> None:
    failure = translate_store_error(error, f"{location}/x cannot be written", location)
    assert type(failure) is kind
    assert failure.message.startswith(f"{location}/x cannot be written: ")
    assert hint in failure.hint


def test_a_missing_library_of_s3_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    for name in [name for name in sys.modules if name.startswith("headgate.tables.storage.s3_")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigurationError) as caught:
        require_writable_store({"s3.endpoint": "http://127.0.0.1:9"}, "s3://bucket/table")
    assert caught.value.hint == "pip install 'headgate[s3]'"


def test_a_start_at_a_silent_store_ends_before_a_table_is_created(
    tmp_path: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(require_writable_store, "__defaults__", (BRIEFLY_S,))
    settings = parse(f"""
        name = "rows"
        source = {{ topics = ["rows"] }}
        spark = {{ writer = "in-process" }}
        kafka = {{ "bootstrap.servers" = "127.0.0.1:1" }}
        [table]
        identifier = "db.rows"
        create = true
        columns = [{{ name = "id", type = "long" }}]
        [catalog.properties]
        type = "sql"
        uri = "sqlite:///{tmp_path}/catalog.sqlite"
        warehouse = "gs://bucket/warehouse"
        "gcs.service.host" = "{silent}"
    """)
    with pytest.raises(Unreachable, match="gs://bucket/warehouse/headgate-check-"):
        require_answering_store(settings)
