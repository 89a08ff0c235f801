"""Defines where the tables of a comparison are: a catalog, and the files behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyarrow.fs import FileSystem, LocalFileSystem, S3FileSystem

from rivals.jars import REST_AWS, aws_jars


@dataclass(frozen=True, slots=True)
class Lake:
    """One catalog: its properties for pyiceberg, and the same for Iceberg's Java catalogs.

    ``database``: the SQLite file in which the catalog keeps where each table's metadata are.
    ``store``: the name of an object store, or nothing for files of this machine.
    """

    properties: Mapping[str, str]
    java: Mapping[str, str]
    database: Path
    store: str = ""
    files: FileSystem = field(default_factory=LocalFileSystem)

    def read(self, location: str) -> bytes:
        """Return a whole file."""
        with self.files.open_input_stream(self.path(location)) as stream:
            return bytes(stream.read())

    def path(self, location: str) -> str:
        """Return what ``files`` calls it."""
        for scheme in ("file://", "file:", "s3://"):
            if location.startswith(scheme):
                return location.removeprefix(scheme)
        return location


def local_lake(home: Path) -> Lake:
    """Return an SQLite catalog over files in a folder."""
    database, warehouse = home / "catalog.sqlite", (home / "warehouse").as_uri()
    return Lake(
        {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": warehouse},
        jdbc_catalog(database, warehouse),
        database,
    )


def jdbc_catalog(database: Path, warehouse: str) -> dict[str, str]:
    """Return the properties of Java's catalog over the same SQLite file."""
    return {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:file:{database}?busy_timeout=30000",
        "jdbc.schema-version": "V1",
        "warehouse": warehouse,
    }


@contextmanager
def rest_lake_on_s3(home: Path) -> Iterator[Lake]:
    """Run Iceberg's own REST server over an object store in memory, both outside the measurement.

    It needs the tests' folder among the modules, as ``make bench`` has it, and Maven.
    """
    from integration.iceberg.rest_server import rest_server
    from support.object_store import BUCKET, KEY, REGION, SECRET, ObjectStore

    home.mkdir(parents=True)
    with ObjectStore() as store:
        files = {
            "s3.endpoint": store.endpoint,
            "s3.access-key-id": KEY,
            "s3.secret-access-key": SECRET,
        }
        java_files = {
            **files,
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.path-style-access": "true",
            "client.region": REGION,
        }
        database = home / "catalog.sqlite"
        server = {
            "uri": f"jdbc:sqlite:file:{database}",
            "jdbc.schema-version": "V1",
            "warehouse": f"s3://{BUCKET}/warehouse",
            **java_files,
        }
        with rest_server(home, server, aws_jars(REST_AWS)) as port:
            uri = f"http://127.0.0.1:{port}"
            yield Lake(
                {"type": "rest", "uri": uri, **files, "s3.region": REGION},
                {"catalog-impl": "org.apache.iceberg.rest.RESTCatalog", "uri": uri, **java_files},
                database,
                "S3",
                S3FileSystem(
                    endpoint_override=f"127.0.0.1:{store.port}",
                    scheme="http",
                    access_key=KEY,
                    secret_key=SECRET,
                    region=REGION,
                ),
            )
