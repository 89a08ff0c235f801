"""What a table that is not Iceberg says to the maintenance of a quarantine that is."""

from __future__ import annotations

from contextlib import closing

from headgate.control_protocol.table_history import Newest
from headgate.sink.kinds import other_kind, wanted_table
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.orphans import Deciding

_LAST = Newest(50, 2**62)
"""Others commit there too."""


def deciding_of(settings: SinkSettings) -> Deciding:
    """Read the sink's own table. Raises as ``TableKind.reader``."""
    kind = other_kind(settings)
    assert kind is not None, "an Iceberg table is in the catalog"
    with closing(kind.reader(wanted_table(settings), settings.name)) as reader:
        history = reader.history(_LAST)
        if not history.commits:
            history = reader.history()
        said = [
            (commit.committed_ms, record)
            for commit in history.commits[-1:]
            for record in (commit.record, history.record)
        ]
        return Deciding(history.uuid, said)
