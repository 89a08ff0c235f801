"""Which parts of a sink file START carries, and that no secret is among them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from unit.data_plane.formats.protobuf_worlds import World
from unit.operations.filled_table import sink_file_text

from headgate.config.configuration_fingerprint import (
    configuration_digest,
    hash_of_value,
    settings_to_agree_on,
)
from headgate.config.load import parse
from headgate.control_protocol.events import DIGEST
from headgate.control_protocol.identifiers import Sender
from headgate.runtime.assembly import build_coordinator_identity

FILE = sink_file_text(Path("/lake")).replace('[spark]\nwriter = "in-process"', "")


def differing(more: str, instead: str = "") -> set[str]:
    one, other = (
        settings_to_agree_on(parse(FILE + instead)),
        settings_to_agree_on(parse(FILE + more)),
    )
    assert one.keys() == other.keys()
    return {name for name, value in one.items() if other[name] != value}


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ('[format]\ntype = "csv"\noptions = { columns = "a" }', "format"),
        ('[format]\noptions = { case-insensitive = "true" }', "format"),
        ('[[table.columns]]\nname = "a"\ntype = "long"\nfrom = "b.a"', "table.columns"),
        ('[quarantine]\npolicy = "skip"', "quarantine.policy"),
        ('[quarantine]\ntombstones = "skip"', "quarantine.tombstones"),
        ('[transform]\nsql = "SELECT * FROM records"', "transform"),
        ('[shape]\nwhere = "a > 1"', "shape"),
        (
            '[maintenance]\nrows_after_ms = 3600000\nrows_by = "at"\nrows_late = "skip"',
            "maintenance.rows_late",
        ),
    ],
)
def test_what_decides_what_a_row_is_must_be_equal(more: str, name: str) -> None:
    assert differing(more) == {name}


@pytest.mark.parametrize(
    ("before", "now", "name"),
    [
        ('topics = ["trips"]', 'topics = ["trips", "rides"]', "source.topics"),
        ('"db.trips"', '"db.trips"\nbranch = "audit"', "table.branch"),
        ('offset = "offset"', 'offset = "position"', "table.record_columns"),
    ],
)
def test_what_is_read_and_where_it_goes_must_be_equal(before: str, now: str, name: str) -> None:
    assert FILE.count(before) == 1
    one, other = (
        settings_to_agree_on(parse(FILE)),
        settings_to_agree_on(parse(FILE.replace(before, now))),
    )
    assert {part for part in one.keys() | other.keys() if one[part] != other[part]} == {name}


def test_a_digest_is_what_it_was_before_a_key_that_a_file_does_not_use() -> None:
    """A member of another release reads it beside decisions that are under way (PENDING-3)."""
    settings = parse(FILE)
    before = (
        *("source.topics", "table.branch", "table.record_columns", "table.columns"),
        *("table.schema", "format", "quarantine.policy", "quarantine.tombstones"),
        *("quarantine.table", "transform"),
    )
    agreed = settings_to_agree_on(settings)
    assert configuration_digest(settings) == hash_of_value({name: agreed[name] for name in before})
    late = '[maintenance]\nrows_after_ms = 3600000\nrows_by = "at"\n'
    assert configuration_digest(parse(FILE + late)) == configuration_digest(settings)
    skips = parse(f'{FILE}{late}rows_late = "skip"\n')
    assert configuration_digest(skips) != configuration_digest(settings)


def test_one_function_is_not_the_same_in_spark_and_in_process() -> None:
    """It gets a DataFrame there, and Arrow batches here: two members would write other rows."""
    function = '[transform]\npython = "a:b"\n'
    in_spark = settings_to_agree_on(parse(FILE + function))
    here = settings_to_agree_on(parse(FILE + function + '[spark]\nwriter = "in-process"\n'))
    assert in_spark["transform"] != here["transform"]
    assert {part for part in here if in_spark[part] != here[part]} == {"transform"}


def test_the_coordinator_knows_its_control_topics_name() -> None:
    assert build_coordinator_identity(parse(FILE), Sender("one", "life")).control_topic == "control"


def test_a_quarantine_names_its_table() -> None:
    assert differing('[quarantine]\npolicy = "quarantine"') == {
        "quarantine.policy",
        "quarantine.table",
    }


@pytest.mark.parametrize(
    "more",
    [
        "[coordinator]\ncommit_interval_ms = 5000",
        "[participant]\nbatch_records_max = 5",
        "[quarantine]\nrecords_max = 5",
        '[spark]\nwriter = "in-process"',
    ],
)
def test_what_may_be_changed_one_after_the_other_is_not_compared(more: str) -> None:
    assert differing(more) == set()


def registry(url: str, password: str) -> str:
    return (
        '[format]\ntype = "avro-registry"\noptions = { "registry.url" = "'
        f'{url}", "registry.basic.auth.user.info" = "me:{password}" }}'
    )


def test_neither_addresses_nor_credentials_are_compared() -> None:
    one, other = registry("https://a:8081", "one"), registry("https://b:8081", "other")
    assert differing(other, one) == set()


def test_a_schema_from_a_file_is_compared(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('"string"')
    (tmp_path / "b").write_text('"long"')
    one, other = (
        f'[format]\ntype = "avro"\noptions = {{ schema = "${{file:{tmp_path / name}}}" }}'
        for name in "ab"
    )
    assert differing(other, one) == {"format"}


def test_a_descriptor_from_a_file_is_read_as_bytes_and_compared(tmp_path: Path) -> None:
    files = {"a": World("proto2"), "b": World("proto3")}
    for name, world in files.items():
        (tmp_path / name).write_bytes(base64.b64decode(world.options["descriptor"]))
    one, other = (
        '[format]\ntype = "protobuf"\n'
        f'options = {{ descriptor = "${{base64:{tmp_path / name}}}", message = "t.Row" }}'
        for name in files
    )
    assert parse(FILE + one).format.options["descriptor"] == files["a"].options["descriptor"]
    assert differing(other, one) == {"format"}


def test_long_texts_travel_as_digests() -> None:
    topics = ", ".join(f'"topic-{number}"' for number in range(1_000))
    said = settings_to_agree_on(parse(FILE.replace('topics = ["trips"]', f"topics = [{topics}]")))
    assert said["source.topics"].startswith(DIGEST)
    assert sum(len(name) + len(value) for name, value in said.items()) < 1_000
