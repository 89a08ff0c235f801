"""Commits to a Delta table for one sink: the next version is put if absent, or nothing is.

The lock is Delta's own, without delta-rs's rebasing: exactly version ``head + 1``, or a refusal.
The sink's ``txn`` action, whose application is the sink's tag, names that version and outlives
checkpoints; the commit record is in that version's commitInfo.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any
from urllib.parse import unquote_plus

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import (
    decode_record,
    encode_record,
    filled_table_property,
    filled_table_uuids,
    sink_in_summary,
    topic_ids_if_readable,
    uuids_of_filled_tables_after,
)
from headgate.control_protocol.errors import (
    RecordUnreadable,
    RetryLater,
    TableChanged,
    TableMissing,
    TableUnfit,
    Unreachable,
    type_and_first_line_of,
)
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import SinkName, TopicId, tag_name
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    Lineage,
    Refused,
    TableView,
    Unknown,
)
from headgate.control_protocol.table_history import ONLY_BRANCH
from headgate.tables.delta.columns import (
    columns_from_delta,
    partition_value_text,
    single_valued_leaf_types,
)
from headgate.tables.delta.log import LogEntry
from headgate.tables.delta.open_table import (
    DeltaLocation,
    columns_of,
    partition_columns_of,
    require_fit_table,
    schema_id_of,
    schema_id_of_parts,
)
from headgate.tables.delta.statistics import statistics_json
from headgate.tables.missing_files import find_refusal_for_lost_files
from headgate.tables.neutral_schema import columns_of_parquet_file, file_statistics_of
from headgate.tables.neutral_schema import schema_id_of_file as layout_id_of_file
from headgate.tables.storage.file_io import open_file_io

_ATTEMPT = "headgate-attempt"
"""Names one try in commitInfo: two tries of one commit add different files."""
_LOOKED_BACK = 200
"""How many versions are searched for records of a sink without a ``txn``."""
_OTHERS_WITHIN = 20

_Columns = tuple[Struct, tuple[str, ...]]
_CommitProperties = Mapping[str, str]
_Write = Callable[..., None]


def _create_write_transaction(table: DeltaTable, *arguments: Any, **named: Any) -> None:
    table.create_write_transaction(*arguments, **named)


class DeltaSinkTable:
    """Implements ``ports.SinkTable`` over a Delta table; used by one thread.

    ``write`` is delta-rs's call, which a test may let fail.
    """

    def __init__(
        self, place: DeltaLocation, sink: SinkName, write: _Write = _create_write_transaction
    ) -> None:
        self._place = place
        self._sink = sink
        self._application = tag_name(sink, ONLY_BRANCH)
        self._write = write
        self._log = place.open_log()
        self._folder = place.open_folder()
        self._kept: tuple[DeltaTable, LogEntry] | None = None
        self._layouts: dict[int, _Columns] = {}
        self._store_tried = False

    def read(self) -> TableView:
        return self.view_of_loaded(self._load())

    def view_of_loaded(self, table: DeltaTable) -> TableView:
        """Return the view of a table that was loaded already. Raises as ``read``."""
        try:
            return self._build_view(table)
        except OSError as error:
            raise Unreachable(
                f"the log of {self._place.name} cannot be read: {type_and_first_line_of(error)}"
            ) from error

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        try:
            table = self._load()
        except (TableMissing, RetryLater) as error:
            return Unknown(f"nothing was sent: {error}")
        base, head = attempt.base, table.version()
        places = (str(table.metadata().id), head or None, self._find_tag_version(table))
        if places != (base.uuid, base.head, base.tag):
            return Refused("the table has moved on since it was read; nothing was sent")
        if not self._store_tried:
            try:
                self._place.require_conditional_puts()
            except OSError as error:
                return Unknown(f"nothing was sent: {type_and_first_line_of(error)}")
            self._store_tried = True
        try:
            if lost := find_refusal_for_lost_files(self._folder, attempt.files):
                return lost
            added = [self._build_add_action(table, file) for file in attempt.files]
        except OSError as error:
            return Unknown(f"nothing was sent: {type_and_first_line_of(error)}")
        attempt_id = uuid.uuid4().hex
        try:
            self._commit_by_delta_rs(table, attempt, attempt_id, added)
        except Exception as error:  # noqa: BLE001 - whatever it is, the call may have landed
            self._kept = None
            return self._outcome_after_error(attempt, head + 1, attempt_id, error)
        self._note_loaded_table(table)
        return self._landed_outcome(attempt, head + 1)

    def require_files_fit_and_exist(self, files: Sequence[WrittenFile]) -> None:
        """See ``table_format.SupportsDelivery``."""
        table = self._load()
        try:
            lost = find_refusal_for_lost_files(self._folder, files)
            for file in () if lost else files:
                self._build_add_action(table, file)
        except OSError as error:
            raise Unreachable(
                f"files for {self._place.name} cannot be read: {type_and_first_line_of(error)}"
            ) from error
        if lost:
            raise TableChanged(
                f"{self._place.name}: {lost.reason}",
                "nothing of it is in the table; start the sink again, which writes it again",
            )

    def close(self) -> None:
        """Do nothing: nothing is open."""

    # ------------------------------------------------------------------------------------ reading

    def _load(self) -> DeltaTable:
        """Return the table as it is now.

        A table that was loaded before is only updated, provided that its log is the same: a
        re-created table starts at version 0 again.
        """
        table = self._try_update_loaded_table() or self._place.load_table()
        self._note_loaded_table(table)
        name, layout = self._place.name, schema_id_of(table)
        if layout not in self._layouts:
            self._layouts[layout] = (columns_of(name, table), partition_columns_of(table))
        return table

    def _note_loaded_table(self, table: DeltaTable) -> None:
        self._kept = None
        with suppress(OSError):
            entry = self._log.read_entry(table.version())
            self._kept = (table, entry) if entry else None

    def _try_update_loaded_table(self) -> DeltaTable | None:
        if self._kept is None:
            return None
        table, entry = self._kept
        try:
            if self._log.read_entry(entry.version) != entry:
                return None
            table.update_incremental()
        except (DeltaError, OSError):
            return None
        require_fit_table(self._place.name, table)
        return table

    def _find_layout_of_file(self, table: DeltaTable, file: WrittenFile) -> _Columns | None:
        """Return columns that the table has or had: any process may deliver decided files.

        Raises ``ValueError`` for files of other writers.
        """
        schema_id = layout_id_of_file(file)
        if schema_id not in self._layouts:
            for entry in self._log.walk_effective_versions_back(table.version()):
                # those of types that are not written, or unknown here, had no files of ours
                with suppress(TableUnfit, ValueError):
                    for schema, partitions in entry.schemas_and_partitions if entry else ():
                        number = schema_id_of_parts(schema, partitions)
                        columns = columns_from_delta(self._place.name, schema)
                        self._layouts.setdefault(number, (columns, partitions))
                if schema_id in self._layouts:
                    break
            else:
                self._learn_layout_from_file(table, file, schema_id)
        return self._layouts.get(schema_id)

    def _learn_layout_from_file(self, table: DeltaTable, file: WrittenFile, schema_id: int) -> None:
        """Take the columns from the file itself, as the log may have forgotten those before an
        owner's change.

        The partition columns are only in the names of its folders: a table may have others now.
        """
        folders = file.path.removeprefix(self._place.location).split("/")[:-1]
        names = tuple(unquote_plus(each.partition("=")[0]) for each in folders if "=" in each)
        if names != partition_columns_of(table):
            return
        files = open_file_io(self._place.storage, self._place.location)
        with suppress(ValueError), files.new_input(file.path).open() as stream:
            self._layouts[schema_id] = (columns_of_parquet_file(stream), names)

    def _find_tag_version(self, table: DeltaTable) -> int | None:
        return table.transaction_version(self._application)

    def _build_view(self, table: DeltaTable) -> TableView:
        head, tag = table.version(), self._find_tag_version(table)
        summary = self._read_tag_properties(tag)
        way, reached = self._read_properties_and_lineage(head, tag)
        records = (decode_record(self._sink, summary) for summary in way if summary is not None)
        newest = next((record for record in records if record), None)
        return TableView(
            table=self._place.name,
            uuid=str(table.metadata().id),
            location=self._place.location,
            schema_id=schema_id_of(table),
            spec_id=0,
            head=head or None,
            tag=tag,
            record=None if tag is None else decode_record(self._sink, summary),
            lineage=_decide_lineage(tag, newest, reached),
            branch_record=newest,
            others=self._topic_ids_of_other_sinks(way),
            filled=filled_table_uuids(self._sink, summary),
        )

    def _read_properties_and_lineage(
        self, head: int, tag: int | None
    ) -> tuple[list[_CommitProperties | None], Lineage]:
        """Return the properties of versions back to the tag and some before it; and the lineage.

        Over a long way the texts would be large, so they are not kept.
        """
        way: list[_CommitProperties | None] = []
        lineage: Lineage | None = None
        for entry in self._log.walk_effective_versions_back(head):
            way.append(entry.commit_properties if entry else None)
            if entry is None:
                lineage = lineage or Lineage.UNDECIDABLE
            elif tag is not None and entry.version <= tag and lineage is None:
                lineage = Lineage.CONTAINS_TAG if entry.version == tag else Lineage.ROLLED_BACK
            known = lineage is Lineage.CONTAINS_TAG
            if len(way) >= (_OTHERS_WITHIN if known else _LOOKED_BACK) and (tag is None or lineage):
                break
        return way, lineage or Lineage.ROLLED_BACK

    def _read_tag_properties(self, tag: int | None) -> _CommitProperties:
        """Return the properties of the sink's newest version, including a record."""
        if tag is None:
            return {}
        entry = self._log.read_entry(tag)
        if entry is None or decode_record(self._sink, entry.commit_properties) is None:
            why = "carries no record of the sink" if entry else "is not in the log any more"
            raise RecordUnreadable(
                f"Delta table {self._place.name}: {self._application} names version {tag}, "
                f"which {why}",
                "its offsets are not known from the table: restore the log from a backup, or see "
                "docs/table-formats/delta.md",
            )
        return entry.commit_properties

    def _topic_ids_of_other_sinks(
        self, newest_properties: Iterable[_CommitProperties | None]
    ) -> Mapping[SinkName, Mapping[str, TopicId]]:
        """Return topic ids by other sink, as far as the newest versions show (TABLE-5)."""
        topics: dict[SinkName, Mapping[str, TopicId]] = {}
        for summary in islice(newest_properties, _OTHERS_WITHIN):
            sink = sink_in_summary(summary) if summary else None
            if summary is not None and sink not in (None, self._sink):
                topics.setdefault(sink, topic_ids_if_readable(sink, summary))
        return topics

    # --------------------------------------------------------------------------------- committing

    def _commit_by_delta_rs(
        self, table: DeltaTable, attempt: CommitAttempt, attempt_id: str, added: Sequence[AddAction]
    ) -> None:
        sink, record = self._sink, attempt.record
        filled = {
            filled_table_property(sink, n): uuid
            for n, uuid in _filled_table_uuids_after(attempt).items()
        }
        application = Transaction(self._application, table.version() + 1, _now_ms())
        self._write(
            table,
            list(added),
            "append",
            table.schema(),
            partition_by=list(partition_columns_of(table)),
            commit_properties=CommitProperties(
                custom_metadata={**filled, **encode_record(record), _ATTEMPT: attempt_id},
                max_commit_retries=0,  # no rebase: exactly this version, or nothing
                app_transactions=[application],
            ),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=True),
        )

    def _landed_outcome(self, attempt: CommitAttempt, version: int) -> Landed:
        base, record = attempt.base, attempt.record
        view = TableView(
            table=base.table,
            uuid=base.uuid,
            location=base.location,
            schema_id=base.schema_id,
            spec_id=base.spec_id,
            head=version,
            tag=version,
            record=record,
            lineage=Lineage.CONTAINS_TAG,
            branch_record=record,
            others=base.others,
            filled=_filled_table_uuids_after(attempt),
        )
        return Landed(version, view)

    def _outcome_after_error(
        self, attempt: CommitAttempt, version: int, attempt_id: str, raised: Exception
    ) -> CommitOutcome:
        """Judge by the log: the version is this attempt's, somebody else's, or not there (yet).

        Hooks run after the commit: a failing hook fails a call that has landed.
        """
        if not isinstance(raised, (DeltaError, OSError)) or isinstance(raised, ConnectionError):
            return Unknown(type_and_first_line_of(raised))
        try:
            entry = self._log.read_entry(version)
        except OSError as error:
            return Unknown(
                f"{type_and_first_line_of(raised)}, and then: {type_and_first_line_of(error)}"
            )
        if entry is None:
            return Unknown(type_and_first_line_of(raised))
        if entry.commit_properties.get(_ATTEMPT) == attempt_id:
            return self._landed_outcome(attempt, version)
        return Refused(type_and_first_line_of(raised))

    def _build_add_action(self, table: DeltaTable, file: WrittenFile) -> AddAction:
        """Raises ``TableChanged`` for files with columns that the table no longer has."""
        name = self._place.name
        inside = file.path.removeprefix(f"{self._place.location}/")
        now = self._layouts[schema_id_of(table)]
        try:
            written = self._find_layout_of_file(table, file)
        except ValueError as error:
            raise TableChanged(f"{name}: {file.path}: {error}") from error
        if inside == file.path or written is None or not _accepts_columns(now, written):
            raise TableChanged(
                f"{name}: {file.path} was written for other columns than the table has now",
                "nothing of it is in the table; undo the change, or start the sink again: what no "
                "commit has decided is written again",
            )
        facts, types = (
            file_statistics_of(file, *written),
            dict(single_valued_leaf_types(written[0])),
        )
        values = {
            column: partition_value_text(types[(column,)], value)
            for column, value in facts.partition.items()
        }
        return AddAction(
            path=inside,
            size=file.size_bytes,
            partition_values=values,
            modification_time=_now_ms(),
            data_change=True,
            stats=statistics_json(file.records, facts, types),
        )


def _filled_table_uuids_after(attempt: CommitAttempt) -> Mapping[str, str]:
    """LEDGER-2: repeat what the last version recorded, because a log is read from its end."""
    return uuids_of_filled_tables_after(attempt.record, attempt.base.filled, attempt.forgets)


def _decide_lineage(tag: int | None, newest: CommitRecord | None, reached: Lineage) -> Lineage:
    if tag is None:
        return Lineage.TAG_MISSING if newest else Lineage.FRESH
    return reached


def _accepts_columns(table_columns: _Columns, file_columns: _Columns) -> bool:
    """Return whether the table takes files with these columns: its further ones may be null."""
    if table_columns == file_columns:
        return True
    older = {column.name: column for column in file_columns[0].fields}
    same = all(
        (older.pop(column.name) == column) if column.name in older else not column.required
        for column in table_columns[0].fields
    )
    return same and not older and table_columns[1] == file_columns[1]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
