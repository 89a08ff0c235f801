"""Runs a broker on this machine: ``headgate kafka``, the demo's, and that of the tests."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("kafka")
@click.option("--folder", required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--port", default=9092, show_default=True, type=click.IntRange(1, 65_535))
def command(folder: Path, port: int) -> None:
    """Run a real Kafka on this machine until Ctrl-C."""
    from headgate.operations.local_kafka.broker import run_until_stopped

    run_until_stopped(folder, port, click.echo)
