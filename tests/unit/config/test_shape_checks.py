"""A sink file's ``[shape]``: what is refused, and what members agree on (SHAPE-4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config.configuration_fingerprint import settings_to_agree_on
from headgate.config.load import parse
from headgate.control_protocol.errors import ConfigurationError, ShapeUnfit

FILE = """
name = "trips"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "localhost:9092"
[catalog.properties]
type = "sql"
uri = "sqlite:///catalog.db"
[table]
identifier = "db.trips"
create = true
columns = [
  { name = "id", type = "long", required = true },
  { name = "email", type = "string", from = "user.email" },
  { name = "card", type = "string" },
]
[spark]
writer = "in-process"
"""
HASH = 'hash = ["email"]\nhash_key = "${{env:{}}}"\n'


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASH_KEY", "k" * 32)
    monkeypatch.setenv("OTHER_KEY", "o" * 32)
    monkeypatch.setenv("SHORT_KEY", "k" * 31)


def shaped(text: str, more: str = "") -> str:
    return f"{FILE}[shape]\n{text}\n{more}"


@pytest.mark.parametrize(
    "text",
    [
        'hash = ["email"]',
        'hash_key = "${env:HASH_KEY}"',
        HASH.format("SHORT_KEY"),
        HASH.format("HASH_KEY").replace("email", "mail"),
        HASH.format("HASH_KEY").replace("email", "id"),
        HASH.format("HASH_KEY") + '[[shape.mask]]\ncolumn = "email"',
        '[[shape.mask]]\ncolumn = "card"\nkeep_last = -1',
        'where = "id >"',
        'tables = "db.*"',
        'where = "id > 1"\ntables = "db.*"',
        '[[shape.expect]]\nname = ""\nthat = "id > 1"',
        '[[shape.expect]]\nname = "a"\nthat = "id >"',
    ],
)
def test_what_contradicts_itself_is_refused_by_name(text: str) -> None:
    with pytest.raises(ShapeUnfit, match="shape"):
        parse(shaped(text))


@pytest.mark.parametrize("data_type", ["fixed(32)", "binary"])
def test_a_column_of_bytes_is_hashed_and_not_masked(data_type: str) -> None:
    """Its rules are those of the text that is hashed."""
    hashed = HASH.format("HASH_KEY")
    bytes_, mask = shaped(hashed), '[[shape.mask]]\ncolumn = "email"'
    bytes_ = bytes_.replace(
        '"email", type = "string"', f'"email", type = "{data_type}", as_text = true, default = "-"'
    )
    parse(bytes_)
    with pytest.raises(ShapeUnfit, match="string"):
        parse(bytes_.replace(data_type, "fixed(16)"))
    with pytest.raises(ConfigurationError, match="as_text"):
        parse(bytes_.replace(hashed, ""))
    with pytest.raises(ShapeUnfit, match="string"):
        parse(bytes_.replace(hashed, mask).replace(', as_text = true, default = "-"', ""))


def test_a_key_that_stands_in_the_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="hash_key") as refused:
        parse(shaped(f'hash = ["email"]\nhash_key = "{"k" * 32}"'))
    assert "k" * 32 not in str(refused.value)


@pytest.mark.parametrize(
    "more",
    [
        '[quarantine]\npolicy = "quarantine"\ndead_letter_topic = "dead"',
    ],
)
def test_no_other_setting_shows_what_is_hidden(more: str) -> None:
    parse(shaped('where = "id > 1"', more))
    with pytest.raises(ShapeUnfit):
        parse(shaped(HASH.format("HASH_KEY"), more))


def test_a_masked_key_and_a_route_by_a_hidden_field_are_refused() -> None:
    keyed = FILE.replace("create = true", 'create = true\nkey = ["id"]').replace(
        "[spark]", '[table.record_columns]\npartition = "p"\noffset = "o"\n[spark]'
    )
    keyed = keyed.replace('"long", req', '"string", req')
    mask = '[shape]\n[[shape.mask]]\ncolumn = "id"'
    with pytest.raises(ShapeUnfit, match="key"):
        parse(keyed + mask)
    parse(keyed + mask.replace('"id"', '"card"'))
    begin, end = FILE.index("[table]"), FILE.index("[spark]")
    routed = (
        FILE[:begin]
        + '[tables]\nledger = "db.ledger"\n[[tables.route]]\nfield = "email"\nto = "db.{field}"\n'
        + FILE[end:]
    )
    with pytest.raises(ShapeUnfit, match="route 1"):
        parse(f"{routed}[shape]\n{HASH.format('HASH_KEY')}")
    parse(f"{routed}[shape]\n{HASH.format('HASH_KEY').replace('email', 'card')}")
    other_case = f"{routed}[shape]\n{HASH.format('HASH_KEY')}".replace(
        'field = "email"', 'field = "Email"'
    )
    parse(other_case)
    with pytest.raises(ShapeUnfit, match="route 1"):
        parse(other_case + '[format.options]\ncase-insensitive = "true"\n')


def test_members_agree_on_the_rules_and_on_the_key_and_neither_is_told() -> None:
    plain = settings_to_agree_on(parse(FILE))
    assert not plain["shape"]
    told = {
        settings_to_agree_on(parse(shaped(text)))["shape"]
        for text in (
            HASH.format("HASH_KEY"),
            HASH.format("OTHER_KEY"),
            HASH.format("HASH_KEY") + "where = \"email = 'a@b'\"",
            HASH.format("HASH_KEY").replace("email", "card"),
        )
    }
    assert len(told) == 4
    assert not any("kkkk" in each or "a@b" in each for each in told)


def test_no_text_of_the_settings_shows_the_key(tmp_path: Path) -> None:
    settings = parse(shaped(HASH.format("HASH_KEY")))
    assert "k" * 32 not in repr(settings) + repr(settings.shape.row_rules)
    assert settings.redact("so " + "k" * 32) == settings.redaction_for_tasks("so " + "k" * 32)
    assert "kkk" not in settings.redact("so " + "k" * 32)
