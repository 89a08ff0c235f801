"""Implements ``headgate takeover``: goes on exactly where Iceberg's Kafka Connect sink stopped.

What is read is in ``control_topic.py`` and ``tables/iceberg/connector_commits.py``, what follows
from it in ``takeover_plan.py``. A person's claim of the sink's table (rule TAKEOVER-10) brings the
offsets, the adopted files, and the connector's own mark, which fences it (TAKEOVER-11). The tables
of a sink with routes get their files and the mark before, each by a commit of its own (TAKEOVER-9).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from headgate.config.sink_settings import SinkSettings
from headgate.config.table_settings import ICEBERG
from headgate.control_protocol.commit_record import OPERATOR, TAKEOVER, CommitRecord
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import (
    AdoptionRefused,
    ConfigurationError,
    ConnectorAwake,
    HeadgateError,
    RetryLater,
    TableMissing,
    TakeoverInexact,
    TakeoverUnfit,
)
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import (
    Sender,
    TopicPartition,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    Lineage,
    TableView,
    TopicState,
)
from headgate.kafka.cluster_queries import ANSWER_S_MAX, with_log_silenced
from headgate.kafka.group_offsets import read_group_offsets
from headgate.operations.access.kafka_connection import read_topics
from headgate.operations.control.adopt_group_offsets import read_or_create_primary
from headgate.operations.control.operator_claim import (
    commit_claim_or_raise,
    current_actor,
    make_claim,
    make_first_record,
    why_not_landed,
)
from headgate.operations.control.set_offsets import (
    require_claimable_record,
    require_no_running_participants,
)
from headgate.operations.kafka_connect.control_topic import (
    TRANSACTION_S_MAX,
    ControlTopic,
    read_control_topic,
    read_last_stable_offsets,
    require_empty_group,
    write_group_offsets,
)
from headgate.operations.kafka_connect.events import AnnouncedFile
from headgate.operations.kafka_connect.takeover_plan import (
    ControlLog,
    TableHistory,
    TakeoverPlan,
    combine_plans,
    plan_takeover,
)
from headgate.operations.kafka_connect.transaction_events import (
    WorkerAnnouncement,
    assemble_announcements,
)
from headgate.operations.kafka_connect.translation import ANCESTOR, APACHE
from headgate.runtime.sink_tables import SinkTables, open_tables_creating_nothing
from headgate.tables.iceberg.connector_commits import (
    BranchFiles,
    find_missing_or_resized_files,
    find_newest_mark,
    read_connector_branch_history,
    to_written_file,
)
from headgate.tables.iceberg.connector_fence import (
    connector_position_property,
    is_fence_mark,
    mark_property_for_ends,
    properties_of_fence,
)

_DEFAULT_CONTROL_TOPIC = "control-iceberg"
_STOP = "stop the connector in order (PUT /connectors/NAME/stop) while it still runs"


@dataclass(frozen=True, slots=True)
class Connector:
    """What a takeover needs to know of a connector: its group, its control topic, its branch."""

    group: str
    control_topic: str
    branch: str
    reads_from: str

    @classmethod
    def from_keys(cls, keys: Mapping[str, str], table: str) -> Connector:
        """Raises ``TakeoverUnfit`` for another kind of connector, and for one without a name."""
        kind = keys.get("connector.class", "")
        if kind == ANCESTOR:
            group = keys.get("iceberg.control.group-id") or f"cg-control-{keys.get('name', 'NAME')}"
            raise TakeoverUnfit(
                f"{ANCESTOR} announces its files in another form",
                f"{_STOP} and has nothing left to commit, then headgate offsets SINK set "
                f"--from-group {group}",
            )
        if kind.rpartition(".")[2] != APACHE.rpartition(".")[2] and kind != "IcebergSink":
            raise TakeoverUnfit(
                f"{kind or 'a connector without a class'} is not Iceberg's sink",
                "docs/guides/from-kafka-connect.md says what leads on from others",
            )
        name = keys.get("name", "")
        group = (
            keys.get("iceberg.connect.group-id")
            or keys.get("consumer.override.group.id")
            or (f"connect-{name}" if name else "")
        )
        if not group:
            raise TakeoverUnfit(
                "the connector's file has no name, which names its group",
                "take what Connect's REST interface gives, or add the name",
            )
        return cls(
            group,
            keys.get("iceberg.control.topic") or _DEFAULT_CONTROL_TOPIC,
            keys.get(f"iceberg.table.{table}.commit-branch")
            or keys.get("iceberg.tables.default-commit-branch")
            or "main",
            keys.get("consumer.override.auto.offset.reset", "earliest"),
        )


@dataclass(frozen=True, slots=True)
class TakeoverRequest:
    """What a person asks for: ``adopts`` adds what was announced and not committed, ``heals`` also
    what the connector lost; ``began`` is where it began with partitions, by that person's word."""

    adopts: bool = False
    heals: bool = False
    began: Mapping[TopicPartition, int] | None = None
    wait_s: float = TRANSACTION_S_MAX


