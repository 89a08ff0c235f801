"""Defines what only this machine is told, and what only it asks for; ``machine_io`` has what both
have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.identifiers import Epoch, TopicId
from headgate.control_protocol.machine_io import (
    Append,
    Heard,
    LogLine,
    LogTruncated,
    Stop,
    Tick,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    Changed,
    CommitAttempt,
    CommitOutcome,
    EvolvedTable,
    Staging,
    TableView,
    TopicState,
    Want,
)

# ------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class LeadershipGained:
    """Says that a fresh poll of the group shows this member owning the election partition."""


@dataclass(frozen=True, slots=True)
class SecondariesRead:
    """Brings ``views`` by table name, of those that answered.

    ``troubles``: the errors of tables that the sink can do without (rule SUSPEND-1). ``unread``:
    why others cannot be read now; a table that is just being delivered to is nowhere.
    """

    views: Mapping[str, TableView]
    troubles: Mapping[str, HeadgateError] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ManifestsStaged:
    """Says that manifests are written, which the decision makes pending; ``troubles`` as above."""

    pending_commits: tuple[PendingCommit, ...]
    troubles: Mapping[str, HeadgateError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeliveriesAnswered:
    """Brings outcomes by table name. They are not trusted: the secondary tables are read
    (PENDING-7).

    ``troubles`` as in ``SecondariesRead``.
    """

    outcomes: Mapping[str, CommitOutcome]
    troubles: Mapping[str, HeadgateError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourcesDescribed:
    """Brings the topics; ``start`` and ``offset_metadata`` only when asked for: where a first start
    begins, and the metadata of the group's offsets.

    ``control_topic_id``: which topic holds the control log now, as far as known. ``stamp``: that of
    the transaction that begins next, where the table stamps its files (TOKEN-2).
    """

    topics: Mapping[str, TopicState]
    start: Offsets | None = None
    offset_metadata: str | None = None
    control_topic_id: TopicId | None = None
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class Looked:
    """Brings what ``Look`` asked for; ``None``: it did not ask.

    ``wall_ms``: the time (epoch), which each answer to a ``Look`` tells.
    """

    primary: TableView | None = None
    secondaries: SecondariesRead | None = None
    sources: SourcesDescribed | None = None
    wall_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CommitAnswered:
    outcome: CommitOutcome


@dataclass(frozen=True, slots=True)
class TableEvolved:
    """Says that the table has what the proposals need, except for what is refused."""

    evolved: EvolvedTable


@dataclass(frozen=True, slots=True)
class TablesChanged:
    """Brings the results for the tables of ``ChangeTables``, in its order."""

    tables: tuple[Changed, ...]


@dataclass(frozen=True, slots=True)
class CallFailed:
    """Says that the action just asked for (a read, a description, an append) failed: try later."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """A port reports that no repetition can help."""

    error: HeadgateError


Input = (
    LeadershipGained
    | Heard
    | LogTruncated
    | Looked
    | ManifestsStaged
    | DeliveriesAnswered
    | CommitAnswered
    | TableEvolved
    | TablesChanged
    | CallFailed
    | Stopped
    | Tick
)

# ------------------------------------------------------------------------------------ actions


@dataclass(frozen=True, slots=True)
class Look:
    """Read what is named here, in this order; answer with ``Looked``, or with ``CallFailed``.

    The order is part of PENDING-4: nobody delivers to a table that was read before the primary
    table was. ``remembered``: tables that were filled once; those that are gone are among the
    troubles (LEDGER-2). ``first_start``: tell as well where that begins, and the group's note.
    """

    primary: bool = False
    tables: tuple[str, ...] = ()
    remembered: frozenset[str] = frozenset()
    sources: bool = False
    first_start: bool = False


@dataclass(frozen=True, slots=True)
class StageManifests:
    """Answer with ``ManifestsStaged`` or ``CallFailed``."""

    drafts: tuple[Staging, ...]


@dataclass(frozen=True, slots=True)
class DeliverPendingCommits:
    """Answer with ``DeliveriesAnswered`` or ``CallFailed``."""

    deliveries: tuple[CommitAttempt, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class TidyStagedManifests:
    """Delete what dead coordinators staged and never decided; there is no answer."""

    before: Epoch
    pending: frozenset[str]


@dataclass(frozen=True, slots=True)
class AcknowledgeDelivered:
    """Delete the key files of pending commits that their tables show as delivered (PENDING-7);
    there is no answer."""

    pending_commits: tuple[PendingCommit, ...]


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


Action = (
    Look
    | StageManifests
    | DeliverPendingCommits
    | TidyStagedManifests
    | AcknowledgeDelivered
    | CommitTable
    | EvolveTable
    | ChangeTables
    | Append
    | LogLine
    | Stop
)
