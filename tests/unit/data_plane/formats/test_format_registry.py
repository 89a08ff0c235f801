"""The section [format]: names, options, keys, and formats of other packages."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from support.entry_point import register
from unit.config.test_load import MINIMAL, refusal, sink

from headgate.data_plane.formats.format_registry import create_record_format, known_format_names

KEYED = '[table.record_columns]\nkey = "k"'


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('[format]\ntype = "avr"', "did you mean avro?"),
        ('[format]\ntype = "confluent"', "known are: avro, avro-registry, bytes"),
        ('[format.options]\ntombstone = "skip"', "no option 'tombstone'"),
        ('[quarantine]\ntombstones = "drop"', "fail, quarantine, skip"),
        ("[format.options]\ncase-insensitive = 1", "use false or true"),
        ('[format]\ntype = "avro"', "the option 'schema' is missing"),
        ('[format]\ntype = "avro"\noptions = { schema = "{" }', "not JSON"),
        ('[format]\ntype = "avro-registry"', "url"),
        ('[format]\ntype = "avro-registry"\noptions = { "registry.uri" = "http://x" }', "url"),
        ('[format]\ntype = "csv"\noptions = { delimeter = ";" }', "did you mean delimiter?"),
        ('[format]\nkey_type = "json"', "table.record_columns.key"),
        (f'{KEYED}\n[format]\nkey_type = "jsn"', "did you mean json?"),
        (f'{KEYED}\n[format]\nkey_options = {{ column = "k" }}', "key_type"),
    ],
)
def test_what_cannot_be_is_refused_when_the_file_is_read(section: str, said: str) -> None:
    assert said in str(refusal(f"{MINIMAL}{section}"))


def test_options_arrive_and_secrets_among_them_stay_unseen() -> None:
    settings = sink(
        '[format]\ntype = "avro-registry"',
        '[format.options]\n"registry.url" = "http://127.0.0.1:1"',
        '"registry.basic.auth.user.info" = "me:sesame"\ncase-insensitive = true',
    )
    assert settings.format.options["case-insensitive"] == "true"
    assert "sesame" not in repr(settings)
    assert settings.redact("401 for me:sesame") == "401 for ***"


def test_keys_and_headers_get_columns_of_a_created_table() -> None:
    from headgate.config.table_declaration import declaration_of

    settings = sink('[table.record_columns]\nkey = "k"\nheaders = "h"')
    assert declaration_of(settings.table).columns == {"k": "binary", "h": "map<string, binary>"}


class Shouted:
    """A format of another package: upper-case text into the first column."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._end = options.get("end", "")

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        texts = [value.decode().upper() + self._end for value in values]
        return pa.RecordBatch.from_arrays([pa.array(texts, schema.types[0])], schema=schema)


def test_a_package_registers_a_format_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path, monkeypatch, "headgate.formats", {"shout": f"{__name__}:Shouted"})
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    settings = sink('[format]\ntype = "shout"\noptions = { end = "!" }')
    assert "shout" in known_format_names()
    rows = create_record_format(settings.format.type, settings.format.options).decode(
        [b"hey"], pa.schema([("v", pa.large_string())])
    )
    assert rows.column(0).to_pylist() == ["HEY!"]
