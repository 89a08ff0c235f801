"""``headgate kafka`` refuses a port in use, and a folder that cannot be made."""

from __future__ import annotations

import socket
from pathlib import Path

from click.testing import CliRunner

from headgate.operations.cli.main import main


def test_a_port_that_is_taken_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """Else another broker answers there, and is told to be this one."""
    folder = tmp_path / "kafka"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        asked = ["kafka", "--folder", str(folder), "--port", str(port)]
        refused = CliRunner().invoke(main, asked)
    assert refused.exit_code == 2, refused.output
    assert f"127.0.0.1:{port}: Address already in use" in refused.output
    assert "--port" in refused.output
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    asked = ["kafka", "--folder", str(tmp_path / "file" / "kafka"), "--port", str(port)]
    refused = CliRunner().invoke(main, asked)
    assert refused.exit_code == 2, refused.output
    assert "file/kafka cannot be written: Not a directory (name another folder" in refused.output
