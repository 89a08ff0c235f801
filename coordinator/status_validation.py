"""Decides which statuses are admitted: readiness and judgement (rules COMMIT-3 and RANGE-2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headgate.control_protocol.errors import ParticipantStarves
from headgate.control_protocol.events import (
    FileKind,
    TableStatus,
    WriteStatus,
    WrittenFile,
    WrittenRange,
)
from headgate.control_protocol.identifiers import Sender, TopicPartition, TransactionNumber
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import LogLine
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, TableView
from headgate.coordinator.added_partitions import partitions_not_read_yet
from headgate.coordinator.file_admission import Committed, Prefixes, Tokens
from headgate.coordinator.phase_steps import (
    epoch_prefixes,
    partitions_of_newest_start,
    secondaries_named_by_start,
    secondary_offsets_ahead,
    term_of,
)
from headgate.coordinator.settings import CoordinatorSettings
from headgate.coordinator.state import (
    Activity,
    Fault,
    HeardStatus,
    Objection,
    RefusedStatus,
    State,
)

WrittenRanges = Mapping[TopicPartition, WrittenRange]


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """Holds the outcome of judging: the new offsets, and the files and written ranges admitted.

    ``ranges`` are the admitted ones in log order; ``unsure`` the partitions of which nothing
    admissible was heard; ``refusals`` the statuses that were refused whole. ``heeded`` are senders
    of admitted records, ``stale`` those of files that only an earlier commit could bring (TOKEN-2).
    """

    offsets: Offsets
    files: tuple[WrittenFile, ...] = ()
    secondary_files: Mapping[str, tuple[WrittenFile, ...]] = field(default_factory=dict)
    ranges: tuple[tuple[TopicPartition, WrittenRange], ...] = ()
    unsure: frozenset[TopicPartition] = frozenset()
    refusals: tuple[RefusedStatus, ...] = ()
    heeded: frozenset[Sender] = frozenset()
    stale: frozenset[Sender] = frozenset()

    @property
    def refusal_texts(self) -> tuple[str, ...]:
        """Return who was refused and why, for people."""
        return tuple(map(str, self.refusals))

    @property
    def admitted_partitions(self) -> frozenset[TopicPartition]:
        """Return the partitions of which a written range was admitted."""
        return frozenset(partition for partition, _ in self.ranges)

    @property
    def row_count(self) -> int:
        """Return the number of admitted records that became rows."""
        return sum(each.records for _, each in self.ranges)

    @property
    def read_record_count(self) -> int:
        """Return the number of source records, whatever became of them."""
        return sum(_record_count_read(each) for _, each in self.ranges)

    @property
    def quarantined_count(self) -> int:
        return sum(each.quarantined for _, each in self.ranges)

    @property
    def skipped_count(self) -> int:
        return sum(each.skipped for _, each in self.ranges)

    @property
    def bad_record_count(self) -> int:
        return sum(each.bad for _, each in self.ranges)


def partitions_named_by_statuses(statuses: Iterable[HeardStatus]) -> frozenset[TopicPartition]:
    """Return the partitions that whole statuses name: with a written range, idle or unknown (rule
    COMMIT-3)."""
    partitions: set[TopicPartition] = set()
    for heard in statuses:
        partitions.update(heard.status.unknown, heard.status.written)
    return frozenset(partitions)


@dataclass(frozen=True, slots=True)
class SecondaryCriteria:
    """Says what a secondary table's part is judged by. ``ahead``: where it may hold records that
    will come again (QUARANTINE-3).

    ``uuid`` is set where START does not name the table: rows are routed to it, and they are not
    quarantined ones. ``keyed``: whether records may delete there (KEY-2).
    """

    prefixes: Prefixes
    ahead: Offsets = field(default_factory=Offsets)
    uuid: str = ""
    keyed: bool = False


@dataclass(frozen=True, slots=True)
class AdmissionCriteria:
    """Says what statuses are judged by: C, the partitions that should be named, tables and folders.

    ``committed`` are the files that this epoch has committed; ``may_skip``: whether the settings
    let a record be in neither table; ``closing``: the transaction that statuses should answer;
    ``ends``: where the sources' logs end (``None``: not asked); ``routed``: whether the primary
    table takes no rows; ``suspended``: tables that take none now (SUSPEND-2); ``keyed``: whether
    records may delete in the primary table (KEY-2).
    """

    offsets: Offsets
    fixed: frozenset[TopicPartition]
    table: str
    prefixes: Prefixes
    secondaries: Mapping[str, SecondaryCriteria] = field(default_factory=dict)
    committed: Committed = field(default_factory=dict)
    may_skip: bool = True
    closing: TransactionNumber = TransactionNumber(0)
    ends: Mapping[TopicPartition, int] | None = None
    routed: bool = False
    suspended: frozenset[str] = frozenset()
    keyed: bool = False


def validate_statuses(statuses: Sequence[HeardStatus], by: AdmissionCriteria) -> ValidationResult:
    """Judge the statuses in log order, each as a whole: admit it iff every range begins at C.

    Ranges decide, not ownership: whoever wrote a range, it is in the table once. To be late is no
    reason by itself: what comes after its END is judged by the next one. A status with a
    file outside the prefixes that were issued, or that names a file twice, is refused.
    """
    files: dict[str, WrittenFile] = {}
    aside: dict[str, dict[str, WrittenFile]] = {name: {} for name in by.secondaries}
    admitted: list[tuple[TopicPartition, WrittenRange]] = []
    refusals: list[RefusedStatus] = []
    sure: set[TopicPartition] = set()
    heeded: set[Sender] = set()
    taken: dict[TopicPartition, Sender] = {}
    offsets = by.offsets
    for heard in statuses:
        ranges, written = heard.status.written, _table_status_of(heard.status, by.table)
        objection = (
            _check_ranges(heard, offsets, taken)
            or _objection_or_none(Fault.BEYOND, _check_ranges_within_logs(ranges, by.ends))
            or _check_tables(heard.status, by)
            or _objection_or_none(
                _folder_fault_kind(written, by.prefixes),
                _check_folders(heard, written, by.prefixes),
            )
            or _objection_or_none(Fault.COUNTS, _check_counts(heard.status, files, by))
            or _objection_or_none(Fault.IMPOSSIBLE, _check_settings_and_committed(heard.status, by))
            or _check_secondaries(heard, aside, by)
        )
        if objection:
            number = heard.status.status_number
            refusals.append(RefusedStatus(heard.sender, number, objection, frozenset(ranges)))
            continue
        offsets = offsets.after_ranges({p: each.range for p, each in ranges.items()})
        files.update({file.path: file for file in written.files})
        for name, known in aside.items():
            known.update({file.path: file for file in _table_status_of(heard.status, name).files})
        admitted.extend(ranges.items())
        read = [partition for partition, each in ranges.items() if not each.range.is_empty]
        taken.update(dict.fromkeys(read, heard.sender))
        if read:
            heeded.add(heard.sender)
        sure.update(ranges)
        # also beside a range that was written before a failure: more is to come, and valid-through
        # must not pass it
        sure -= heard.status.unknown
        if heard.transaction < by.closing:  # idle then says nothing of now (COMMIT-4)
            sure -= {p for p, each in ranges.items() if each.range.is_empty}
    return ValidationResult(
        offsets=offsets,
        files=tuple(files.values()),
        secondary_files={name: tuple(known.values()) for name, known in aside.items() if known},
        ranges=tuple(admitted),
        unsure=by.fixed - sure,
        refusals=tuple(refusals),
        heeded=frozenset(heeded),
        stale=_find_stale_senders(statuses, by),
    )


def _objection_or_none(fault: Fault, text: str | None, table: str = "") -> Objection | None:
    return Objection(fault, text, table) if text else None


def _table_status_of(status: WriteStatus, table: str) -> TableStatus:
    for written in status.tables:
        if written.table == table:
            return written
    return TableStatus(table)


def _check_ranges(
    heard: HeardStatus, offsets: Offsets, taken: Mapping[TopicPartition, Sender]
) -> Objection | None:
    for partition, each in sorted(heard.status.written.items()):
        expected = offsets.get(partition)
        if each.range.begin == expected:
            continue
        wanted = "no such partition is read" if expected is None else f"{expected} is next"
        text = f"{partition} is written in {each.range}, but {wanted}"
        first = taken.get(partition, heard.sender)
        if first == heard.sender:
            return Objection(Fault.RANGES, text)
        return Objection(Fault.OVERTAKEN, f"{text}, since {first} reads it, too")
    return None


def _check_ranges_within_logs(
    ranges: WrittenRanges, ends: Mapping[TopicPartition, int] | None
) -> str | None:
    """Object to a range beyond the log's end: nobody can have read that."""
    for partition, each in sorted(ranges.items()):
        if ends is not None and not each.range.is_empty and each.range.end > ends.get(partition, 0):
            known = ends.get(partition, "nobody knows where")
            return f"{partition} is written in {each.range}, but the log ends at {known}"
    return None


