"""Commits to an Iceberg table for one sink: the tag is the lock, one catalog call moves it.

What makes a commit safe are the call's requirements (``commit_request.py``, rule TABLE-3). This
adapter prepares the snapshot, makes the call once, and reports what is known of its outcome.
pyiceberg's own transactions are not used: they rebase and append again by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    OAuthError,
    UnauthorizedError,
)
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.commit_record_codec import (
    claim_marker_property,
    decode_record,
    filled_table_uuids,
    key_columns_property,
    on_delete_property,
)
from headgate.control_protocol.errors import (
    CatalogRefused,
    CommitRejected,
    ConfigurationError,
    HeadgateError,
    MissingRights,
    RecordUnreadable,
    StopSink,
    TableMissing,
    Unreachable,
)
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.identifiers import Epoch, SinkName, tag_name
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    EvolvedTable,
    Landed,
    Lineage,
    Refused,
    Staging,
    TableView,
    Unknown,
)
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.control_protocol.table_format import RollbackSnapshot
from headgate.tables.iceberg.catalog import missing_rights_or_none, translate_catalog_error
from headgate.tables.iceberg.commit_request import CommitRequest
from headgate.tables.iceberg.connector_fence import fence_properties_to_repeat
from headgate.tables.iceberg.expired_lineage import decide_lineage
from headgate.tables.iceberg.file_columns_check import (
    require_files_fit_columns,
    require_staged_files_fit_columns,
)
from headgate.tables.iceberg.maintenance.snapshot_expiry import SnapshotExpiry
from headgate.tables.iceberg.manifests import SnapshotFiles, to_manifest_data_files
from headgate.tables.iceberg.pending_manifests import (
    find_undecided_manifests,
    read_key_files_of,
    stage_pending_commits,
)
from headgate.tables.iceberg.prepared_commit import (
    OVERTAKEN,
    PreparedCommit,
    with_staged_manifests_and_deletions,
)
from headgate.tables.iceberg.schema_evolution import Evolution, plan_evolution
from headgate.tables.iceberg.supported_tables import (
    raise_if_metadata_not_understood,
    require_supported,
)
from headgate.tables.iceberg.tag_lineage import (
    compare_branch_with_tag,
    deleted_records_of,
    find_topics_of_other_sinks,
    has_only_tags_above,
    newest_record_on_branch,
    summary_properties_of,
)
from headgate.tables.iceberg.upsert.key_property import require_same_key
from headgate.tables.iceberg.upsert.on_delete_property import (
    DeleteChoice,
    mark_column_id_or_missing,
    require_changed_on_delete,
    require_same_on_delete,
)
from headgate.tables.storage.damaged_file_error import FileDamaged
from headgate.tables.storage.file_io import delete_in_background, delete_quietly

if TYPE_CHECKING:  # commands that only read load no reader of files
    from pyiceberg.schema import Schema

    from headgate.tables.iceberg.upsert.upsert_commit import KeyedRows

_MALFORMED_MAX = 5
_log = redacted_logger(__name__)


class IcebergTable:
    """``PrimaryTable`` and ``SecondaryTable`` over any pyiceberg catalog. Its opener closes the
    catalog.

    A branch that does not exist begins at main's head; the first claim makes it. Retention that the
    table's owner asks for is done by a thread, after commits; without ``threads`` within them.
    """

    def __init__(
        self,
        catalog: Catalog,
        identifier: str,
        sink: SinkName,
        branch: str = MAIN_BRANCH,
        *,
        readd_dropped: bool = False,
        upkeep: SnapshotExpiry | None = None,
        threads: bool = True,
        keyed: KeyedRows | None = None,
        warms: bool = False,
        keeps_columns: bool = False,
        deleted_at: str | None = None,
    ) -> None:
        """``keyed``: how records replace rows, where the table has a key; ``warms``: whether a
        thread reads its index from the first commit on, though that may have brought no rows;
        ``keeps_columns``: no file is taken whose values the table has no column for (SCHEMA-9);
        ``deleted_at``: the column in which deletes mark rows (KEY-13), empty if they remove them,
        ``None`` without a key."""
        self._catalog = catalog
        self._identifier = identifier
        self._sink = sink
        self._branch = branch
        self._tag = tag_name(sink, branch)
        self._upkeep = upkeep or SnapshotExpiry(catalog, threads=threads)
        self._malformed = 0
        self._readd_dropped = readd_dropped
        self._keyed = keyed
        self._deleted_at = deleted_at
        self._warms = warms
        self._require_columns: Callable[[Schema], None] | None = None
        self._keeps_columns = keeps_columns
        self._fitting: int | None = None

    def set_column_check(self, require_columns_fit: Callable[[Schema], None]) -> None:
        """Call it for each schema that a commit meets; it raises what a start would."""
        self._require_columns = require_columns_fit

    def read(self) -> TableView:
        return self.view_of_loaded(self.load())

    def load(self) -> Table:
        """Load what ``view_of_loaded`` views. Raises as ``read``."""
        try:
            table = self._catalog.load_table(self._identifier)
        except Exception as error:
            raise_if_metadata_not_understood(self._identifier, error)
            failure = translate_catalog_error(error, f"table {self._identifier} cannot be read")
            if isinstance(failure, MissingRights):  # they may come back: try again
                failure = Unreachable(str(failure))
            elif not isinstance(failure, (TableMissing, StopSink)):
                failure = Unreachable(failure.message, failure.hint)
            raise failure from error
        require_supported(self._identifier, table.metadata)
        return table

    def view_of_loaded(self, table: Table) -> TableView:
        """Return the view of a loaded table. Raises as ``read``."""
        view = self._build_view(table.metadata)
        if view.lineage is not Lineage.UNDECIDABLE:
            return view
        return replace(view, lineage=self._decide_lineage(table))

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        return self._commit(attempt)

    def roll_back(self, attempt: CommitAttempt, target: RollbackSnapshot) -> CommitOutcome:
        """Commit a person's claim that continues an older snapshot; it adds no rows."""
        return self._commit(attempt, target)

    def _commit(
        self, attempt: CommitAttempt, rollback_target: RollbackSnapshot | None = None
    ) -> CommitOutcome:
        prepared = self.prepare_commit(attempt, rollback_target)
        return self.send_commit(prepared) if isinstance(prepared, PreparedCommit) else prepared

    def prepare_commit(
        self, attempt: CommitAttempt, rollback_target: RollbackSnapshot | None = None
    ) -> PreparedCommit | CommitOutcome:
        """Write what the call needs; return an outcome if there is nothing to send."""
        assert rollback_target is None or not (attempt.files or attempt.pending_commits), (
            "going back adds nothing"
        )
        try:
            # Loaded again, though the base was read: otherwise our updates would undo what an
            # operator changed since (retention, properties).
            table = self.load()
        except (Unreachable, TableMissing) as error:
            return Unknown(f"nothing was sent: {error}")
        # The catalog checks this again. Here it saves work: what follows reads and writes files.
        if self._have_refs_moved(table.metadata, attempt.base):
            return Refused("the table has moved on since it was read; nothing was sent")
        self._require_columns_kept(table, attempt.files)
        proposal = replace(self._build_request(table, attempt), rollback_target=rollback_target)
        try:
            proposal = with_staged_manifests_and_deletions(table, proposal, attempt, self._keyed)
            if self._keeps_columns:
                require_staged_files_fit_columns(
                    table, (f for each in proposal.staged for f in each.files)
                )
        except (StopSink, ConfigurationError):
            raise
        except FileDamaged as error:
            raise self._unreadable_error(error) from error
        except Exception as error:  # noqa: BLE001 - storage fails in the ways of its drivers
            return Unknown(f"nothing was sent: what is to be added could not be read: {error!r}")
        written = SnapshotFiles(table, proposal.snapshot_id)
        try:
            manifest_list = written.write_manifest_list(
                proposal.files,
                proposal.parent_snapshot,
                proposal.sequence_number,
                [staging.manifest for staging in proposal.staged],
                deletions=proposal.deletions,
            )
        except FileDamaged as error:
            written.delete_written()
            raise self._unreadable_error(error) from error
        except StopSink:
            written.delete_written()
            raise
        except Exception as error:  # noqa: BLE001 - storage fails in the ways of its drivers
            written.delete_written()  # our own manifests, before any call: nothing refers to them
            return Unknown(f"nothing was sent: the manifests could not be written: {error!r}")
        updates = proposal.updates(manifest_list)
        return PreparedCommit(table, proposal, written, proposal.requirements(), updates)

    def evolve(self, base: TableView, columns: Struct) -> EvolvedTable:
        """SCHEMA-3, SCHEMA-8: columns that are there already need no call."""
        table = self.load()
        view = self._build_view(table.metadata)
        if (view.uuid, view.tag) != (base.uuid, base.tag):
            return EvolvedTable(view)
        step = plan_evolution(table.metadata, columns, readd_dropped=self._readd_dropped)
        if step.schema is not None:
            self._send_evolution(table, step)
        return EvolvedTable(self.read(), step.changes, step.refused)

    def _send_evolution(self, table: Table, step: Evolution) -> None:
        try:
            self._catalog.commit_table(
                table, step.requirements(self._tag, self._branch), step.updates()
            )
        except Exception as error:
            what = f"table {self._identifier} did not take columns up: {', '.join(step.changes)}"
            failure = translate_catalog_error(error, what)
            raise Unreachable(failure.message, failure.hint) from error

    def stage(self, staging: Staging) -> tuple[PendingCommit, ...]:
        """PENDING-2: stage manifests of the files that the secondary table has to receive."""
        table = self.load()
        if str(table.metadata.table_uuid) != staging.table.uuid:
            raise Unreachable(f"{self._identifier} is another table now; nothing was staged")
        self._require_same_key(table.metadata, self._declared_key_property(table.metadata))
        self._require_same_delete_choice(table.metadata)
        self._require_columns_kept(table, staging.files)
        try:
            return stage_pending_commits(table, self._sink, staging)
        except HeadgateError:
            raise
        except FileDamaged as error:
            raise self._unreadable_error(error) from error
        except Exception as error:
            # ELECTION-2: missing rights are an answer, which others would get, too
            rights = f"{MissingRights.code} " if missing_rights_or_none(error) else ""
            raise Unreachable(
                f"{rights}{self._identifier}: its manifests could not be written: {error!r}"
            ) from error

    def delete_undecided_manifests(
        self, before_epoch: Epoch, pending_manifests: frozenset[str]
    ) -> None:
        """Delete manifests that nobody decided on; a failure leaves orphans."""
        try:
            table = self.load()
            loose = find_undecided_manifests(table, self._sink, before_epoch, pending_manifests)
            delete_quietly(table.io, loose)
        except Exception as error:  # noqa: BLE001 - nothing depends on it
            _log.warning("%s: drafts were not cleared away: %r", self._identifier, error)

    def delete_delivered_key_files(self, delivered_commits: Sequence[PendingCommit]) -> None:
        """PENDING-7: delete the pending commits' key files; one that cannot be deleted is an
        orphan."""
        try:
            table = self.load()
            files = [file.path for _, file in read_key_files_of(table.io, delivered_commits)]
            delete_quietly(
                table.io,
                [*files, *(pending_commit.manifest for pending_commit in delivered_commits)],
            )
        except Exception as error:  # noqa: BLE001 - nothing depends on it
            _log.warning("%s: key files were not removed: %r", self._identifier, error)

    def close(self) -> None:
        """Finish the upkeep: refs that a removal may have dropped are set again."""
        if self._keyed is not None:
            self._keyed.close()
        self._upkeep.end_and_resolve_removal(self.load)

    # ------------------------------------------------------------------------------------ reading

    def _build_view(self, metadata: TableMetadata) -> TableView:
        tag, head = _ref_snapshot_ids(metadata, self._tag, self._branch)
        return TableView(
            table=self._identifier,
            uuid=str(metadata.table_uuid),
            location=metadata.location,
            data_location=metadata.properties.get(TableProperties.WRITE_DATA_PATH, "").rstrip("/"),
            schema_id=metadata.current_schema_id,
            spec_id=metadata.default_spec_id,
            head=head,
            tag=tag,
            record=self._record_of_snapshot(metadata, tag) if tag else None,
            lineage=compare_branch_with_tag(metadata, self._branch, self._sink),
            branch_record=newest_record_on_branch(metadata, self._branch, self._sink),
            others=find_topics_of_other_sinks(metadata, self._branch, self._sink),
            filled=filled_table_uuids(self._sink, metadata.properties),
            deleted=deleted_records_of(self._sink, metadata.properties),
            only_tags_above=has_only_tags_above(metadata, self._branch, self._sink),
        )

    def _decide_lineage(self, table: Table) -> Lineage:
        try:
            return decide_lineage(table, self._branch, self._sink)
        except FileDamaged as error:
            raise self._unreadable_error(error) from error
        except Exception as error:
            raise Unreachable(
                f"{self._identifier}: its history cannot be read: {error!r}"
            ) from error

    def _unreadable_error(self, error: FileDamaged) -> HeadgateError:
        return translate_catalog_error(error, f"table {self._identifier} cannot be read")

    def _record_of_snapshot(self, metadata: TableMetadata, snapshot_id: int) -> CommitRecord:
        snapshot = metadata.snapshot_by_id(snapshot_id)
        record = decode_record(self._sink, summary_properties_of(snapshot)) if snapshot else None
        if record is None:
            raise RecordUnreadable(
                f"table {self._identifier}: tag {self._tag} stands on snapshot {snapshot_id}, "
                f"which carries no commit record of sink {self._sink}",
                "was the tag moved by hand? put it back on the sink's own newest snapshot",
            )
        return record

    def _have_refs_moved(self, metadata: TableMetadata, base: TableView) -> bool:
        tag, head = _ref_snapshot_ids(metadata, self._tag, self._branch)
        return (str(metadata.table_uuid), tag, head) != (base.uuid, base.tag, base.head)

    # --------------------------------------------------------------------------------- committing

    def _build_request(self, table: Table, attempt: CommitAttempt) -> CommitRequest:
        unclaimed = not table.metadata.snapshots and self._branch != MAIN_BRANCH
        brings_rows = bool(attempt.files) or any(
            pending_commit.manifest for pending_commit in attempt.pending_commits
        )
        if unclaimed and brings_rows:
            raise StopSink(f"{self._identifier}: an empty table needs a claim before any files")
        key = self._declared_key_property(table.metadata)
        deletes = ""
        if self._keyed is not None or brings_rows:  # a person's claim does not touch the key
            self._require_same_key(table.metadata, key)
            self._require_same_delete_choice(table.metadata)
            deletes = self._first_on_delete_choice_to_store(table.metadata)
        elif attempt.changes_deletes:
            deletes = self._changed_on_delete_choice_to_store(
                table.metadata, attempt.record.offsets
            )
        return CommitRequest(
            base=attempt.base,
            metadata=table.metadata,
            branch=self._branch,
            tag=self._tag,
            record=attempt.record,
            forgets=attempt.forgets,
            files=to_manifest_data_files(
                table, [f for f in attempt.files if f.kind is FileKind.ROWS]
            ),
            read_once=[f.path for f in attempt.files if f.kind is FileKind.KEYS],
            snapshot_id=table.metadata.new_snapshot_id(),
            key=key,
            fence=attempt.fence or self._fence_properties_to_repeat(table.metadata),
            deletes=deletes,
        )

    def _fence_properties_to_repeat(self, metadata: TableMetadata) -> dict[str, str]:
        """TAKEOVER-11: repeat what keeps a connector from committing."""
        ref = metadata.refs.get(self._tag)
        tagged = metadata.snapshot_by_id(ref.snapshot_id) if ref else None
        return (
            fence_properties_to_repeat(self._sink, summary_properties_of(tagged)) if tagged else {}
        )

    def _require_columns_kept(self, table: Table, files: Sequence[WrittenFile]) -> None:
        """SCHEMA-9: raise ``TableChanged`` if others took a column away, or made it required."""
        schema = table.schema()
        if self._require_columns is not None and schema.schema_id != self._fitting:
            self._require_columns(schema)
            self._fitting = schema.schema_id
        if self._keeps_columns:
            require_files_fit_columns(table, files)

    def _declared_key_property(self, metadata: TableMetadata) -> str | None:
        return self._keyed.key_property_value(metadata) if self._keyed else None

    def _require_same_key(self, metadata: TableMetadata, key: str | None) -> None:
        """KEY-1: refuse a table that was filled by another key."""
        stored = metadata.properties.get(key_columns_property(self._sink))
        filled = claim_marker_property(self._sink) in metadata.properties
        require_same_key(self._identifier, stored, key, filled=filled)

    def _require_same_delete_choice(self, metadata: TableMetadata) -> None:
        """KEY-13: refuse what differs from the stored choice."""
        if self._deleted_at is None:
            return
        stored, schema = self._stored_on_delete(metadata), metadata.schema()
        column = mark_column_id_or_missing(schema, self._deleted_at)
        filled = claim_marker_property(self._sink) in metadata.properties
        require_same_on_delete(self._identifier, schema, stored, column, filled=filled)

    def _first_on_delete_choice_to_store(self, metadata: TableMetadata) -> str:
        """KEY-13: return what a first claim stores; an empty text if there is nothing to store."""
        if self._deleted_at is None or claim_marker_property(self._sink) in metadata.properties:
            return ""
        column = mark_column_id_or_missing(metadata.schema(), self._deleted_at)
        return "" if column is None else DeleteChoice(column).property_text

    def _changed_on_delete_choice_to_store(self, metadata: TableMetadata, offsets: Offsets) -> str:
        stored = self._stored_on_delete(metadata)
        column = mark_column_id_or_missing(metadata.schema(), self._deleted_at or "")
        require_changed_on_delete(self._identifier, stored, column)
        return stored.with_column_from_offsets(column, offsets).property_text

    def _stored_on_delete(self, metadata: TableMetadata) -> DeleteChoice:
        return DeleteChoice.from_property(metadata.properties.get(on_delete_property(self._sink)))

    @property
    def table_change_lock(self) -> Lock:
        """Return the lock that is held while a call changes the table."""
        return self._upkeep.calling

    def send_commit(self, call: PreparedCommit) -> CommitOutcome:
        """Make the call, and check its answer against the table."""
        try:
            with self.table_change_lock:
                # Once, and by nobody again: a library that repeats the call under requirements
                # that it renews would add the files twice.
                answer = self._catalog.commit_table(call.table, call.requirements, call.updates)
        except CatalogRefused:
            raise  # before anything was sent
        except (CommitFailedException, BadRequestError, ValueError) as error:
            outcome = self._settle_failed_call(call, error)
            return self._require_not_often_malformed(outcome, error)
        except (ForbiddenError, UnauthorizedError, OAuthError) as error:
            # Rights and credentials come back without a restart: it is tried again, as HG-103.
            named = translate_catalog_error(
                error, f"table {self._identifier} cannot be committed to"
            )
            return Unknown(str(named), rights=isinstance(error, ForbiddenError))
        except NotImplementedError as error:
            raise StopSink(
                f"table {self._identifier}: its catalog cannot write what was proposed: {error}",
                "use a REST catalog for tables of format version 3",
            ) from error
        except Exception as error:  # noqa: BLE001 - whatever it is, the call may have landed
            return Unknown(repr(error))
        return self._outcome_after_success(call, answer.metadata, answer.metadata_location)

    def find_outcome_after_joint_commit(self, call: PreparedCommit) -> CommitOutcome:
        """Find out what became of a call that was confirmed only together with others."""
        try:
            table = self.load()
        except HeadgateError as error:
            return Unknown(f"it was answered well, and then: {error}")
        if not call.holds_sink_tag(table.metadata) and call.has_landed(table.metadata):
            return OVERTAKEN
        return self._outcome_after_success(call, table.metadata, table.metadata_location)

    def _outcome_after_success(
        self, call: PreparedCommit, metadata: TableMetadata, location: str
    ) -> CommitOutcome:
        if not call.holds_sink_tag(metadata):
            call.require_first_claim_tag_kept(metadata)
            return Unknown("the catalog answered well, but without our snapshot under the tag")
        self._malformed = 0
        # Key files only, and only now that their commit is under the tag: until then they are the
        # one place that knows what it deletes.
        delete_in_background(call.table.io, call.proposal.read_once)
        call.table.metadata, call.table.metadata_location = metadata, location
        self._upkeep.on_commit(call.table, call.proposal.metadata)
        if self._keyed is not None and self._warms:
            self._keyed.start_building_index(
                call.table, metadata.snapshot_by_id(call.proposal.snapshot_id)
            )
        return Landed(call.proposal.snapshot_id, self._build_view(metadata))

    def _require_not_often_malformed(
        self, outcome: CommitOutcome, error: Exception
    ) -> CommitOutcome:
        """Count malformed answers. Raises ``CommitRejected`` after too many in a row."""
        malformed = isinstance(outcome, Unknown) and isinstance(error, BadRequestError)
        self._malformed = self._malformed + 1 if malformed else 0
        if self._malformed < _MALFORMED_MAX:
            return outcome
        raise CommitRejected(
            f"table {self._identifier}: the catalog has rejected {self._malformed} commits in a "
            f"row as malformed: {error}",
            "nothing of them is in the table; look into the catalog's log, and whether it allows "
            "tags, and then start the sink again",
        ) from error

    def _settle_failed_call(self, call: PreparedCommit, raised: Exception) -> CommitOutcome:
        """Believe a refusal only if the table itself shows the same.

        If a proxy or a client's retry sends a landed request twice, the answer is that the tag has
        moved: it has, by us. Deleting manifests on such an answer would destroy the table.
        """
        try:
            metadata = self.load().metadata
        except HeadgateError as error:
            return Unknown(f"{raised!r}, and then: {error}")
        proposal = call.proposal
        if call.holds_sink_tag(metadata):
            return Landed(proposal.snapshot_id, self._build_view(metadata))
        sequence_numbers = {s.snapshot_id: s.sequence_number for s in metadata.snapshots}
        if proposal.snapshot_id in sequence_numbers:  # it landed, and others have gone on since
            return OVERTAKEN
        moved = self._have_refs_moved(metadata, proposal.base)
        taken = proposal.sequence_number in sequence_numbers.values()
        recreated = str(metadata.table_uuid) != proposal.base.uuid
        if taken and not recreated and (moved or proposal.parent_snapshot):
            # Another snapshot has our sequence number: no copy of this attempt landed or ever will.
            # Only that is proof. A moved tag alone is not: a request that is still under way
            # could land on it, and a snapshot without its manifests cannot be read by anybody.
            call.written.delete_written()
            return Refused(str(raised))
        return Refused(str(raised)) if moved else Unknown(repr(raised))


def _ref_snapshot_ids(metadata: TableMetadata, *names: str) -> tuple[int | None, ...]:
    refs = (metadata.refs.get(name) for name in names)
    return tuple(ref.snapshot_id if ref else None for ref in refs)
