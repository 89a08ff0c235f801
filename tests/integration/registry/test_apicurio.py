"""Ids in Apicurio's headers: of content and of versions, which are two spaces of numbers."""

from __future__ import annotations

import json
import struct
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaReference
from integration.conftest import Deploy
from integration.registry.server import GLOBAL_IDS_FROM, RegistryServer
from integration.registry.test_asking import (
    FIRST,
    QUICK,
    bad_of,
    registered,
    registered_schema,
)
from support.apicurio import serialize_as_apicurio
from unit.data_plane.formats.avro_worlds import encoded, record

from headgate.control_protocol.errors import ConfigurationError
from headgate.data_plane.formats.format_registry import create_record_format
from headgate.data_plane.formats.record_format import RecordFormat
from headgate.data_plane.formats.registry.frames import schema_id_headers_of
from headgate.operations.audit.audit import audit
from headgate.operations.check.check import check
from headgate.operations.init.sink_file_template import propose_and_write_sink_file

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.large_string())])
CONTENT, GLOBAL = "apicurio.value.contentId", "apicurio.value.globalId"
FRAMING = {"framing": "apicurio-header"}


def reader(url: str, kind: str = "avro-registry") -> RecordFormat:
    return create_record_format(kind, {**QUICK, **FRAMING, "registry.url": url})


def behind(header: str, number: int, value: bytes) -> bytes:
    """The value behind its header, as readers get it."""
    found = schema_id_headers_of(FRAMING, "value").framed_value(
        value, {header: struct.pack(">q", number)}
    )
    assert found is not None
    return found


def outer_schema(url: str, name: str) -> Schema:
    """A schema that refers to another that refers to a third, which are registered."""
    inner = {"type": "fixed", "name": "Code", "namespace": "shared", "size": 2}
    middle = {**record(code="shared.Code"), "name": "Middle", "namespace": "shared"}
    registered(url, f"{name}-inner", inner)
    to_inner = [SchemaReference("shared.Code", f"{name}-inner", 1)]
    registered_schema(url, f"{name}-middle", Schema(json.dumps(middle), "AVRO", to_inner))
    to_middle = [SchemaReference("shared.Middle", f"{name}-middle", 1)]
    return Schema(json.dumps(record(id="int", m="shared.Middle")), "AVRO", to_middle)


def referring(url: str, name: str) -> tuple[int, bytes]:
    """The id of such a schema, and a value."""
    return registered_schema(url, f"{name}-outer", outer_schema(url, name)), b"\x02ab"


OUTER = pa.schema([("m", pa.struct([("code", pa.binary(2))]))])


def test_both_kinds_of_ids_are_asked_for_where_they_count(troubled: RegistryServer) -> None:
    number = registered(troubled.url, "s", FIRST)
    value = encoded(FIRST, {"id": 1, "name": "x"})
    values = [
        behind(CONTENT, number, value),
        behind(GLOBAL, GLOBAL_IDS_FROM + number, value),
        b"\x00" + struct.pack(">i", number) + value,
        behind(GLOBAL, number + 1, value),
    ]
    made = reader(troubled.url)
    assert made.decode(values[:3], COLUMNS).to_pylist() == [{"id": 1, "name": "x"}] * 3
    assert list(bad_of(made, values)) == [3]
    asked = [path for path in troubled.asked if path.startswith("GET")]
    assert f"GET /apis/registry/v3/ids/contentIds/{number}" in asked
    assert f"GET /apis/registry/v3/ids/globalIds/{GLOBAL_IDS_FROM + number}" in asked
    assert f"GET /schemas/ids/{number}" in asked


def test_references_of_an_artifact_are_followed(troubled: RegistryServer) -> None:
    number, value = referring(troubled.url, "r")
    for header, id_ in ((CONTENT, number), (GLOBAL, GLOBAL_IDS_FROM + number)):
        rows = reader(troubled.url).decode([behind(header, id_, value)], OUTER)
        assert rows.to_pylist() == [{"m": {"code": b"ab"}}]


def test_json_is_read_behind_either_header(troubled: RegistryServer) -> None:
    schema = {"type": "object", "title": "Row", "properties": {"id": {"type": "integer"}}}
    number = registered_schema(troubled.url, "j", Schema(json.dumps(schema), "JSON"))
    values = [
        behind(CONTENT, number, b'{"id": 1}'),
        behind(GLOBAL, GLOBAL_IDS_FROM + number, b'{"id": 2}'),
    ]
    rows = reader(troubled.url, "json-registry").decode(values, COLUMNS).to_pylist()
    assert [row["id"] for row in rows] == [1, 2]