def _check_folders(heard: HeardStatus, written: TableStatus, prefixes: Prefixes) -> str | None:
    for file in written.files:
        if prefixes.is_stale(file.path):
            return f"file of an earlier transaction, which alone could bring it: {file.path}"
        if not prefixes.is_allowed(file.path, heard.transaction):
            return f"file outside the prefixes of its transaction, or too old: {file.path}"
    return None


def _folder_fault_kind(written: TableStatus, prefixes: Prefixes) -> Fault:
    stale = any(prefixes.is_stale(f.path) for f in written.files)
    return Fault.STALE if stale else Fault.FOLDER


def _find_stale_senders(
    statuses: Iterable[HeardStatus], by: AdmissionCriteria
) -> frozenset[Sender]:
    if not by.prefixes.marks:
        return frozenset()
    return frozenset(
        heard.sender
        for heard in statuses
        if any(
            by.prefixes.is_stale(file.path)
            for file in _table_status_of(heard.status, by.table).files
        )
    )


def _check_tables(status: WriteStatus, by: AdmissionCriteria) -> Objection | None:
    """Object to files for tables that neither START names nor the coordinator sees routed to."""
    named: set[str] = set()
    for table in status.tables:
        if table.table in named:
            return Objection(Fault.TABLE, f"two tables are called {table.table}")
        named.add(table.table)
        if table.table == by.table or not table.files:
            continue
        if table.table in by.suspended:
            return _objection_to_table(Fault.TABLE, table, "which is suspended")
        known = by.secondaries.get(table.table)
        if known is None and by.routed:
            return _objection_to_table(Fault.UNREADABLE, table, "which cannot be read now")
        if known is None:
            return Objection(Fault.TABLE, "files of a table that no START names")
        if known.uuid and known.uuid != table.uuid:
            found = f"with UUID {table.uuid}, which is {known.uuid} now"
            return Objection(Fault.TABLE, f"files of {table.table} {found}", table.table)
    return None


