"""Translates the connector's catalog: Iceberg's Java properties into pyiceberg's."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from headgate.operations.kafka_connect.translation_report import Report

_CLASSES = {
    "org.apache.iceberg.rest.RESTCatalog": "rest",
    "org.apache.iceberg.aws.glue.GlueCatalog": "glue",
    "org.apache.iceberg.jdbc.JdbcCatalog": "jdbc",
    "org.apache.iceberg.hive.HiveCatalog": "hive",
    "org.apache.iceberg.hadoop.HadoopCatalog": "hadoop",
    "org.apache.iceberg.nessie.NessieCatalog": "nessie",
    "org.apache.iceberg.aws.dynamodb.DynamoDbCatalog": "dynamodb",
    "org.apache.iceberg.gcp.bigquery.BigQueryMetastoreCatalog": "bigquery",
    "software.amazon.s3tables.iceberg.S3TablesCatalog": "s3tables",
    "org.apache.iceberg.snowflake.SnowflakeCatalog": "snowflake",
}
_INSTEAD = {
    "hadoop": "a Hadoop catalog renames files, which is no lock on an object store",
    "nessie": "Nessie, also through REST, drops the tag that is the sink's lock",
    "dynamodb": "pyiceberg cannot commit to a DynamoDB catalog",
    "bigquery": "pyiceberg cannot commit to a BigQuery metastore",
    "s3tables": "write type = rest and the S3 Tables REST address "
    "(https://s3tables.REGION.amazonaws.com/iceberg), with rest.sigv4-enabled",
    "snowflake": "it can only be read; Snowflake's Open Catalog (Polaris) is of type rest",
}
_NOT_NEEDED = {
    "io-impl": "the store follows from the scheme of the table's location",
    "s3.staging-dir": "files are sent from memory",
    "cache-enabled": "tables are read again for each commit",
    "cache.expiration-interval-ms": "tables are read again for each commit",
    "cache.case-sensitive": "tables are read again for each commit",
    "clients": "a sink has one connection to the catalog",
    "client.pool.cache.eviction-interval-ms": "a sink has one connection to the catalog",
    "rest-metrics-reporting-enabled": "headgate has metrics of its own",
    "metrics-reporter-impl": "headgate has metrics of its own",
    "include-credentials": "pyiceberg takes what the catalog vends",
    "http-client.type": "of Amazon's Java client",
    "client.factory": "of Amazon's Java client; a role is client.role-arn",
    "s3.preload-client-enabled": "of Amazon's Java client",
    "s3.checksum-enabled": "files are checked by botocore",
    "jdbc.schema-version": "pyiceberg reads both versions of the tables",
    "jdbc.strict-mode": "namespaces are not created here",
    "jdbc.initialize": "the catalog's tables are there",
    "lock-impl": "the table's commit is the lock",
    "lock.table": "the table's commit is the lock",
    "glue.skip-archive": "see glue.skip-archive in pyiceberg: it is kept as its default",
    "glue.skip-name-validation": "names are taken as they are",
    "glue.lakeformation-enabled": "rights are asked of Glue as they are",
}
_RENAMED = {
    "client.assume-role.arn": "client.role-arn",
    "client.assume-role.region": "client.region",
    "client.assume-role.session-name": "client.role-session-name",
    "rest.access-key-id": "client.access-key-id",
    "rest.secret-access-key": "client.secret-access-key",
    "rest.session-token": "client.session-token",
    "adls.auth.shared-key.account.name": "adls.account-name",
    "adls.auth.shared-key.account.key": "adls.account-key",
}
_HADOOP = {
    "fs.s3a.access.key": "s3.access-key-id",
    "fs.s3a.secret.key": "s3.secret-access-key",
    "fs.s3a.session.token": "s3.session-token",
    "fs.s3a.endpoint": "s3.endpoint",
    "fs.s3a.endpoint.region": "s3.region",
}
_OPTIONS_OF_LIBPQ = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout"})
"""Those that mean the same to Java's driver and to psycopg2."""
_SQLITE = re.compile(r"jdbc:sqlite:(?:file:)?(.*?)(?:\?.*)?")


