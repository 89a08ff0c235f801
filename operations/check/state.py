"""Asks the questions of ``headgate check`` about a table of any kind: its state, its storage."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from headgate.config.keyed_table_checks import KeysByRoute
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_formats import session_conf
from headgate.control_protocol.errors import WriteFailed
from headgate.control_protocol.identifiers import Sender
from headgate.control_protocol.ports import Lineage, TableView
from headgate.coordinator.recovery import (
    fit_offsets,
    record_to_resume,
    refuse_other_group,
    refuse_other_sink,
    refuse_recreated,
    refuse_replaced_quarantine,
    refuse_shared,
)
from headgate.coordinator.source_partitions import defer_added
from headgate.coordinator.state import Identity, State
from headgate.data_plane.files.write_probe import try_store
from headgate.operations.access.kafka import source_topics
from headgate.operations.access.table import open_primary, vanished
from headgate.runtime.catalogs import spark_options
from headgate.runtime.start_checks import refuse_place
from headgate.tables.storage.local_file_io import local_path

_ROOM_BYTES_MIN = 1_000_000

Question = Callable[[], str]


def _refuse_full(folder: Path) -> None:
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(nearest).free
    if free < _ROOM_BYTES_MIN:
        raise WriteFailed(f"{nearest} has {free:,} bytes left", "make room, or move the table")


class NotChecked(Exception):
    """A question that cannot be answered without changing something; says why."""


class StateCheck(ABC):
    """Questions in this order; each one uses what the ones before found out.

    ``catalog``, ``rights``, ``files`` and ``lock`` are asked of formats that have them.
    ``asks_group``: the notes next to the group's offsets can tell about a table that is gone.
    """

    catalog: Question | None = None
    rights: Question | None = None
    files: Question | None = None
    lock: Question | None = None

    def __init__(self, settings: SinkSettings, *, asks_group: bool = False) -> None:
        self._asks_group = asks_group
        self._settings = settings
        self._view: TableView | None = None
        self._identity = Identity(
            settings.name,
            settings.source.group_id,
            Sender("check", ""),
            keyed=bool(settings.table.key),
            routed_keys=KeysByRoute(settings.tables.routing),
            growth_ms=settings.changes.held_ms,
            multiples_only=settings.changes.multiples_only,
        )

    @property
    @abstractmethod
    def exists(self) -> bool:
        """Return whether there is a table; known after ``table``."""

    @abstractmethod
    def table(self) -> str: ...

    @abstractmethod
    def columns(self) -> str:
        """Check that every declared column exists with the declared type, and can be written."""

    @abstractmethod
    def quarantine(self) -> str:
        """Check that it exists and can be filled, and is the one that the sink has filled."""

    @abstractmethod
    def _location(self) -> str:
        """Return where the table is, or will be."""

    @abstractmethod
    def _file_properties(self) -> dict[str, str]:
        """Return what a participant would have to write files there."""

    def sink_state(self) -> str:
        """Ask what a coordinator would ask before its first claim, with the same code."""
        settings = self._settings
        with open_primary(settings) as table:
            view = table.read()
        refuse_other_group(view.record or view.branch_record, self._identity)
        record = record_to_resume(view, settings.coordinator)
        self._view = view
        if record is None:
            return f"a first start; it starts at {settings.source.start_at}"
        return (
            f"goes on after transaction {record.transaction} of group {record.group_id}"
            f"{', paused' if record.paused else ''}"
        )

    def stored_offsets(self) -> str:
        """Check that the source still has what the table says to read next."""
        assert self._view is not None  # asked only after sink_state
        settings = self._settings
        with source_topics(settings) as topics:
            now, note = topics.describe(), topics.committed_note()
        ids = {topic: state.topic_id for topic, state in now.items()}
        refuse_shared(self._view, ids, settings.table.shared_with)
        if self._view.lineage is Lineage.FRESH:
            refuse_other_sink(note, self._identity)
        refuse_recreated(self._view, None, note, settings.coordinator)
        record = record_to_resume(self._view, settings.coordinator)
        if record is None:
            return "none yet"
        fit_offsets(record.offsets, record.topic_ids, now, settings.coordinator)
        looking = State(self._identity, settings.coordinator)
        _, held = defer_added(looking, record.offsets, record.topic_ids, now, now_ms=0)
        within = f"{len(record.offsets)} partitions, all within their logs"
        return "; ".join([within, *(tell.text for tell in held)])

    def storage(self) -> str:
        """Check a local folder's rights; on an object store, write, read and remove a file."""
        location = self._location()
        refuse_place(location)
        if (folder := local_path(location)) is not None:
            _refuse_full(folder)
            return f"{folder} may be written"
        path = try_store(self._file_properties(), location)
        return f"{path} was written, read and removed again"

    def executors(self) -> str:
        """Let Spark's executors write to the store, with what they would have in a batch."""
        spark, location = self._settings.spark, self._location()
        master = spark.master or spark.conf.get("spark.master", "")
        if not spark.remote and master.partition("[")[0] == "local":
            return "tasks run on this machine, and see the same as this process"
        if not spark.remote and not master:
            raise NotChecked("without spark.master tasks run here, unless spark-submit says else")
        if local_path(location) is not None:
            raise NotChecked(f"whether each of them has the folder {location} is not asked")
        if session_conf(self._settings) is not None:
            raise NotChecked("this command's only JVM reads the table, and has no executors")
        from headgate.data_plane.spark.executor_probe import try_from_executors
        from headgate.data_plane.spark.session import open_session

        properties = self._file_properties()
        session = open_session(spark_options(self._settings))
        try:
            return try_from_executors(session, properties, location)
        finally:
            session.close()

    def _refuse_replaced(self, uuid: str | None) -> None:
        """Raise as a start would if bad records went to another quarantine so far."""
        settings = self._settings
        record = record_to_resume(self._view, settings.coordinator) if self._view else None
        name, policies, routed = settings.quarantine.table, settings.coordinator, settings.tables
        refuse_replaced_quarantine(name, uuid, record, policies, routed=bool(routed))

    def _refuse_gone(self) -> None:
        if self._asks_group and (gone := vanished(self._settings)):
            raise gone