def _objection_to_table(fault: Fault, table: TableStatus, why: str) -> Objection:
    return Objection(fault, f"files of {table.table}, {why}", table.table)


def _check_counts(
    status: WriteStatus, admitted_files: Mapping[str, WrittenFile], by: AdmissionCriteria
) -> str | None:
    """Object unless the rows of all tables but the quarantine add up to the ranges' rows."""
    written = _table_status_of(status, by.table)
    if _names_file_twice(written, admitted_files):
        return "a file is named twice"
    if by.routed and written.files:
        return f"files of {by.table}, which takes no rows"
    for each in status.written.values():
        if _record_count_read(each) > len(each.range):
            return "a written range has more records than offsets"
        if each.bad > each.quarantined + each.skipped:
            return "a written range has more bad records than quarantined and skipped ones"
    tables = [written, *(t for t in status.tables if _is_routed_table(t, by))]
    files_of_tables = [file for table in tables for file in table.files]
    if _record_count_of_kind(files_of_tables, FileKind.ROWS) != sum(
        c.records for c in status.written.values()
    ):
        return "the files' record counts do not add up to the written ranges'"
    keys_held = _record_count_of_kind(files_of_tables, FileKind.KEYS)
    if keys_held != sum(each.deleted for each in status.written.values()):
        return "the key files do not hold the written ranges' deleted records"
    return None


