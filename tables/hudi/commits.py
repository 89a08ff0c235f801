"""Commits for one sink to a Hudi table, whatever wrote the files (rules TABLE-1 to TABLE-4,
OUTCOME-1).

The tag is the completion time of the sink's newest commit, and the head that of anybody's:
completion times grow, and are unique under Hudi's lock. The compare-and-set is in the hook that
Hudi calls inside its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import NamedTuple

from headgate.control_protocol.commit_record_codec import (
    decode_record,
    filled_table_uuids,
    sink_in_summary,
    topic_ids_if_readable,
    uuids_of_filled_tables_after,
)
from headgate.control_protocol.errors import (
    HeadgateError,
    RetryLater,
    TableMissing,
    TableUnfit,
    Unreachable,
)
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    Lineage,
    Refused,
    TableView,
    Unknown,
)
from headgate.tables.hudi import lost_lock_detection
from headgate.tables.hudi.columns import find_changed_column
from headgate.tables.hudi.damaged_files import table_read_error
from headgate.tables.hudi.jvm import error_text
from headgate.tables.hudi.lost_lock_detection import Link
from headgate.tables.hudi.reserved_instants import Reservations, StoredCommit
from headgate.tables.hudi.table_properties import HudiLocation, TableConfig
from headgate.tables.hudi.write_client import HudiJava, Instant, Statistics

_LOOKED_AT = 20
"""How many of the newest commits are searched for other sinks."""

_SCHEMA = "schema"
"""Hudi's key, in a commit's metadata, for the columns that it was made with."""


class Moved(Exception):
    """The table is not the one that the attempt was made for; raised inside Hudi's lock."""


class _ViewRead(NamedTuple):
    """The table, and the sink's newest commit if it may not be kept yet (H10)."""

    view: TableView
    unkept_commit: StoredCommit | None


