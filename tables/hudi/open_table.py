"""Opens a Hudi table with the implementation that its settings require."""

from __future__ import annotations

from headgate.control_protocol.identifiers import SinkName
from headgate.tables.hudi.append_table import HudiSinkTable
from headgate.tables.hudi.commits import HudiCommits
from headgate.tables.hudi.secondary_table import HudiKeyedSecondary, HudiSecondary
from headgate.tables.hudi.table_properties import HudiLocation
from headgate.tables.hudi.upsert_table import HudiKeyedTable


def open_table(place: HudiLocation, sink: SinkName) -> HudiCommits:
    if place.follows:
        return HudiKeyedSecondary(place, sink) if place.key else HudiSecondary(place, sink)
    return HudiKeyedTable(place, sink) if place.key else HudiSinkTable(place, sink)
