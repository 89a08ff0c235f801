"""Wrong sink files, each with the one line that says what is wrong and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from unit.config.test_load import MINIMAL, refusal

from headgate.config.load import load, parse
from headgate.control_protocol.errors import ConfigurationError
from headgate.kafka.cluster_queries import Cluster

COLUMN = '[[table.columns]]\nname = "a"\ntype = "{type}"\n'


def with_kafka(line: str) -> str:
    return MINIMAL.replace("[kafka]\n", f"[kafka]\n{line}\n")


def with_source(line: str) -> str:
    return MINIMAL.replace("[source]\n", f"[source]\n{line}\n")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (with_source('topic = ["a"]'), "source.topic is not a known key", "did you mean topics?"),
        (with_source('group_id = " "'), "source.group_id cannot be ' '", "leave it out"),
        (with_source('group_id = "a\\n"'), "source.group_id cannot be", "control characters"),
        (
            MINIMAL.replace('["trips"]', '["a b"]'),
            "'a b' cannot be a Kafka topic",
            "letters A",
        ),
        (MINIMAL.replace('["trips"]', '["ä"]'), "'ä' cannot be a Kafka topic", "letters A"),
        (
            MINIMAL.replace('["trips"]', '["^a"]'),
            "cannot be a Kafka topic here",
            "may only follow",
        ),
        (MINIMAL.replace('["trips"]', '["a", "b c"]'), "neither a Kafka topic", "letters A"),
        (MINIMAL.replace('["trips"]', '["__consumer_offsets"]'), "of Kafka's own", "yours"),
        (MINIMAL + '[control]\ntopic = "a b"\n', "'a b' cannot be a Kafka topic", "letters A"),
        (with_kafka("session.timeout.ms = 5"), "kafka.session", '"session.timeout.ms" = ...'),
        (with_kafka('"client.id" = " "'), 'kafka."client.id" is blank', "remove the key"),
        (with_kafka('"security.protocol" = "SASL_SSL"'), '"sasl.mechanism" is not set', "SCRAM"),
        (MINIMAL.replace("db.trips", "m.t\\n"), "table.identifier cannot be", "control characters"),
        (MINIMAL.replace("db.trips", "m.t\\u0000"), "table.identifier cannot be", "control"),
        (MINIMAL.replace("db.trips", "m. t"), "table.identifier cannot be", "blanks at the ends"),
        (MINIMAL + '[spark]\nmaster = "lokal"\n', "spark.master cannot be", "local[*]"),
        (MINIMAL + '[spark]\nremote = "http://x"\n', "spark.remote is no address", "sc://"),
        (MINIMAL + COLUMN.format(type="variant"), "there is no type 'variant'", "known are"),
        (MINIMAL + COLUMN.format(type="integer"), "there is no type 'integer'", "mean 'int'"),
        (
            MINIMAL + '[table.columns]\na = "int"\n',
            "must be a list, not a section",
            "[[table.columns]]",
        ),
        (
            MINIMAL + 'partition_by = ["bucket(99999999999, a)"]\n' + COLUMN.format(type="long"),
            "99999999999 is too large",
            "2147483647",
        ),
        (MINIMAL + '[format]\ntype = "avro-registry"\n', "set registry.url", ""),
        (
            MINIMAL + f"[coordinator]\ncommit_records = {2**63 - 1}\n",
            f"coordinator.commit_records cannot be {2**63 - 1}",
            f"at most {2**62 - 1}",
        ),
        (
            MINIMAL + f"[telemetry]\ninterval_ms = {2**63 - 1}\n",
            f"telemetry.interval_ms cannot be {2**63 - 1}",
            "at most a year",
        ),
        (
            MINIMAL + f"[maintenance]\ninterval_ms = {2**63 - 1}\n",
            f"maintenance.interval_ms cannot be {2**63 - 1}",
            "at most a year",
        ),
        (
            MINIMAL + f'[lineage]\ntopic = "t"\nevery_ms = {2**63 - 1}\n',
            f"lineage.every_ms cannot be {2**63 - 1}",
            "at most a year",
        ),
    ],
    ids=lambda text: text[-40:] if isinstance(text, str) else None,
)
def test_a_wrong_file_is_answered_by_what_to_write(text: str, message: str, hint: str) -> None:
    error = refusal(text)
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    "text",
    [
        MINIMAL + "[coordinator]\ncommit_records = 0x" + "f" * 6_000 + "\n",
        MINIMAL.replace('["trips"]', '["trips", "^a{99999999999}"]'),
        with_source('group_id = "${file:a\\u0000b}"'),
        with_kafka('"sasl.password" = "${file:a\\u0000b}"'),
    ],
    ids=["number", "pattern", "path", "path of a secret"],
)
def test_what_python_or_a_library_cannot_take_is_an_error_of_the_file(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "sink.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=str(file)):
        load(file)


def test_what_a_format_raises_is_an_error_of_the_file_without_its_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str, options: Mapping[str, str]) -> None:
        raise TypeError(f"{name} cannot take {options['a']}")

    monkeypatch.setenv("OPTION", "a-secret-of-tests")
    monkeypatch.setattr("headgate.config.column_rules.create_record_format", fail)
    error = refusal(MINIMAL + '[format.options]\na = "${env:OPTION}"\n')
    assert "TypeError: json cannot take ***" in error.message


@pytest.mark.parametrize("depth", [200, 5_000])
@pytest.mark.parametrize("kind", ["list<", "map<int,", "struct<a:"])
def test_a_type_nested_too_deep_is_refused_in_a_short_line(kind: str, depth: int) -> None:
    error = refusal(MINIMAL + COLUMN.format(type=kind * depth + "int" + ">" * depth))
    assert "nested more than 40 deep" in error.message
    assert len(error.message) < 600
    parse(MINIMAL + COLUMN.format(type="list<" * 30 + "int" + ">" * 30))


def test_a_very_long_name_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "sink.toml"
    file.write_text(MINIMAL + f"[{'x' * 10_000}]\na = 1\n")
    with pytest.raises(ConfigurationError, match=r"x \.\.\. \d+ more \.\.\. x") as caught:
        load(file)
    assert len(str(caught.value)) < 1_000


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "sink.toml"
    file.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load(file).name == "trips"


def test_a_file_of_kafka_that_is_not_there_is_named() -> None:
    settings = parse(
        with_kafka('"security.protocol" = "ssl"\n"ssl.ca.location" = "/nowhere/ca.pem"')
    )
    with pytest.raises(ConfigurationError, match=r'"ssl.ca.location" names /nowhere/ca.pem, which'):
        Cluster(settings.kafka)
