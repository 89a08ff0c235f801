"""Connectors as they are found in public, as sink files: each key has one fate."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.kafka_connect import LEAST

from headgate.config.load import parse
from headgate.operations.kafka_connect.import_connector import to_toml
from headgate.operations.kafka_connect.translation import Translated, translate_connector
from headgate.operations.kafka_connect.translation_report import Verdict

CONTROL = "headgate-control"


def one(
    more: dict[str, str] | None = None, worker: dict[str, str] | None = None, **asked: Any
) -> Translated:
    keys = {k: v for k, v in {**LEAST, **(more or {})}.items() if v != "-"}
    sinks = translate_connector(keys, worker or {}, **asked)
    for sink in sinks:
        told = [fate.key for fate in sink.fates]
        assert len(set(told)) == len(told)
        assert set(keys) - set(asked.get("left_out", ())) <= set(told)
    return sinks[0]


def at(sink: Translated, *path: str) -> Any:
    found: Any = sink.document
    for name in path:
        found = found[name]
    return found


def verdict(sink: Translated, key: str) -> Verdict:
    return next(fate.verdict for fate in sink.fates if fate.key == key)


def test_one_table_is_translated_without_anything_missing() -> None:
    sink = one()
    assert not sink.refused_fates
    assert not sink.fates_to_add_by_hand
    assert at(sink, "table", "identifier") == "lake.trips"
    assert at(sink, "format", "type") == "json"
    assert at(sink, "catalog", "properties", "uri") == "https://catalog.example"
    assert at(sink, "quarantine", "tombstones") == "skip"


def test_what_the_worker_says_counts_where_the_connector_is_silent() -> None:
    worker = {
        "bootstrap.servers": "b:9092",
        "value.converter": "io.confluent.connect.avro.AvroConverter",
        "value.converter.schema.registry.url": "http://registry",
        "consumer.fetch.min.bytes": "7",
        "group.id": "of the worker",
    }
    gone = {
        "value.converter": "-",
        "iceberg.kafka.bootstrap.servers": "-",
        "value.converter.schemas.enable": "-",
    }
    sink = one(gone, worker)
    assert at(sink, "format", "type") == "avro-registry"
    assert at(sink, "format", "options", "registry.url") == "http://registry"
    assert at(sink, "kafka") == {"bootstrap.servers": "b:9092", "fetch.min.bytes": "7"}


@pytest.mark.parametrize("first", ["reader", "worker"])
def test_what_the_worker_says_of_its_consumers_counts_in_any_line(first: str) -> None:
    own = ("consumer.security.protocol", "SASL_SSL")
    lines = [own, ("security.protocol", "PLAINTEXT")]
    sink = one(worker=dict(lines if first == "reader" else reversed(lines)))
    assert at(sink, "kafka", "security.protocol") == "SASL_SSL"
    assert verdict(sink, "security.protocol") is Verdict.NOT_NEEDED


def test_without_the_worker_s_file_it_says_what_only_that_has() -> None:
    gone = {"value.converter": "-", "iceberg.kafka.bootstrap.servers": "-"}
    sink = one(gone)
    assert verdict(sink, "bootstrap.servers") is Verdict.MISSING
    assert at(sink, "kafka", "bootstrap.servers") == "${env:KAFKA_BOOTSTRAP_SERVERS}"
    assert verdict(sink, "value.converter") is Verdict.REFUSED


@pytest.mark.parametrize(
    ("converter", "form"),
    [
        ("org.apache.kafka.connect.json.JsonConverter", "json"),
        ("io.confluent.connect.avro.AvroConverter", "avro-registry"),
        ("io.confluent.connect.protobuf.ProtobufConverter", "protobuf-registry"),
        ("io.confluent.connect.json.JsonSchemaConverter", "json-registry"),
        ("org.apache.kafka.connect.storage.StringConverter", "string"),
        ("org.apache.kafka.connect.converters.ByteArrayConverter", "bytes"),
        ("io.apicurio.registry.utils.converter.AvroConverter", "avro-registry"),
    ],
)
def test_a_converter_is_a_format(converter: str, form: str) -> None:
    assert at(one({"value.converter": converter}), "format", "type") == form


def test_json_with_schemas_is_another_format_and_the_default() -> None:
    assert at(one({"value.converter.schemas.enable": "-"}), "format", "type") == "connect-json"


JSON = "org.apache.kafka.connect.json.JsonConverter"
AVRO = "io.confluent.connect.avro.AvroConverter"
ENVELOPES, REGISTRY = "value.converter.schemas.enable", "value.converter.schema.registry.url"


@pytest.mark.parametrize(
    ("of_connector", "of_worker", "form"),
    [
        (JSON, {"value.converter": JSON, ENVELOPES: "false"}, "connect-json"),
        (JSON, {ENVELOPES: "false"}, "connect-json"),
        ("-", {"value.converter": JSON, ENVELOPES: "false"}, "json"),
    ],
)
def test_a_converter_s_settings_stand_where_the_converter_stands(
    of_connector: str, of_worker: dict[str, str], form: str
) -> None:
    sink = one({"value.converter": of_connector, ENVELOPES: "-"}, of_worker)
    assert at(sink, "format", "type") == form


def test_settings_of_the_connector_beside_the_worker_s_converter_have_no_effect() -> None:
    more = {"value.converter": "-", ENVELOPES: "false"}
    sink = one(more, {"value.converter": JSON})
    assert at(sink, "format", "type") == "connect-json"
    fate = next(fate for fate in sink.fates if fate.key == ENVELOPES)
    assert fate.verdict is Verdict.NOT_NEEDED
    assert "without effect" in fate.text


def test_the_registry_is_that_of_the_converter_that_counts() -> None:
    worker = {"value.converter": AVRO, REGISTRY: "http://of-worker"}
    own = {"value.converter": AVRO, REGISTRY: "http://own", ENVELOPES: "-"}
    assert at(one(own, worker), "format", "options") == {"registry.url": "http://own"}
    sink = one({**own, "value.converter": "-"}, worker)
    assert at(sink, "format", "options") == {"registry.url": "http://of-worker"}
    sink = one({**own, REGISTRY: "-"}, worker)
    assert "registry.url" not in str(sink.document["format"])


def test_a_converter_of_glue_says_where_glue_is_and_which_role_it_takes() -> None:
    amazon = "com.amazonaws.services.schemaregistry.kafkaconnect"
    sink = one(
        {
            "value.converter": f"{amazon}.AWSKafkaAvroConverter",
            "value.converter.region": "eu-west-1",
            "value.converter.assumeRoleArn": "arn:aws:iam::1:role/x",
            "value.converter.avroRecordType": "GENERIC_RECORD",
        }
    )
    assert at(sink, "format", "type") == "glue-registry"
    assert at(sink, "format", "options")["glue.region"] == "eu-west-1"
    assert verdict(sink, "value.converter.assumeRoleArn") is Verdict.MISSING
    assert verdict(sink, "value.converter.avroRecordType") is Verdict.NOT_NEEDED


def test_a_converter_without_a_format_is_refused() -> None:
    assert verdict(one({"value.converter": "x.Y"}), "value.converter") is Verdict.REFUSED


def test_no_secret_is_written_in_clear() -> None:
    secrets = {
        "iceberg.catalog.credential": "id:HUSH1",
        "iceberg.catalog.token": "HUSH2",
        "iceberg.catalog.uri": "https://user:HUSH11/HUSH12@catalog",
        "iceberg.catalog.adls.connection-string": "AccountKey=HUSH13",
        "iceberg.catalog.s3.secret-access-key": "HUSH3",
        "iceberg.catalog.header.Authorization": "Bearer HUSH4",
        "iceberg.kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
        "required username='u' password='HUSH5';",
        "iceberg.kafka.ssl.key.password": "HUSH6",
        "value.converter": "io.confluent.connect.avro.AvroConverter",
        "value.converter.schema.registry.url": "http://user:HUSH7@registry",
        "value.converter.basic.auth.user.info": "user:HUSH8",
        "value.converter.basic.auth.credentials.source": "USER_INFO",
        "iceberg.hadoop.fs.s3a.secret.key": "HUSH9",
        "iceberg.kafka.ssl.truststore.password": "HUSH10",
    }
    sink = one(secrets)
    assert "HUSH" not in str(sink.document)
    assert "HUSH" not in " ".join(map(str, sink.fates))
    assert at(sink, "kafka", "sasl.username") == "u"
    assert at(sink, "kafka", "sasl.password") == "${env:KAFKA_PASSWORD}"
    said = " ".join(map(str, sink.fates))
    assert "read from CATALOG_CREDENTIAL" in said


def test_references_of_connect_and_templates_become_variables() -> None:
    sink = one(
        {
            "iceberg.catalog.credential": "${secrets:prod/iceberg:credential}",
            "iceberg.catalog.warehouse": "s3://${BUCKET}/lake",
            "iceberg.catalog.s3.secret-access-key": "${env:AWS_SECRET_ACCESS_KEY}",
        }
    )
    found = at(sink, "catalog", "properties")
    assert found["credential"] == "${env:CATALOG_CREDENTIAL}"
    assert found["warehouse"] == "s3://${env:BUCKET}/lake"
    assert found["s3.secret-access-key"] == "${env:AWS_SECRET_ACCESS_KEY}"


def test_each_reference_of_connect_in_a_value_is_a_variable_of_its_own() -> None:
    key = "iceberg.catalog.uri"
    sink = one(
        {
            key: "https://${file:/c:host}:${file:/c:port}/${env:REALM}?again=${file:/c:host}",
            "iceberg.kafka.bootstrap.servers": "${file:/c:one}:9092,${file:/c:two}:9092",
        }
    )
    assert at(sink, "catalog", "properties", "uri") == (
        "https://${env:CATALOG_URI}:${env:CATALOG_URI_2}/${env:REALM}?again=${env:CATALOG_URI}"
    )
    assert at(sink, "kafka", "bootstrap.servers") == (
        "${env:KAFKA_BOOTSTRAP_SERVERS}:9092,${env:KAFKA_BOOTSTRAP_SERVERS_2}:9092"
    )
    said = next(fate.text for fate in sink.fates if fate.key == key)
    assert said.endswith("read from CATALOG_URI and CATALOG_URI_2 and REALM")


def test_a_variable_of_the_connector_is_none_of_those_that_import_names() -> None:
    sink = one(
        {
            "iceberg.catalog.uri": "https://${file:/c:host}:${env:CATALOG_URI}",
            "iceberg.catalog.credential": "a-secret",
            "iceberg.catalog.warehouse": "s3://${env:catalog_credential}/lake",
        }
    )
    found = at(sink, "catalog", "properties")
    assert found["uri"] == "https://${env:SINK_CATALOG_URI}:${env:CATALOG_URI}"
    assert found["credential"] == "${env:SINK_CATALOG_CREDENTIAL}"
    assert found["warehouse"] == "s3://${env:CATALOG_CREDENTIAL}/lake"


def test_a_sql_catalog_gets_the_address_that_python_takes() -> None:
    sink = one(
        {
            "iceberg.catalog.type": "-",
            "iceberg.catalog.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "iceberg.catalog.uri": "jdbc:postgresql://db:5432/lake?user=me&password=HUSH",
        }
    )
    uri = at(sink, "catalog", "properties", "uri")
    assert uri == "postgresql+psycopg2://me:${env:CATALOG_PASSWORD}@db:5432/lake"


def test_a_password_in_an_address_is_said_to_be_percent_encoded() -> None:
    sink = one(
        {
            "iceberg.catalog.type": "jdbc",
            "iceberg.catalog.uri": "jdbc:postgresql://db/lake?sslmode=verify-full&sslrootcert=/ca",
            "iceberg.catalog.jdbc.user": "${env:DB_USER}",
            "iceberg.catalog.jdbc.password": "p@s",
        }
    )
    assert at(sink, "catalog", "properties", "uri") == (
        "postgresql+psycopg2://${env:DB_USER}:${env:CATALOG_PASSWORD}@db/lake"
        "?sslmode=verify-full&sslrootcert=%2Fca"
    )
    for name in ("DB_USER", "CATALOG_PASSWORD"):
        assert "percent-encoded" in sink.variables[name]
    assert not sink.fates_to_add_by_hand


def test_options_of_java_s_driver_that_are_not_carried_over_are_named() -> None:
    """Without them the catalog's tables would be looked for elsewhere, perhaps unencrypted."""
    sink = one(
        {
            "iceberg.catalog.type": "jdbc",
            "iceberg.catalog.uri": "jdbc:postgresql://db/lake?currentSchema=lake&ssl=true&user=me",
        }
    )
    (fate,) = sink.fates_to_add_by_hand
    assert fate.key == "iceberg.catalog.uri"
    assert "currentSchema, ssl" in fate.text