def test_only_a_header_makes_an_id_one_of_apicurio_s(troubled: RegistryServer) -> None:
    number = registered(troubled.url, "s", FIRST)
    spoofed = behind(CONTENT, number, encoded(FIRST, {"id": 1, "name": "x"}))
    troubled.asked.clear()
    headers = schema_id_headers_of(FRAMING, "value")
    without = headers.framed_value(spoofed, {})
    short = headers.framed_value(spoofed, {CONTENT: b"\x01"})
    assert without is not None
    assert short is not None
    assert sorted(bad_of(reader(troubled.url), [without, short])) == [0, 1]
    plain = create_record_format("avro-registry", {**QUICK, "registry.url": troubled.url})
    assert list(bad_of(plain, [spoofed])) == [0]
    assert troubled.asked == []


def test_protobuf_whose_type_is_in_a_header_is_refused_and_not_misread() -> None:
    with pytest.raises(ConfigurationError, match=r"framing cannot be apicurio-header.*type"):
        reader("http://registry:8081", "protobuf-registry")


@pytest.mark.integration
def test_init_and_a_whole_sink_read_ids_of_both_headers(
    deploy: Deploy, troubled: RegistryServer, tmp_path: Path
) -> None:
    sink = deploy(
        {
            "format": {"type": "avro-registry"},
            "format.options": {"registry.url": troubled.url, **FRAMING},
            "table.columns": {"columns": {"id": "long", "name": "string"}},
        }
    )
    number = registered(troubled.url, "s", FIRST)
    producer = Producer({"bootstrap.servers": sink.bootstrap})
    for each in range(100):
        beyond = GLOBAL_IDS_FROM if each % 2 else 0
        headers = {GLOBAL if each % 2 else CONTENT: struct.pack(">q", number + beyond)}
        value = encoded(FIRST, {"id": each, "name": f"n{each}"})
        producer.produce(sink.topics[0], value, headers=headers, partition=each % 2)
    assert producer.flush(30) == 0
    _, found = propose_and_write_sink_file(
        "found",
        tmp_path,
        topic=sink.topics[0],
        kafka={"bootstrap.servers": sink.bootstrap},
        format={"registry.url": troubled.url, **FRAMING},
    )
    assert found is not None
    assert found.format_name == "avro-registry"
    assert {each.name for each in found.proposal.columns} == {"id", "name"}
    answers = {answer.what: answer for answer in check(sink.settings)}
    assert "100 plain" in answers["records"].detail
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert sorted(row["id"] for row in sink.rows().to_pylist()) == list(range(100))
    assert audit(sink.settings).findings == ()


# ---------------------------------------------------------------------------------- a real server


def global_id(url: str, artifact: str) -> int:
    path = f"/apis/registry/v3/search/versions?artifactId={quote(artifact)}"
    with urllib.request.urlopen(url + path) as answer:
        found: list[dict[str, Any]] = json.load(answer)["versions"]
    return int(found[0]["globalId"])


@pytest.mark.wide
def test_what_apicurio_s_own_serializer_writes_is_read(apicurio: str, unique_name: str) -> None:
    # A second version with the same content: from here on the two kinds of ids differ.
    for part in ("a", "b"):
        registered(f"{apicurio}/apis/ccompat/v7", f"{unique_name}-{part}", FIRST)
    rows = [{"id": number, "name": f"n{number}"} for number in range(50)]
    schema = {**FIRST, "namespace": "of.the.serializer"}
    for use_id, header in (("contentId", CONTENT), ("globalId", GLOBAL)):
        written = serialize_as_apicurio(apicurio, use_id, schema, rows)
        headers = schema_id_headers_of(FRAMING, "value")
        values = [headers.framed_value(value, of) or b"" for value, of in written]
        assert all(header in of for _, of in written)
        found = reader(f"{apicurio}/apis/ccompat/v7").decode(values, COLUMNS)
        assert found.to_pylist() == rows


@pytest.mark.wide
def test_a_real_server_has_two_spaces_of_ids_and_references_in_both(
    apicurio: str, unique_name: str
) -> None:
    url = f"{apicurio}/apis/ccompat/v7"
    content, value = referring(url, unique_name)
    # The same content in two more artifacts: versions of their own, and no content of their own.
    # The number of one of them may happen to be that of the content.
    names = [f"{unique_name}-{part}" for part in ("again", "and-again")]
    outer = outer_schema(url, unique_name)
    assert {registered_schema(url, name, outer) for name in names} == {content}
    of_version = next(n for n in (global_id(apicurio, name) for name in names) if n != content)
    values = [behind(CONTENT, content, value), behind(GLOBAL, of_version, value)]
    assert reader(url).decode(values, OUTER).to_pylist() == [{"m": {"code": b"ab"}}] * 2
    bad = bad_of(reader(url), [behind(kind, 10**9, value) for kind in (CONTENT, GLOBAL)])
    assert {reason[:29] for reason in bad.values()} == {"the registry does not know th"}
