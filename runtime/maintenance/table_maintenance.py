"""Maintains one table step by step: compaction (COMPACTION-1), expiry (RETENTION-1), orphans
(ORPHAN-1)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.identifiers import tag_name
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.control_protocol.table_history import Newest
from headgate.runtime.maintenance.compaction import Rewriting, Stopped, target_file_bytes
from headgate.runtime.sink_tables import open_tables_creating_nothing
from headgate.runtime.wall_clock import wall_ms
from headgate.tables.iceberg.commit_mutex import CommitLock
from headgate.tables.iceberg.maintenance.compaction_commit import Replacement, Written
from headgate.tables.iceberg.maintenance.compaction_plan import (
    Choice,
    CompactionLimits,
    choose_files_to_compact,
)
from headgate.tables.iceberg.maintenance.maintenance_commit import Settled, retry_until_settled
from headgate.tables.iceberg.maintenance.orphan_files import Ages, Orphans, PrimaryTags, TagMove
from headgate.tables.iceberg.maintenance.row_expiry import (
    RowExpiry,
    describe_limit,
    expiry_limit_ms,
)
from headgate.tables.iceberg.maintenance.snapshot_expiry import SnapshotExpiry

_NAMED_MAX = 3

OnProgress = Callable[[str, int, int], None]

_LAST = Newest(50, 2**62)
"""Others commit there too."""

_log = redacted_logger("headgate.maintenance")


@dataclass(slots=True)
class Done:
    """What was done to one table, or would be. ``left``: what was not done, and why.

    ``live_files``: as compaction counted them, if it looked. ``failed``: the error that ended it
    early.
    """

    table: str
    live_files: int | None = None
    compacted_files: int = 0
    into_files: int = 0
    expired_snapshots: int = 0
    orphans: int = 0
    young_orphans: int = 0
    expired_rows: int = 0
    left: list[str] = field(default_factory=list)
    failed: str = ""


@dataclass
class Round:
    """One round of one table. ``quiet`` waits for a good moment to commit.

    ``ending`` is set when the round must stop. ``unfit``: files known to stay as they are, and why.
    ``beside``: locations of the sink's other tables; ``unread``: those whose location is unknown.
    ``more``: compaction has not done all, because it was to do one commit's work. ``limits_ms``: by
    table, up to where rows have expired in an earlier round.
    """

    settings: SinkSettings
    catalog: Catalog
    table: str
    beside: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    dry_run: bool = False
    quiet: Callable[[], None] = lambda: None
    commit_lock: CommitLock = field(default_factory=CommitLock)
    ending: threading.Event = field(default_factory=threading.Event)
    on_progress: OnProgress = lambda *_: None
    unfit: dict[str, str] = field(default_factory=dict)
    more: bool = False
    limits_ms: dict[str, int] = field(default_factory=dict)
    clock_ms: Callable[[], int] = wall_ms

    def __post_init__(self) -> None:
        self.done = Done(self.table)
        self._left_before_compaction: tuple[str, ...] | None = None

    # ------------------------------------------------------------------------------- rows that go

    def expire_rows(self) -> None:
        """EXPIRY-1: remove rows that are older than they are kept; only in the sink's one table.

        Raises what catalogs and storage raise, and ``RowExpiryUnfit``.
        """
        wanted = self.settings.maintenance
        if not wanted.rows_after_ms or self.table != self.settings.table.identifier:
            return
        updated_ms = self.catalog.load_table(self.table).metadata.last_updated_ms
        limit_ms = expiry_limit_ms(self.clock_ms(), updated_ms, wanted.rows_after_ms)
        if self.limits_ms.get(self.table) == limit_ms:
            return  # the same rows are due as an interval ago, but for late ones
        expiry = RowExpiry(
            self.catalog,
            self.table,
            (self.settings.name, self.settings.table.branch),
            column=wanted.rows_by,
            limit_ms=limit_ms,
            dead_per_thousand=wanted.dead_per_thousand,
            calling=self.commit_lock.calling,
        )
        due = expiry.find_due_rows()
        if due is None:
            self.done.left.append("no rows expired: the table has no tag of this sink")
            return
        if due.rows and not self.dry_run:
            outcome = retry_until_settled(expiry.try_commit, self.quiet, self.ending)
            if expiry.done is None:
                words = expiry.describe_outcome(outcome)
                due_rows = count_of(due.rows, "due row")
                self.done.left.append(f"{due_rows} may still be there ({words})")
                return
            due = expiry.done
            _log.info(
                "%s: %d rows of before %s expired",
                self.table,
                due.rows,
                describe_limit(limit_ms),
                extra=event_extra(LogEvent.ROWS_EXPIRED, table=self.table, records=due.rows),
            )
        self.done.expired_rows = due.rows
        self.done.left += due.left
        if due.waiting:
            self.done.left.append(
                f"{count_of(due.waiting, 'due row waits', 'due rows wait')} for more in their files"
            )
        if due.timeless:
            self.done.left.append(
                f"{count_of(due.timeless, 'row without a value', 'rows without a value')} in "
                f"{wanted.rows_by} will never expire"
            )
        if not self.dry_run:
            self.limits_ms[self.table] = limit_ms

    # ---------------------------------------------------------------------------------- compaction

    def compact(self, *, at_most_one_commit: bool = False) -> None:
        """Compact small files and commit until nothing is left, or with one commit at most.

        Raises what catalogs and storage raise; files written by then are removed, or become
        orphans.
        """
        sequence_number_max: int | None = None
        if self._left_before_compaction is None:
            self._left_before_compaction = tuple(self.done.left)
        before = self._left_before_compaction  # what row expiry left; each pass replaces its own
        while not self.ending.is_set():
            table = self.catalog.load_table(self.table)
            if self._sink_tag not in table.metadata.refs:  # no commit of the sink could land either
                why = "did not compact: the table has no tag of this sink"
                self.done.left = [*before, why]
                return
            choice = self._choose_files(table, sequence_number_max)
            sequence_number_max = sequence_number_max or choice.sequence_number
            self.done.live_files = choice.live_files
            self.done.left = [*before, *choice.left, *self._unfit_file_reasons()]
            if not choice.portions:
                return
            sources = sum(map(len, choice.portions))
            if self.dry_run:
                self.done.compacted_files, self.done.into_files = sources, len(choice.portions)
                return
            try:
                rewritten = self._new_rewriting(table).rewrite(choice, self._report_portions_done)
            except Stopped:
                return
            self.unfit.update(rewritten.unfit)
            if rewritten.written is not None and not self._try_commit_rewrite(rewritten.written):
                return
            if at_most_one_commit:
                self.more = choice.more
                return

    @property
    def _sink_tag(self) -> str:
        return tag_name(self.settings.name, self.settings.table.branch)

    def _unfit_file_reasons(self) -> list[str]:
        reasons = Counter(self.unfit.values())
        return [
            f"{count_of(count, 'small file')}: {reason}"
            for reason, count in sorted(reasons.items())
        ]

    def _report_portions_done(self, done: int, total: int) -> None:
        self.on_progress(f"{self.table}: portions", done, total)

    def _choose_files(self, table: Table, sequence_number_max: int | None = None) -> Choice:
        """Choose the files; ``sequence_number_max`` is that of the head when the round began."""
        wanted = CompactionLimits(
            self._target_file_bytes(table),
            self.settings.maintenance.files_min,
            but=frozenset(self.unfit),
            dead_per_thousand=self.settings.maintenance.dead_per_thousand,
            sequence_number_max=sequence_number_max,
        )
        return choose_files_to_compact(
            table, self.settings.name, self.settings.table.branch, wanted
        )

    def _target_file_bytes(self, table: Table) -> int:
        named = self.settings.maintenance.target_file_bytes
        return target_file_bytes(table, named, self.settings.coordinator.target_file_bytes)

    def _new_rewriting(self, table: Table) -> Rewriting:
        size_bytes = self._target_file_bytes(table)
        return Rewriting(table, self.settings.name, size_bytes, self.ending.is_set)

    def _try_commit_rewrite(self, written: Written) -> bool:
        """Return whether the commit landed. After a lost race it is retried on the newer head."""
        replacement = Replacement(
            self.catalog,
            self.table,
            (self.settings.name, self.settings.table.branch),
            written,
            age_max_s=self.settings.coordinator.claim_age_max_ms / 1000,
            calling=self.commit_lock.calling,
        )
        outcome = retry_until_settled(replacement.try_commit, self.quiet, self.ending)
        if outcome is Settled.LANDED:
            self.done.compacted_files += len(written.source_paths)
            self.done.into_files += len(written.files)
            _log.info(
                "%s: compacted %d small files into %d",
                self.table,
                len(written.source_paths),
                len(written.files),
                extra=event_extra(LogEvent.TABLE_COMPACTED, table=self.table),
            )
            return True
        fate = "taken back" if replacement.delete_new_files_unless_doubtful() else "left as orphans"
        verb = "may not have landed" if outcome is Settled.UNKNOWN else "did not land"
        words = replacement.describe_outcome(outcome)
        self.done.left.append(f"a compaction {verb} ({words}); its files were {fate}")
        return False

    # ------------------------------------------------------------------------- expiry, and orphans

    def expire_snapshots(self) -> None:
        """Expire snapshots, by the table's own properties or else the sink file."""
        table = self.catalog.load_table(self.table)
        upkeep = SnapshotExpiry(
            self.catalog,
            threads=False,
            commit_lock=self.commit_lock,
            expire_after_ms=self.settings.maintenance.expire_after_ms or None,
        )
        if self.dry_run:
            self.done.expired_snapshots = len(upkeep.expirable_snapshots(table))
        else:
            self.done.expired_snapshots = upkeep.expire_now(table)

    def remove_orphans(self) -> None:
        """Remove orphans.

        Raises what storage raises, and ``TimeoutError`` for a table that is too large.
        """
        ages = Ages(
            self.settings.maintenance.orphans_after_ms, self.settings.coordinator.claim_age_max_ms
        )
        primary = self.settings.table.identifier
        orphans = Orphans(
            self.catalog,
            self.settings.name,
            primary,
            self.table,
            ages,
            beside=self.beside,
            deciding=partial(read_last_primary_tag_moves, self.settings)
            if self.settings.has_quarantine_of_other_format
            else None,
        )
        if self.unread:
            self.done.left.append(
                "did not look for orphans: files may be those of a table that cannot be read: "
                + ", ".join(self.unread[:_NAMED_MAX])
            )
            return
        self.on_progress(f"{self.table}: orphans", 0, 0)
        found = orphans.find_orphans()
        self.done.young_orphans = found.young
        if found.why:
            self.done.left.append(f"did not look for orphans: {found.why}")
        if found.elsewhere:
            self.done.left.append(
                f"did not look for orphans in {found.elsewhere}: it is outside of the table's own "
                "location, where others may be"
            )
        if found.earlier:
            self.done.left.append(
                f"{count_of(found.earlier, 'unreferenced file is', 'unreferenced files are')} "
                "older than the table: perhaps of another one that was here before and was "
                "renamed"
            )
        self.done.orphans = len(found.files)
        if found.files and not self.dry_run and not self.ending.is_set():
            self.done.orphans = orphans.delete_orphans(found)
            _log.info(
                "%s: %d orphans deleted",
                self.table,
                self.done.orphans,
                extra=event_extra(LogEvent.ORPHANS_DELETED, table=self.table),
            )


def read_last_primary_tag_moves(settings: SinkSettings) -> PrimaryTags:
    """Read what the primary table says to the maintenance of an Iceberg quarantine beside it."""
    with open_tables_creating_nothing(settings) as tables:
        history = tables.reader.history(_LAST)
        if not history.commits:
            history = tables.reader.history()
        deciding = [
            TagMove(commit.committed_ms, record)
            for commit in history.commits[-1:]
            for record in (commit.record, history.current_record)
        ]
        return PrimaryTags(history.uuid, deciding)