@pytest.mark.parametrize("kind", ["hadoop", "nessie", "dynamodb", "bigquery", "strange"])
def test_a_catalog_that_is_no_lock_is_refused(kind: str) -> None:
    sink = one({"iceberg.catalog.type": kind})
    assert verdict(sink, "iceberg.catalog.type") is Verdict.REFUSED


def test_a_hive_metastore_is_spoken_to_in_java() -> None:
    sink = one({"iceberg.catalog.type": "hive", "iceberg.catalog.uri": "thrift://hive:9083"})
    assert at(sink, "catalog", "backend") == "java"
    assert at(sink, "spark", "writer") == "spark"


def test_amazon_s_login_becomes_a_section_of_authentication() -> None:
    sink = one(
        {
            "iceberg.kafka.security.protocol": "SASL_SSL",
            "iceberg.kafka.sasl.mechanism": "AWS_MSK_IAM",
            "iceberg.kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule "
            "required;",
            "iceberg.kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.X",
            "iceberg.catalog.client.region": "eu-west-1",
        }
    )
    assert at(sink, "kafka", "auth") == {"type": "aws-msk-iam", "region": "eu-west-1"}
    assert not sink.refused_fates


def test_records_go_where_a_field_says() -> None:
    sink = one(
        {
            "iceberg.tables": "lake.a,lake.b",
            "iceberg.tables.route-field": "kind",
            "iceberg.table.lake.a.route-regex": "a|x",
            "iceberg.table.lake.b.route-regex": "b",
        }
    )
    assert at(sink, "tables", "route") == [
        {"field": "kind", "value": r"^(?:a|x)\Z", "to": "lake.a"},
        {"field": "kind", "value": r"^(?:b)\Z", "to": "lake.b"},
    ]
    assert at(sink, "tables", "unmatched") == "skip"