def _record_count_read(written: WrittenRange) -> int:
    """Return the records read, each counted once (QUARANTINE-4, KEY-2)."""
    return written.records + written.deleted + written.quarantined + written.skipped


def _record_count_of_kind(files: Iterable[WrittenFile], kind: FileKind) -> int:
    return sum(file.records for file in files if file.kind is kind)


def _is_routed_table(table: TableStatus, by: AdmissionCriteria) -> bool:
    secondary = by.secondaries.get(table.table)
    return secondary is not None and bool(secondary.uuid)


def _check_settings_and_committed(status: WriteStatus, by: AdmissionCriteria) -> str | None:
    """Object to what the settings cannot have produced, or what is in the table already."""
    if not by.may_skip and any(each.skipped for each in status.written.values()):
        return "skipped records, but the settings skip none"
    for table in status.tables:
        if any(file.kind is FileKind.KEYS for file in table.files) and not _is_keyed_table(
            table, by
        ):
            return f"key files of {table.table}, which has no key"
    files = [file.path for table in status.tables for file in table.files]
    # Ranges do not see files: one that was committed before and is announced again, under the next
    # range, would be in the table twice.
    again = [path for path in files if path in by.committed.get(_folder_of(path), ())]
    return f"a file was committed before: {again[0]}" if again else None


def _is_keyed_table(table: TableStatus, by: AdmissionCriteria) -> bool:
    if table.table == by.table:
        return by.keyed
    secondary = by.secondaries.get(table.table)
    return secondary is not None and secondary.keyed


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def merge_committed_paths(by: AdmissionCriteria, files: Iterable[WrittenFile]) -> Committed:
    """Remember a commit's files, and earlier ones whose folders are still allowed."""
    kept = {
        folder: paths for folder, paths in by.committed.items() if _is_allowed_folder(by, folder)
    }
    for file in files:
        folder = _folder_of(file.path)
        kept[folder] = kept.get(folder, frozenset()) | {file.path}
    return kept


def _is_allowed_folder(by: AdmissionCriteria, folder: str) -> bool:
    places = (by.prefixes, *(secondary.prefixes for secondary in by.secondaries.values()))
    return any(place.is_allowed(f"{folder}/any", place.newest) for place in places)


def _names_file_twice(written: TableStatus, admitted_files: Mapping[str, WrittenFile]) -> bool:
    paths = [file.path for file in written.files]
    return len(set(paths)) < len(paths) or any(path in admitted_files for path in paths)


def _check_secondaries(
    heard: HeardStatus,
    admitted_files: Mapping[str, Mapping[str, WrittenFile]],
    by: AdmissionCriteria,
) -> Objection | None:
    """Object unless each secondary table's file is in its folder and named once, and QUARANTINE-2
    adds up."""
    for name, secondary in by.secondaries.items():
        table = _table_status_of(heard.status, name)
        if _names_file_twice(table, admitted_files[name]):
            return Objection(Fault.COUNTS, f"a file of {name} is named twice", name)
        if text := _check_folders(heard, table, secondary.prefixes):
            return Objection(Fault.FOLDER, text, name)
    return _objection_or_none(Fault.COUNTS, _check_quarantine(heard.status, by))