class HudiCommits:
    """Implements ``SinkTable`` over a Hudi table, except the source of rows; used by one thread.

    ``answer`` makes the call that commits, which a test may let fail; ``java`` is Hudi.
    """

    def __init__(
        self,
        place: HudiLocation,
        sink: SinkName,
        answer: Callable[[Callable[[], None]], None] = lambda call: call(),
        java: Callable[[HudiLocation, str], HudiJava] = HudiJava,
    ) -> None:
        self._place = place
        self._sink = sink
        self._answer = answer
        self._java = java
        self._location = place.participant_files_address
        self._reservations = Reservations(place, sink)
        self._open: tuple[TableConfig, HudiJava] | None = None
        self._begun: set[str] = set()

    def read(self) -> TableView:
        """Read the table before commits, and keep the copy that a dead coordinator did not write.

        Decisions and deliveries are built upon what was read; a restore that removes it must be
        seen.
        """
        return self._read_table(writes=True)

    def read_without_storing_copy(self) -> TableView:
        """Read the table without writing anything; its UUID is empty if no sink has opened it."""
        return self._read_table(writes=False)

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        base = attempt.base
        try:
            config, java = self._open_or_reuse_client()
            view = self.read()
            if _table_state_key(view) != _table_state_key(base):
                return Refused("the table has moved on since it was read; nothing was sent")
            if attempt.record.is_claim:
                self._roll_back_unfinished_instants(
                    java
                )  # first: its rollbacks may be all that an empty timeline has
            instant = self._prepare_instant_for(attempt, java)
            if refusal := self._begin_instant_or_refuse(java, instant):
                return refusal
            brought = self._write_missing_rows(attempt, java, instant)
            if isinstance(brought, Refused):
                return brought
        except (TableMissing, RetryLater) as error:
            return Unknown(f"nothing was sent: {error}")
        except HeadgateError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing was completed yet
            self.close()
            return Unknown(f"nothing was completed: {error_text(error)}")
        return self._send_commit(brought, config, java, instant)

    def close(self) -> None:
        if self._open:
            self._open[1].close()

    # ------------------------------------------------------------------------------------ reading

    def _open_or_reuse_client(self, *, writes: bool = True) -> tuple[TableConfig, HudiJava]:
        """Return the table's properties, and the client that knows its columns, if new."""
        config = self._place.read_config_ensuring_uuid(stores_uuid=writes)
        if self._open is None or self._open[0] != config:
            self.close()
            self._open = None
            self._begun.clear()
            self._on_table_config_changed()  # if it raises, the next call checks again
            self._open = (config, self._java(self._place, config.schema))
        return self._open

    def _read_table(self, *, writes: bool) -> TableView:
        config, java = self._open_or_reuse_client(writes=writes)
        try:
            meta = java.load_meta_client()
            view, unkept = self._build_view(config, java, meta)
            lost_lock_detection.require_same_keying_and_buckets(
                view, self._place, self._sink, lambda: java.latest_slices(meta)
            )
            if writes and unkept:
                self._reservations.store_landed_commit(unkept)
        except HeadgateError:
            raise
        except Exception as error:
            raise table_read_error(self._place, error) from error
        return view

    def _build_view(self, config: TableConfig, java: HudiJava, meta: object) -> _ViewRead:
        newest = list(islice(java.completed_commits(meta), _LOOKED_AT))
        ours = list(islice(self._own_commits(java.completed_commits(meta)), 2))
        self._require_columns_unchanged(config, newest)
        metadata = ours[0].metadata if ours else {}
        newest_record, filled = (
            decode_record(self._sink, metadata),
            filled_table_uuids(self._sink, metadata),
        )
        tag, record = ours[0].completed if ours else None, newest_record
        lineage = Lineage.CONTAINS_TAG if ours else Lineage.FRESH
        unkept = None
        landed = self._reservations.find_landed_commits(
            lambda instant: (
                None
                if java.is_completed_on_active_timeline(meta, instant)
                else java.archived_completion_time(meta, instant)
            )
        )
        kept = landed[0] if landed else None
        archived = {each.instant for each in landed}
        self._require_no_resurrected_instants(
            lambda it: it in archived or java.is_completed_on_active_timeline(meta, it)
        )
        self._require_unforked(ours, landed)
        if kept and kept.tag > (tag or 0):
            tag, record, filled = kept.tag, kept.record, kept.filled
            lineage = self._judge_lineage_off_timeline(
                java, meta, kept, has_older_record=newest_record is not None
            )
            unkept = kept if lineage is Lineage.CONTAINS_TAG else None
        view = TableView(
            table=self._place.name,
            uuid=config.uuid,
            location=self._location,
            schema_id=config.schema_id,
            spec_id=0,
            head=newest[0].completed if newest else None,
            tag=tag,
            record=record,
            lineage=lineage,
            branch_record=newest_record if lineage is not Lineage.CONTAINS_TAG else record,
            others={
                sink: topic_ids_if_readable(sink, each.metadata)
                for each in reversed(newest)
                if (sink := sink_in_summary(each.metadata)) not in (None, self._sink)
            },
            filled=filled,
        )
        if ours and newest_record and (kept is None or kept.tag < ours[0].completed):
            follows = lost_lock_detection.previous_completion_time(self._sink, metadata)
            unkept = StoredCommit(
                ours[0].requested, ours[0].completed, newest_record, filled, follows
            )
        return _ViewRead(view, unkept)

    def _require_unforked(self, ours: list[Instant], landed: list[StoredCommit]) -> None:
        """H9: the timeline may show one branch of a fork only, or neither."""
        follows = partial(lost_lock_detection.previous_completion_time, self._sink)
        active = (Link(each.requested, each.completed, follows(each.metadata)) for each in ours)
        kept = (Link(each.instant, each.tag, each.follows) for each in landed)
        lost_lock_detection.require_unforked(self._place.name, self._sink, [*kept, *active])

    def _own_commits(self, commits: Iterator[Instant]) -> Iterator[Instant]:
        return (each for each in commits if sink_in_summary(each.metadata) == self._sink)

    def _judge_lineage_off_timeline(
        self, java: HudiJava, meta: object, kept: StoredCommit, *, has_older_record: bool
    ) -> Lineage:
        """TABLE-4: return the lineage if the newest landed commit is not on the active timeline."""
        if java.archived_completion_time(meta, kept.instant) is not None:
            return Lineage.CONTAINS_TAG
        return Lineage.ROLLED_BACK if has_older_record else Lineage.TAG_MISSING

    def _require_no_resurrected_instants(self, is_complete: Callable[[str], bool]) -> None:
        lost_lock_detection.require_no_resurrected_instants(
            self._place.name, self._sink, self._reservations.forbidden_instants(), is_complete
        )

    def _require_columns_unchanged(self, config: TableConfig, newest: list[Instant]) -> None:
        """Refuse if the sink's next commit would undo a change of columns by somebody else."""
        schema = next(
            (each.metadata[_SCHEMA] for each in newest if each.metadata.get(_SCHEMA)), None
        )
        if schema and (column := find_changed_column(config.columns, schema)):
            raise TableUnfit(
                f"Hudi table {self._place.name}: column {column} is not what it was when the table "
                "was made",
                "columns of Hudi tables stay as they are while a sink fills them "
                "(docs/table-formats/hudi.md)",
            )

    # --------------------------------------------------------------------------------- committing

    def _reserve_instant(self, java: HudiJava) -> str:
        try:
            instant = java.reserve_instant()
            self._reservations.note_reserved_instant(instant)
        except HeadgateError:
            raise
        except Exception as error:
            java.close()
            raise Unreachable(
                f"Hudi table {self._place.name}: no instant can be reserved: {error_text(error)}"
            ) from error
        return instant

    def _prepare_instant_for(self, attempt: CommitAttempt, java: HudiJava) -> str:
        """Return the instant under which the attempt commits, after what that instant needs."""
        raise NotImplementedError

    def _on_table_config_changed(self) -> None:
        """Forget, or check again, what was known: the table is another one, or was changed."""

    def _instants_of_unsettled_tokens(self) -> Sequence[str]:
        """Return the instants of transactions that may not be settled, oldest first."""
        return ()

    def _write_missing_rows(
        self,
        attempt: CommitAttempt,
        java: HudiJava,  # noqa: ARG002 - for those that have it to do
        instant: str,  # noqa: ARG002
    ) -> CommitAttempt | Refused:
        """Write rows that are not in the table's folder yet, under the pending instant.

        Returns the attempt with what was written. Here no rows are missing.
        """
        return attempt

    def _find_refusal_for_lost_files(
        self, attempt: CommitAttempt, java: HudiJava
    ) -> Refused | None:
        """Return a refusal if files of the attempt no longer exist."""
        raise NotImplementedError

    def _remove_obsolete_staged_files(self, attempt: CommitAttempt) -> None:
        """Remove what only the landed attempt needed."""

    def _roll_back_unfinished_instants(self, java: HudiJava) -> None:
        """H3: roll back whatever this sink has left pending, so that it can no longer land.

        The newest instant to come belongs to the transaction that the claim begins with.
        """
        meta, first = java.load_meta_client(), set(self._instants_of_unsettled_tokens()[-1:])
        self._require_no_resurrected_instants(
            lambda instant: java.completion_time(meta, instant) is not None
        )
        for instant in sorted(self._unfinished_instants(java, meta) - first):
            self._remove_unfinished_instant(java, instant)

    def _remove_unfinished_instant(self, java: HudiJava, instant: str) -> None:
        def condemn_and_tell_if_unfinished(meta: object) -> bool:
            """Forbid the instant's completion; return whether something is left to remove."""
            self._reservations.forbid_completion(instant)
            return instant in self._unfinished_instants(java, meta)

        java.remove_unfinished_instant(instant, condemn_and_tell_if_unfinished)

    def _begin_instant_or_refuse(self, java: HudiJava, instant: str) -> Refused | None:
        """H4: put the instant on the timeline; H7: continue one that was begun."""
        meta = java.load_meta_client()
        if java.is_completed_on_active_timeline(meta, instant):
            return Refused(f"instant {instant} is complete", for_good=True)
        if instant in self._reservations.forbidden_instants():
            return rolled_back_refusal(instant)
        if instant in java.pending_instants(meta):
            java.start_heartbeat(instant)
            return None
        if instant in self._begun:
            return rolled_back_refusal(instant)
        if java.is_older_than_active_timeline(meta, instant):
            self._remove_unfinished_instant(java, instant)
            return Refused(f"instant {instant} is older than the active timeline", for_good=True)
        java.begin_instant(meta, instant)
        self._begun.add(instant)
        return None

    def _send_commit(
        self, attempt: CommitAttempt, config: TableConfig, java: HudiJava, instant: str
    ) -> CommitOutcome:
        refused: list[Refused] = []
        record = attempt.record
        filled = uuids_of_filled_tables_after(record, attempt.base.filled, attempt.forgets)
        coming = StoredCommit(instant, 0, record, filled, attempt.base.tag or 0)

        def check_and_announce() -> None:
            if refusal := self._check_before_commit(attempt, java, instant):
                refused.append(refusal)
                raise Moved(refusal.reason)
            self._reservations.announce_commit(coming)

        try:
            metadata = {
                **coming.commit_metadata,
                lost_lock_detection.previous_completion_time_key(self._sink): str(
                    attempt.base.tag or ""
                ),
            }
            self._answer(lambda: java.commit(instant, attempt.files, metadata, check_and_announce))
        except Exception as error:  # noqa: BLE001 - whatever it is, the call may have landed
            java.close()
            if refused:
                return refused[0]
            return self._outcome_after_error(attempt, java, coming, error)
        return self._finish_landed_commit(attempt, config, java, coming)

    def _check_before_commit(
        self, attempt: CommitAttempt, java: HudiJava, instant: str
    ) -> Refused | None:
        """Inside Hudi's lock, check that the table is what the attempt expects and its files exist.

        A claim that did not land may have removed them (H3).
        """
        view = self._build_view(
            self._place.read_config_ensuring_uuid(), java, java.load_meta_client()
        ).view
        if _table_state_key(view) != _table_state_key(attempt.base):
            return Refused(f"the table has moved on: head {view.head}, tag {view.tag}")
        if behind := lost_lock_detection.why_clock_is_behind(view.head):
            return Refused(behind)
        meta = java.load_meta_client()
        if instant in self._reservations.forbidden_instants() or java.is_being_rolled_back(
            meta, instant
        ):
            return rolled_back_refusal(instant)
        if instant not in java.pending_instants(meta):
            return Refused(f"the table has moved on: instant {instant} is not pending any more")
        return self._find_refusal_for_lost_files(attempt, java)

    def _outcome_after_error(
        self, attempt: CommitAttempt, java: HudiJava, coming: StoredCommit, error: Exception
    ) -> CommitOutcome:
        """H7, H11: judge by the timeline, since a failure after the commit fails a landed call."""
        if isinstance(error, ConnectionError):
            return Unknown(repr(error))
        try:
            config, java = self._open_or_reuse_client()
            landed = java.completion_time(java.load_meta_client(), coming.instant)
            if config.uuid == attempt.base.uuid and landed is not None:
                return self._finish_landed_commit(attempt, config, java, coming)
        except Exception as later:  # noqa: BLE001 - it is not known then
            return Unknown(f"{error_text(error)}, and then: {error_text(later)}")
        return Unknown(error_text(error))

    def _finish_landed_commit(
        self, attempt: CommitAttempt, config: TableConfig, java: HudiJava, coming: StoredCommit
    ) -> CommitOutcome:
        instant, record = coming.instant, coming.record
        self._require_no_resurrected_instants(instant.__eq__)
        try:
            meta = java.load_meta_client()
            tag = java.completion_time(meta, instant)
            assert tag is not None, f"instant {instant} has gone again"
            view = replace(
                self._build_view(config, java, java.load_meta_client()).view,
                head=tag,
                tag=tag,
                record=record,
                branch_record=record,
                lineage=Lineage.CONTAINS_TAG,
                filled=coming.filled,
            )
            self._reservations.store_landed_commit(replace(coming, tag=tag))
            self._begun.discard(instant)
            self._clean_up_after(java, instant)
            self._remove_obsolete_staged_files(attempt)
        except Exception as error:  # noqa: BLE001 - it has landed, as a read will tell
            return Unknown(f"instant {instant} landed, and then: {error_text(error)}")
        return Landed(tag, view)

    def _unfinished_instants(self, java: HudiJava, meta: object) -> frozenset[str]:
        """Return this sink's unfinished instants: pending, metadata table only, or markers."""
        kept = self._reservations
        ghosts = java.read_ghost_instants(meta, kept.forbidden_instants())
        return kept.reserved_instants() & (
            java.pending_instants(meta) | ghosts | kept.instants_with_markers()
        )

    def _clean_up_after(self, java: HudiJava, landed_instant: str) -> None:
        """H5: clean up; late participants write after their transaction, and nobody reads that."""
        meta = java.load_meta_client()
        for instant in sorted(self._unfinished_instants(java, meta)):
            if java.is_completed_on_active_timeline(meta, instant):
                self._reservations.remove_uncommitted_files(
                    instant, _paths_of(java.file_statistics(meta, instant))
                )
            elif instant < landed_instant and instant not in self._instants_of_unsettled_tokens():
                self._remove_unfinished_instant(java, instant)
        self._reservations.remove_late_uncommitted_files(self._committed_files_finder(java, meta))
        self._reservations.forget_old_instants(landed_instant)

    def _committed_files_finder(
        self, java: HudiJava, meta: object
    ) -> Callable[[str], Collection[str] | None]:
        """Return a function that returns the files that a settled instant of the sink added."""
        noted, condemned = (
            self._reservations.reserved_instants(),
            self._reservations.forbidden_instants(),
        )

        def find_committed_files(instant: str) -> Collection[str] | None:
            if instant in condemned:
                return ()
            if instant in noted and java.is_completed_on_active_timeline(meta, instant):
                return _paths_of(java.file_statistics(meta, instant))
            return None

        return cache(find_committed_files)


def rolled_back_refusal(instant: str) -> Refused:
    return Refused(f"others roll instant {instant} back, and its files", for_good=True)


def _paths_of(brought: list[Statistics]) -> frozenset[str]:
    return frozenset(each.path for each in brought)


def _table_state_key(view: TableView) -> tuple[str, int | None, int | None]:
    return view.uuid, view.tag, view.head
