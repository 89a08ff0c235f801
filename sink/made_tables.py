"""The coordinator makes tables that topics name and that are missing (rules N1, N3, N4, R4).

It does so when it has described the sources, before START names their partitions: a participant
that reads a topic finds its table there.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from pyiceberg.catalog import Catalog

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import SourceTopics, TopicState
from headgate.control_protocol.redacted_log import redacted_logger
from headgate.data.writers.routes import RAW_NAME_PROPERTY
from headgate.sink.declaration import declared
from headgate.sink.routed_tables import one_table, section_of
from headgate.sink.settings import SinkSettings
from headgate.sink.tables_settings import CreateFrom
from headgate.tables.iceberg.creation import ensure_table

AGAIN_S = 60.0
"""A table that could not be made is tried again after that."""

_LITERAL = re.compile(r"[\w.-]+")
_log = redacted_logger(__name__)


class TableMaker:
    """Makes declared tables. One that cannot be made holds up no other."""

    def __init__(
        self,
        settings: SinkSettings,
        catalog: Catalog,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._now_s = monotonic_s
        self._there: set[str] = set()
        self._refused: dict[str, float] = {}
        self._made: deque[float] = deque()

    def make(self, topics: Mapping[str, TopicState]) -> None:
        """Make what the topics name, and what the sink file declares by its full name."""
        if self._settings.tables.create.schema is CreateFrom.OFF:
            return
        named = self._settings.tables.routing.tables_of(sorted(topics))
        wanted = {target.table: target.raw for target in named.values()}
        for each in self._settings.tables.table:
            if each.columns and _LITERAL.fullmatch(each.match):
                wanted.setdefault(each.match, each.match)
        for table, raw in sorted(wanted.items()):
            if table not in self._there and self._now_s() >= self._refused.get(table, 0.0):
                self._ensure(table, raw)

    def _ensure(self, table: str, raw: str) -> None:
        tables = self._settings.tables
        each = section_of(tables, table)
        if each is None or not each.columns or self._too_many():
            return
        try:
            wanted = declared(one_table(tables, table, each))
            marked = {**wanted.properties, RAW_NAME_PROPERTY: raw}
            if ensure_table(self._catalog, table, replace(wanted, properties=marked)):
                self._made.append(self._now_s())
                _log.info("table %s was made for %s", table, raw)
            self._there.add(table)
        except HeadgateError as error:
            self._refused[table] = self._now_s() + AGAIN_S
            _log.warning("table %s cannot be made, its records are unmatched: %s", table, error)

    def _too_many(self) -> bool:
        """R4: a wild pattern makes no thousand tables at once."""
        while self._made and self._now_s() - self._made[0] >= 60:
            self._made.popleft()
        return len(self._made) >= self._settings.tables.new_per_minute_max


class MakingTopics:
    """``SourceTopics`` that make the tables of what they describe."""

    def __init__(self, topics: SourceTopics, maker: TableMaker) -> None:
        self._topics = topics
        self._maker = maker

    def describe(self) -> Mapping[str, TopicState]:
        states = self._topics.describe()
        self._maker.make(states)
        return states

    def offsets_at(self, timestamp_ms: int) -> Offsets:
        return self._topics.offsets_at(timestamp_ms)

    def committed_note(self) -> str | None:
        return self._topics.committed_note()

    def close(self) -> None:
        self._topics.close()
