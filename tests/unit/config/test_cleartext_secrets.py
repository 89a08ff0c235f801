"""Which keys of a sink file hold a secret as it is, where a reference is possible."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.config.test_load import MINIMAL

from headgate.config.cleartext_secrets import find_keys_with_cleartext_secrets
from headgate.config.load import parse_with_document


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "https://hooks.example/services/T0/B0")
    for name in ("USER", "PASSWORD", "PATH_OF_HOOK"):
        monkeypatch.setenv(name, "value")


def keys_found(section: str) -> list[str]:
    _, document = parse_with_document(Path("trips.toml"), f"{MINIMAL}\n{section}\n")
    return find_keys_with_cleartext_secrets(document)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ('[signal]\nurl = "https://hooks.example/services/T0/B0"', "signal.url"),
        ('[signal]\nurl = "https://hooks.example?a=b"', "signal.url"),
        ('[lineage]\nurl = "https://a/api/v1/lineage?api_key=SECRET"', "lineage.url"),
        ('[telemetry]\notlp_endpoint = "https://a/m?api_key=SECRET"', "telemetry.otlp_endpoint"),
        (
            '[catalog.properties]\nuri = "postgresql://h/db?user=u&password=SECRET"',
            'catalog.properties."uri"',
        ),
        (
            '[catalog.properties]\n"x.basic.auth.user.info" = "${env:USER}:SECRET"',
            'catalog.properties."x.basic.auth.user.info"',
        ),
    ],
)
def test_a_secret_within_a_value_is_found(section: str, key: str) -> None:
    assert keys_found(section) == [key]


@pytest.mark.parametrize(
    "section",
    [
        '[signal]\nurl = "${env:HOOK}"',
        '[signal]\nurl = "https://hooks.example/services/${env:PATH_OF_HOOK}"',
        '[signal]\nurl = "https://hooks.example/"',
        '[lineage]\nurl = "https://a/api/v1/lineage?api_key=${env:PASSWORD}&timeout=1"',
        '[catalog.properties]\nuri = "postgresql://h/db?user=u&password=${env:PASSWORD}"',
        '[catalog.properties]\ncredential = "${env:USER}:${env:PASSWORD}"',
        '[catalog.properties]\ncredential = "me:${env:PASSWORD}"',
        '[catalog.properties]\ncredential = "${env:PASSWORD}"',
    ],
)
def test_a_reference_is_none(section: str) -> None:
    assert keys_found(section) == []
