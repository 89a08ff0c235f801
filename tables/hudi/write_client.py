"""Wraps those of Hudi's classes that commits need: timeline, write client, lock.

Java's values have no types here: only Hudi's own source tells what a method returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headgate.control_protocol.errors import TableMissing
from headgate.control_protocol.events import WrittenFile
from headgate.tables.hudi.base_files import file_group_id_of
from headgate.tables.hudi.damaged_files import read_completed_commit
from headgate.tables.hudi.file_slices import Slice, iterate_java, live_slices
from headgate.tables.hudi.jvm import (
    error_text,
    has_jvm_ended,
    java_callback,
    open_spark_context,
    session_of_context,
)
from headgate.tables.hudi.lock_check import check_lock_server
from headgate.tables.hudi.table_properties import HudiLocation, use_utc_instants

# Finds ghosts: commits in Hudi's metadata table that are not in the data's timeline (H8).
#
# They come from writers that continued after they had lost their lock. Timelines are Java's.


METADATA_TABLE = ".hoodie/metadata"
_MADE_BY = "0000"
"""Prefix of the instants that created the metadata table."""


def find_instants_only_in_metadata_table(
    timeline: Any, metadata_timeline: Any, condemned: Collection[str]
) -> frozenset[str]:
    """Return ghosts; before the timeline, only condemned ones differ from what was archived."""
    if timeline.empty():
        return frozenset()
    first = str(timeline.firstInstant().get().requestedTime())
    known = {str(i.requestedTime()) for i in timeline.getInstants()}
    names = (str(i.requestedTime()) for i in _completed_instants(metadata_timeline, "deltacommit"))
    return frozenset(
        name
        for name in names
        if (name >= first or name in condemned)
        and name not in known
        and not name.startswith(_MADE_BY)
    )


def is_ghost_compacted(metadata_timeline: Any, instant: str) -> bool:
    """Return whether a compaction took a ghost for a commit: Hudi can no longer roll it back."""
    instants = (
        i
        for i in _completed_instants(metadata_timeline, "deltacommit")
        if str(i.requestedTime()) == instant
    )
    ghost = next((str(i.getCompletionTime()) for i in instants), None)
    compactions = (str(i.requestedTime()) for i in _completed_instants(metadata_timeline, "commit"))
    return ghost is not None and max(compactions, default="") >= ghost


def _completed_instants(timeline: Any, action: str) -> Iterator[Any]:
    instants = timeline.filterCompletedInstants().getInstants()
    return (instant for instant in instants if str(instant.getAction()) == action)


CLUSTERING = "CLUSTER"
_COMMITS = ("commit", "deltacommit")
_KNOWN_MAX = 256
"""How many completed instants are cached; these never change."""

_METADATA_PROPERTIES = f"{METADATA_TABLE}/.hoodie/hoodie.properties"


@dataclass(frozen=True, slots=True)
class Instant:
    """A completed commit; Hudi calls what its timeline lists instants.

    ``requested`` and ``completed`` are when; ``metadata``: its extra metadata. ``replaces``: it
    replaced file groups: by a clustering, or because people dropped or overwrote partitions.
    """

    requested: str
    completed: int
    operation: str
    replaces: bool
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Statistics:
    """A commit's entry for one of its files; the path is relative to the table's folder."""

    path: str
    rows: int
    inserted: int
    deleted: int
    updated: int = 0


class HudiJava:
    """One table in this process's JVM; one thread uses its write client."""

    def __init__(self, place: HudiLocation, schema: str) -> None:
        self._place = place
        self._schema = schema
        self._client: Any = None
        self._context: Any = None
        self._known: dict[tuple[str, int], Instant] = {}

    # ----------------------------------------------------------------------------------- timeline

    def load_meta_client(self) -> Any:
        """Return the table as it is now. Raises ``TableMissing``."""
        try:
            return self._load_meta_client_of(self._place.base_path)
        except Exception as error:
            if "TableNotFoundException" in str(error):
                name = self._place.name
                raise TableMissing(
                    f"there is no Hudi table {name} at {self._place.location}"
                ) from error
            raise

    def completed_commits(self, meta: Any) -> Iterator[Instant]:
        """Yield completed commits of the active timeline, the last completed first."""
        timeline = meta.getActiveTimeline().getCommitsTimeline().filterCompletedInstants()
        newest_first = timeline.getReverseOrderedInstantsByCompletionTime().iterator()
        for instant in iterate_java(newest_first):
            known = (str(instant.requestedTime()), int(instant.getCompletionTime()))
            if known not in self._known:
                if len(self._known) >= _KNOWN_MAX:
                    self._known.clear()
                self._known[known] = self._read_completed_instant(timeline, instant)
            yield self._known[known]

    def pending_instants(self, meta: Any) -> frozenset[str]:
        """Return the instants of commits that were begun and are not complete."""
        timeline = meta.getActiveTimeline().filterInflightsAndRequested()
        commits = (i for i in timeline.getInstants() if str(i.getAction()) in _COMMITS)
        return frozenset(str(instant.requestedTime()) for instant in commits)

    def is_completed_on_active_timeline(self, meta: Any, instant: str) -> bool:
        return bool(meta.getActiveTimeline().filterCompletedInstants().containsInstant(instant))

    def file_statistics(self, meta: Any, instant: str) -> list[Statistics]:
        """Return the files of a completed instant."""
        return [
            Statistics(
                path=str(s.getPath()),
                rows=s.getNumWrites(),
                inserted=s.getNumInserts(),
                deleted=s.getNumDeletes(),
                updated=s.getNumUpdateWrites(),
            )
            for s in self._read_commit_metadata(meta, instant).getWriteStats()
        ]

    def replaced_groups(self, meta: Any, instant: str) -> list[str]:
        """Return the ids of the file groups that a completed instant replaced."""
        groups_of = self._read_commit_metadata(meta, instant).getPartitionToReplaceFileIds()
        return [str(group) for groups in groups_of.values() for group in groups]

    def latest_slices(self, meta: Any) -> list[Slice]:
        """Return what readers of the newest state read: the last slice of each file group."""
        common = self._hudi.common
        engine = common.engine.HoodieLocalEngineContext(self._storage_conf())
        listing = common.config.HoodieMetadataConfig.newBuilder().enable(True).build()  # noqa: FBT003
        manager = common.table.view.FileSystemViewManager
        view = manager.createInMemoryFileSystemView(engine, meta, listing)
        try:
            view.loadAllPartitions()
            return live_slices(view, f"{self._place.base_path}/")
        finally:
            view.close()

    def read_data_frame(self) -> Any:
        """Return the table as a Spark data frame, with the updates from log files."""
        return self._session.read.format("hudi").load(self._place.base_path)

    def has_archived_commits(self, meta: Any) -> bool:
        return not meta.getArchivedTimeline().empty()

    def archived_completion_time(self, meta: Any, instant: str) -> int | None:
        """Return when a commit in the timeline's archive was completed."""
        instants = meta.getArchivedTimeline().getInstants()
        return next(
            (int(i.getCompletionTime()) for i in instants if _has_requested_time(i, instant)), None
        )

    def completion_time(self, meta: Any, instant: str) -> int | None:
        """Return when a commit was completed, wherever that is recorded by now.

        Instants are archived by their request times, so the newest commit itself may archive an
        instant that was reserved long ago.
        """
        timeline = meta.getActiveTimeline().filterCompletedInstants()
        if timeline.containsInstant(instant):
            instants = timeline.getInstants()
            return next(
                int(i.getCompletionTime()) for i in instants if _has_requested_time(i, instant)
            )
        return self.archived_completion_time(meta, instant)

    def is_older_than_active_timeline(self, meta: Any, instant: str) -> bool:
        """Return whether it is older than the active timeline: it would count as archived."""
        return bool(meta.getActiveTimeline().isBeforeTimelineStarts(instant))

    def read_ghost_instants(self, meta: Any, condemned: Collection[str] = ()) -> frozenset[str]:
        """H8: as ``find_instants_only_in_metadata_table``."""
        written = self._metadata_timeline()
        if written is None:
            return frozenset()
        return find_instants_only_in_metadata_table(meta.getActiveTimeline(), written, condemned)

    # ------------------------------------------------------------------------------------- writing

    def reserve_instant(self) -> str:
        """Return a unique instant, which is not in the timeline yet (H4)."""
        return str(self._open_or_reuse_write_client().createNewInstantTime(True))  # noqa: FBT003 - Java has no names

    def begin_instant(self, meta: Any, instant: str) -> None:
        """Begin the commit of a reserved instant."""
        self.start_heartbeat(instant)
        self._maintain_metadata_table(instant)
        self._request_and_start_instant(meta, instant)

    def start_heartbeat(self, instant: str) -> None:
        """Send heartbeats for a begun instant, so that clean-ups know its writer is alive."""
        self._open_or_reuse_write_client().getHeartbeatClient().start(instant)

    def commit(
        self,
        instant: str,
        files: Sequence[WrittenFile],
        metadata: Mapping[str, str],
        check_in_lock: Callable[[], None],
    ) -> None:
        """Complete a registered instant; ``check_in_lock`` runs in Hudi's lock, and may raise."""
        writer = self._open_or_reuse_write_client()
        writer.setOperationType(self._operation_type_for(files))
        statistics, extra = self._java.util.ArrayList(), self._java.util.HashMap()
        for statistic in self._hudi_statistics_of(files):
            statistics.add(statistic)
        for key, value in metadata.items():
            extra.put(key, value)
        action = self.load_meta_client().getCommitActionType()
        inside = self._java_option(java_callback(self._spark, check_in_lock))
        replaced = self._java.util.HashMap()
        writer.commitStats(instant, statistics, self._java_option(extra), action, replaced, inside)

    def remove_unfinished_instant(
        self, instant: str, condemn_and_tell_if_unfinished: Callable[[Any], bool]
    ) -> None:
        """Remove what exists of an instant, its files first, unless it has been completed.

        Hudi's rollback looks first and locks then. So ``condemn_and_tell_if_unfinished`` records
        within the lock what nobody may complete from now on: committers check that within their own
        lock. It returns whether anything is left to remove. An instant that others have removed
        meanwhile must not be begun again, or a writer paused within its commit finds it pending.
        """
        with self._holding_lock():
            meta = self.load_meta_client()
            if self.completion_time(meta, instant) is not None:
                return
            if not condemn_and_tell_if_unfinished(meta):
                return
            written = self._metadata_timeline()
            if unmade := written is not None and is_ghost_compacted(written, instant):
                self._delete_metadata_table(meta)
                meta = self.load_meta_client()
            if instant not in self.pending_instants(meta):
                self._request_and_start_instant(meta, instant)
        if unmade:
            self.close()  # the write client has the metadata table open
        self._roll_back(instant)

    def is_being_rolled_back(self, meta: Any, instant: str) -> bool:
        """Return whether a rollback of it is under way, which may have removed files already."""
        service = self._open_or_reuse_write_client().getTableServiceClient()
        return bool(service.getPendingRollbackInfo(meta, instant, True).isPresent())  # noqa: FBT003

    def close(self) -> None:
        """Release what the write client holds; the next call creates another one."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except Exception as error:  # noqa: BLE001 - it is given up, whatever it says
                error_text(error)

    # ------------------------------------------------------------------------------------ of Java

    @property
    def _spark(self) -> Any:
        """Return the Spark context, in a new JVM if the former one died."""
        if self._context is None or has_jvm_ended(self._context):
            self._client, self._context = (
                None,
                open_spark_context(self._place.spark, self._place.hadoop_settings),
            )
        return self._context

    @property
    def _session(self) -> Any:
        return session_of_context(self._spark)

    @property
    def _java(self) -> Any:
        return self._spark._jvm.java  # noqa: SLF001 - PySpark gives no other way

    @property
    def _hudi(self) -> Any:
        return self._spark._jvm.org.apache.hudi  # noqa: SLF001 - as above

    @property
    def _java_option(self) -> Any:
        return self._hudi.common.util.Option.of

    @property
    def _java_none(self) -> Any:
        return self._hudi.common.util.Option.empty

    def _storage_conf(self) -> Any:
        hadoop = self._spark._jsc.hadoopConfiguration()  # noqa: SLF001 - as above
        return self._hudi.hadoop.fs.HadoopFSUtils.getStorageConf(hadoop)

    def _metadata_timeline(self) -> Any:
        """Return the metadata table's timeline; ``None`` if there is no metadata table."""
        if next(self._place.folder.file_sizes([_METADATA_PROPERTIES])) is None:
            return None
        return self._load_meta_client_of(
            f"{self._place.base_path}/{METADATA_TABLE}"
        ).getActiveTimeline()

    def _load_meta_client_of(self, folder: str) -> Any:
        builder = self._hudi.common.table.HoodieTableMetaClient.builder()
        return builder.setConf(self._storage_conf()).setBasePath(folder).build()

    def _open_or_reuse_write_client(self) -> Any:
        if self._client is None:
            check_lock_server(
                self._place.name, self._writer_settings()
            )  # Hudi itself asks for minutes, and is silent
            engine = self._hudi.client.common.HoodieSparkEngineContext(self._spark._jsc)  # noqa: SLF001
            properties = self._java.util.Properties()
            for key, value in self._writer_settings().items():
                properties.setProperty(key, value)
            builder = self._hudi.config.HoodieWriteConfig.newBuilder()
            builder = builder.withPath(self._place.base_path).withSchema(self._schema)
            config = builder.forTable(self._place.table_name).withProps(properties).build()
            use_utc_instants(self._hudi)
            self._client = self._hudi.client.SparkRDDWriteClient(engine, config)
        return self._client

    def _read_completed_instant(self, timeline: Any, instant: Any) -> Instant:
        metadata = read_completed_commit(self._place, timeline, instant)
        operation = _operation_name_of(metadata)
        changes_no_columns = operation == CLUSTERING
        return Instant(
            requested=str(instant.requestedTime()),
            completed=int(instant.getCompletionTime()),
            operation=operation,
            replaces=str(instant.getAction()) not in _COMMITS,
            metadata={} if changes_no_columns else dict(metadata.getExtraMetadata()),
        )

    def _read_commit_metadata(self, meta: Any, instant: str) -> Any:
        timeline = meta.getActiveTimeline().filterCompletedInstants()
        instants = (i for i in timeline.getInstants() if _has_requested_time(i, instant))
        utilities = self._hudi.common.table.timeline.TimelineUtils
        return utilities.getCommitMetadata(next(instants), timeline)

    @contextmanager
    def _holding_lock(self) -> Iterator[None]:
        """Hold Hudi's lock. Raises what its provider raises."""
        transactions, nobody = (
            self._open_or_reuse_write_client().getTransactionManager(),
            self._java_none(),
        )
        transactions.beginStateChange(nobody, nobody)
        try:
            yield
        finally:
            transactions.endStateChange(nobody)

    def _roll_back(self, instant: str) -> None:
        self._open_or_reuse_write_client().rollback(instant)

    def _delete_metadata_table(self, meta: Any) -> None:
        """Delete the metadata table; Hudi's next write recreates it from the folders.

        A rollback that was begun and cannot be finished would block all writers' commits.
        """
        engine = self._hudi.common.engine.HoodieLocalEngineContext(self._storage_conf())
        self._hudi.metadata.HoodieTableMetadataUtil.deleteMetadataTable(meta, engine, False)  # noqa: FBT003

    def _writer_settings(self) -> Mapping[str, str]:
        return self._place.settings

    def _operation_type_for(self, files: Sequence[WrittenFile]) -> Any:  # noqa: ARG002 - others ask
        """Return Hudi's ``WriteOperationType`` for a commit of these files."""
        return self._hudi.common.model.WriteOperationType.BULK_INSERT

    def _maintain_metadata_table(self, instant: str) -> None:
        """Maintain the metadata table: otherwise nothing would ever be archived."""
        writer, operation = self._open_or_reuse_write_client(), self._operation_type_for(())
        writer.initTable(operation, self._java_option(instant))
        writer.preWrite(instant, operation, self.load_meta_client())

    def _request_and_start_instant(self, meta: Any, instant: str) -> None:
        self._create_requested_instant(meta, instant)
        self._transition_to_inflight(meta, instant)

    def _create_requested_instant(self, meta: Any, instant: str) -> None:
        meta.getActiveTimeline().createNewInstant(self._requested_instant_of(meta, instant))

    def _transition_to_inflight(self, meta: Any, instant: str) -> None:
        timeline = meta.getActiveTimeline()
        timeline.transitionRequestedToInflight(
            self._requested_instant_of(meta, instant), self._java_none()
        )

    def _requested_instant_of(self, meta: Any, instant: str) -> Any:
        loader = self._java.lang.Thread.currentThread().getContextClassLoader()
        states = loader.loadClass("org.apache.hudi.common.table.timeline.HoodieInstant$State")
        requested = self._java.lang.Enum.valueOf(states, "REQUESTED")
        return meta.createNewInstant(requested, meta.getCommitActionType(), instant)

    def _hudi_statistics_of(self, files: Sequence[WrittenFile]) -> list[Any]:
        return [self._hudi_statistics_of_file(file) for file in files]

    def _hudi_statistics_of_file(self, file: WrittenFile) -> Any:
        path = file.path.removeprefix(f"{self._place.location}/")
        statistic = self._hudi.common.model.HoodieWriteStat()
        statistic.setFileId(file_group_id_of(path))
        statistic.setPath(path)
        statistic.setPartitionPath(path.rpartition("/")[0])
        statistic.setPrevCommit("null")
        statistic.setNumWrites(file.records)
        statistic.setNumInserts(file.records)
        statistic.setTotalWriteBytes(file.size_bytes)
        statistic.setFileSizeInBytes(file.size_bytes)
        return statistic


def _has_requested_time(instant: Any, requested: str) -> bool:
    return str(instant.requestedTime()) == requested


def _operation_name_of(metadata: Any) -> str:
    operation = metadata.getOperationType()
    return "" if operation is None else str(operation.name())