@dataclass(frozen=True, slots=True)
class FilledTable:
    """A table that the connector has filled: as it was read, and the files that it gets now."""

    view: TableView
    plan: TakeoverPlan
    files: tuple[WrittenFile, ...]


@dataclass(frozen=True, slots=True)
class Takeover:
    """A takeover that was planned on the tables as they were read; nothing is done yet.

    ``plan`` is that of all ``tables`` together.
    """

    connector: Connector
    request: TakeoverRequest
    tables: tuple[FilledTable, ...]
    plan: TakeoverPlan
    offsets: Offsets
    topics: Mapping[str, TopicState]
    ends: Mapping[int, int]
    gone: tuple[str, ...]

    @property
    def adopted_row_count(self) -> int:
        """Return how many rows are adopted."""
        return sum(file.records for table in self.tables for file in table.files)

    def describe_plan(self) -> Iterator[str]:
        """Yield the plan, line by line: what the tables hold, and what will be done."""
        for table in self.tables:
            yield (
                f"{table.view.table}: filled by group {self.connector.group}, by control topic "
                f"{self.connector.control_topic}"
            )
            yield from _describe_offsets_and_files(table.plan)
        for name in self.gone:
            yield f"{name} is not there any more: what was announced for it is left out"
        if self.request.adopts:
            files = sum(len(table.files) for table in self.tables)
            rows = self.adopted_row_count
            yield (
                f"adopt: adds {count_of(rows, 'row')} in {count_of(files, 'file')}, and reading "
                "begins at"
            )
        else:
            yield "reread: the outstanding files are left as orphans, and reading begins at"
        yield from (f"  {at}: {offset}" for at, offset in sorted(self.offsets.items()))
        yield (
            "the connector is fenced by its own mark for seven days: it adds nothing more, from "
            "release 1.11 on also from the middle of a commit; delete it"
        )


def _describe_offsets_and_files(plan: TakeoverPlan) -> Iterator[str]:
    for each in plan.partitions:
        start = "unknown" if each.start is None else each.start
        yield f"  {each.partition}: the table holds up to {start}, the group is at {each.group}"
    files = len(plan.outstanding)
    yield (
        f"  outstanding: {count_of(sum(plan.outstanding.values()), 'row')} in "
        f"{count_of(files, 'file')}"
    )
    if plan.lost:
        rows = sum(plan.lost.values())
        yield (
            f"  lost by the connector: {count_of(rows, 'row')} in "
            f"{count_of(len(plan.lost), 'file')}"
        )
    if plan.by_mark:
        yield f"  {plan.by_mark} announcements count by the table's mark alone: history expired"