def _check_quarantine(status: WriteStatus, by: AdmissionCriteria) -> str | None:
    """QUARANTINE-2: object unless the named secondary tables hold each of the written ranges'
    quarantined records once.

    They may hold fewer only where a secondary table may have some already.
    """
    counted = sum(each.quarantined for each in status.written.values())
    kept = [
        _table_status_of(status, n) for n, secondary in by.secondaries.items() if not secondary.uuid
    ]
    if not kept:
        return "quarantined records, but there is no quarantine" if counted else None
    held = sum(file.records for table in kept for file in table.files)
    if held > counted or (held < counted and not _may_secondaries_hold_records_of(status, by)):
        return "the quarantine's files do not hold the written ranges' quarantined records"
    return None


def _may_secondaries_hold_records_of(status: WriteStatus, by: AdmissionCriteria) -> bool:
    return any(
        each.range.begin < secondary.ahead.get(partition, 0)
        for secondary in by.secondaries.values()
        for partition, each in status.written.items()
    )


# Builds the criteria for a WRITE-STATUS: next offsets, partitions, prefixes of files (RANGE-2).


def admission_criteria(state: State, now_ms: int) -> AdmissionCriteria:
    # nothing is known of a partition that is not awaited, so it is in the set (COMMIT-4)
    term = term_of(state)
    return AdmissionCriteria(
        offsets=term.progress.offsets,
        fixed=partitions_of_newest_start(state) | partitions_not_read_yet(state)
        if state.identity.may_have_keyed_tables
        else partitions_of_newest_start(state),
        table=term.primary.view.table,
        prefixes=_primary_prefixes(state, now_ms),
        secondaries=_secondary_criteria(state, now_ms),
        routed=state.identity.routed,
        suspended=frozenset(term.suspensions.suspended),
        committed=term.tokens.committed,
        may_skip=state.limits.may_skip,
        closing=term.previous_transaction_number,
        ends=term.sources.ends,
        keyed=state.identity.keyed,
    )


def _secondary_criteria(state: State, now_ms: int) -> dict[str, SecondaryCriteria]:
    """Return the secondary tables that START names, and routed ones as they were read last."""
    named = secondaries_named_by_start(state)
    standards = {
        name: SecondaryCriteria(
            _prefixes_of_young_files(state, secondary, now_ms),
            secondary_offsets_ahead(state, secondary),
        )
        for name, secondary in named.items()
    }
    if state.identity.routed:
        for name, secondary in term_of(state).delivery.secondaries.items():
            if name not in named:
                young = _prefixes_of_young_files(state, secondary, now_ms)
                keyed = state.identity.routed_keys.replaces_rows_of(name)
                standards[name] = SecondaryCriteria(young, uuid=secondary.uuid, keyed=keyed)
    return standards


def _primary_prefixes(state: State, now_ms: int) -> Prefixes:
    """TOKEN-2: where files are stamped, allow those of the transaction being ended, and no
    others."""
    term = term_of(state)
    young = _prefixes_of_young_files(state, term.primary.view, now_ms)
    marks = term.tokens.marks[1:]
    return replace(young, newest=term.previous_transaction_number, marks=marks) if marks else young


def _prefixes_of_young_files(state: State, table: TableView, now_ms: int) -> Prefixes:
    """TOKEN-1: leave out folders of transactions whose files may have been cleaned up."""
    issued = epoch_prefixes(state, table)
    first = term_of(state).tokens.oldest_young_transaction(now_ms, state.settings.claim_age_max_ms)
    return replace(issued, oldest=first or TransactionNumber(issued.newest + 1))


