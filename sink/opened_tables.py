"""The sink's tables as one process has opened them, of whatever kind (decision 0018).

``iceberg_tables`` and ``kind_tables`` open them; assembly knows this port alone.
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
"""Hears of each round of maintenance, and whether a part of it failed."""


@dataclass(frozen=True, slots=True)
class Coordinated:
    """What a coordinator is given: the table that decides, its followers, if it can have some, and
    the sources, which may have tables made for their topics when they are described. ``stamp``: of
    the table, where it stamps its files (P13)."""

    table: Lead
    followers: Followers | None
    sources: SourceTopics
    stamp: Callable[[], str] = lambda: ""


class OpenedTables(Protocol):
    """Used by the threads of one process; what it returns belongs to who asked."""

    def lead(self) -> Lead:
        """The sink's table, to be looked at."""

    def planning(self) -> Planning:
        """How batches are written."""

    def coordinated(
        self,
        settings: SinkSettings,
        topics: SourceTopics,
        opening: ExitStack,
        maintained: Maintained | None,
    ) -> Coordinated:
        """For one life of a coordinator, by what the sink file says now; ``opening`` closes it."""
