"""A sink file's mistakes are named with the file, the key and the way out; secrets stay unseen."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_origin

import pytest

from headgate.config.load import load, parse
from headgate.config.section_schema import key_descriptions, keys_of
from headgate.config.setting_types import Properties, is_secret_name
from headgate.config.sink_sections import GroupProtocol, WriterKind
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import declaration_if_creation_allowed
from headgate.config.table_settings import ColumnSettings
from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.message_encoding import Wire
from headgate.control_protocol.signatures import Keys
from headgate.coordinator.settings import RollbackPolicy
from headgate.participant.settings import ParticipantSettings
from headgate.tables.iceberg.table_creation import TableDeclaration
from headgate.tables.storage import object_stores

MINIMAL = """
name = "trips"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
[table]
identifier = "db.trips"
"""


def sink(*sections: str) -> SinkSettings:
    return parse(MINIMAL + "\n".join(sections))


def refusal(text: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        parse(text)
    return caught.value


def test_the_least_file_has_every_default() -> None:
    settings = parse(MINIMAL)
    assert settings.source.group_id == "headgate-trips"
    assert settings.spark.app_name == "headgate-trips"
    assert settings.control.topic == "headgate-control"
    assert settings.election_topic == "trips"
    assert settings.participant == ParticipantSettings()
    assert settings.source.start_at_ms is None
    assert settings.table.record_columns.coordinate_columns is None


def test_every_kind_of_value_arrives() -> None:
    settings = sink(
        'partition_by = ["day(at)", "bucket(16, id)"]',
        "create = true",
        '[[table.columns]]\nname = "id"\ntype = "long"\nrequired = true',
        '[[table.columns]]\nname = "at"\ntype = "timestamptz"',
        '[table.record_columns]\ntopic = "_t"\npartition = "_p"\noffset = "_o"',
        '[coordinator]\ncommit_interval_ms = 1000\non_rollback = "follow-table"',
        '[spark]\nwriter = "in-process"\n[spark.conf]\n"spark.ui.enabled" = false\n"a.b" = 3',
    )
    assert settings.table.columns == (
        ColumnSettings(name="id", type="long", required=True),
        ColumnSettings(name="at", type="timestamptz"),
    )
    assert settings.table.partition_by == ("day(at)", "bucket(16, id)")
    assert settings.table.record_columns.coordinate_columns == ("_t", "_p", "_o")
    assert settings.coordinator.on_rollback is RollbackPolicy.FOLLOW_TABLE
    assert settings.spark.writer is WriterKind.IN_PROCESS
    assert dict(settings.spark.conf) == {"spark.ui.enabled": "false", "a.b": "3"}


@pytest.mark.parametrize(
    ("value", "expected_ms"),
    [
        ('"earliest"', None),
        ('"latest"', None),
        ("1700000000000", 1_700_000_000_000),
        ('"1700000000000"', 1_700_000_000_000),
        ('"2023-11-14T22:13:20Z"', 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
        ('"1970-01-01T00:00:00Z"', 0),
    ],
)
def test_start_at_may_be_a_word_a_time_or_milliseconds(value: str, expected_ms: int | None) -> None:
    settings = parse(MINIMAL.replace("[kafka]", f"start_at = {value}\n[kafka]"))
    assert settings.source.start_at_ms == expected_ms


@pytest.mark.parametrize(
    "value",
    [
        *('"yesterday"', '"2023-11-14T22:13:20"', "2023-11-14", "true"),
        *('"0001-01-01T00:00:00Z"', "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00+01:00"),
    ],
)
def test_any_other_start_is_refused(value: str) -> None:
    error = refusal(MINIMAL.replace("[kafka]", f"start_at = {value}\n[kafka]"))
    assert "source.start_at" in error.message


def test_a_group_protocol_by_name() -> None:
    text = MINIMAL.replace("[kafka]", 'group_protocol = "consumer"\n[kafka]')
    assert parse(text).source.group_protocol is GroupProtocol.CONSUMER


@pytest.mark.parametrize(
    ("section", "key", "nearest"),
    [
        (
            "[coordinator]\ncomit_interval_ms = 5",
            "coordinator.comit_interval_ms",
            "commit_interval_ms",
        ),
        ("[tabel]\nx = 1", "tabel", "table"),
        (
            '[[table.columns]]\nname = "a"\ntype = "int"\nrequird = true',
            "table.columns[0].requird",
            "required",
        ),
        ('[spark]\nmasster = "local"', "spark.masster", "master"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(section: str, key: str, nearest: str) -> None:
    error = refusal(MINIMAL + section)
    assert error.message == f"{key} is not a known key"
    assert error.hint == f"did you mean {nearest}?"


def test_a_key_in_the_wrong_section_names_the_right_one() -> None:
    error = refusal('writer = "in-process"\n' + MINIMAL)
    assert error.message == "writer is not a known key"
    assert error.hint == "writer stands in [spark]"


def test_an_unknown_kafka_key_names_the_nearest_one() -> None:
    error = refusal(MINIMAL.replace("[table]", '"sasl.usernam" = "x"\n[table]'))
    assert error.message == 'kafka."sasl.usernam" is not a known key'
    assert error.hint == "did you mean sasl.username?"


@pytest.mark.parametrize(
    "key",
    [
        "plugin.library.paths",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.principal",
        "ssl.engine.location",
        "sasl.oauthbearer.method",
        "group.id",
        "enable.auto.commit",
        "isolation.level",
        "auto.offset.reset",
        "enable.partition.eof",
        "group.instance.id",
        "transactional.id",
    ],
)
def test_a_refused_kafka_key_says_why(key: str) -> None:
    error = refusal(MINIMAL.replace("[table]", f'"{key}" = "x"\n[table]'))
    assert error.message == f'kafka."{key}" may not be set'
    assert len(error.hint) > 10


def test_an_unquoted_kafka_key_is_explained() -> None:
    error = refusal(MINIMAL.replace("[table]", "session.timeout.ms = 9000\n[table]"))
    assert "kafka.session is a section" in error.message
    assert '"session.timeout' in error.hint


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            '[coordinator]\ncommit_interval_ms = "5s"',
            "coordinator.commit_interval_ms must be a whole number, not a text ('5s')",
        ),
        (
            "[coordinator]\ncommit_interval_ms = true",
            "coordinator.commit_interval_ms must be a whole number, not a boolean (True)",
        ),
        ("create = 1", "table.create must be true or false, not int (1)"),
        ('partition_by = "day(at)"', "table.partition_by must be a list, not a text ('day(at)')"),
        ("partition_by = [1]", "table.partition_by[0] must be a text, not int (1)"),
        ("spark = 3", "table.spark is not a known key"),
        ("columns = [3]", "table.columns[0] must be a section, not int (3)"),
        ('[catalog]\nproperties = "x"', "catalog.properties must be a section, not a text ('x')"),
        (
            "[catalog.properties]\nuri = []",
            'catalog.properties."uri" must be a text, a number or a boolean, not a list',
        ),
        (
            '[coordinator]\ntimeout_policy = "abbort"',
            "coordinator.timeout_policy cannot be 'abbort'",
        ),
    ],
)
def test_a_wrong_type_says_what_it_must_be(section: str, message: str) -> None:
    assert refusal(MINIMAL + section).message == message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "trips"', "", "name is missing"),
        ('name = "trips"', 'name = "a.b"', "name cannot be 'a.b'"),
        ('topics = ["trips"]', "", "source.topics is missing"),
        ('topics = ["trips"]', "topics = []", "source.topics is empty"),
        ('topics = ["trips"]', 'topics = ["^trips.*"]', "'^trips.*' cannot be a Kafka topic here"),
        (
            'topics = ["trips"]',
            'topics = ["a", "^("]',
            "'^(' is neither a Kafka topic nor a pattern",
        ),
        ('topics = ["trips"]', 'topics = ["a", "a"]', "source.topics names a topic twice"),
        (
            'topics = ["trips"]',
            'topics = ["headgate-control"]',
            "control.topic 'headgate-control' is also a source topic",
        ),
        (
            'topics = ["trips"]',
            'topics = ["a", "^.*"]',
            "the source's pattern '^.*' matches control.topic 'headgate-control'",
        ),
        ('"bootstrap.servers" = "127.0.0.1:9092"', "", 'kafka."bootstrap.servers" is missing'),
        ('"db.trips"', '"trips"', "table.identifier cannot be 'trips'"),
        ("[table]", "[table]\ncreate = true", "table.create is on, but no column is declared"),
        (
            "[table]",
            '[table]\ncolumns = [{name = "a", type = "int"}]\npartition_by = ["week(a)"]',
            "table.partition_by: partition 'week(a)': there is no transform 'week'",
        ),
        (
            "[table]",
            '[table]\ncreate = true\ncolumns = [{name = "a", type = "timestamp_ns"}]',
            (
                "table.properties: column 'a' is of type timestamp_ns, which format version 2 does "
                "not have"
            ),
        ),
        (
            "[table]",
            '[table]\ncolumns = [{name = "a", type = "int"}]\npartition_by = ["b"]',
            "table.partition_by: partition 'b': there is no column 'b'",
        ),
        (
            "[table]",
            '[table]\ncolumns = [{name = "a", type = "integer"}]',
            (
                "table.columns: column 'a': the type 'integer' cannot be read: "
                "there is no type 'integer'"
            ),
        ),
        (
            "[table]",
            '"max.poll.interval.ms" = 20000\n[table]',
            (
                "participant.release_timeout_ms (20000) is not below "
                'kafka."max.poll.interval.ms" (20000)'
            ),
        ),
        (
            "[table]",
            "[participant]\npresence_interval_ms = 30000\n[table]",
            (
                "participant.presence_interval_ms (30000) is not below "
                "coordinator.election_timeout_ms (30000)"
            ),
        ),
        (
            "[table]",
            "[coordinator]\ncommit_interval_ms = 60000\nclaim_age_max_ms = 359999\n[table]",
            (
                "coordinator.claim_age_max_ms (359999) is below 360000, 4 times commit_interval_ms "
                "and commit_timeout_ms together"
            ),
        ),
        (
            "[table]",
            "[coordinator]\ncommit_timeout_ms = 0\n[table]",
            "coordinator.commit_timeout_ms cannot be 0",
        ),
        (
            "[table]",
            '[spark]\nmaster = "local"\nremote = "sc://x"\n[table]',
            "spark.master and spark.remote are both set",
        ),
        (
            "[table]",
            '[transform]\nsql = "SELECT 1"\npython = "a:b"\n[table]',
            "transform.sql and transform.python are both set",
        ),
        (
            "[table]",
            '[[transform.columns]]\nname = "a"\ntype = "int"\n[table]',
            "transform.columns are set without a transform",
        ),
        (
            "[table]",
            '[transform]\nsql = "x"\n[[transform.columns]]\nname = "a"\ntype = "intt"\n[table]',
            (
                "transform.columns: column 'a': the type 'intt' cannot be read: there is no type "
                "'intt'"
            ),
        ),
        (
            "[table]",
            '[transform]\nsql = "SELECT 1"\n[spark]\nwriter = "in-process"\n[table]',
            "transform.sql needs Spark",
        ),
        (
            "[table]",
            '[spark]\nwriter = "in-process"\ndistribution = "hash"\n[table]',
            "spark.distribution = hash needs Spark",
        ),
    ],
)
def test_what_cannot_hold_together_is_refused(old: str, new: str, message: str) -> None:
    assert old in MINIMAL
    assert refusal(MINIMAL.replace(old, new)).message == message


def test_a_mistake_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sink.toml"
    path.write_text("name = [")
    with pytest.raises(ConfigurationError, match="is not valid TOML") as caught:
        load(path)
    assert str(path) in str(caught.value)
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        load(tmp_path / "absent.toml")


def test_references_are_resolved_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("from-a-file\n")
    monkeypatch.setenv("HEADGATE_TEST_URI", "postgresql://me:from-env@db/x")
    settings = parse(
        MINIMAL.replace("[table]", f'"sasl.password" = "${{file:{tmp_path}/password}}"\n[table]')
        + '[catalog.properties]\nuri = "${env:HEADGATE_TEST_URI}"\n'
        + '"s3.secret-access-key" = "in-the-open"\n'
        + 'other = "postgresql://me:inline@db/x"'
    )
    assert settings.kafka["sasl.password"] == "from-a-file"
    assert settings.catalog.properties["uri"] == "postgresql://me:from-env@db/x"
    for secret in ("from-a-file", "from-env", "in-the-open", "inline"):
        assert secret not in repr(settings)
        assert secret not in settings.redact(f"could not use 'x://u:{secret}@h'")
    assert settings.redact("login from-a-file failed") == "login *** failed"
    assert settings.kafka.masked_values()["bootstrap.servers"] == "127.0.0.1:9092"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("${env:HEADGATE_TEST_NEVER_SET}", "the environment variable HEADGATE_TEST_NEVER_SET"),
        ("${file:/absent/password}", "the file /absent/password, which cannot be read"),
    ],
)
def test_a_dangling_reference_names_its_key(reference: str, message: str) -> None:
    error = refusal(MINIMAL.replace("[table]", f'"sasl.password" = "{reference}"\n[table]'))
    assert 'kafka."sasl.password" refers to' in error.message
    assert message in error.message


def test_the_declaration_of_a_table() -> None:
    table = sink(
        "create = true",
        'partition_by = ["day(at)", "_p"]',
        'location = "file:///elsewhere"',
        'columns = [{name = "at", type = "timestamptz", required = true, doc = "when"}]',
        'record_columns = {partition = "_p", timestamp = "_ts"}',
        'properties = {"write.parquet.compression-codec" = "snappy"}',
    ).table
    assert declaration_if_creation_allowed(table) == TableDeclaration(
        columns={"at": "timestamptz not null", "_p": "int", "_ts": "timestamptz"},
        partition_by=("day(at)", "_p"),
        properties=Properties({"write.parquet.compression-codec": "snappy"}),
        location="file:///elsewhere",
        comments={"at": "when"},
    )
    assert declaration_if_creation_allowed(replace(table, create=False)) is None


def texts_in(section: type, where: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the way to every text and list of texts; a list of sections is a way into its first."""
    for key in keys_of(section).values():
        at = (*where, key.name)
        if key.hint in (str, tuple[str, ...]) or key.name == "name":
            yield at
        elif key.inner_section:
            yield from texts_in(key.inner_section, at)