def test_a_field_that_a_transform_fills_with_the_topic_is_a_route_by_topic() -> None:
    sink = one(
        {
            "iceberg.tables": "lake.a",
            "iceberg.tables.route-field": "_kafka_metadata_topic",
            "iceberg.table.lake.a.route-regex": r"shop\.a",
            "transforms": "meta",
            "transforms.meta.type": "org.apache.iceberg.connect.transforms.KafkaMetadataTransform",
        }
    )
    assert at(sink, "tables", "route") == [{"topic": r"^(?:shop\.a)\Z", "to": "lake.a"}]
    assert at(sink, "tables", "record_columns", "offset") == "_kafka_metadata_offset"


def test_a_field_may_name_the_table() -> None:
    sink = one(
        {
            "iceberg.tables": "-",
            "iceberg.tables.dynamic-enabled": "true",
            "iceberg.tables.route-field": "to",
            "iceberg.tables.auto-create-enabled": "true",
            "iceberg.tables.default-partition-by": "hours(at), bucket(id, 16)",
        }
    )
    assert at(sink, "tables", "route")[0]["to"] == "{namespace}.{name}"
    assert at(sink, "tables", "create") == {
        "schema": "infer",
        "partition_by": ["hour(at)", "bucket(16, id)"],
    }


def test_several_tables_without_a_route_are_a_sink_file_each() -> None:
    sinks = translate_connector({**LEAST, "iceberg.tables": "lake.a, lake.b"}, {})
    assert [at(sink, "table", "identifier") for sink in sinks] == ["lake.a", "lake.b"]
    assert [sink.name for sink in sinks] == ["trips-lake-a", "trips-lake-b"]


