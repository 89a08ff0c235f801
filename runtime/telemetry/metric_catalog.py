"""Lists every metric of headgate: a closed table, as docs/reference/metrics.md has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric. Each of its series carries ``sink`` (``fleet``, if it is a fleet's) and these.

    ``sampled``: a counter that somebody else counts; its value is asked for as a gauge's is.
    """

    kind: Kind
    labels: tuple[str, ...]
    about: str
    sampled: bool = False

    @property
    def is_observable(self) -> bool:
        return self.sampled or self.kind is Kind.GAUGE


BUILD_INFO = "headgate_build_info"
CONFIG_INFO = "headgate_config_info"
READ_RECORDS = "headgate_read_records_total"
READ_BYTES = "headgate_read_bytes_total"
BAD_RECORDS = "headgate_bad_records_total"
FILTERED_RECORDS = "headgate_filtered_records_total"
BATCH_DURATION = "headgate_batch_duration_seconds"
WRITTEN_FILES = "headgate_written_files_total"
WRITTEN_FILE_BYTES = "headgate_written_file_bytes_total"
OWNED_PARTITIONS = "headgate_owned_partitions"
BUFFERED_RECORDS = "headgate_buffered_records"
ASSIGNMENTS = "headgate_assignments_total"
AUTH_LIFE_LEFT = "headgate_token_life_left_ratio"
AUTH_FAILURES = "headgate_token_failures"
ERRORS = "headgate_errors_total"
STATE = "headgate_state"
ERROR_INFO = "headgate_error_info"
EPOCH = "headgate_epoch"
COMMITS = "headgate_commits_total"
COMMIT_DURATION = "headgate_commit_duration_seconds"
TRANSACTION_DURATION = "headgate_transaction_duration_seconds"
COMMITTED_ROWS = "headgate_committed_rows_total"
CHANGES = "headgate_committed_changes_total"
INCOMPLETE_TRANSACTIONS = "headgate_incomplete_transactions_total"
LAST_COMMIT = "headgate_last_commit_timestamp_seconds"
VALID_THROUGH = "headgate_valid_through_timestamp_seconds"
TABLE_VALID_THROUGH = "headgate_table_valid_through_timestamp_seconds"
SUSPENDED_TABLES = "headgate_suspended_tables"
LAG_RECORDS = "headgate_lag_records"
LAG_SECONDS = "headgate_lag_seconds"
STALLED_PARTITIONS = "headgate_stalled_partitions"
UNREAD_PARTITIONS = "headgate_unread_partitions"
UNREAD_RECORDS = "headgate_unread_records"
STORED_OFFSET = "headgate_stored_offset"
LOG_END_OFFSET = "headgate_log_end_offset"
PENDING_ROWS = "headgate_pending_rows"
PARTICIPANTS = "headgate_participants"
ENDED_PARTICIPANTS = "headgate_ended_participants_total"
MAINTENANCE_ROUNDS = "headgate_maintenance_rounds_total"
MAINTENANCE_REWRITTEN = "headgate_maintenance_rewritten_files_total"
MAINTENANCE_ORPHANS = "headgate_maintenance_deleted_orphans_total"
MAINTENANCE_LAST = "headgate_maintenance_last_success_timestamp_seconds"
LIVE_FILES = "headgate_live_files"
LINEAGE_EVENTS = "headgate_lineage_events_total"
LINEAGE_DROPPED = "headgate_lineage_dropped_total"
SIGNALS = "headgate_signals_total"
SIGNAL_FAILURES = "headgate_signal_failures_total"
FLEET_READ = "headgate_fleet_read_timestamp_seconds"
FLEET_SINKS = "headgate_fleet_sinks"
FLEET_WANTED = "headgate_fleet_wanted"
FLEET_WORKERS = "headgate_fleet_workers"
FLEET_SLOTS = "headgate_fleet_slots"
FLEET_UNOWNED_SLOTS = "headgate_fleet_unowned_slots"
FLEET_LOAD = "headgate_fleet_load"
FLEET_REFUSED = "headgate_fleet_refused_specs"
FLEET_STATE = "headgate_fleet_state"
FLEET_DRIFT = "headgate_fleet_drift"
FLEET_RESTARTS = "headgate_fleet_restarts_total"
FLEET_NEXT_TRY = "headgate_fleet_next_try_timestamp_seconds"
FLEET_LAG = "headgate_fleet_lag_records"
FLEET_MEMORY = "headgate_fleet_memory_bytes"
FLEET_CPU = "headgate_fleet_cpu_seconds_total"