def with_text(section: type, where: tuple[str, ...], text: str) -> str:
    """Return an inline section in which the text stands there, with all that it must hold."""
    (name, *rest), keys = where, keys_of(section)
    items = {key.name: '"x"' for key in keys.values() if key.is_required}
    inner = keys[name].inner_section
    items[name] = with_text(inner, tuple(rest), text) if inner and rest else json.dumps(text)
    for key, value in items.items():
        items[key] = f"[{value}]" if get_origin(keys[key].hint) is tuple else value
    return "{" + ", ".join(f"{name} = {value}" for name, value in items.items()) + "}"


@pytest.mark.parametrize("where", list(texts_in(SinkSettings)), ids=".".join)
def test_every_text_may_be_a_reference(where: tuple[str, ...]) -> None:
    name, *rest = where
    section = keys_of(SinkSettings)[name].inner_section
    reference = "${env:HEADGATE_TEST_NEVER_SET}"
    value = with_text(section, tuple(rest), reference) if section else json.dumps(reference)
    least: Mapping[str, Any] = {
        "name": '"trips"',
        "source": '{topics = ["trips"]}',
        "kafka": '{"bootstrap.servers" = "127.0.0.1:9092"}',
        "table": '{identifier = "db.trips"}',
    }
    named = {**least, name: value}.items()
    text = "\n".join(f"{json.dumps(key)} = {value}" for key, value in named)
    assert "HEADGATE_TEST_NEVER_SET, which is not set" in refusal(text).message