@pytest.mark.parametrize(
    ("kind", "fate"),
    [
        ("org.apache.kafka.connect.transforms.RegexRouter", Verdict.NOT_NEEDED),
        ("org.apache.kafka.connect.transforms.InsertField$Key", Verdict.NOT_NEEDED),
        ("org.apache.kafka.connect.transforms.InsertField$Value", Verdict.KEPT),
        ("org.apache.kafka.connect.transforms.Flatten$Value", Verdict.REFUSED),
        ("io.debezium.transforms.ExtractNewRecordState", Verdict.REFUSED),
        ("org.apache.iceberg.connect.transforms.DebeziumTransform", Verdict.REFUSED),
        ("com.example.Mine", Verdict.REFUSED),
    ],
)
def test_a_transform_is_named_with_its_counterpart(kind: str, fate: Verdict) -> None:
    sink = one({"transforms": "t", "transforms.t.type": kind, "transforms.t.offset.field": "o"})
    assert verdict(sink, "transforms.t.type") is fate


_ROUTED = {"iceberg.tables.dynamic-enabled": "true", "iceberg.tables.route-field": "to"}


@pytest.mark.parametrize(
    ("more", "fate"),
    [
        ({}, Verdict.MISSING),
        (_ROUTED, Verdict.MISSING),
        ({"iceberg.tables.auto-create-enabled": "true"}, Verdict.MISSING),
        ({"iceberg.tables.auto-create-enabled": "true", **_ROUTED}, Verdict.REFUSED),
        ({"iceberg.tables.evolve-schema-enabled": "true"}, Verdict.REFUSED),
    ],
)
def test_a_field_that_is_taken_out_comes_into_no_column_unsaid(
    more: dict[str, str], fate: Verdict
) -> None:
    """The sink makes no column of it, and a table that is there may have one."""
    transform = {
        "transforms": "hide",
        "transforms.hide.type": "org.apache.kafka.connect.transforms.ReplaceField$Value",
        "transforms.hide.exclude": "ssn",
    }
    sink = one({**transform, **more})
    assert verdict(sink, "transforms.hide.type") is fate
    assert verdict(sink, "transforms.hide.exclude") is Verdict.NOT_NEEDED