_OF_PROCESS: Mapping[str, Instrument] = {
    BUILD_INFO: Instrument(Kind.GAUGE, ("version",), "Always 1; the label is the running release."),
    CONFIG_INFO: Instrument(
        Kind.GAUGE,
        ("hash", "table"),
        "Always 1; fingerprint of the settings that all participants must share.",
    ),
    READ_RECORDS: Instrument(
        Kind.COUNTER, ("topic",), "Records of written batches; repeated work counts again."
    ),
    READ_BYTES: Instrument(Kind.COUNTER, ("topic",), "Bytes of those records."),
    BAD_RECORDS: Instrument(
        Kind.COUNTER,
        ("topic", "outcome"),
        "Records of those batches that became no row: quarantined or skipped.",
    ),
    FILTERED_RECORDS: Instrument(
        Kind.COUNTER,
        ("topic",),
        "Records of those batches that shape.where, maintenance.rows_late or a transform left out.",
    ),
    BATCH_DURATION: Instrument(
        Kind.HISTOGRAM,
        ("outcome",),
        "Time from the submission of a batch to its end: written or failed.",
    ),
    WRITTEN_FILES: Instrument(Kind.COUNTER, (), "Data files of those batches."),
    WRITTEN_FILE_BYTES: Instrument(Kind.COUNTER, (), "Bytes of those files."),
    OWNED_PARTITIONS: Instrument(Kind.GAUGE, (), "Source partitions that this participant owns."),
    BUFFERED_RECORDS: Instrument(
        Kind.GAUGE, (), "Records in written files that no status has announced yet."
    ),
    ASSIGNMENTS: Instrument(
        Kind.COUNTER, ("kind",), "Partitions joined, gained or lost by this participant."
    ),
    AUTH_LIFE_LEFT: Instrument(
        Kind.GAUGE,
        ("server",),
        "Share of the newest token's life that is left, for kafka or registry: renewed at 0.5.",
    ),
    AUTH_FAILURES: Instrument(
        Kind.GAUGE, ("server",), "Tries to get a token that have failed since the newest one came."
    ),
    ERRORS: Instrument(
        Kind.COUNTER,
        ("code",),
        "Warnings and errors that this process logged for the sink, by the code that they name.",
    ),
}

_OF_SINK: Mapping[str, Instrument] = {
    STATE: Instrument(
        Kind.GAUGE,
        ("state",),
        "1 for the sink's condition (docs/reference/status.md), 0 for each other.",
    ),
    ERROR_INFO: Instrument(Kind.GAUGE, ("code",), "1 while the last error is not over."),
    EPOCH: Instrument(Kind.GAUGE, (), "The coordinator's epoch; each take-over raises it."),
    COMMITS: Instrument(
        Kind.COUNTER, ("table", "outcome"), "Calls to the catalog: landed, refused, unknown."
    ),
    COMMIT_DURATION: Instrument(
        Kind.HISTOGRAM, ("outcome",), "Duration of the calls that commit the table."
    ),
    TRANSACTION_DURATION: Instrument(
        Kind.HISTOGRAM, ("outcome",), "Time from START to the settlement: acked or aborted."
    ),
    COMMITTED_ROWS: Instrument(
        Kind.COUNTER, ("table",), "Rows that a table has received, each counted once."
    ),
    CHANGES: Instrument(
        Kind.COUNTER,
        ("table", "what"),
        "Records of commits to a keyed table: inserted, updated, deleted, absent, superseded.",
    ),
    INCOMPLETE_TRANSACTIONS: Instrument(
        Kind.COUNTER, (), "Settled transactions that had to leave something out."
    ),
    LAST_COMMIT: Instrument(Kind.GAUGE, (), "Time of the last commit that added rows."),
    VALID_THROUGH: Instrument(
        Kind.GAUGE, (), "No record with an older timestamp is expected any more, as far as known."
    ),
    TABLE_VALID_THROUGH: Instrument(
        Kind.GAUGE, ("table",), "The same for one of many tables, as of its last delivery."
    ),
    SUSPENDED_TABLES: Instrument(Kind.GAUGE, (), "Tables of many that currently take no rows."),
    LAG_RECORDS: Instrument(
        Kind.GAUGE,
        ("topic",),
        "Offsets between what the table stores and the readable end of the log.",
    ),
    LAG_SECONDS: Instrument(
        Kind.GAUGE,
        ("topic",),
        "Age of the oldest record that is not in the table yet, by its timestamp; 0 if none.",
    ),
    STALLED_PARTITIONS: Instrument(
        Kind.GAUGE,
        (),
        "Partitions with lag whose stored offset did not move for three intervals and time-outs.",
    ),
    UNREAD_PARTITIONS: Instrument(
        Kind.GAUGE,
        (),
        "Partitions that were added to a topic and are not read yet: keyed tables hold them.",
    ),
    UNREAD_RECORDS: Instrument(
        Kind.GAUGE,
        ("topic",),
        "Offsets in those partitions, which headgate_lag_records contains as well.",
    ),
    STORED_OFFSET: Instrument(
        Kind.GAUGE,
        ("topic", "partition"),
        "Next offset according to the table; telemetry.per_partition.",
    ),
    LOG_END_OFFSET: Instrument(
        Kind.GAUGE, ("topic", "partition"), "Readable end of the log; telemetry.per_partition."
    ),
    PENDING_ROWS: Instrument(Kind.GAUGE, (), "Rows that the quarantine has not received yet."),
    PARTICIPANTS: Instrument(Kind.GAUGE, (), "Participants with a recent sign of life."),
    ENDED_PARTICIPANTS: Instrument(
        Kind.COUNTER, ("code",), "Participants that reported which error ended them."
    ),
    MAINTENANCE_ROUNDS: Instrument(
        Kind.COUNTER,
        ("table", "outcome"),
        "Maintenance rounds of a running sink: done, or failed in part.",
    ),
    MAINTENANCE_REWRITTEN: Instrument(
        Kind.COUNTER, ("table",), "Small files that those rounds replaced by larger ones."
    ),
    MAINTENANCE_ORPHANS: Instrument(Kind.COUNTER, ("table",), "Orphans that those rounds deleted."),
    MAINTENANCE_LAST: Instrument(
        Kind.GAUGE, ("table",), "Time of the last round without a failure."
    ),
    LIVE_FILES: Instrument(
        Kind.GAUGE, ("table",), "Live data files, as the last compaction counted them."
    ),
    LINEAGE_EVENTS: Instrument(
        Kind.COUNTER, ("event",), "Lineage events that their receiver has taken."
    ),
    LINEAGE_DROPPED: Instrument(
        Kind.COUNTER, (), "Lineage events that could not be sent; the next one tells of their rows."
    ),
    SIGNALS: Instrument(Kind.COUNTER, (), "Signals that their receiver has taken."),
    SIGNAL_FAILURES: Instrument(
        Kind.COUNTER, (), "Tries to send a signal that failed; it is sent again."
    ),
}
"""Reported by the process that coordinates. Take their maximum by sink."""

