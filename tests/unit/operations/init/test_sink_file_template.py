"""``headgate init``: a file that loads, and names what a sink should have."""

from __future__ import annotations

from pathlib import Path

from headgate.config.load import parse
from headgate.operations.init.sink_file_template import init


def test_a_new_sink_file_tells_of_the_key_and_loads_with_one(tmp_path: Path) -> None:
    path, _ = init("trips", tmp_path)
    text = path.read_text()
    assert "openssl rand -hex 32 > control.key" in text
    key = tmp_path / "control.key"
    key.write_text("0123456789abcdef" * 4)
    signed = text.replace('# key = "${file:control.key}"', f'key = "${{file:{key}}}"')
    assert signed != text
    assert parse(signed).control.keys
    assert not parse(text).control.keys
