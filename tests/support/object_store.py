"""S3 and Glue on this machine, in memory: moto's server, with what real Glue does and moto omits.

``python -m object_store`` is the server: it says its port, and ends with its standard input.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

BUCKET = "lake"
KEY, SECRET, REGION = "test-key", "test-secret", "us-east-1"


class ObjectStore:
    """A server of one's own with one bucket. Its clients are given the properties below."""

    def __enter__(self) -> Self:
        pytest.importorskip("moto.server")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "support.object_store"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[1],
            env={**os.environ, "S3_UPLOAD_PART_MIN_SIZE": "1"},  # S3 asks for 5 MiB
        )
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())
        self.client("s3").create_bucket(Bucket=BUCKET)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @cache  # noqa: B019 - there is one of these in a run
    def client(self, service: str) -> Any:
        """A client of boto3's."""
        import boto3

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name=REGION,
        )

    def keys(self, prefix: str = "") -> list[str]:
        """The objects that are there."""
        pages = self.client("s3").get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=BUCKET, Prefix=prefix)
        return [entry["Key"] for page in found for entry in page.get("Contents", ())]

    def uploads(self, prefix: str = "") -> list[dict[str, Any]]:
        """Uploads that were begun, and neither completed nor ended."""
        listed = self.client("s3").list_multipart_uploads(Bucket=BUCKET).get("Uploads", ())
        return [upload for upload in listed if upload["Key"].startswith(prefix)]

    def end_uploads(self, prefix: str = "") -> None:
        """As a bucket's lifecycle does."""
        for upload in self.uploads(prefix):
            of = {"Bucket": BUCKET, "Key": upload["Key"], "UploadId": upload["UploadId"]}
            self.client("s3").abort_multipart_upload(**of)

    def s3(self, endpoint: str | None = None) -> dict[str, str]:
        """Properties of a catalog whose files lie here."""
        return {
            "warehouse": f"s3://{BUCKET}/warehouse",
            "s3.endpoint": endpoint or self.endpoint,
            "s3.region": REGION,
            "s3.access-key-id": KEY,
            "s3.secret-access-key": SECRET,
        }

    def glue(self, endpoint: str | None = None) -> dict[str, str]:
        """Properties of the Glue catalog here, with files on S3."""
        return {
            **self.s3(),
            "type": "glue",
            "glue.endpoint": endpoint or self.endpoint,
            "glue.region": REGION,
            "glue.access-key-id": KEY,
            "glue.secret-access-key": SECRET,
        }


def _as_strict_as_glue() -> None:
    """Let ``UpdateTable`` refuse a version that is not the newest, which moto takes."""
    from moto.core.exceptions import JsonRESTError
    from moto.glue.responses import GlueResponse

    one_at_a_time = threading.Lock()
    update = GlueResponse.update_table

    def update_table(self: Any) -> Any:
        with one_at_a_time:
            asked = self.parameters
            table = self.glue_backend.get_table(asked["DatabaseName"], asked["TableInput"]["Name"])
            newest = str(table.as_dict().get("VersionId"))
            if asked.get("VersionId") not in (None, newest):
                raise JsonRESTError(
                    "ConcurrentModificationException", f"the newest version is {newest}"
                )
            return update(self)

    GlueResponse.update_table = update_table


def _serve() -> None:
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    _as_strict_as_glue()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve()
