"""Runs `headgate run`, of this release or an older one, and dies between decision and delivery.

    python -P dies_before_delivery.py SINK_FILE

The first call that would deliver rows to a secondary table is not made: the primary table's commit
has decided them, and no table has them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

try:
    from headgate.operations.cli.entry import main
    from headgate.tables.concurrent_secondary_tables import SecondaryTables

    Tables, METHOD, PENDING = SecondaryTables, "deliver", "pending_commits"
except ImportError:  # the release that is called OLDER in test_older_release
    from headgate.operations.cli import main  # type: ignore[attr-defined, no-redef]
    from headgate.tables.followers import FollowerTables  # type: ignore[import-not-found]

    Tables, METHOD, PENDING = FollowerTables, "pay", "debts"

deliver = getattr(Tables, METHOD)


def deadly(tables: Any, deliveries: Sequence[Any], timeout_ms: int) -> Any:
    if any(each.rows for attempt in deliveries for each in getattr(attempt, PENDING)):
        os.kill(os.getpid(), signal.SIGKILL)
    return deliver(tables, deliveries, timeout_ms)


setattr(Tables, METHOD, deadly)
sys.exit(main(["run", *sys.argv[1:]]))