@pytest.mark.parametrize(
    ("sections", "first"),
    [
        ('[spark]\nwriter = 1\nmasster = "x"', "spark.masster is not a known key"),
        ("[spark]\nwriter = 1\n[catalog]\nname = 1", "spark.writer cannot be 1"),
        ("[catalog]\nname = 1\n[spark]\nwriter = 1", "catalog.name must be a text, not int (1)"),
        ('[[table.columns]]\ntype = 1\n[tabel]\nx = "y"', "tabel is not a known key"),
        ("[[table.columns]]\ntype = 1\n[spark]\nwriter = 1", "table.columns[0].name is missing"),
    ],
)
def test_of_several_mistakes_the_first_is_told(sections: str, first: str) -> None:
    assert refusal(MINIMAL + sections).message == first


@pytest.mark.parametrize(
    "section",
    [
        "[participant]\nfiles_max = []",
        "[http]\nviewer_token = 5",
        '[control]\nkey = "in-the-open"',
        "[catalog.properties]\nuri = {}",
        "[[table.columns]]\nname = 5",
    ],
)
def test_a_mistake_shows_no_other_value_even_with_its_trace(section: str) -> None:
    secret = '[table]\nlocation = "postgresql://me:hidden@db/x"'
    error = refusal(MINIMAL.replace("[table]", secret) + section)
    told = "".join(traceback.format_exception(error))
    assert "hidden" not in told
    assert "in-the-open" not in told
    assert "input_value" not in told


