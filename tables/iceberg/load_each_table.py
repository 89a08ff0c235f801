"""Loads many tables, one after another: one that does not answer keeps no other from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from headgate.control_protocol.errors import HeadgateError, Unreachable
from headgate.tables.iceberg.catalog import translate_catalog_error

IN_VAIN_MAX_S = 60.0
"""Calls without an answer may take so long together; then the catalog itself is down."""


def load_each_table(
    catalog: Catalog,
    names: Iterable[str],
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[str, Table | HeadgateError]]:
    """Yield each name with its table, or with the error that says why there is none.

    A table that does not exist is ``TableMissing``. Nothing is raised.
    """
    in_vain_s = 0.0
    for name in names:
        if in_vain_s > IN_VAIN_MAX_S:
            yield (
                name,
                Unreachable(
                    f"table {name} was not asked for: for {in_vain_s:.0f} s others did not answer",
                    "is the catalog up, and its address right?",
                ),
            )
            continue
        since_s = monotonic_s()
        try:
            table = catalog.load_table(name)
        except Exception as error:  # noqa: BLE001 - whatever a catalog raises becomes one of ours
            failure = translate_catalog_error(error, f"table {name} cannot be read")
            if isinstance(failure, Unreachable):  # all else is an answer
                in_vain_s += monotonic_s() - since_s
            yield name, failure
            continue
        yield name, table
