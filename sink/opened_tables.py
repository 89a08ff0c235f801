"""Defines the port to a sink's tables as one process opens them, of any kind (decision 0018).

``iceberg_tables`` and ``kind_tables`` implement it; assembly knows only this port.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headgate.control_protocol.followers import Followers
from headgate.control_protocol.ports import Lead, SourceTopics
from headgate.sink.planning import Planning
from headgate.sink.settings import SinkSettings

if TYPE_CHECKING:
    from headgate.sink.maintenance.rounds import Done


Maintained = Callable[["Done", bool], None]
"""Receives each round of maintenance, and whether a part of it failed."""


@dataclass(frozen=True, slots=True)
class Coordinated:
    """A coordinator's ports: the lead table, its followers, and the sources.

    Describing the sources may create tables for their topics. ``stamp``: the table's, if it stamps
    its files (P13).
    """

    table: Lead
    followers: Followers
    sources: SourceTopics
    stamp: Callable[[], str] = lambda: ""


class OpenedTables(Protocol):
    """Used by the threads of one process; the caller owns what it returns."""

    def lead(self) -> Lead:
        """Return the sink's table, for reading only."""

    def planning(self) -> Planning:
        """Return how batches are written."""

    def coordinated(
        self,
        settings: SinkSettings,
        topics: SourceTopics,
        opening: ExitStack,
        maintained: Maintained | None,
    ) -> Coordinated:
        """Open the ports for one coordinator life, by the current settings.

        ``opening`` closes them.
        """