def test_a_password_in_the_query_of_a_url_is_masked() -> None:
    settings = sink('[catalog.properties]\nuri = "postgresql://h/db?user=u&password=in-the-open"')
    assert "in-the-open" not in repr(settings)
    assert settings.redact("no login with in-the-open") == "no login with ***"


def test_no_jvm_inherits_a_variable_that_any_setting_refers_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden: list[str] = []
    monkeypatch.setattr(
        "headgate.config.setting_types.note_variable_to_hide_from_jvms", hidden.append
    )
    text = MINIMAL.replace("[kafka]", '[kafka]\n"sasl.password" = "${env:PASSWORD}"')
    text += '[signal]\nurl = "https://${env:HOST}/${env:HOOK}"\ntoken = "${env:TOKEN}"\n'
    text += '[lineage]\ntopic = "${env:TOPIC}"\n'
    names = {"PASSWORD", "HOST", "HOOK", "TOKEN", "TOPIC"}
    for name in names:
        monkeypatch.setenv(name, name.lower())
    parse(text)
    assert set(hidden) == names


def test_what_a_check_raises_by_mistake_ends_no_process_and_asks_to_be_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check_sink(_: SinkSettings) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr("headgate.config.sink_settings.require_valid_sink", check_sink)
    error = refusal(MINIMAL)
    assert error.message == "a setting cannot be used: ValueError: a defect"
    assert "report it" in error.hint


