"""Translates how records are read: Connect's converters and single message transforms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headgate.operations.kafka_connect.translation_report import Report, Verdict

_FORMATS = {
    "JsonConverter": "connect-json",
    "AvroConverter": "avro-registry",
    "ProtobufConverter": "protobuf-registry",
    "JsonSchemaConverter": "json-registry",
    "ByteArrayConverter": "bytes",
    "StringConverter": "string",
}
_APICURIO = {"AvroConverter": "avro-registry", "ExtJsonConverter": "json-registry"}
_REGISTRY = {
    "url": "registry.url",
    "basic.auth.user.info": "registry.basic.auth.user.info",
    "bearer.auth.token": "registry.bearer.auth.token",
    "bearer.auth.logical.cluster": "registry.bearer.auth.logical.cluster",
    "bearer.auth.identity.pool.id": "registry.bearer.auth.identity.pool.id",
    "ssl.ca.location": "registry.ssl.ca.location",
}
_GLUE = {"region": "glue.region", "endpoint": "glue.endpoint"}
_OF_CONVERTER = "value.converter."
_OF_JAVA = "how Java's converter makes its values; columns decide here"
_CONVERTER_NOT_NEEDED = (
    *("auto.register.schemas", "use.latest.version", "enhanced.avro.schema.support"),
    *("connect.meta.data", "schemas.cache.size", "schemas.cache.config", "scrub.invalid.names"),
    *("normalize.schemas", "latest.compatibility.strict", "id.compatibility.strict"),
    *("value.subject.name.strategy", "key.subject.name.strategy", "max.schemas.per.subject"),
    *("decimal.format", "replace.null.with.default", "ignore.default.for.nullables"),
    *("generalized.sum.type.support", "flatten.unions", "optional.for.nullables"),
    *("object.additional.properties", "use.optional.for.nonrequired", "encoding"),
    *("basic.auth.credentials.source", "bearer.auth.credentials.source", "converter.encoding"),
    *("enum.for.enums", "wrapper.for.nullables", "wrapper.for.raw.primitives", "int.for.enums"),
    *(
        "apicurio.registry.as-confluent",
        "apicurio.registry.auto-register",
        "type",
        "allow.optional.map.keys",
    ),
    *("latest.cache.size", "latest.cache.ttl.sec", "use.schema.id", "json.oneof.for.nullables"),
)


def fill_format_of_converters(report: Report) -> None:
    """Fill ``[format]``; the connector looks at values only, so keys are left alone."""
    key = "value.converter"
    converter = report.connector_or_worker_value(key)
    name = converter.rpartition(".")[2]
    form = _find_and_note_format(report, converter, name)
    section = report.ensure_section("format")
    if not converter:
        report.note_refused(
            key, "stands in the worker's file: give --worker FILE, or --set value.converter=NAME"
        )
    elif form is None:
        report.note_refused(key, f"headgate has no format for {converter}")
    else:
        section["type"] = form
        report.note_kept(key, f'format.type = "{form}"')
        if form == "string" and "transforms" not in report.keys:
            report.note_to_add_by_hand(
                key, "a row of one column: format.options.column, if the table has more"
            )
    _fill_converter_options(report, form or "")
    if report.is_connector_value_true("iceberg.tables.schema-case-insensitive"):
        report.ensure_section("format", "options")["case-insensitive"] = "true"
    report.note_kept("iceberg.tables.schema-case-insensitive", "format.options.case-insensitive")
    report.note_dropped(
        (k for k in report.keys if k.startswith(("key.converter", "header.converter"))),
        "the connector writes neither keys nor headers",
    )


def _find_and_note_format(report: Report, converter: str, name: str) -> str | None:
    if name == "JsonConverter" and ".json." in converter:
        key = "value.converter.schemas.enable"
        settings = _settings_of_value_converter(report)
        form = "json" if settings.get(key, "").strip().lower() == "false" else "connect-json"
        if key in settings:
            report.note_kept(key, f'format.type = "{form}"')
        return form
    if converter.startswith("io.apicurio."):
        return _APICURIO.get(name)
    if converter.startswith("com.amazonaws.services.schemaregistry.kafkaconnect."):
        return "glue-registry"
    if converter.startswith(("io.confluent.connect.", "org.apache.kafka.connect.")):
        return _FORMATS.get(name)
    return None


def _settings_of_value_converter(report: Report) -> Mapping[str, str]:
    """Return the converter's settings: Connect takes all from where the converter itself stands."""
    counting = report.keys if report.connector_value("value.converter") else report.worker
    return {key: value for key, value in counting.items() if key.startswith(_OF_CONVERTER)}