def fill_catalog(report: Report) -> None:
    """Fill ``[catalog]``; a catalog that cannot be a sink's lock is refused."""
    keys = report.keys_below("iceberg.catalog.")
    catalog = report.ensure_section("catalog")
    catalog["name"] = report.connector_value("iceberg.catalog") or "iceberg"
    report.note_kept("iceberg.catalog", "catalog.name")
    kind = _find_and_note_catalog_kind(report, keys)
    properties = report.ensure_section("catalog", "properties")
    if kind == "hive":
        catalog["backend"] = "java"
        report.ensure_section("spark")["writer"] = "spark"
        report.ensure_section("spark", "conf")["spark.jars.packages"] = (
            "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"
        )
    properties["type"] = {"jdbc": "sql"}.get(kind, kind)
    for name, value in keys.items():
        _fill_catalog_property(report, kind, name, value)
    _fill_store_from_hadoop_keys(report)
    _set_region_of_each_client(properties)


def _find_and_note_catalog_kind(report: Report, keys: dict[str, str]) -> str:
    if made := keys.get("catalog-impl"):
        key, kind = "iceberg.catalog.catalog-impl", _CLASSES.get(made, "")
    elif named := keys.get("type"):
        key, kind = "iceberg.catalog.type", named.lower()
    else:
        key, kind = "iceberg.catalog.type", ""
        if not keys:
            report.note_refused(
                key, "no catalog is named, and Iceberg's sink would not start either"
            )
            return kind
        kind = "hive"  # the default of Iceberg's Java library
    if kind in ("rest", "glue", "jdbc"):
        report.note_kept(key, f'catalog.properties, type = "{"sql" if kind == "jdbc" else kind}"')
    elif kind == "hive":
        report.note_kept(key, 'catalog.properties, type = "hive"; backend = "java" needs Spark')
    else:
        why = _INSTEAD.get(kind, f"headgate has no catalog {made or kind!r}")
        report.note_refused(key, f"{why} (docs/guides/catalogs.md)")
    if "catalog-impl" in keys and "type" in keys:
        report.note_dropped(("iceberg.catalog.type",), "catalog-impl counts")
    return kind


def _fill_catalog_property(report: Report, kind: str, name: str, value: str) -> None:
    key = f"iceberg.catalog.{name}"
    properties = report.ensure_section("catalog", "properties")
    if name in ("type", "catalog-impl"):
        return
    if kind == "jdbc" and name in ("uri", "jdbc.user", "jdbc.password"):
        _fill_jdbc_uri(report)
    elif kind == "hive" and name == "io-impl":
        properties[name] = value
        report.note_kept(key, f'catalog.properties."{name}", for Java')
    elif name in _NOT_NEEDED:
        report.note_dropped((key,), _NOT_NEEDED[name])
    elif name == "s3.path-style-access":
        styled = value.lower() == "true"
        properties["s3.force-virtual-addressing"] = "false" if styled else "true"
        report.note_kept(key, 'catalog.properties."s3.force-virtual-addressing", the opposite')
    elif name in ("s3.remote-signing-enabled", "s3.signer.endpoint") and value.lower() != "false":
        report.note_refused(key, "remote signing (HG-120): let the catalog vend credentials")
    elif name == "token" and kind == "rest":
        properties[name] = report.to_sink_file_value(key, "CATALOG", value)
        report.note_kept(key, "catalog.properties.token, which is never renewed")
    elif name.startswith(("jdbc.", "hadoop.", "table-default.", "table-override.")):
        report.note_to_add_by_hand(key, "has no counterpart in pyiceberg")
    else:
        target = _RENAMED.get(name, name)
        properties[target] = report.to_sink_file_value(key, "CATALOG", value)
        report.note_kept(key, f'catalog.properties."{target}"')


