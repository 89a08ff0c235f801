"""The machine's inputs, and the actions that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import Event, LogRecord
from headgate.control_protocol.identifiers import Epoch, TopicId, TransactionNumber
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    Changed,
    CommitAttempt,
    CommitOutcome,
    Draft,
    Evolved,
    TableView,
    TopicState,
    Want,
)

# ------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class LeadershipGained:
    """A fresh poll of the group shows that this member owns the election partition."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The next record of this sink on the control log; a status comes whole (``parts.py``)."""

    record: LogRecord


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """The control log lost its continuity; earlier events are void."""

    reason: str


@dataclass(frozen=True, slots=True)
class TableRead:
    view: TableView


@dataclass(frozen=True, slots=True)
class SecondariesRead:
    """``views`` by table name, of those that answered; ``wall_ms`` is the time (epoch).

    ``troubles``: the errors of tables that the sink can do without (rule I1).
    """

    views: Mapping[str, TableView]
    wall_ms: int
    troubles: Mapping[str, HeadgateError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drafted:
    """The manifests are written: what the decision will owe; troubles as in SecondariesRead."""

    pending_commits: tuple[PendingCommit, ...]
    troubles: Mapping[str, HeadgateError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeliveriesAnswered:
    """Outcomes by table name. They are not trusted: the secondary tables are read (D7).

    ``troubles`` as in ``SecondariesRead``.
    """

    outcomes: Mapping[str, CommitOutcome]
    troubles: Mapping[str, HeadgateError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourcesDescribed:
    """``start`` and ``note`` only when asked for: where a first start begins, and the group's note.

    ``control_topic_id``: which topic holds the control log now, as far as known. ``stamp``: that of
    the transaction that begins next, where the table stamps its files (P13).
    """

    topics: Mapping[str, TopicState]
    start: Offsets | None = None
    note: str | None = None
    control_topic_id: TopicId | None = None
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class CommitAnswered:
    outcome: CommitOutcome


@dataclass(frozen=True, slots=True)
class TableEvolved:
    """The table has what the proposals need, except for what is refused."""

    evolved: Evolved


@dataclass(frozen=True, slots=True)
class TablesChanged:
    """The results for the tables of ``ChangeTables``, in its order."""

    tables: tuple[Changed, ...]


@dataclass(frozen=True, slots=True)
class CallFailed:
    """The action just asked for (a read, a description, an append) failed: try later."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """A port reports that no repetition can help."""

    error: HeadgateError


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Input = (
    LeadershipGained
    | Heard
    | LogTruncated
    | TableRead
    | SecondariesRead
    | Drafted
    | DeliveriesAnswered
    | SourcesDescribed
    | CommitAnswered
    | TableEvolved
    | TablesChanged
    | CallFailed
    | Stopped
    | Tick
)

# ------------------------------------------------------------------------------------ actions


@dataclass(frozen=True, slots=True)
class ReadTable:
    """Answer with ``TableRead`` or ``CallFailed``."""


@dataclass(frozen=True, slots=True)
class DescribeSecondaries:
    """Answer with ``SecondariesRead`` or ``CallFailed``.

    ``remembered``: tables that were filled once; those that are gone are among the troubles (N5).
    """

    tables: tuple[str, ...]
    remembered: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DraftManifests:
    """Answer with ``Drafted`` or ``CallFailed``."""

    drafts: tuple[Draft, ...]


@dataclass(frozen=True, slots=True)
class DeliverPendingCommits:
    """Answer with ``DeliveriesAnswered`` or ``CallFailed``."""

    deliveries: tuple[CommitAttempt, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class TidyDrafts:
    """Delete what dead coordinators drafted and never decided; there is no answer."""

    before: Epoch
    pending: frozenset[str]


@dataclass(frozen=True, slots=True)
class AcknowledgeDelivered:
    """Delete the key files of pending commits that their tables show as delivered (D7); there is no
    answer."""

    pending_commits: tuple[PendingCommit, ...]


@dataclass(frozen=True, slots=True)
class DescribeSources:
    """Answer with ``SourcesDescribed`` or ``CallFailed``."""

    first_start: bool = False


@dataclass(frozen=True, slots=True)
class CommitTable:
    """Answer with ``CommitAnswered``."""

    attempt: CommitAttempt


@dataclass(frozen=True, slots=True)
class EvolveTable:
    """Answer with ``TableEvolved`` or ``CallFailed``."""

    base: TableView
    columns: Struct


@dataclass(frozen=True, slots=True)
class ChangeTables:
    """Answer with ``TablesChanged`` or ``CallFailed``."""

    wants: tuple[Want, ...]


@dataclass(frozen=True, slots=True)
class Append:
    """Append in order; a failure comes back as ``CallFailed``, success as ``Heard``."""

    epoch: Epoch
    events: tuple[tuple[TransactionNumber, Event], ...]


@dataclass(frozen=True, slots=True)
class LogLine:
    """Write a line for people to the log, by its name; ``trouble``: as a warning, ``lasts``: which
    has repeated, so that ``headgate status`` shows it as well."""

    text: str
    trouble: bool = False
    lasts: bool = field(default=False, kw_only=True)
    event: LogEvent = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Stop:
    """The sink stops with this error."""

    error: HeadgateError


Action = (
    ReadTable
    | DescribeSecondaries
    | DraftManifests
    | DeliverPendingCommits
    | TidyDrafts
    | AcknowledgeDelivered
    | DescribeSources
    | CommitTable
    | EvolveTable
    | ChangeTables
    | Append
    | LogLine
    | Stop
)
