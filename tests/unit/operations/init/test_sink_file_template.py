"""``headgate init``: a file that loads, and names what a sink should have."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from headgate.config.load import load, parse
from headgate.control_protocol.errors import ConfigurationError
from headgate.operations.init import sink_file_template
from headgate.operations.init.sink_file_template import propose_and_write_sink_file


def test_a_new_sink_file_tells_of_the_key_and_loads_with_one(tmp_path: Path) -> None:
    path, _ = propose_and_write_sink_file("trips", tmp_path)
    text = path.read_text()
    assert "openssl rand -hex 32 > control.key" in text
    key = tmp_path / "control.key"
    key.write_text("0123456789abcdef" * 4)
    signed = text.replace('# key = "${file:control.key}"', f'key = "${{file:{key}}}"')
    assert signed != text
    assert parse(signed).control.signing_keys
    assert not parse(text).control.signing_keys


def test_keys_that_begin_with_auth_are_those_of_their_sections(tmp_path: Path) -> None:
    """References to secrets stay references; what is no key of the section is refused."""
    secret = tmp_path / "secret"
    secret.write_text("hush")
    kafka = {
        "bootstrap.servers": "broker:9092",
        "auth.type": "oidc",
        "auth.token_url": "https://idp.example/token",
        "auth.client_id": "headgate",
        "auth.client_secret": f"${{file:{secret}}}",
        "auth.extensions.logicalCluster": "lkc-1",
    }
    registry = {
        "type": "avro-registry",
        "registry.url": "https://registry.example",
        "auth.type": "token-file",
        "auth.path": "/run/secrets/token",
    }
    path, _ = propose_and_write_sink_file("trips", tmp_path, kafka=kafka, format=registry)
    assert f"${{file:{secret}}}" in path.read_text()
    settings = load(path)
    assert settings.kafka_auth.client_id == "headgate"
    assert dict(settings.kafka_auth.extensions) == {"logicalCluster": "lkc-1"}
    assert settings.format.auth.path == "/run/secrets/token"
    assert not [key for key in (*settings.kafka, *settings.format.options) if key[:5] == "auth."]
    with pytest.raises(ConfigurationError, match=r"kafka.auth.tokn_url"):
        propose_and_write_sink_file(
            "other", tmp_path, kafka={"auth.type": "oidc", "auth.tokn_url": "https://x"}
        )
    assert not (tmp_path / "other.toml").exists()


def test_options_of_glue_s_registry_make_a_file_that_asks_it(tmp_path: Path) -> None:
    path, _ = propose_and_write_sink_file("trips", tmp_path, format={"glue.region": "eu-west-1"})
    assert load(path).format.type == "glue-registry"
    assert load(path).format.options["glue.region"] == "eu-west-1"


@pytest.mark.parametrize(
    ("fields", "offset"),
    [
        (("id",), "kafka_offset"),
        (("id", "Kafka_Offset"), "source_offset"),
        (("kafka_topic", "source_topic"), "source1_offset"),
    ],
)
def test_the_records_own_fields_keep_their_names_beside_record_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: tuple[str, ...], offset: str
) -> None:
    value = json.dumps(dict.fromkeys(fields, 1)).encode()
    cluster = SimpleNamespace(count_brokers=lambda: 1)
    monkeypatch.setattr(sink_file_template, "Cluster", lambda _: cluster)
    monkeypatch.setattr(sink_file_template, "read_newest_records", lambda *_: [(None, value)])
    path, _ = propose_and_write_sink_file("trips", tmp_path, topic="trips")
    table = load(path).table
    assert tuple(column.name for column in table.columns) == fields
    assert table.record_columns.offset == offset
