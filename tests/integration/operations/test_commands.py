"""Commands that ask a real broker."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.topics import delete_topics
from unit.operations.filled_table import FilledTable

from headgate.config.load import load
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol import message_encoding
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import RetryLater
from headgate.control_protocol.events import (
    Envelope,
    Notice,
    Pause,
    Presence,
    PresenceKind,
    Resume,
    StartCommit,
    TableStart,
)
from headgate.control_protocol.identifiers import Epoch, Sender, SinkName, TransactionNumber
from headgate.control_protocol.offsets import Offsets
from headgate.data_plane.cdc import policy
from headgate.kafka.control_topic import ensure_control_topic
from headgate.operations.access.kafka_connection import read_control_tail
from headgate.operations.check.check import check
from headgate.operations.cli.main import main
from headgate.operations.control.pause import pause_sink, resume_sink
from headgate.runtime.sink_tables import open_tables_creating_nothing

pytestmark = pytest.mark.integration


def headgate(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def answers(result: Result) -> dict[str, dict[str, str]]:
    return {answer["what"]: answer for answer in json.loads(result.stdout)}


@pytest.fixture
def control(settings: SinkSettings, bootstrap: str, admin: AdminClient) -> object:
    ensure_control_topic({"bootstrap.servers": bootstrap}, settings.control.topic)
    yield settings.control.topic
    delete_topics(admin, settings.control.topic)


def say(producer: Producer, settings: SinkSettings, *envelopes: Envelope) -> None:
    for envelope in envelopes:
        producer.produce(
            settings.control.topic, message_encoding.encode_envelope(envelope), partition=0
        )
    assert producer.flush(10) == 0


def read_history_of(settings: SinkSettings) -> CommitRecord:
    with open_tables_creating_nothing(settings) as tables:
        record = tables.reader.history().current_record
    assert record is not None
    return record


def envelope(event: object, member: str = "one", sink: str = "trips", time_ms: int = 0) -> Envelope:
    return Envelope(
        SinkName(sink),
        Epoch(1),
        TransactionNumber(3),
        Sender(member, "life"),
        0,
        time_ms,
        event,  # type: ignore[arg-type]
    )


def test_a_good_sink_passes_and_nothing_is_made(
    filled: FilledTable, sink_file: Path, producer: Producer, admin: AdminClient
) -> None:
    for partition in (0, 1):
        for _ in range(10):
            producer.produce(filled.topic, b"{}", partition=partition)
    producer.flush(10)
    filled.good_start()
    topics = set(admin.list_topics(timeout=10).topics)
    result = headgate("check", sink_file)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.strip().splitlines()]
    unknown = {what for state, what, *_ in lines if state != "ok"}
    assert unknown <= {"clock"}, result.stdout  # nobody is at work
    assert {t for t in admin.list_topics(timeout=10).topics if filled.topic in t} <= topics


def test_a_missing_topic(filled: FilledTable, sink_file: Path) -> None:
    sink_file.write_text(sink_file.read_text().replace(filled.topic, f"{filled.topic}-absent"))
    result = headgate("check", sink_file, "--json")
    assert result.exit_code == 2
    wrong = {what for what, answer in answers(result).items() if answer["state"] == "wrong"}
    assert "source topics" in wrong
    assert "does not exist" in answers(result)["source topics"]["detail"]


def test_a_control_topic_with_two_partitions(
    filled: FilledTable, sink_file: Path, settings: SinkSettings, admin: AdminClient
) -> None:
    name = settings.control.topic
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    try:
        result = headgate("check", sink_file, "--json")
        assert result.exit_code == 2
        assert answers(result)["control topic"]["code"] == "HG-104"
    finally:
        delete_topics(admin, name)


def test_a_missing_dead_letter_topic(filled: FilledTable, sink_file: Path) -> None:
    section = '\n[quarantine]\npolicy = "quarantine"\ndead_letter_topic = "{}"\n'
    said = sink_file.read_text()
    sink_file.write_text(said + section.format(f"{filled.topic}-absent"))
    answer = answers(headgate("check", sink_file, "--json"))["dead-letter topic"]
    assert (answer["state"], answer["code"]) == ("wrong", "HG-100")
    assert "does not exist" in answer["detail"]


def test_stored_offsets_behind_the_logs_end(filled: FilledTable, sink_file: Path) -> None:
    filled.good_start()  # the topic is empty
    result = headgate("check", sink_file, "--json")
    assert result.exit_code == 1
    assert answers(result)["stored offsets"]["code"] == "HG-205"


def test_a_recreated_topic(filled: FilledTable, sink_file: Path) -> None:
    filled.topic_id = type(filled.topic_id)("another")
    filled.good_start()
    result = headgate("check", sink_file, "--json")
    assert result.exit_code == 1
    assert answers(result)["stored offsets"]["code"] == "HG-206"


def test_the_same_file_under_another_name(filled: FilledTable, sink_file: Path) -> None:
    filled.commit(filled.record(1, 0, {0: 0, 1: 0}))
    sink_file.write_text(sink_file.read_text().replace('name = "trips"', 'name = "copy"'))
    result = headgate("check", sink_file, "--json")
    assert result.exit_code == 2
    answer = answers(result)["stored offsets"]
    assert answer["code"] == "HG-113"
    assert "table.shared_with" in answer["hint"]


def test_status_shows_lag_and_who_is_alive(
    filled: FilledTable,
    sink_file: Path,
    settings: SinkSettings,
    producer: Producer,
    control: object,
) -> None:
    import time

    for _ in range(14):
        producer.produce(filled.topic, b"{}", partition=0)
    for _ in range(10):
        producer.produce(filled.topic, b"{}", partition=1)
    filled.good_start()
    now_ms = time.time_ns() // 1_000_000
    alive = Presence(PresenceKind.ALIVE, frozenset(), {}, "reading", 7)
    left = Presence(PresenceKind.LOST, frozenset(), {})
    say(
        producer,
        settings,
        envelope(alive, "one", time_ms=now_ms),
        envelope(alive, "silent", time_ms=now_ms - 60_000),
        envelope(left, "gone", time_ms=now_ms),
        envelope(alive, "stranger", "other-sink", now_ms),
        envelope(StartCommit(None, Offsets(), {}, (TableStart("t", "uuid", 0, 0, "folder"),))),
    )
    result = headgate("status", sink_file, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [p["lag"] for p in document["partitions"]] == [4, 0]
    assert document["lag"] == 4
    assert document["notes"] == []
    assert [p["member"] for p in document["participants"]] == ["one"]
    assert document["participants"][0]["buffered_records"] == 7
    assert document["open_transaction"] == "1.3"
    assert "one" in headgate("status", sink_file).stdout


def test_a_pause_that_nobody_takes_is_heard_but_not_promised(
    filled: FilledTable, settings: SinkSettings, control: object
) -> None:
    filled.good_start()
    with pytest.raises(RetryLater, match="did not take the request"):
        pause_sink(settings, 0.5)
    resume_sink(settings, 0.5)  # it is not paused, and the log says that it shall not be
    heard = read_control_tail(settings, 10)
    assert isinstance(heard.pop().event, Notice)  # who asked, for people
    assert [type(said.event) for said in heard] == [Pause, Resume]
    seen = read_history_of(settings).transaction
    assert {(said.epoch, said.transaction) for said in heard} == {(seen.epoch, seen.number)}


def test_status_tells_of_events_that_are_not_believed(
    filled: FilledTable,
    sink_file: Path,
    settings: SinkSettings,
    producer: Producer,
    control: object,
    tmp_path: Path,
) -> None:
    filled.good_start()
    say(producer, settings, envelope(Presence(PresenceKind.ALIVE, frozenset(), {}, "forged")))
    (tmp_path / "key").write_text("0123456789abcdef" * 4)
    text = sink_file.read_text()
    keyed = text.replace("[control]", f'[control]\nkey = "${{file:{tmp_path}/key}}"')
    sink_file.write_text(keyed)
    with pytest.raises(RetryLater, match="did not take the request"):
        pause_sink(load(sink_file), 0.5)

    result = headgate("status", sink_file)
    assert result.exit_code == 1
    assert "1 unsigned events of this sink were ignored" in result.output
    assert "0123456789abcdef" not in result.output
    assert [type(said.event) for said in read_control_tail(load(sink_file), 10)] == [Pause]

    sink_file.write_text(text)
    result = headgate("status", sink_file)
    assert result.exit_code == 1
    assert "1 signed events of this sink could not be checked" in result.output


def test_pause_without_a_control_topic(sink_file: Path) -> None:
    result = headgate("pause", sink_file)
    assert result.exit_code == 2
    assert "does not exist, so nobody would hear the request" in result.stderr


def test_init_proposes_columns_from_what_a_topic_holds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bootstrap: str,
    topic: str,
    producer: Producer,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BROKER", bootstrap)
    broker = ("--kafka", "bootstrap.servers=${env:BROKER}")
    empty = headgate("init", "shop", "--from-topic", topic, *broker)
    assert empty.exit_code == 2
    assert "no column can be proposed from 0 records" in empty.stderr

    for number in range(2_000):
        row = {"id": number, "at": "2026-01-31T06:00:00Z", "who": {"name": "x"}, "odd key": 1}
        producer.produce(topic, json.dumps(row), partition=number % 2)
    producer.flush(10)
    result = headgate("init", "shop", "--from-topic", topic, *broker)
    assert result.exit_code == 0, result.output
    assert "3 columns proposed from 1,000 records" in result.output
    assert "1 left out" in result.output
    text = (tmp_path / "shop.toml").read_text()
    assert "${env:BROKER}" in text
    assert '# Left out, "odd key": a column cannot have this name' in text
    columns = {column.name: column.type for column in load(tmp_path / "shop.toml").table.columns}
    assert columns == {"id": "long", "at": "timestamptz", "who": "struct<name: string>"}

    for number in range(2_000):
        row = {"before": None, "after": {"id": number}, "op": "c"}
        producer.produce(topic, json.dumps(row), json.dumps({"id": number}), partition=number % 2)
    producer.flush(10)
    assert headgate("init", "changes", "--from-topic", topic, *broker).exit_code == 0
    made = load(tmp_path / "changes.toml")
    assert (made.table.key, made.changes.envelope) == (("id",), "debezium")
    answers = {answer.what: answer for answer in check(made)}
    assert answers["records"].detail == f"{topic}: of 200 records 200 debezium"
    plain = replace(made, changes=replace(made.changes, envelope=policy.Envelope.PLAIN))
    (wrong,) = (answer for answer in check(plain) if answer.what == "records")
    assert (wrong.code, wrong.exit_code) == ("HG-148", 2)

    missing = headgate("init", "other", "--from-topic", f"{topic}-no", *broker)
    assert missing.exit_code == 2
    assert "cannot be read" in missing.stderr
    assert not (tmp_path / "other.toml").exists()