def _fill_converter_options(report: Report, form: str) -> None:
    settings = _settings_of_value_converter(report)
    for key, value in settings.items():
        if key in report.fates:
            continue
        name = key.removeprefix(_OF_CONVERTER)
        inner = name.removeprefix("schema.registry.")
        options = report.ensure_section("format", "options") if form.endswith("-registry") else {}
        if name == "apicurio.registry.url":
            base = value.rstrip("/").partition("/apis/")[0]
            options["registry.url"] = report.to_sink_file_value(
                key, "REGISTRY", f"{base}/apis/ccompat/v7"
            )
            report.note_kept(key, 'format.options."registry.url", as its Confluent interface')
        elif form == "glue-registry" and name in _GLUE:
            options[_GLUE[name]] = report.to_sink_file_value(key, "REGISTRY", value)
            report.note_kept(key, f'format.options."{_GLUE[name]}"')
        elif form == "glue-registry" and name == "assumeRoleArn":
            report.note_to_add_by_hand(
                key, 'name a profile with this role: format.options."glue.profile-name"'
            )
        elif inner in _REGISTRY and form.endswith("-registry"):
            options[_REGISTRY[inner]] = report.to_sink_file_value(key, "REGISTRY", value)
            report.note_kept(key, f'format.options."{_REGISTRY[inner]}"')
        elif inner in _CONVERTER_NOT_NEEDED or name == "schemas.enable":
            report.note_dropped((key,), _OF_JAVA)
        elif inner.startswith("ssl.") or name.startswith("apicurio."):
            report.note_to_add_by_hand(
                key, 'see format.options."registry.*" (docs/guides/record-formats.md)'
            )
        else:
            report.note_dropped((key,), _OF_JAVA)
    others = (key for key in report.keys if key.startswith(_OF_CONVERTER) and key not in settings)
    report.note_dropped(others, "without effect: Connect takes all where value.converter stands")


# ------------------------------------------------------------------------------------- transforms

_ONLY_NAMES = "renames the topic, which the sink does not look at"
_TOPIC_ROUTERS = ("RegexRouter", "TimestampRouter", "ByLogicalTableRouter")
_HARMLESS = {
    **dict.fromkeys(_TOPIC_ROUTERS, _ONLY_NAMES),
    "SetSchemaMetadata": "schemas have no names here",
    "InsertHeader": "headers are not written",
    "DropHeaders": "headers are not written",
    "ValueToKey": "keys are not written",
    "TombstoneHandler": "records without a value are skipped (quarantine.tombstones)",
}
_COUNTERPART = {
    "CopyValue": "a column with from = FIELD under [[table.columns]]",
    "ReplaceField": "columns with from = FIELD; a field without a column is ignored",
    "Flatten": 'columns with from = "OUTER.INNER" under [[table.columns]]',
    "ExtractField": 'columns with from = "FIELD.NAME" under [[table.columns]]',
    "TimestampConverter": "the column's type, and unit = s, ms, us or ns under [[table.columns]]",
    "Cast": "the column's type; as_text = true for a string of numbers",
    "ExtractNewRecordState": 'table.key with changes.envelope = "debezium", into a new table',
    "DebeziumTransform": 'table.key with changes.envelope = "debezium", into a new table',
    "MongoDebeziumTransform": "none for Mongo's documents",
    "DmsTransform": 'table.key with changes.envelope = "dms", into a new table',
    "HoistField": "format.options.column, with format.type = string or bytes",
    "HeaderFrom": "none: write the field as a column",
    "Filter": 'transform.sql with WHERE, or tables.unmatched = "skip" with routes',
    "MaskField": "transform.sql",
    "JsonToMapTransform": 'format.type = "json" and a string column, which takes objects as text',
    "InsertField": "a column with value = CONSTANT under [[table.columns]]",
}
_METADATA = ("topic", "partition", "offset", "timestamp")


def transform_names(report: Report) -> list[str]:
    """Return the connector's transforms, in the order in which a record passes them."""
    return report.connector_list("transforms")


def _class_and_side_of_transform(report: Report, transform: str) -> tuple[str, str]:
    """Return the class without its package, and whether it is for keys or values, if it says so."""
    written = report.connector_value(f"transforms.{transform}.type")
    kind, _, side = written.rpartition(".")[2].partition("$")
    return kind, side


def fields_with_topic_name(report: Report, transforms: Iterable[str]) -> set[str]:
    """Return the fields into which these transforms copy the topic's name."""
    found = set()
    for name in transforms:
        kind, side = _class_and_side_of_transform(report, name)
        if side == "Key":
            continue
        field = report.connector_value(f"transforms.{name}.topic.field").rstrip("!?")
        if kind == "InsertField" and field:
            found.add(field)
        elif kind == "KafkaMetadataTransform":
            base = report.connector_value(f"transforms.{name}.field_name") or "_kafka_metadata"
            nested = report.is_connector_value_true(f"transforms.{name}.nested")
            found.add(f"{base}.topic" if nested else f"{base}_topic")
    return found