def plan_takeover_of_sink(
    settings: SinkSettings, keys: Mapping[str, str], request: TakeoverRequest
) -> Takeover:
    """Find out where to go on; nothing is changed (TAKEOVER-1).

    Raises ``ConnectorAwake``, ``AnnouncementUnreadable``, ``TakeoverInexact``, ``TakeoverUnfit``
    and ``AdoptionRefused``, and what reading Kafka and the table raises.
    """
    _require_fit_settings(settings)
    connector = Connector.from_keys(keys, settings.table.identifier)
    if connector.branch != settings.table.branch:
        raise TakeoverUnfit(
            f"the connector fills branch {connector.branch}, the sink {settings.table.branch}",
            "set table.branch",
        )
    require_no_running_participants(settings)
    kafka = settings.kafka
    require_empty_group(kafka, connector.group)
    control = read_control_topic(kafka, connector.control_topic, connector.group, request.wait_s)
    told = assemble_announcements(control.records, connector.control_topic, connector.group)
    topics = read_topics(settings)  # one left out would not begin where the group is
    _require_sink_reads_announced_topics(told, topics)
    _require_partitions_exist(request.began or (), topics)
    at = (TopicPartition(t, n) for t, state in topics.items() for n in state.partitions)
    group = read_group_offsets(with_log_silenced(kafka), connector.group, at, ANSWER_S_MAX)
    require_empty_group(kafka, connector.group)
    read = _Read(connector, request, control, told, group)
    with open_tables_creating_nothing(settings) as tables:
        _require_unclaimed(settings, tables)
        names, gone = _find_tables_of_connector(tables, keys, connector, told)
        filled = [_plan_takeover_of_table(tables, name, read) for name in names]
        found = combine_plans({each.view.table: each.plan for each in filled})
        _require_exact(found, request)
        if request.adopts:
            filled = [_with_adopted_files(tables, each, told) for each in filled]
    offsets = _find_first_offsets(connector, request, found, topics)
    return Takeover(connector, request, tuple(filled), found, offsets, topics, control.ends, gone)


@dataclass(frozen=True, slots=True)
class _Read:
    """What Kafka says of the connector."""

    connector: Connector
    request: TakeoverRequest
    control: ControlTopic
    told: list[WorkerAnnouncement]
    group: Mapping[TopicPartition, int]


class _FoundTables(NamedTuple):
    """The tables that a connector fills, and announced ones that are gone."""

    present: Sequence[str]
    gone: tuple[str, ...]


def _find_tables_of_connector(
    tables: SinkTables,
    keys: Mapping[str, str],
    connector: Connector,
    announcements: Iterable[WorkerAnnouncement],
) -> _FoundTables:
    """Return the tables that the connector fills, and those that it announced files of and are
    gone. Raises ``TakeoverUnfit`` if none is there."""
    if not tables.settings.tables:
        return _FoundTables([tables.name], ())
    announced = _announced_tables(announcements)
    wanted = (announced | _listed_tables(keys)) - {tables.name}
    # A route may name every table of the catalog: those of others are not touched.
    others = tables.find_tables_that_routes_can_name() - wanted - {tables.name}
    wanted |= {name for name in others if _find_newest_mark(tables, name, connector) is not None}
    gone = set(tables.find_missing_tables(wanted))
    if not wanted - gone:
        raise TakeoverUnfit(
            "no table is there that the connector would have filled: there is nothing to take over",
            "start the sink: source.start_at says where it begins",
        )
    return _FoundTables(sorted(wanted - gone), tuple(sorted(gone & announced)))


def _announced_tables(announcements: Iterable[WorkerAnnouncement]) -> set[str]:
    return {name for each in announcements for name in each.files}


def _are_tables_named_by_records(keys: Mapping[str, str]) -> bool:
    return keys.get("iceberg.tables.dynamic-enabled", "").lower() == "true"


def _listed_tables(keys: Mapping[str, str]) -> set[str]:
    listed = "" if _are_tables_named_by_records(keys) else keys.get("iceberg.tables", "")
    return {name.strip() for name in listed.split(",")} - {""}


def _find_newest_mark(tables: SinkTables, name: str, connector: Connector) -> str | None:
    mark = connector_position_property(connector.control_topic, connector.group)
    try:
        table = tables.require_catalog_format().load_table(name)
    except HeadgateError:  # it is gone, or somebody else's
        return None
    return find_newest_mark(table, tables.settings.table.branch, mark)


def _plan_takeover_of_table(tables: SinkTables, name: str, read: _Read) -> FilledTable:
    connector, settings = read.connector, tables.settings
    with closing(tables.open_table(name)) as opened:
        view = opened.read()
    table = tables.require_catalog_format().load_table(name)
    mark = connector_position_property(connector.control_topic, connector.group)
    files = read_connector_branch_history(table, settings.table.branch, mark)
    _require_fit_table(settings, view, files)
    log = ControlLog(
        [a.announcement_for_table(name) for a in read.told],
        read.control.begins,
        read.control.oldest_ms_by_partition,
    )
    history = TableHistory(files.ever, files.mark, files.whole)
    asked = read.request
    plan = plan_takeover(log, history, read.group, began=asked.began, heals=asked.heals)
    return FilledTable(view, plan, ())


