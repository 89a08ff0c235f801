"""Refuses records whose values have the columns' types but which this kind of table cannot hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from headgate.control_protocol.table_kinds import HeldValues
from headgate.data.writers.aside import BAD_VALUE
from headgate.data.writers.sieve import others
from headgate.data.writers.singling import Read
from headgate.kafka.fetch import Chunk


def held_values(
    read: Callable[[Chunk], Read], values: HeldValues | None
) -> Callable[[Chunk], Read]:
    """Wrap ``read`` so that records that the table cannot hold are bad."""
    if values is None:
        return read

    def checked(chunk: Chunk) -> Read:
        found = read(chunk)
        unfit = values.unfit(found.rows)
        if not unfit:
            return found
        bad = {row: why for reasons, _ in found.bad for row, why in reasons.items()}
        places = np.flatnonzero(others(chunk, bad))
        reasons = {int(places[row]): why for row, why in unfit.items()}
        held = np.ones(found.rows.num_rows, np.bool_)
        held[list(unfit)] = False
        return Read(found.rows.filter(pa.array(held)), [*found.bad, (reasons, BAD_VALUE)])

    return checked
