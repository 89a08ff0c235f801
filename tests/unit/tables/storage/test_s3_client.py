"""Whose keys sign a request on S3, on a machine that has none of its own."""

from __future__ import annotations

import uuid

import pytest
from support.object_store import BUCKET, REGION, ObjectStore

from headgate.tables.storage.s3_client import Keys, Place, S3Store

ROLE = "arn:aws:iam::123456789012:role/lake"


@pytest.fixture(autouse=True)
def _machine_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_an_anonymous_request_needs_no_credentials(object_store: ObjectStore) -> None:
    key = str(uuid.uuid4())
    object_store.client("s3").put_object(
        Bucket=BUCKET, Key=key, Body=b"open to all", ACL="public-read"
    )
    place = Place(object_store.endpoint, REGION, anonymous=True)
    assert S3Store(place, Keys()).get(BUCKET, key) == b"open to all"


@pytest.mark.parametrize("keys", [Keys(), Keys(role=ROLE)])
def test_missing_credentials_are_named_with_a_role_or_without(keys: Keys) -> None:
    store = S3Store(Place("http://127.0.0.1:9", REGION), keys)
    with pytest.raises(OSError, match="unable to locate credentials for S3"):
        store.get(BUCKET, "key")
