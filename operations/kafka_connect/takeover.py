"""Implements ``headgate takeover``: goes on exactly where Iceberg's Kafka Connect sink stopped.

What is read is in ``control_topic.py`` and ``tables/iceberg/connector_files.py``, what follows from
it in ``plan.py``. Nothing is written but one commit of the table (rule TAKEOVER-10): it claims the
table as a person's claim does, with the offsets, the adopted files, and the connector's own mark,
which fences it (TAKEOVER-11).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headgate.config.sink_settings import SinkSettings
from headgate.config.table_settings import ICEBERG
from headgate.control_protocol.commit_record import TAKEOVER, CommitRecord
from headgate.control_protocol.errors import (
    AdoptionRefused,
    ConfigurationError,
    ConnectorAwake,
    RetryLater,
    TakeoverInexact,
    TakeoverUnfit,
)
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    Lineage,
    TableView,
    TopicState,
)
from headgate.kafka.cluster import ANSWER_S_MAX, silent
from headgate.kafka.group_offsets import read_group_offsets
from headgate.operations.access.kafka_connection import open_source_topics
from headgate.operations.access.tables import open_primary
from headgate.operations.control.operator_claim import (
    actor,
    commit_claim,
    make_claim,
    make_first_record,
)
from headgate.operations.control.set_offsets import record_for_claim, require_stopped
from headgate.operations.kafka_connect.announcements import WorkerAnnouncement, assemble
from headgate.operations.kafka_connect.control_topic import (
    TRANSACTION_S_MAX,
    ControlTopic,
    read_control_topic,
    read_ends,
    require_nobody,
    write_group_offsets,
)
from headgate.operations.kafka_connect.events import AnnouncedFile
from headgate.operations.kafka_connect.plan import (
    ControlLog,
    TableHistory,
    TakeoverPlan,
    plan_takeover,
)
from headgate.operations.kafka_connect.translation import ANCESTOR, APACHE
from headgate.runtime.sink_tables import SinkTables, open_tables_read_only
from headgate.tables.iceberg.connector_fence import fence_properties, mark_property
from headgate.tables.iceberg.connector_files import (
    find_missing,
    read_branch_files,
    written_file,
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
            raise TakeoverUnfit(
                f"{ANCESTOR} announces its files in another form",
                f"{_STOP}, then headgate offsets SINK set --from-group",
            )
        if kind.rpartition(".")[2] != APACHE.rpartition(".")[2] and kind != "IcebergSink":
            raise TakeoverUnfit(f"{kind or 'a connector without a class'} is not Iceberg's sink")
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
class Takeover:
    """A takeover that was planned on the table as ``view``; nothing is done yet."""

    connector: Connector
    request: TakeoverRequest
    view: TableView
    plan: TakeoverPlan
    offsets: Offsets
    topics: Mapping[str, TopicState]
    ends: Mapping[int, int]
    files: tuple[WrittenFile, ...]

    def describe(self) -> Iterator[str]:
        """Yield the plan, line by line: what the table holds, and what will be done."""
        plan, files = self.plan, len(self.plan.outstanding)
        yield (
            f"{self.view.table}: filled by group {self.connector.group}, by control topic "
            f"{self.connector.control_topic}"
        )
        for each in plan.partitions:
            start = "unknown" if each.start is None else each.start
            yield f"  {each.partition}: the table holds up to {start}, the group is at {each.group}"
        yield f"  outstanding: {sum(plan.outstanding.values())} rows in {files} files"
        if plan.lost:
            rows = sum(plan.lost.values())
            yield f"  lost by the connector: {rows} rows in {len(plan.lost)} files"
        if plan.by_mark:
            yield f"  {plan.by_mark} announcements count by the table's mark alone: history expired"
        if self.request.adopts:
            rows = sum(file.records for file in self.files)
            yield f"adopt: {rows} rows in {len(self.files)} files are added, and reading begins at"
        else:
            yield "reread: the outstanding files are left as orphans, and reading begins at"
        yield from (f"  {at}: {offset}" for at, offset in sorted(self.offsets.items()))
        yield (
            "the connector is fenced by its own mark for seven days, from release 1.11 on also in "
            "the middle of a commit; never start it again"
        )


def plan(settings: SinkSettings, keys: Mapping[str, str], request: TakeoverRequest) -> Takeover:
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
    require_stopped(settings)
    kafka = settings.kafka
    require_nobody(kafka, connector.group)
    control = read_control_topic(kafka, connector.control_topic, connector.group, request.wait_s)
    told = assemble(control.records, connector.control_topic, connector.group)
    with open_source_topics(settings) as source:
        topics = source.describe()
    _require_same_topics(told, topics)
    at = (TopicPartition(t, n) for t, state in topics.items() for n in state.partitions)
    group = read_group_offsets(silent(kafka), connector.group, at, ANSWER_S_MAX)
    require_nobody(kafka, connector.group)
    with open_tables_read_only(settings) as tables:
        return _plan_table(settings, tables, (connector, request, control), (told, group, topics))


_Read = tuple[list[WorkerAnnouncement], dict[TopicPartition, int], Mapping[str, TopicState]]


def _plan_table(
    settings: SinkSettings,
    tables: SinkTables,
    asked: tuple[Connector, TakeoverRequest, ControlTopic],
    read: _Read,
) -> Takeover:
    (connector, request, control), (told, group, topics) = asked, read
    name = settings.table.identifier
    view = tables.reader.view()
    _require_unclaimed(settings, view)
    table = tables.supports_catalog().load(name)
    files = read_branch_files(
        table, settings.table.branch, mark_property(connector.control_topic, connector.group)
    )
    if files.equality_deletes:
        raise TakeoverUnfit(
            f"table {name} has equality deletes, of an upsert",
            "compact them away, or fill a new table",
        )
    log = ControlLog([a.for_table(name) for a in told], control.begins, control.oldest_ms)
    history = TableHistory(files.ever, files.mark, files.whole)
    found = plan_takeover(log, history, group, began=request.began, heals=request.heals)
    _require_exact(found, request)
    adopted = _adopted_files(table, name, found, told) if request.adopts else ()
    offsets = _offsets(connector, request, found, topics)
    return Takeover(connector, request, view, found, offsets, topics, control.ends, adopted)


def _require_fit_settings(settings: SinkSettings) -> None:
    """TAKEOVER-9: raise ``TakeoverUnfit`` for a sink that a takeover cannot give offsets to."""
    if settings.tables:
        raise TakeoverUnfit(
            "a sink with routes has one offset per partition for all of its tables",
            f"{_STOP}: its group then is where every table is (headgate offsets SINK set "
            "--from-group)",
        )
    if settings.table.type != ICEBERG:
        raise TakeoverUnfit(f"a table of type {settings.table.type} is not filled by the connector")
    if settings.has_keyed_table:
        raise TakeoverUnfit(
            "table.key is set, and the connector's rows were never replaced by their key",
            "remove table.key, or fill a new table (docs/guides/upserts-and-deletes.md)",
        )


def _require_unclaimed(settings: SinkSettings, view: TableView) -> None:
    record = view.record
    if record is not None and record.command == TAKEOVER and record.is_claim:
        raise TakeoverUnfit(
            f"sink {settings.name} has taken over {view.table} already (by {record.actor})",
            "start it: headgate run SINK",
        )
    if view.lineage is not Lineage.FRESH:
        raise TakeoverUnfit(
            f"sink {settings.name} has filled {view.table} itself already",
            "only a sink that has never begun takes over; give a new one another name",
        )
    if view.head is None:
        raise TakeoverUnfit(
            f"table {view.table} is empty: there is nothing to take over",
            "start the sink: source.start_at says where it begins",
        )


def _require_same_topics(told: list[WorkerAnnouncement], topics: Mapping[str, TopicState]) -> None:
    named = {at.topic for each in told for at in each.offsets}
    if strange := sorted(named - topics.keys()):
        raise TakeoverUnfit(
            f"the connector read {', '.join(strange)}, and the sink does not",
            "name the same topics in source.topics",
        )


def _require_exact(found: TakeoverPlan, request: TakeoverRequest) -> None:
    doubts = found.doubts_of_adoption if request.adopts else found.doubts
    if not doubts:
        return
    hints = []
    if not request.adopts and not found.doubts_of_adoption:
        hints.append("--adopt adds the outstanding files, and is exact here")
    elif found.lost and not request.heals:
        hints.append("--adopt --heal adds what the connector lost, too, if its files are there")
    if any("nothing says where it begins" in doubt for doubt in doubts):
        hints.append("--began TOPIC/PARTITION=OFFSET says where the connector began")
    raise TakeoverInexact(
        f"what the table holds is not known exactly: {'; '.join(doubts)}",
        "; ".join(hints) or "nothing was changed: read the topic into a new table",
    )


def _adopted_files(
    table: Any, name: str, found: TakeoverPlan, told: list[WorkerAnnouncement]
) -> tuple[WrittenFile, ...]:
    """TAKEOVER-8: return what was announced for this table, after looking at each file."""
    wanted = {**found.outstanding, **found.lost}
    uuid_ = str(table.metadata.table_uuid)
    entries: dict[str, AnnouncedFile] = {}
    for each in told:
        of_table = {f.path: f for f in each.files.get(name, ()) if f.path in wanted}
        known = each.table_uuids.get(name)
        if of_table and known not in (None, uuid_):
            raise AdoptionRefused(
                f"{len(of_table)} files were announced for another table of this name ({known})",
                "they do not belong to this one: nothing was changed",
            )
        entries |= of_table
    try:
        files = tuple(written_file(table, entries[path].entry) for path in wanted)
    except (ValueError, KeyError) as error:
        raise AdoptionRefused(
            f"a file that was announced does not fit table {name}: {error}",
            "nothing was changed; without --adopt its records are read again",
        ) from error
    if gone := find_missing(table, {file.path: file.size_bytes for file in files}):
        raise AdoptionRefused(
            f"{len(gone)} of {len(files)} files are gone, or were changed: {gone[0]}",
            "an orphan clean-up may have removed them; without --adopt their records are reread",
        )
    return files


def _offsets(
    connector: Connector,
    request: TakeoverRequest,
    found: TakeoverPlan,
    topics: Mapping[str, TopicState],
) -> Offsets:
    """Return where the sink begins, for each partition that there is now."""
    known = dict(found.group_offsets if request.adopts else found.starts)
    for topic, state in topics.items():
        for number, log in state.partitions.items():
            at = TopicPartition(topic, number)
            if at not in known:
                known[at] = _unread(at, connector, request, log.begin)
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


def _unread(at: TopicPartition, connector: Connector, request: TakeoverRequest, begin: int) -> int:
    said = (request.began or {}).get(at)
    if said is None and connector.reads_from != "earliest":
        raise TakeoverInexact(
            f"{at}: the connector has read nothing, and begins at {connector.reads_from}",
            f"--began {at}=OFFSET says where it would have begun",
        )
    return begin if said is None else said


# ----------------------------------------------------------------------------------------- doing it


def carry_out(settings: SinkSettings, takeover: Takeover) -> None:
    """Commit once, on the table as it was when the plan was made (TAKEOVER-10).

    Raises ``ConnectorAwake`` if the connector has done anything since, and ``RetryLater`` if the
    commit was refused, or if it is unknown whether it landed: the same command goes on from there.
    """
    connector = takeover.connector
    require_nobody(settings.kafka, connector.group)
    ends = read_ends(settings.kafka, connector.control_topic, connector.group)
    if ends != dict(takeover.ends):
        raise ConnectorAwake(
            f"control topic {connector.control_topic} has grown since it was read",
            "the connector is at work: stop it, and begin again",
        )
    claim = make_first_record(
        settings,
        takeover.offsets,
        takeover.topics,
        epoch=1,
        records=sum(file.records for file in takeover.files),
        command=TAKEOVER,
        actor=actor(),
    )
    _commit(settings, connector, (takeover.view, takeover.ends), claim, files=takeover.files)


def _commit(
    settings: SinkSettings,
    connector: Connector,
    found: tuple[TableView, Mapping[int, int]],
    claim: CommitRecord,
    *,
    files: tuple[WrittenFile, ...] = (),
) -> None:
    """Commit a claim that fences the connector. Raises ``RetryLater`` unless it landed."""
    view, ends = found
    failed = RetryLater(
        f"sink {settings.name} has not done it",
        "run the same command again: it finds out what landed",
    )
    fence = fence_properties(settings.name, connector.control_topic, connector.group, ends)
    commit_claim(settings, view, claim, failed, files=files, fence=fence)


# --------------------------------------------------------------------------------------- going back


@dataclass(frozen=True, slots=True)
class WayBack:
    """A return to the connector that was planned; nothing is done yet."""

    connector: Connector
    view: TableView
    record: CommitRecord
    ends: Mapping[int, int]

    def describe(self) -> Iterator[str]:
        """Yield what will be done, line by line."""
        yield (
            f"sink {self.record.sink} is stopped for good (headgate start undoes that), and group "
            f"{self.connector.group} is set to where {self.view.table} is:"
        )
        yield from (f"  {at}: {offset}" for at, offset in sorted(self.record.offsets.items()))


def plan_way_back(settings: SinkSettings, keys: Mapping[str, str]) -> WayBack:
    """Plan to let the connector go on where the sink stopped (TAKEOVER-13); nothing is changed.

    Raises ``ConnectorAwake``, ``TakeoverUnfit``, and as ``record_for_claim``.
    """
    _require_fit_settings(settings)
    connector = Connector.from_keys(keys, settings.table.identifier)
    require_stopped(settings)
    require_nobody(settings.kafka, connector.group)
    topic = connector.control_topic
    control = read_control_topic(settings.kafka, topic, connector.group)
    with open_primary(settings) as table:
        view = table.read()
    record = record_for_claim(settings, view)
    if record.pending_commits:
        raise TakeoverUnfit(
            f"{len(record.pending_commits)} deliveries to the quarantine are pending",
            "start the sink, wait until headgate status says that nothing is, and stop it",
        )
    return WayBack(connector, view, record, control.ends)


def go_back(settings: SinkSettings, way: WayBack) -> None:
    """Stop the sink by a claim that fences what the connector had announced, then set its group."""
    require_nobody(settings.kafka, way.connector.group)
    claim = make_claim(way.record, f"{TAKEOVER} --back", stopped=True)
    _commit(settings, way.connector, (way.view, way.ends), claim)
    write_group_offsets(settings.kafka, way.connector.group, way.record.offsets)


def parse_began(texts: tuple[str, ...]) -> dict[TopicPartition, int]:
    """Parse TOPIC/PARTITION=OFFSET. Raises ``ConfigurationError``."""
    found = {}
    for text in texts:
        where, _, offset = text.partition("=")
        topic, _, number = where.rpartition("/")
        if not (topic and number.isdecimal() and offset.isdecimal()):
            raise ConfigurationError(f"{text!r} is no offset", "write TOPIC/PARTITION=OFFSET")
        found[TopicPartition(topic, int(number))] = int(offset)
    return found
