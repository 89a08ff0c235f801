"""Connectors of Kafka Connect, for tests."""

from __future__ import annotations

LEAST = {
    "name": "trips",
    "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
    "topics": "trips",
    "iceberg.tables": "lake.trips",
    "iceberg.catalog.type": "rest",
    "iceberg.catalog.uri": "https://catalog.example",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
    "iceberg.kafka.bootstrap.servers": "kafka:9092",
}

RELEASED = (
    "iceberg.tables",
    "iceberg.tables.dynamic-enabled",
    "iceberg.tables.route-field",
    "iceberg.tables.default-commit-branch",
    "iceberg.tables.default-id-columns",
    "iceberg.tables.default-partition-by",
    "iceberg.tables.auto-create-enabled",
    "iceberg.tables.evolve-schema-enabled",
    "iceberg.tables.schema-force-optional",
    "iceberg.tables.schema-case-insensitive",
    "iceberg.tables.replace-null-with-default",
    "iceberg.tables.auto-create-props.format-version",
    "iceberg.tables.write-props.write",
    "iceberg.table.lake.trips.commit-branch",
    "iceberg.table.lake.trips.id-columns",
    "iceberg.table.lake.trips.partition-by",
    "iceberg.table.lake.trips.route-regex",
    "iceberg.control.topic",
    "iceberg.control.group-id-prefix",
    "iceberg.connect.group-id",
    "iceberg.control.commit.interval-ms",
    "iceberg.control.commit.timeout-ms",
    "iceberg.control.commit.threads",
    "iceberg.control.commit.max-consecutive-failures",
    "iceberg.coordinator.transactional.prefix",
    "iceberg.catalog",
    "iceberg.hadoop-conf-dir",
)
"""Every key of Iceberg's sink up to 1.12, in one example where it is a family."""