OF_FLEET: Mapping[str, Instrument] = {
    FLEET_READ: Instrument(
        Kind.GAUGE,
        (),
        "When the fleet's topics were last read to their ends, or began to be: all is of then.",
    ),
    FLEET_SINKS: Instrument(
        Kind.GAUGE, ("state",), "Sinks in each state (docs/guides/workers.md), lost among them."
    ),
    FLEET_WANTED: Instrument(
        Kind.GAUGE, ("state",), "Sinks that people want running, paused or stopped."
    ),
    FLEET_WORKERS: Instrument(
        Kind.GAUGE, ("state", "release"), "Workers that work, leave, or are lost."
    ),
    FLEET_SLOTS: Instrument(Kind.GAUGE, ("worker",), "Slots that a worker owns."),
    FLEET_UNOWNED_SLOTS: Instrument(
        Kind.GAUGE, (), "Slots that no worker owns: nobody starts the sinks in them."
    ),
    FLEET_LOAD: Instrument(
        Kind.GAUGE,
        ("worker",),
        "What a worker carries: one for each sink, and fifty for each core used lately.",
    ),
    FLEET_REFUSED: Instrument(
        Kind.GAUGE, (), "Sinks whose newest spec is not believed (HG-125), or cannot be read."
    ),
    FLEET_STATE: Instrument(
        Kind.GAUGE, ("sink", "state"), "Always 1; the label is the sink's state now."
    ),
    FLEET_DRIFT: Instrument(
        Kind.GAUGE,
        ("sink", "kind"),
        "1 while a sink works with another file, is in another state, or is wanted by nobody.",
    ),
    FLEET_RESTARTS: Instrument(
        Kind.COUNTER,
        ("sink", "code"),
        "Processes of a sink that ended unasked, by the error's code, since this server began.",
    ),
    FLEET_NEXT_TRY: Instrument(
        Kind.GAUGE, ("sink",), "When a sink in error is started again; passed: now."
    ),
    FLEET_LAG: Instrument(
        Kind.GAUGE, ("sink",), "Records that this participant has not read of its partitions."
    ),
    FLEET_MEMORY: Instrument(Kind.GAUGE, ("sink", "worker"), "Private memory of a sink's process."),
    FLEET_CPU: Instrument(
        Kind.COUNTER, ("sink", "worker"), "Processor time of a sink's process.", sampled=True
    ),
}
"""Reported by ``headgate serve --fleet``, which reads what workers tell."""

INSTRUMENTS: Mapping[str, Instrument] = {**_OF_PROCESS, **_OF_SINK, **OF_FLEET}
