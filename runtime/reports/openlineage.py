"""Builds OpenLineage events of a sink's epochs. Pure: plain values in, JSON values out.

One epoch is one run. Nothing of a record's content is in an event, nor a condition's text or a
secret: only names, numbers, places and types.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import urlsplit

SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS = "https://openlineage.io/spec/facets"
_VERSIONS = {
    "ColumnLineageDatasetFacet": "1-2-0",
    "DatasetVersionDatasetFacet": "1-0-1",
    "ErrorMessageRunFacet": "1-0-1",
    "JobTypeJobFacet": "2-0-4",
    "OutputStatisticsOutputDatasetFacet": "1-0-2",
    "SchemaDatasetFacet": "1-2-0",
    "SymlinksDatasetFacet": "1-0-1",
}
_HEADGATE = "ProgressRunFacet"
_AZURE_SCHEMES = ("abfs", "abfss", "wasb", "wasbs")

PARTITIONS_MAX = 1_000
"""Above this, an event does not list the offsets."""


class Kind(StrEnum):
    """What an event says of its run."""

    START = "START"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column, and the record's field that it is read from; empty where nobody knows.

    ``hidden``: only its hash or its mask is there. ``changed``: it is not the field as it is.
    """

    name: str
    source: str = ""
    hidden: bool = False
    changed: bool = False


@dataclass(frozen=True, slots=True)
class OutputTable:
    """A table as it was read. ``location``: where its files are."""

    name: str
    location: str = ""
    columns: tuple[OutputColumn, ...] = ()
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True)
class CommittedCounts:
    """What the commits of an event brought, by the table's own records."""

    rows: int = 0
    files: int = 0
    commits: int = 0


@dataclass(frozen=True, slots=True)
class Sink:
    """What does not change between a sink's events. ``cluster``: HOST:PORT of a broker."""

    name: str
    namespace: str
    cluster: str
    catalog: str
    version: str

    @property
    def producer(self) -> str:
        return f"urn:headgate:{self.version}"


@dataclass(frozen=True, slots=True)
class LineageRun:
    """One run. ``table_uuid``: of the table whose commits decide."""

    epoch: int
    table_uuid: str

    def run_id(self, sink: Sink) -> str:
        """Return the same id for everybody who speaks of this epoch."""
        text = f"headgate:{self.table_uuid}:{sink.name}:{self.epoch}"
        return str(uuid.uuid5(uuid.NAMESPACE_URL, text))


@dataclass(frozen=True, slots=True)
class LineageReport:
    """What an event tells beside its kind. The first of ``outputs`` is the one that ``brought`` is
    of."""

    time_ms: int
    topics: tuple[str, ...] = ()
    outputs: tuple[OutputTable, ...] = ()
    brought: CommittedCounts = field(default_factory=CommittedCounts)
    transaction: str = ""
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    code: str = ""


def build_event(kind: Kind, sink: Sink, run: LineageRun, told: LineageReport) -> Mapping[str, Any]:
    """Return the event as JSON values."""
    run_facets: dict[str, Any] = {}
    if told.transaction:
        run_facets["headgate_progress"] = _progress_facet(sink, run, told)
    if told.code:
        run_facets["errorMessage"] = {
            # The code alone: an error's text may show what is in a record.
            "message": told.code,
            "programmingLanguage": "Python",
            **_facet_base(sink, "ErrorMessageRunFacet"),
        }
    job_type = {"processingType": "STREAMING", "integration": "HEADGATE", "jobType": "JOB"}
    return {
        "eventType": kind.value,
        "eventTime": _format_time(told.time_ms),
        "producer": sink.producer,
        "schemaURL": SPEC,
        "run": {"runId": run.run_id(sink), "facets": run_facets},
        "job": {
            "namespace": sink.namespace,
            "name": sink.name,
            "facets": {"jobType": {**job_type, **_facet_base(sink, "JobTypeJobFacet")}},
        },
        "inputs": [
            {"namespace": _kafka_namespace(sink), "name": topic, "facets": {}}
            for topic in told.topics
        ],
        "outputs": [
            _output_dataset(sink, told, table, counts=place == 0)
            for place, table in enumerate(told.outputs)
        ],
    }