def is_attempt_too_old(state: State, attempt: CommitAttempt, now_ms: int) -> bool:
    """TOKEN-1: return whether to claim again: then no attempt can land, and the files are
    orphans."""
    # Asked after every wait, not once: others' orphan clean-up goes by age and asks nobody, so what
    # was young when it was judged may be gone when the commit is tried once more.
    now = admission_criteria(state, now_ms)
    folders: dict[str, Prefixes] = {attempt.base.table: now.prefixes}
    folders |= {name: secondary.prefixes for name, secondary in now.secondaries.items()}
    held = [(attempt.base.table, attempt.files)]
    held += [(draft.table.table, draft.files) for draft in term_of(state).delivery.drafts]
    return not all(
        folders[table].is_allowed(file.path, now.prefixes.newest)
        for table, files in held
        for file in files
    )


def oldest_file_age_ms(
    state: State, table: TableView, files: Iterable[WrittenFile], now_ms: int
) -> int:
    """Return how old the secondary table's files admitted now are at most (PENDING-8).

    Not those that might have been admitted: otherwise a pending commit of a coordinator that has
    led for long would be about to expire as soon as it is decided.
    """
    within = _prefixes_of_young_files(state, table, now_ms)
    numbers = (within.transaction_in_path(file.path) or within.oldest for file in files)
    return term_of(state).tokens.oldest_file_age_ms(max(within.oldest, min(numbers)), now_ms)


# Detects participants that are always one transaction behind: stale (TOKEN-2).


TIMES_IN_A_ROW = 3
"""Once may be a hiccup; people are told at so many times, and at each multiple."""


def always_late_log_lines(
    settings: CoordinatorSettings, tokens: Tokens, stale: Iterable[Sender]
) -> tuple[LogLine, ...]:
    """Return a line on each that was just stale, so many times in a row."""
    return tuple(
        _always_late_log_line(settings, sender, tokens.stale[sender])
        for sender in sorted(stale)
        if tokens.stale[sender] % TIMES_IN_A_ROW == 0
    )


def _always_late_log_line(settings: CoordinatorSettings, sender: Sender, times: int) -> LogLine:
    error = ParticipantStarves(
        f"{sender} is slower than a transaction: {times} times in a row its files came after the "
        "only commit that may bring them, and its records are read again each time",
        f"raise coordinator.commit_interval_ms ({settings.commit_interval_ms} now) or "
        f"commit_timeout_ms ({settings.commit_timeout_ms} now), together the time that it has",
    )
    return LogLine(str(error), trouble=True, lasts=True, event=LogEvent.PARTICIPANT_ALWAYS_LATE)


# Valid-through: no record with an older timestamp is still to come, as far as known (COMMIT-4).


def activity_with_ranges(
    activity: Mapping[TopicPartition, Activity],
    ranges: Iterable[tuple[TopicPartition, WrittenRange]],
    now_ms: int,
) -> Mapping[TopicPartition, Activity]:
    """Remember, per partition, the largest timestamp seen and when its offsets last moved.

    A partition that is named for the first time counts as active without any timestamp: a new
    coordinator has not seen it idle for long enough.
    """
    seen = dict(activity)
    for partition, each in ranges:
        before = seen.get(partition)
        if before is not None and each.range.is_empty:
            continue
        largest = _latest_known_ms(each.max_timestamp_ms, before.timestamp_ms if before else None)
        seen[partition] = Activity(now_ms, largest)
    return seen


def _latest_known_ms(*times_ms: int | None) -> int | None:
    return max((time_ms for time_ms in times_ms if time_ms is not None), default=None)


def valid_through_of_partitions(
    previous: int | None,
    activity: Mapping[TopicPartition, Activity],
    idle_before_ms: int,
) -> int | None:
    """Return the smallest of the partitions' largest timestamps; idle ones do not hold it back."""
    active = [seen.timestamp_ms for seen in activity.values() if seen.at_ms > idle_before_ms]
    known = [time_ms for time_ms in active if time_ms is not None]
    if not known or len(known) < len(active):
        return previous
    return max(min(known), previous or 0)
