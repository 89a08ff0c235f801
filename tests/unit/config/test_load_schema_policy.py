"""What a sink file may ask for fields without a column, and what is refused by name (HG-140)."""

from __future__ import annotations

import pytest
from unit.config.test_load import MINIMAL

from headgate.config.configuration_fingerprint import settings_to_agree_on
from headgate.config.load import parse
from headgate.control_protocol.errors import ColumnsCannotEvolve, ConfigurationError
from headgate.participant.settings import SchemaPolicy, UnknownFields

IN_PROCESS = '[spark]\nwriter = "in-process"\n'


def policy(unknown: str, more: str = IN_PROCESS, of_schema: str = "") -> str:
    return f'{MINIMAL}\n[table.schema]\nunknown_fields = "{unknown}"\n{of_schema}\n{more}'


def test_fields_without_a_column_are_ignored_unless_said_otherwise() -> None:
    assert parse(MINIMAL).table.schema.policy == SchemaPolicy(UnknownFields.IGNORE)
    assert settings_to_agree_on(parse(MINIMAL))["table.schema"] == "ignore"


@pytest.mark.parametrize("format_name", ["json", "avro-registry"])
def test_evolve_with_formats_that_can_tell(format_name: str) -> None:
    options = '[format.options]\n"registry.url" = "http://localhost"\n'
    form = f'[format]\ntype = "{format_name}"\n' + (options if "avro" in format_name else "")
    settings = parse(policy("evolve", IN_PROCESS + form, "readd_dropped = true"))
    assert settings.table.schema.policy == SchemaPolicy(UnknownFields.EVOLVE, readd_dropped=True)
    assert settings_to_agree_on(settings)["table.schema"] == "evolve, readd_dropped"


@pytest.mark.parametrize(
    "more",
    [
        IN_PROCESS + '[format]\ntype = "csv"\n[format.options]\ncolumns = "id"\n',
        IN_PROCESS + '[format]\ntype = "string"\n',
        '[spark]\ndistribution = "none"\n[transform]\nsql = "SELECT * FROM records"\n',
    ],
)
def test_what_cannot_tell_is_refused_by_name(more: str) -> None:
    with pytest.raises(ColumnsCannotEvolve, match="unknown_fields"):
        parse(policy("evolve", more))


def test_policies_that_contradict_others_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"quarantine\.policy"):
        parse(policy("quarantine"))
    with pytest.raises(ConfigurationError, match="readd_dropped"):
        parse(policy("ignore", of_schema="readd_dropped = true"))
    assert parse(policy("quarantine", IN_PROCESS + '[quarantine]\npolicy = "quarantine"\n'))
    for mode in ("none", "hash", "range", "table"):
        assert parse(policy("evolve", f'[spark]\nwriter = "spark"\ndistribution = "{mode}"\n'))