def _require_fit_table(settings: SinkSettings, view: TableView, files: BranchFiles) -> None:
    """Raise ``TakeoverUnfit`` for a table that somebody else fills, or that has been upserted."""
    if files.equality_deletes:
        raise TakeoverUnfit(
            f"table {view.table} has equality deletes, of an upsert",
            "compact them away, or fill a new table",
        )
    if _is_fenced_by_unfinished_takeover(view):
        return
    if files.fenced_by:
        sinks = ", ".join(sorted(files.fenced_by))
        raise TakeoverUnfit(
            f"sink {sinks} has taken over {view.table} from this connector already",
            f"start that one, or let the connector go on first: headgate takeover {sinks} --back",
        )
    if view.lineage is not Lineage.FRESH:
        raise TakeoverUnfit(
            f"sink {settings.name} has filled {view.table} itself already",
            "only a sink that has never begun takes over; give a new one another name",
        )
    if view.head is None and not settings.tables:
        raise TakeoverUnfit(
            f"table {view.table} is empty: there is nothing to take over",
            "start the sink: source.start_at says where it begins",
        )


def _is_fenced_by_unfinished_takeover(view: TableView) -> bool:
    """Return whether a takeover that was interrupted has fenced this table of several already."""
    record = view.record
    return record is not None and record.command == TAKEOVER and record.transaction.epoch == 0


def _require_fit_settings(settings: SinkSettings) -> None:
    """TAKEOVER-9: raise ``TakeoverUnfit`` for a sink that a takeover cannot give offsets to."""
    if settings.table.type != ICEBERG:
        raise TakeoverUnfit(f"a table of type {settings.table.type} is not filled by the connector")
    if settings.has_keyed_table:
        raise TakeoverUnfit(
            "table.key is set, and the connector's rows were never replaced by their key",
            "remove table.key, or fill a new table (docs/guides/upserts-and-deletes.md)",
        )


def _require_unclaimed(settings: SinkSettings, tables: SinkTables) -> None:
    """Raise ``TakeoverUnfit`` if the sink has begun; its ledger may be missing yet."""
    try:
        view = tables.reader.view()
    except TableMissing:
        if settings.tables and settings.table.create:
            return
        raise
    record = view.record
    if record is not None and record.command == TAKEOVER and record.is_claim:
        raise TakeoverUnfit(
            f"sink {settings.name} has taken over {view.table} already (by {record.actor})",
            "start it: headgate run SINK",
        )
    if view.lineage is not Lineage.FRESH:
        raise TakeoverUnfit(
            f"sink {settings.name} has begun already, by {view.table}",
            "only a sink that has never begun takes over; give a new one another name",
        )


def _require_sink_reads_announced_topics(
    announcements: list[WorkerAnnouncement], topics: Mapping[str, TopicState]
) -> None:
    named = {at.topic for each in announcements for at in each.offsets}
    if strange := sorted(named - topics.keys()):
        raise TakeoverUnfit(
            f"the connector read {', '.join(strange)}, and the sink does not",
            "name the same topics in source.topics",
        )


def _require_partitions_exist(
    began: Iterable[TopicPartition], topics: Mapping[str, TopicState]
) -> None:
    there = {
        TopicPartition(t, number) for t, state in topics.items() for number in state.partitions
    }
    if strange := sorted(set(began) - there):
        raise ConfigurationError(
            f"--began {strange[0]}: the sink reads no such partition",
            "name a partition of a topic of source.topics",
        )


