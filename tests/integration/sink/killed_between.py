"""Runs `headgate run` with a coordinator that dies after its first column update (SCHEMA-8).

    python killed_between.py FLAG SINK_FILE

The file FLAG is made before it dies, so that only the first one does.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.ports import EvolvedTable, TableView
from headgate.operations.cli.main import main
from headgate.tables.iceberg.table import IcebergTable

FLAG, SINK_FILE = sys.argv[1:]
evolve = IcebergTable.evolve


def deadly(table: IcebergTable, base: TableView, columns: Struct) -> EvolvedTable:
    done = evolve(table, base, columns)
    if done.changes and not Path(FLAG).exists():
        Path(FLAG).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return done


IcebergTable.evolve = deadly  # type: ignore[method-assign]
sys.exit(main(["run", SINK_FILE]))