def test_without_the_sources_only_the_meaning_of_a_missing_key_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def getsource(_: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr("inspect.getsource", getsource)
    key_descriptions.cache_clear()
    error = refusal(MINIMAL.replace('topics = ["trips"]', ""))
    assert (error.message, error.hint) == ("source.topics is missing", "")
    key_descriptions.cache_clear()


@pytest.mark.parametrize("value", ["9" * 5_000, "[" * 5_000 + "]" * 5_000], ids=["long", "deep"])
def test_a_value_that_no_program_reads_is_no_toml(value: str) -> None:
    assert "is not valid TOML" in refusal(f"{MINIMAL}x = {value}").message


def test_a_list_within_lists_is_told_by_its_place() -> None:
    nested = MINIMAL.replace('["trips"]', "[" * 150 + "]" * 150)
    assert refusal(nested).message == "source.topics[0] must be a text, not a list"


def test_the_token_in_the_address_of_spark_is_not_shown() -> None:
    settings = sink('[spark]\nremote = "sc://spark:15002/;token=hidden-value"')
    assert "hidden-value" not in repr(settings)
    assert settings.redact("token hidden-value") == "token ***"


OVERWRITTEN = [
    ('columns = [{name = "id", type = "long"}]', 'offset = "id"', "table.columns"),
    ('columns = [{name = "id", type = "string"}]', 'key = "id"', "table.columns"),
    ("", 'key = "id"\n[transform]\nsql = "SELECT id FROM records"', "transform.columns"),
]


@pytest.mark.parametrize(("table", "record", "section"), OVERWRITTEN)
def test_a_record_column_never_overwrites_data(table: str, record: str, section: str) -> None:
    text = f"{MINIMAL}{table}\n[table.record_columns]\n{record}\n"
    if section == "transform.columns":
        text += 'columns = [{name = "id", type = "long"}]\n'
    error = refusal(text)
    part = record.partition(" ")[0]
    assert f"table.record_columns.{part} = 'id' would overwrite the data" in error.message
    assert section in error.message


def test_a_declared_column_may_be_the_records() -> None:
    column = 'columns = [{name = "sent", type = "timestamptz_ns", from_record = true}]'
    settings = sink(column, '[table.record_columns]\ntimestamp = "sent"')
    assert settings.table.columns[0].from_record
    assert "does not name it" in refusal(MINIMAL + column).message


@pytest.mark.parametrize(
    "sections",
    [
        'columns = [{name = "id", type = "long"}, {name = "ID", type = "long"}]',
        'columns = [{name = "Offset", type = "long"}]\n[table.record_columns]\noffset = "offset"',
    ],
)
def test_columns_that_differ_only_in_case(sections: str) -> None:
    assert "differ only in case" in refusal(MINIMAL + sections).message


def test_a_value_replaced_in_code_is_checked_too() -> None:
    settings = parse(MINIMAL)
    with pytest.raises(ConfigurationError, match=r"source\.topics is empty"):
        replace(settings, source=replace(settings.source, topics=()))


@pytest.mark.parametrize("policy", ["policy", "tombstones"])
def test_dead_letters_may_have_a_topic_of_their_own(policy: str) -> None:
    settings = sink(f'[quarantine]\n{policy} = "quarantine"\ndead_letter_topic = "trips-dead"')
    assert settings.quarantine.dead_letter_topic == "trips-dead"


@pytest.mark.parametrize(
    ("policy", "topic", "source"),
    [
        ("skip", "dead", "trips"),
        ("quarantine", "trips", "trips"),
        ("quarantine", "headgate-control", "trips"),
        ("quarantine", "trips-dead", "^trips-.*"),
        ("quarantine", "no topic", "trips"),
    ],
)
def test_dead_letters_go_nowhere_else(policy: str, topic: str, source: str) -> None:
    text = MINIMAL if source == "trips" else MINIMAL.replace('["trips"]', f'["trips", "{source}"]')
    section = f'[quarantine]\npolicy = "{policy}"\ndead_letter_topic = "{topic}"\n'
    assert "quarantine.dead_letter_topic" in refusal(text + section).message


def with_keys(folder: Path, **keys: str) -> SinkSettings:
    lines = ["[control]"]
    for name, key in keys.items():
        (folder / name).write_text(f"{key}\n")
        lines.append(f'{name} = "${{file:{folder / name}}}"')
    return sink(*lines)


def test_keys_come_from_files_and_are_never_shown(tmp_path: Path) -> None:
    new, old = "0123456789abcdef" * 4, "fedcba9876543210" * 4
    settings = with_keys(tmp_path, key=new, accepted_key=old)
    assert settings.control.signing_keys == Keys((new, old))
    assert settings.event_wire == Wire(settings.name, Keys((new, old)))
    assert new not in repr(settings) and old not in repr(settings)
    assert settings.redact(f"bad {new} and {old}") == "bad *** and ***"
    assert not sink().control.signing_keys


def test_a_key_that_protects_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"control\.key has 7 characters"):
        with_keys(tmp_path, key="letmein")
    with pytest.raises(ConfigurationError, match=r"accepted_key is set without"):
        with_keys(tmp_path, accepted_key="0123456789abcdef" * 2)
    with pytest.raises(ConfigurationError, match="must be a reference") as caught:
        sink('[control]\nkey = "0123456789abcdef0123456789abcdef"')
    assert "0123" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["${vault:kafka}", "${ENV:X}", "x${file}y${secret:a/b}", "${env:", "${env:NAME"]
)
def test_a_reference_of_an_unknown_kind_is_refused_and_not_sent_as_it_is(text: str) -> None:
    error = refusal(MINIMAL.replace("[kafka]\n", f'[kafka]\n"sasl.password" = "{text}"\n'))
    assert 'kafka."sasl.password" refers to' in error.message
    assert "${env:NAME}, ${file:PATH}" in error.hint


