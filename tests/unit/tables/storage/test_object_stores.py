"""Refusals of stores are told by what their clients say; executors get what files take, no more."""

from __future__ import annotations

import pytest

from headgate.control_protocol.errors import MissingRights
from headgate.tables.iceberg.catalog import translate_catalog_error
from headgate.tables.storage.object_stores import (
    file_io_properties,
    has_long_lived_credentials,
    refused_operation_of,
)

DURING = "during HeadObject operation: No response body."


class ClientError(Exception):
    """As botocore's."""


@pytest.mark.parametrize(
    ("error", "operation"),
    [
        (OSError(f"When getting information: AWS Error ACCESS_DENIED {DURING}"), "HeadObject"),
        (OSError(f"AWS Error UNKNOWN (HTTP status 403) {DURING}"), "HeadObject"),
        (OSError("AWS Error SIGNATURE_DOES_NOT_MATCH during PutObject operation: x"), "PutObject"),
        (OSError("AWS Error INVALID_ACCESS_KEY_ID during DeleteObject operation"), "DeleteObject"),
        (
            OSError(
                "AWS Error UNKNOWN (HTTP status 400) during CreateMultipartUpload operation: "
                "Unable to parse ExceptionName: ExpiredToken Message: said"
            ),
            "CreateMultipartUpload",
        ),
        (
            ClientError(
                "An error occurred (AccessDeniedException) when calling the GetTable operation: no"
            ),
            "GetTable",
        ),
        (PermissionError(13, "Permission denied"), "access"),
        (OSError("google::cloud::Status(PERMISSION_DENIED: no)"), "access"),
    ],
)
def test_a_refusal_is_told_with_its_operation(error: Exception, operation: str) -> None:
    assert refused_operation_of(error) == operation
    failure = translate_catalog_error(error, "table t cannot be read")
    assert type(failure) is MissingRights
    assert operation in failure.message


@pytest.mark.parametrize(
    "error",
    [
        OSError(f"AWS Error UNKNOWN (HTTP status 503) {DURING}"),
        OSError(f"AWS Error NETWORK_CONNECTION {DURING} curlCode: 28, Timeout was reached"),
        OSError(28, "No space left on device"),
        ClientError("An error occurred (ThrottlingException) when calling the GetTable operation"),
        ValueError("access denied, says a record"),
    ],
)
def test_what_is_no_refusal(error: Exception) -> None:
    assert refused_operation_of(error) is None


def test_the_cause_of_an_error_counts() -> None:
    error = RuntimeError("it failed")
    error.__cause__ = PermissionError(13, "Permission denied")
    assert refused_operation_of(error) == "access"


def test_executors_get_what_files_take_and_nothing_of_the_catalog() -> None:
    manager = object()
    properties = {
        "uri": "postgresql://user:password@host/db",
        "credential": "client:secret",
        "token": "secret",
        "glue.secret-access-key": "secret",
        "header.X-Secret": "secret",
        "auth.manager": manager,
        "s3.endpoint": "http://store",
        "s3.session-token": "for files",
        "s3.signer.uri": "http://catalog",
        "gcs.oauth2.token": "for files",
        "adls.sas-token.account": "for files",
        "client.region": "eu",
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        "warehouse": "s3://lake",
    }
    assert set(file_io_properties(properties)) == {
        *("s3.endpoint", "s3.session-token", "gcs.oauth2.token", "adls.sas-token.account"),
        *("client.region", "py-io-impl"),
    }


@pytest.mark.parametrize(
    ("location", "kept"),
    [
        ("s3://lake/t", {"s3.secret-access-key", "client.region"}),
        ("s3a://lake/t", {"s3.secret-access-key", "client.region"}),
        ("gs://lake/t", {"gcs.oauth2.token"}),
        ("abfss://lake@there/t", {"adls.account-key"}),
        ("hdfs://there/t", {"hdfs.user"}),
        ("file:///lake/t", set()),
        ("/lake/t", set()),
        ("new://lake/t", {*("s3.secret-access-key", "client.region", "gcs.oauth2.token")}),
    ],
)
def test_the_keys_of_other_stores_stay_behind(location: str, kept: set[str]) -> None:
    names = ("s3.secret-access-key", "client.secret-access-key", "client.region", "hdfs.user")
    properties = dict.fromkeys((*names, "gcs.oauth2.token", "adls.account-key", "uri"), "secret")
    expected = kept if "new" not in location else kept | {"adls.account-key", "hdfs.user"}
    assert set(file_io_properties(properties, location)) == expected
    own = {**properties, "py-io-impl": "somebody.s.Files"}
    assert set(file_io_properties(own, location)) == set(file_io_properties(own)), (
        "their client may need any of them"
    )


@pytest.mark.parametrize(
    ("properties", "long_lived"),
    [
        ({"s3.access-key-id": "k", "s3.secret-access-key": "s"}, True),
        ({"client.secret-access-key": "s"}, True),
        ({"s3.secret-access-key": "s", "s3.session-token": "t"}, False),
        ({"adls.account-name": "a", "adls.account-key": "k"}, True),
        ({"adls.sas-token.lake": "t"}, False),
        ({"s3.region": "eu-central-1"}, False),
    ],
)
def test_keys_that_stay_valid_are_told_from_temporary_ones(
    properties: dict[str, str], long_lived: bool
) -> None:
    assert has_long_lived_credentials(properties) is long_lived
