"""Moving a stopped sink's offsets by hand: a claim whose coordinator is a person (rule C2).

It requires what every commit requires (rule C1), so that a sink which runs after all is refused
or refuses; and it raises the epoch, so that nothing said before counts any more.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from headgate.control_protocol.errors import (
    ConfigurationError,
    RetryLater,
    SinkNameTaken,
    StopSink,
)
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    Landed,
    Lineage,
    TableView,
    TopicState,
    Unknown,
)
from headgate.control_protocol.record import OPERATOR, CommitRecord, Debt
from headgate.coordinator.watermark import carried_on
from headgate.operations.kafka_access import source_topics
from headgate.operations.status import status
from headgate.operations.table_access import opened_catalog
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.table import IcebergTable

_WORDS = ("earliest", "latest")
_FORM = 'write TOPIC/PARTITION=OFFSET, with a number, "earliest" or "latest"'


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """One partition's next offset, from what the table says now to what is wanted."""

    partition: TopicPartition
    begin: int
    end: int

    def __str__(self) -> str:
        number = abs(self.end - self.begin)
        what = f"up to {number} records "
        if self.end < self.begin:
            what += "are read again, and are in the table TWICE unless you deleted their rows"
        else:
            what += "are passed over, and are LOST to the table"
        return f"{self.partition}: from {self.begin} to {self.end}: {what}"


@dataclass(frozen=True, slots=True)
class OffsetPlan:
    """What is to be done, on the table as it was read; nothing is changed by making one."""

    view: TableView
    record: CommitRecord
    moves: tuple[OffsetMove, ...]


def plan_moves(settings: SinkSettings, wanted: Iterable[str]) -> OffsetPlan:
    """What the assignments (``topic/partition=offset``) would do.

    Raises ``ConfigurationError`` for what cannot be meant, and while participants are alive;
    ``RetryLater`` when table or source do not answer; ``StopSink`` when the table is not in order.
    """
    asked = dict(_parsed(text) for text in wanted)
    if not asked:
        raise ConfigurationError("no offset is named", _FORM)
    require_stopped(settings)
    with _opened(settings) as table:
        view = table.read()
    record = stored(settings, view)
    with source_topics(settings) as topics:
        described = topics.describe()
    moves = [
        OffsetMove(at, record.offsets.get(at, 0), _resolved(at, text, described, record))
        for at, text in sorted(asked.items())
    ]
    return OffsetPlan(view, record, tuple(move for move in moves if move.begin != move.end))


def carry_out(settings: SinkSettings, plan: OffsetPlan) -> None:
    """One commit, on the table as it was when the plan was made.

    Raises ``RetryLater`` when it was refused, or when nobody knows whether it landed.
    """
    operator = Sender(OPERATOR, uuid.uuid4().hex[:12])
    epoch = Epoch(plan.record.transaction.epoch + 1)
    transaction = TransactionId(epoch, TransactionNumber(0))
    moved = {move.partition: move.end for move in plan.moves}
    offsets = Offsets({**plan.record.offsets, **moved})
    claim = replace(
        plan.record,
        transaction=transaction,
        coordinator=operator,
        offsets=offsets,
        valid_through_ms=carried_on(plan.record, offsets, plan.record.topic_ids),
        records=0,
        quarantined=0,
        skipped=0,
        debts=claimed(settings, plan.record, transaction, operator),
        command="offsets set",
    )
    with _opened(settings) as table:
        outcome = table.commit(CommitAttempt(plan.view, claim))
        unknown = isinstance(outcome, Unknown)
        if isinstance(outcome, Landed) or (unknown and claim.same_commit(table.read().record)):
            return
    raise RetryLater(
        f"the offsets of sink {settings.name} were not moved: {outcome.reason}",
        "look with headgate offsets show, and try again",
    )


def claimed(
    settings: SinkSettings, record: CommitRecord, transaction: TransactionId, operator: Sender
) -> tuple[Debt, ...]:
    """D9: records are read again, so followers are claimed before the next START."""
    uuids = set(record.followers.values())
    claims = tuple(
        Debt(transaction, operator, uuid_, name or settings.quarantine.table)
        for name, uuid_ in sorted(record.followers.items())
    )
    kept = tuple(debt for debt in record.debts if debt.manifest or debt.follower not in uuids)
    return (*kept, *claims)


def _parsed(text: str) -> tuple[TopicPartition, str]:
    where, _, offset = text.partition("=")
    topic, _, partition = where.rpartition("/")
    if not (topic and partition.isdecimal() and (offset.isdecimal() or offset in _WORDS)):
        raise ConfigurationError(f"{text!r} is no offset of a partition", _FORM)
    return TopicPartition(topic, int(partition)), offset


def require_stopped(settings: SinkSettings) -> None:
    report = status(settings)
    if not report.participants_known:
        raise RetryLater(
            f"whether sink {settings.name} is running is not known: {'; '.join(report.notes)}",
            "offsets are set only while no participant runs",
        )
    if alive := [participant.member for participant in report.participants]:
        raise ConfigurationError(
            f"sink {settings.name} is running: {', '.join(alive)}",
            "stop every participant first; one that has just ended counts as running for a moment",
        )


def stored(settings: SinkSettings, view: TableView) -> CommitRecord:
    if view.record is None:
        raise ConfigurationError(
            f"sink {settings.name} has no offsets yet", "set source.start_at before its first start"
        )
    if view.lineage is not Lineage.CONTAINS_TAG:
        raise StopSink(
            f"table {view.table} is not as sink {settings.name} left it: {view.lineage.value}",
            "start the sink: its error names what was done to the table, and what to do",
        )
    if view.record.group_id != settings.source.group_id:
        raise SinkNameTaken(
            f"sink {settings.name} belongs to group {view.record.group_id}",
            "correct source.group_id",
        )
    return view.record


def _resolved(
    at: TopicPartition, text: str, described: Mapping[str, TopicState], record: CommitRecord
) -> int:
    topic = described.get(at.topic)
    if topic is None or at.partition not in topic.partitions:
        raise ConfigurationError(f"{at} is not in the source", "see headgate offsets show")
    if record.topic_ids.get(at.topic, topic.topic_id) != topic.topic_id:
        raise ConfigurationError(
            f"{at.topic} was created anew since, so that its offsets name other records",
            "coordinator.on_topic_recreated says where to begin in it",
        )
    log = topic.partitions[at.partition]
    offset = {"earliest": log.begin, "latest": log.end}.get(text)
    offset = int(text) if offset is None else offset
    if not log.begin <= offset <= log.end:
        raise ConfigurationError(f"{at}: offset {offset} is not in the log, which is {log}")
    return offset


@contextmanager
def _opened(settings: SinkSettings) -> Iterator[IcebergTable]:
    with opened_catalog(settings.catalog) as catalog:
        yield IcebergTable(catalog, settings.table.identifier, settings.name, settings.table.branch)
