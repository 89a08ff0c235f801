"""The settings that headgate names are the bundle's: a misspelled one would refuse nothing."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

from headgate.tables.hudi.lock_check import BASE_PATH, LOCK_KEY, PROVIDER, URL
from headgate.tables.hudi.write_configuration import ALWAYS, WITH_KEY, WITHOUT_KEY


def test_refused_settings_are_settings_of_hudi(bundle: Path) -> None:
    refused = {key for each in (*ALWAYS, *WITH_KEY, *WITHOUT_KEY) for key in each.keys}
    with ZipFile(bundle) as jar:
        names = [name for name in jar.namelist() if name.startswith("org/apache/hudi/")]
        said = b"".join(jar.read(name) for name in names if "Config" in name or "Options" in name)
    asked = {*refused, URL, BASE_PATH, LOCK_KEY, PROVIDER}
    assert {key for key in asked if key.encode() not in said} == set()