def translate_transforms(report: Report) -> None:
    """Fill ``record_columns`` from the transforms that make such columns; name the others'
    counterparts."""
    names = transform_names(report)
    for position, name in enumerate(names, 1):
        prefix = f"transforms.{name}."
        kind, side = _class_and_side_of_transform(report, name)
        # Routes and record columns take the topic's own name here, never a router's new one.
        if kind in _TOPIC_ROUTERS and fields_with_topic_name(report, names[position:]):
            report.note_refused(
                f"{prefix}type",
                "a later transform copies the topic's new name, which headgate does not know: go "
                "on without it, and write tables.route for the topic's own name",
            )
        _translate_transform(report, prefix, kind, side)
        fate = report.fates.get(f"{prefix}type")
        for key in report.keys:
            if key.startswith(prefix) and fate:
                report.note_first_fate(
                    key,
                    _verdict_of_other_transform_keys(fate.verdict),
                    f"see {prefix}type ({kind})",
                )
    if names:
        report.note_dropped(("transforms",), "each transform has a line of its own")
    stale = [k for k in report.keys if k.startswith(("transforms.", "predicates"))]
    report.note_dropped(stale, "of no transform in transforms, or used by one that is told of")


def _verdict_of_other_transform_keys(of_type: Verdict) -> Verdict:
    """Return the verdict of a transform's other keys: one that asks for a person says enough."""
    return Verdict.KEPT if of_type is Verdict.KEPT else Verdict.NOT_NEEDED


def _translate_transform(report: Report, prefix: str, kind: str, side: str) -> None:
    key = f"{prefix}type"
    if not kind:
        report.note_refused(key, "the transform has no type, and Connect would not start either")
    elif side == "Key":
        report.note_dropped((key,), "keys are not written")
    elif kind in _HARMLESS:
        report.note_dropped((key,), _HARMLESS[kind])
    elif report.connector_value(f"{prefix}predicate"):
        report.note_refused(key, f"only some records ({prefix}predicate): transform.sql may do it")
    elif kind == "KafkaMetadataTransform":
        _fill_metadata_columns(report, prefix)
    elif kind == "InsertField" and not report.connector_value(f"{prefix}static.field"):
        _fill_inserted_columns(report, prefix)
    elif kind == "ReplaceField" and _is_harmless_replace_field(report, prefix):
        report.note_to_add_by_hand(
            key,
            "a field without a column is ignored; a column of one that is taken out here would be "
            "filled: drop it, or give it another source in [[table.columns]] (from)",
        )
    elif kind in _COUNTERPART:
        report.note_refused(key, f"its counterpart has to be written by hand: {_COUNTERPART[kind]}")
    else:
        report.note_refused(
            key, f"headgate has no {kind}; see [transform] (docs/guides/transforms.md)"
        )


def _is_harmless_replace_field(report: Report, prefix: str) -> bool:
    """Return whether it only takes fields out, and no column is made of one that is left in."""
    others = ("renames", "include", "whitelist")
    evolves = report.is_connector_value_true("iceberg.tables.evolve-schema-enabled")
    creates = "tables" in report.document and report.is_connector_value_true(
        "iceberg.tables.auto-create-enabled"
    )
    return not (evolves or creates or any(report.connector_value(prefix + k) for k in others))


def ensure_record_columns_section(report: Report) -> dict[str, object]:
    """Return the section of record columns, of one table or of many."""
    return report.ensure_section(
        "tables" if "tables" in report.document else "table", "record_columns"
    )


def _fill_metadata_columns(report: Report, prefix: str) -> None:
    base = report.connector_value(f"{prefix}field_name") or "_kafka_metadata"
    columns = ensure_record_columns_section(report)
    if report.is_connector_value_true(f"{prefix}nested"):
        columns["struct"] = base
    else:
        columns.update({part: f"{base}_{part}" for part in _METADATA})
    report.note_kept(f"{prefix}type", "record_columns, in columns of the same names")
    if report.connector_value(f"{prefix}external_field"):
        report.note_to_add_by_hand(
            f"{prefix}external_field", "a column with value = CONSTANT under [[table.columns]]"
        )


def _fill_inserted_columns(report: Report, prefix: str) -> None:
    """Take InsertField's parts of a record; a mark (! or ?) only says whether it is optional."""
    columns = ensure_record_columns_section(report)
    for part in _METADATA:
        key = f"{prefix}{part}.field"
        if named := report.connector_value(key).rstrip("!?"):
            columns[part] = named
            report.note_kept(key, f"record_columns.{part}")
    report.note_kept(f"{prefix}type", "record_columns, in columns of the same names")