def _require_exact(plan: TakeoverPlan, request: TakeoverRequest) -> None:
    doubts = plan.doubts_of_adoption if request.adopts else plan.doubts
    if not doubts:
        return
    hints = []
    if not request.adopts and not plan.doubts_of_adoption:
        hints.append("--adopt adds the outstanding files, and is exact here")
    elif plan.lost and not request.heals:
        hints.append("--adopt --heal adds what the connector lost, too, if its files are there")
    if any("is gone" in doubt for doubt in doubts):
        hints.append(
            f"or {_STOP}: its group is where every table is then (headgate offsets SINK set "
            "--from-group)"
        )
    if any("nothing says where it begins" in doubt for doubt in doubts):
        hints.append("--began TOPIC/PARTITION=OFFSET says where the connector began")
    raise TakeoverInexact(
        f"what the table holds is not known exactly: {'; '.join(doubts)}",
        "; ".join(hints) or "nothing was changed: read the topic into a new table",
    )


def _with_adopted_files(
    tables: SinkTables, filled_table: FilledTable, announcements: list[WorkerAnnouncement]
) -> FilledTable:
    """TAKEOVER-8: add what was announced for this table, after looking at each file."""
    name = filled_table.view.table
    table = tables.require_catalog_format().load_table(name)
    wanted = {**filled_table.plan.outstanding, **filled_table.plan.lost}
    uuid_ = str(table.metadata.table_uuid)
    entries: dict[str, AnnouncedFile] = {}
    for each in announcements:
        of_table = {f.path: f for f in each.files.get(name, ()) if f.path in wanted}
        known = each.table_uuids.get(name)
        if of_table and known not in (None, uuid_):
            raise AdoptionRefused(
                f"{count_of(len(of_table), 'file was', 'files were')} announced for another table "
                f"of this name ({known})",
                "they do not belong to this one: nothing was changed",
            )
        entries |= of_table
    try:
        files = tuple(to_written_file(table, entries[path].entry) for path in wanted)
    except (ValueError, KeyError) as error:
        raise AdoptionRefused(
            f"a file that was announced does not fit table {name}: {error}",
            "nothing was changed; without --adopt its records are read again",
        ) from error
    if gone := find_missing_or_resized_files(table, {file.path: file.size_bytes for file in files}):
        raise AdoptionRefused(
            f"{len(gone)} of {len(files)} files are gone, or were changed: {gone[0]}",
            "an orphan clean-up may have removed them; without --adopt their records are reread",
        )
    return replace(filled_table, files=files)


def _find_first_offsets(
    connector: Connector,
    request: TakeoverRequest,
    plan: TakeoverPlan,
    topics: Mapping[str, TopicState],
) -> Offsets:
    """Return where the sink begins, for each partition that there is now."""
    known = dict(plan.group_offsets if request.adopts else plan.reread_offsets)
    for topic, state in topics.items():
        for number, log in state.partitions.items():
            at = TopicPartition(topic, number)
            if at not in known:
                known[at] = _start_offset_of_unread_partition(at, connector, request, log)
            elif known[at] < log.begin and not request.adopts:
                raise TakeoverInexact(
                    f"{at}: the table ends at {known[at]}, and the topic begins at {log.begin}",
                    "--adopt needs no records of Kafka",
                )
            elif known[at] > log.end:
                raise TakeoverUnfit(
                    f"{at} ends at {log.end}, before {known[at]}, where the connector was: it is "
                    "another topic of this name, or another cluster",
                    "name the cluster that the connector reads in [kafka]",
                )
    return Offsets(known)


def _start_offset_of_unread_partition(
    at: TopicPartition, connector: Connector, request: TakeoverRequest, log: OffsetRange
) -> int:
    said = (request.began or {}).get(at)
    if said is None:
        if connector.reads_from == "earliest":
            return log.begin
        raise TakeoverInexact(
            f"{at}: the connector has read nothing, and begins at {connector.reads_from}",
            f"--began {at}=OFFSET says where it would have begun",
        )
    if not log.begin <= said <= log.end:  # the sink would skip records, or stop when it is started
        raise ConfigurationError(
            f"--began {at}={said}: the topic holds offsets {log.begin} to {log.end}",
            "name an offset that is there",
        )
    return said


# ----------------------------------------------------------------------------------------- doing it