def _kafka_namespace(sink: Sink) -> str:
    return f"kafka://{sink.cluster}"


def _progress_facet(sink: Sink, run: LineageRun, told: LineageReport) -> Mapping[str, Any]:
    listed = sum(map(len, told.offsets.values())) <= PARTITIONS_MAX
    offsets = {
        topic: {str(number): offset for number, offset in sorted(some.items())}
        for topic, some in sorted(told.offsets.items())
    }
    return {
        "epoch": run.epoch,
        "transaction": told.transaction,
        "commits": told.brought.commits,
        **({"offsets": offsets} if listed else {}),
        **_facet_base(sink, _HEADGATE),
    }


def _output_dataset(
    sink: Sink, told: LineageReport, table: OutputTable, *, counts: bool
) -> Mapping[str, Any]:
    namespace, name = dataset_of(table.location, sink.catalog, table.name)
    facets: dict[str, Any] = {}
    if table.location:
        facets["symlinks"] = {
            "identifiers": [
                {"namespace": f"iceberg://{sink.catalog}", "name": table.name, "type": "TABLE"}
            ],
            **_facet_base(sink, "SymlinksDatasetFacet"),
        }
    if table.columns:
        facets["schema"] = {
            "fields": [{"name": column.name} for column in table.columns],
            **_facet_base(sink, "SchemaDatasetFacet"),
        }
    if lineage := _column_lineage_facet(sink, told.topics, table.columns):
        facets["columnLineage"] = lineage
    if table.snapshot_id is not None:
        version = {"datasetVersion": str(table.snapshot_id)}
        facets["version"] = {**version, **_facet_base(sink, "DatasetVersionDatasetFacet")}
    output: dict[str, Any] = {"namespace": namespace, "name": name, "facets": facets}
    if counts and told.brought.commits:
        output["outputFacets"] = {
            "outputStatistics": {
                "rowCount": told.brought.rows,
                "fileCount": told.brought.files,
                **_facet_base(sink, "OutputStatisticsOutputDatasetFacet"),
            }
        }
    return output


def _column_lineage_facet(
    sink: Sink, topics: Sequence[str], columns: Sequence[OutputColumn]
) -> Mapping[str, Any]:
    fields = {
        column.name: {
            "inputFields": [
                {
                    "namespace": _kafka_namespace(sink),
                    "name": topic,
                    "field": column.source,
                    "transformations": [
                        {
                            "type": "DIRECT",
                            "subtype": "TRANSFORMATION"
                            if column.hidden or column.changed
                            else "IDENTITY",
                            "masking": column.hidden,
                        }
                    ],
                }
                for topic in topics
            ]
        }
        for column in columns
        if column.source
    }
    return {"fields": fields, **_facet_base(sink, "ColumnLineageDatasetFacet")} if fields else {}


class Dataset(NamedTuple):
    """How OpenLineage names a dataset."""

    namespace: str
    name: str


def dataset_of(location: str, catalog: str, name: str) -> Dataset:
    """Return a table's dataset, by where its files are, else by its catalog.

    Who may read them is nobody's business: a user, a password or a query are left out.
    """
    found = urlsplit(location)
    if not found.path:
        return Dataset(f"iceberg://{catalog}", name)
    user, _, host = found.netloc.rpartition("@")
    if found.scheme in _AZURE_SCHEMES and ":" not in user:
        host = found.netloc  # OpenLineage names the container as well, which stands there
    if not found.scheme or found.scheme == "file":
        return Dataset("file", found.path.rstrip("/"))
    scheme = re.sub(r"^s3[an]$", "s3", found.scheme)
    return Dataset(f"{scheme}://{host}", found.path.strip("/"))


def _facet_base(sink: Sink, facet: str) -> Mapping[str, str]:
    if facet == _HEADGATE:
        return {"_producer": sink.producer, "_schemaURL": f"{sink.producer}#/{facet}"}
    version = _VERSIONS[facet]
    url = f"{_FACETS}/{version}/{facet}.json#/$defs/{facet}"
    return {"_producer": sink.producer, "_schemaURL": url}


def _format_time(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