def test_the_query_of_a_collector_s_address_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTLP_KEY", "sesame+open")
    address = "https://collector/v1/metrics?compress=true&api-key=${env:OTLP_KEY}"
    settings = sink("[telemetry]", f'otlp_endpoint = "{address}"')
    failed = "no answer: /v1/metrics?compress=true&api-key=sesame+open (true)"
    assert settings.redact(failed) == "no answer: /v1/metrics?*** (true)"
    assert settings.redact("not sesame%20open") == "not ***"


@pytest.mark.parametrize(
    "name",
    [
        *object_stores._LONG_LIVED,
        *object_stores._TEMPORARY,
        "fs.s3a.access.key",
        "fs.azure.account.key.files.dfs.core.windows.net",
        "fs.azure.sas.files.account",
        "fs.gs.auth.service.account.private.key",
        "kafka.sasl.jaas.config",
        "DD-API-KEY",
        "ssl.key.passphrase",
    ],
)
def test_a_property_is_a_secret_by_its_name(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "fs.azure.account.keyprovider.files",
        "adls.account-name",
        "gcs.oauth2.token-expires-at",
        "token-refresh-enabled",
        "write.parquet.bloom-filter-enabled.column.key",
    ],
)
def test_a_property_that_only_sounds_like_a_secret_is_none(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize("value", ["sesame-open", "two\nlines\x1b 'of' \"é\""])
def test_an_error_does_not_repeat_what_a_reference_stands_for(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("HELD", value)
    error = refusal(MINIMAL.replace("[source]", '[source]\nstart_at = "at ${env:HELD}"', 1))
    assert "source.start_at cannot be '***'" in error.message


def test_what_a_reference_stands_for_is_not_searched_for_references(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ODD", "${vault:x}")
    settings = parse(MINIMAL.replace("[kafka]\n", '[kafka]\n"sasl.password" = "${env:ODD}"\n'))
    assert settings.kafka["sasl.password"] == "${vault:x}"


@pytest.mark.parametrize("section", ["spark.conf", "catalog.properties"])
def test_a_secret_among_the_arguments_of_a_jvm_is_refused(
    monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    monkeypatch.setenv("TOLD", "-Dx=hidden-value")
    key = "spark.driver.extraJavaOptions"
    error = refusal(MINIMAL + f'[{section}]\n"{key}" = "${{env:TOLD}}"\n')
    assert error.code == "HG-106"
    assert f'{section}."{key}"' in error.message
    assert "hidden" not in str(error)
    assert "@/path" in error.hint
    parse(MINIMAL + f'[{section}]\n"{key}" = "-Xss4m"\n')