def carry_out_takeover(settings: SinkSettings, takeover: Takeover) -> None:
    """Commit on the tables as they were when the plan was made (TAKEOVER-10).

    Raises ``ConnectorAwake`` if the connector has done anything since, and ``RetryLater`` if a
    commit was refused, or if it is unknown whether it landed: the same command goes on from there.
    """
    _require_connector_still_idle(settings, takeover)
    facts: dict[str, Any] = {"command": TAKEOVER, "actor": current_actor()}
    connector = takeover.connector
    fence = _properties_of_fence(settings, connector, takeover.ends)
    if not settings.tables:
        (table,) = takeover.tables
        claim = make_first_record(
            settings,
            takeover.offsets,
            takeover.topics,
            epoch=1,
            records=takeover.adopted_row_count,
            **facts,
        )
        commit_claim_or_raise(
            settings, table.view, claim, _not_done_error(settings), files=table.files, fence=fence
        )
        return
    with open_tables_creating_nothing(settings) as tables:
        for table in takeover.tables:
            if not table.files and _is_fenced_by_unfinished_takeover(table.view):
                continue
            rows = sum(file.records for file in table.files)
            record = make_first_record(
                settings, takeover.offsets, takeover.topics, records=rows, **facts
            )
            if before := table.view.record:  # of the same command, interrupted
                record = record.as_commit_after(before)
            _commit_to_table_or_raise(
                tables, CommitAttempt(table.view, record, table.files, fence=fence)
            )
    _require_connector_still_idle(settings, takeover)  # what was announced meanwhile is in no table
    ledger = read_or_create_primary(settings)
    claim = make_first_record(settings, takeover.offsets, takeover.topics, epoch=1, **facts)
    commit_claim_or_raise(settings, ledger, claim, _not_done_error(settings), fence=fence)


def _require_connector_still_idle(settings: SinkSettings, takeover: Takeover) -> None:
    connector = takeover.connector
    require_empty_group(settings.kafka, connector.group)
    ends = read_last_stable_offsets(settings.kafka, connector.control_topic, connector.group)
    if ends != dict(takeover.ends):
        raise ConnectorAwake(
            f"control topic {connector.control_topic} has grown since it was read",
            "the connector is at work: stop it, and begin again",
        )


def _properties_of_fence(
    settings: SinkSettings, connector: Connector, ends: Mapping[int, int]
) -> dict[str, str]:
    return properties_of_fence(settings.name, connector.control_topic, connector.group, ends)


def _not_done_error(settings: SinkSettings) -> RetryLater:
    return RetryLater(
        f"sink {settings.name} has not done it",
        "run the same command again: it finds out what landed",
    )


def _commit_to_table_or_raise(tables: SinkTables, attempt: CommitAttempt) -> None:
    """Commit to one table of several. Raises ``RetryLater`` unless it landed."""
    with closing(tables.open_table(attempt.base.table)) as table:
        outcome = table.commit(attempt)
        reason = why_not_landed(table, attempt.record, outcome)
    if reason is not None:
        failed = _not_done_error(tables.settings)
        raise RetryLater(f"{failed.message}: {attempt.base.table}: {reason}", failed.hint)


# --------------------------------------------------------------------------------------- going back


@dataclass(frozen=True, slots=True)
class WayBack:
    """A return to the connector that was planned; nothing is done yet.

    ``fenced``: the tables of a sink with routes.
    """

    connector: Connector
    view: TableView
    record: CommitRecord
    fenced: tuple[TableView, ...]
    ends: Mapping[int, int]

    def describe_plan(self) -> Iterator[str]:
        """Yield what will be done, line by line."""
        yield (
            f"sink {self.record.sink} is stopped for good (headgate start undoes that), and group "
            f"{self.connector.group} is set to where {self.view.table} is:"
        )
        yield from (f"  {at}: {offset}" for at, offset in sorted(self.record.offsets.items()))