@pytest.mark.parametrize(
    ("order", "copied", "fate"),
    [
        ("strip,put", "topic", Verdict.REFUSED),
        ("put,strip", "topic", Verdict.NOT_NEEDED),
        ("strip,put", "offset", Verdict.NOT_NEEDED),
        ("strip,key", "topic", Verdict.NOT_NEEDED),
    ],
)
def test_a_new_name_of_the_topic_that_is_copied_later_is_refused(
    order: str, copied: str, fate: Verdict
) -> None:
    """The file's routes would look for it in the topic's own name, and skip every record."""
    kafka = "org.apache.kafka.connect.transforms"
    sink = one(
        {
            "iceberg.tables": "lake.a",
            "iceberg.tables.route-field": "_from",
            "iceberg.table.lake.a.route-regex": "a",
            "transforms": order,
            "transforms.strip.type": f"{kafka}.RegexRouter",
            "transforms.strip.regex": r"shop\.(.*)",
            "transforms.strip.replacement": "$1",
            "transforms.put.type": f"{kafka}.InsertField$Value",
            f"transforms.put.{copied}.field": "_from",
            "transforms.key.type": f"{kafka}.InsertField$Key",
            "transforms.key.topic.field": "_from",
        }
    )
    assert verdict(sink, "transforms.strip.type") is fate
    by_topic = copied == "topic" and "put" in order
    assert at(sink, "tables", "route")[0].keys() >= {"topic" if by_topic else "field"}


def test_a_key_that_no_release_knows_is_refused_unless_it_is_left_out() -> None:
    key = "iceberg.control.commitIntervalMs"
    refused = one({key: "1000"})
    assert verdict(refused, key) is Verdict.REFUSED
    assert "iceberg.control.commit.interval-ms" in str(refused.refused_fates[0])
    assert not one({key: "1000"}, left_out=[key]).refused_fates


def test_upserts_of_the_ancestor_are_refused_and_ids_without_effect_are_not() -> None:
    sink = one(
        {
            "connector.class": "io.tabular.iceberg.connect.IcebergSinkConnector",
            "iceberg.tables.upsert-mode-enabled": "true",
            "iceberg.tables.default-id-columns": "id",
        }
    )
    assert verdict(sink, "iceberg.tables.upsert-mode-enabled") is Verdict.REFUSED
    assert verdict(sink, "iceberg.tables.default-id-columns") is Verdict.NOT_NEEDED


def test_a_long_name_is_cut_and_still_differs_from_others() -> None:
    one_, other = (one({"name": "x" * 80 + end}).name for end in "ab")
    assert one_ != other
    assert len(one_) == len(other) == 63


def test_another_connector_is_refused() -> None:
    sink = one({"connector.class": "io.confluent.connect.s3.S3SinkConnector"})
    assert verdict(sink, "connector.class") is Verdict.REFUSED


def test_a_pattern_of_topics_needs_one_by_name() -> None:
    pattern = {"topics": "-", "topics.regex": "shop[.].*"}
    assert verdict(one(pattern), "topics.regex") is Verdict.MISSING
    sink = one(pattern, topic="shop.a")
    assert at(sink, "source", "topics") == ["shop.a", r"^(?:shop[.].*)\Z"]
    assert not sink.fates_to_add_by_hand


def test_a_pattern_of_all_topics_leaves_out_what_the_sink_itself_says() -> None:
    """Else its control events would be its records, and bring new ones, for ever."""
    sink = one({"topics": "-", "topics.regex": ".*"}, topic="shop")
    _, pattern = at(sink, "source", "topics")
    some = ("shop", CONTROL, f"{CONTROL}-trips", f"{CONTROL}s")
    assert [t for t in some if re.search(pattern, t)] == ["shop", f"{CONTROL}s"]
    parse(to_toml(sink.document))


def test_a_pattern_with_flags_of_java_s_at_its_beginning_is_refused() -> None:
    sink = one({"topics": "-", "topics.regex": "(?i)shop.*"}, topic="shop")
    assert "topics.regex" in {fate.key for fate in sink.refused_fates}


def test_bad_records_that_connect_drops_are_kept() -> None:
    sink = one(
        {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "dead", "topics": "a,b"}
    )
    assert at(sink, "quarantine", "policy") == "quarantine"
    assert at(sink, "quarantine", "dead_letter_topic") == "dead"