def _fill_jdbc_uri(report: Report) -> None:
    properties = report.ensure_section("catalog", "properties")
    if "uri" in properties:
        return
    address = report.connector_value("iceberg.catalog.uri")
    if sqlite := _SQLITE.fullmatch(address):
        properties["uri"] = f"sqlite:///{sqlite[1]}"
        report.note_kept("iceberg.catalog.uri", "catalog.properties.uri, as SQLAlchemy writes it")
        report.note_dropped(
            ("iceberg.catalog.jdbc.user", "iceberg.catalog.jdbc.password"),
            "a file of SQLite has no users",
        )
        return
    if not address.startswith("jdbc:postgresql:"):
        report.note_refused(
            "iceberg.catalog.uri", "a SQL catalog is in PostgreSQL or in a file of SQLite (HG-116)"
        )
        return
    rest = urlsplit(address.removeprefix("jdbc:"))
    options = dict(parse_qsl(rest.query))
    user = report.connector_value("iceberg.catalog.jdbc.user") or options.pop("user", "")
    login = ""
    if "${" in user:
        login = report.to_sink_file_value("iceberg.catalog.jdbc.user", "CATALOG", user)
    elif user:
        login = quote(user, safe="")
    if report.connector_value("iceberg.catalog.jdbc.password") or options.pop("password", ""):
        login += ":" + report.add_variable_reference(
            "iceberg.catalog.jdbc.password", "CATALOG_PASSWORD"
        )
    host = rest.netloc.rpartition("@")[2]
    at = f"{login}@{host}" if login else host
    kept = urlencode({k: v for k, v in options.items() if k in _OPTIONS_OF_LIBPQ})
    properties["uri"] = f"postgresql+psycopg2://{at}{rest.path}" + (f"?{kept}" if kept else "")
    if others := sorted(options.keys() - _OPTIONS_OF_LIBPQ):
        report.note_to_add_by_hand(
            "iceberg.catalog.uri",
            f"catalog.properties.uri has none of these options of Java's driver: "
            f"{', '.join(others)}; psycopg2 has other names for some",
        )
    report.note_kept("iceberg.catalog.uri", "catalog.properties.uri, as SQLAlchemy writes it")
    for name in ("user", "password"):
        report.note_kept(f"iceberg.catalog.jdbc.{name}", "part of catalog.properties.uri")
    for variable, key in report.variables.items():
        if key.startswith("iceberg.catalog.jdbc."):
            report.variables[variable] = f"{key}, percent-encoded: %40 for @"


def _fill_store_from_hadoop_keys(report: Report) -> None:
    properties = report.ensure_section("catalog", "properties")
    report.note_dropped(
        (key for key in report.keys if key == "iceberg.hadoop-conf-dir"),
        "Hadoop's files are not read; what the store needs is in catalog.properties",
    )
    for name, value in report.keys_below("iceberg.hadoop.").items():
        key = f"iceberg.hadoop.{name}"
        if target := _HADOOP.get(name):
            given = report.to_sink_file_value(key, "CATALOG", value)
            properties.setdefault(target, given)
            report.note_kept(key, f'catalog.properties."{target}"')
        elif name == "fs.s3a.path.style.access":
            styled = value.lower() == "true"
            properties.setdefault("s3.force-virtual-addressing", "false" if styled else "true")
            report.note_kept(key, 'catalog.properties."s3.force-virtual-addressing", the opposite')
        elif name.startswith(("fs.s3a.", "fs.s3.", "fs.AbstractFileSystem", "fs.defaultFS")):
            report.note_dropped((key,), "of Hadoop's client, which is not used")
        else:
            report.note_to_add_by_hand(key, "Hadoop's configuration is not read")


def _set_region_of_each_client(properties: dict[str, str]) -> None:
    """Name the region where pyiceberg looks for it: each client has a key of its own."""
    region = properties.get("client.region")
    if not region:
        return
    if properties.get("type") == "glue":
        properties.setdefault("glue.region", region)
    if properties.get("rest.sigv4-enabled", "").lower() == "true":
        properties.setdefault("rest.signing-region", region)
    properties.setdefault("s3.region", region)