def plan_handback_to_connector(settings: SinkSettings, keys: Mapping[str, str]) -> WayBack:
    """Plan to let the connector go on where the sink stopped (TAKEOVER-13); nothing is changed.

    Raises ``ConnectorAwake``, ``TakeoverUnfit``, and as ``require_claimable_record``.
    """
    _require_fit_settings(settings)
    connector = Connector.from_keys(keys, settings.table.identifier)
    require_no_running_participants(settings)
    require_empty_group(settings.kafka, connector.group)
    topic = connector.control_topic
    control = read_control_topic(settings.kafka, topic, connector.group)
    told = assemble_announcements(control.records, topic, connector.group)
    with open_tables_creating_nothing(settings) as tables:
        with closing(tables.open_primary()) as table:
            view = table.read()
        record = require_claimable_record(settings, view)
        pending = tables.read_undelivered_commits(record)
        if settings.tables:
            names = _find_tables_of_connector(tables, keys, connector, told).present
            fenced, beside = _read_tables_to_hand_back(tables, names, record)
        else:
            fenced, beside = (), _find_tables_beside(tables, keys, connector, told)
    if beside:
        raise TakeoverUnfit(
            f"group {connector.group} counts for {', '.join(beside)}, too, which sink "
            f"{settings.name} does not fill: records would be lost there, or come twice",
            "let a connector of another name and group go on with the sink's own tables only: "
            "docs/guides/from-kafka-connect.md, The way back",
        )
    if pending:
        raise TakeoverUnfit(
            f"{len(pending)} deliveries to other tables are pending",
            "start the sink, wait until headgate status says that nothing is, and stop it",
        )
    return WayBack(connector, view, record, fenced, control.ends)


class _TablesToHandBack(NamedTuple):
    """The tables of a sink with routes, and tables of the connector that are not the sink's."""

    fenced: tuple[TableView, ...]
    beside: Sequence[str]


def _read_tables_to_hand_back(
    tables: SinkTables, names: Sequence[str], record: CommitRecord
) -> _TablesToHandBack:
    views = []
    for name in names:
        with closing(tables.open_table(name)) as opened:
            views.append(opened.read())
    return _TablesToHandBack(
        tuple(each for each in views if each.record is not None),
        [each.table for each in views if each.record is None and _is_of_another(each, record)],
    )


def _is_of_another(view: TableView, record: CommitRecord) -> bool:
    """Return whether another sink fills the table from one of the same topics."""
    return any(topics.items() & record.topic_ids.items() for topics in view.others.values())


def _find_tables_beside(
    tables: SinkTables,
    keys: Mapping[str, str],
    connector: Connector,
    announcements: Iterable[WorkerAnnouncement],
) -> Sequence[str]:
    """Return what the connector fills beside the sink's one table.

    A table that its file does not list counts if it has filled it, and nobody has taken it over: it
    may have been handed back before.
    """
    if _are_tables_named_by_records(keys):
        return ["every table that a record names"]
    found = _listed_tables(keys)
    for name in _announced_tables(announcements) - found - {tables.name}:
        mark = _find_newest_mark(tables, name, connector)
        if mark is not None and not is_fence_mark(mark):
            found.add(name)
    return sorted(found - {tables.name})


def carry_out_handback_to_connector(settings: SinkSettings, way: WayBack) -> None:
    """Stop the sink by a claim, let the connector commit what it announces from here on, and then
    set its group."""
    connector = way.connector
    require_empty_group(settings.kafka, connector.group)
    mark = mark_property_for_ends(connector.control_topic, connector.group, way.ends)
    claim = make_claim(way.record, f"{TAKEOVER} --back", stopped=True)
    commit_claim_or_raise(settings, way.view, claim, _not_done_error(settings), fence=mark)
    with open_tables_creating_nothing(settings) as tables:
        for view in way.fenced:
            assert view.record is not None, "only tables of the sink are fenced"
            sender = Sender(OPERATOR, uuid.uuid4().hex[:12])
            record = view.record.next_adding_no_rows(claim.transaction, sender)
            _commit_to_table_or_raise(tables, CommitAttempt(view, record, fence=mark))
    write_group_offsets(settings.kafka, connector.group, way.record.offsets)


def parse_began_offsets(texts: tuple[str, ...]) -> dict[TopicPartition, int]:
    """Parse TOPIC/PARTITION=OFFSET. Raises ``ConfigurationError``."""
    found = {}
    for text in texts:
        where, _, offset = text.partition("=")
        topic, _, number = where.rpartition("/")
        if not (topic and number.isdecimal() and offset.isdecimal()):
            raise ConfigurationError(f"{text!r} is no offset", "write TOPIC/PARTITION=OFFSET")
        found[TopicPartition(topic, int(number))] = int(offset)
    return found
