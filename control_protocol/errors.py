"""Errors, grouped by what their receiver does about them; each with a stable code.

=======  ======================  =========  ====================================================
codes    base                    exit code  what follows
=======  ======================  =========  ====================================================
HG-1..   ``ConfigurationError``  2          the reader fixes a setting; nothing has begun
HG-2..   ``StopSink``            1          the sink stops, for going on could lose or double
                                            rows; a person decides
HG-28.   ``ConfigurationError``  2          as HG-1..: how clients authenticate, and moving over
HG-3..   ``StepDown``            1          this coordinator ends, another one may go on
HG-4..   ``RetryLater``          3          what did not answer is asked again
=======  ======================  =========  ====================================================

Within a group they stand in the order of their codes, as in docs/reference/errors.md. A message
says what happened, where, and what to do next. Codes never change their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from typing import ClassVar

from headgate.control_protocol.offsets import Offsets

CODE = re.compile(r"\bHG-[0-9]{3}\b")
_NOWHERE = Offsets()


class HeadgateError(Exception):
    """Base of all; ``code`` is stable, ``exit_code`` is what the command line returns."""

    code: ClassVar[str] = "HG-000"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.code} {self.message}" + (f" ({self.hint})" if self.hint else "")


# --------------------------------------------------------------- HG-1..: the reader fixes a setting


class ConfigurationError(HeadgateError):
    """A setting is wrong, unknown or contradicts another."""

    code = "HG-100"
    exit_code = 2


class SinkNameTaken(ConfigurationError):
    """The same sink name is used under another consumer group id."""

    code = "HG-101"


class TableMissing(ConfigurationError):
    """The table does not exist and nothing says how to create it."""

    code = "HG-102"


class MissingRights(ConfigurationError):
    """The principal may not do what the sink needs."""

    code = "HG-103"


class ControlTopicUnfit(ConfigurationError):
    """The control topic is missing and may not be created, or has the wrong settings."""

    code = "HG-104"


class SourcesTooLarge(ConfigurationError):
    """The sink reads more topics or partitions than its events and its record can name."""

    code = "HG-105"


class SecretInArguments(ConfigurationError):
    """A setting would put a secret where every user of the machine can read it."""

    code = "HG-106"


class RecordsWouldStop(ConfigurationError):
    """Some of the newest records cannot be read, and the sink would stop at the first of them."""

    code = "HG-107"


class SinkProcessKilled(ConfigurationError):
    """A signal ended the process of a sink, as a crash of a native library does."""

    code = "HG-108"


class SinkTakesTooMuchMemory(ConfigurationError):
    """The process of a sink took more memory than its worker allows."""

    code = "HG-109"


class SinkHangs(ConfigurationError):
    """The loop of a sink made no turn, so its worker killed the process."""

    code = "HG-110"


class SinkLeftUnasked(ConfigurationError):
    """The process of a sink ended in order, and nobody had asked it to."""

    code = "HG-111"


class WorkerEnded(ConfigurationError):
    """A worker cannot go on: the process that starts its sinks has ended."""

    code = "HG-112"
    exit_code = 1


class SourceShared(ConfigurationError):
    """Another sink fills the same branch of the table from the same topic."""

    code = "HG-113"


class OtherConfiguration(ConfigurationError):
    """Participants of one sink were started with different sink files."""

    code = "HG-114"


class GroupTaken(ConfigurationError):
    """The consumer group belongs to a sink of another name."""

    code = "HG-115"


class CatalogRefused(ConfigurationError):
    """The catalog cannot be a sink's lock: it may lose a commit, or keeps no tags."""

    code = "HG-116"


class ColumnRuleUnfit(ConfigurationError):
    """A rule of a column contradicts another, its type, or holds no value that it can take."""

    code = "HG-117"


class ColumnRuleUnknownToFormat(ConfigurationError):
    """The record format cannot do what a rule of a column asks for."""

    code = "HG-118"


class DescriptorUnfit(ConfigurationError):
    """The types of Protobuf messages cannot be read, or are given as text only."""

    code = "HG-119"


class RemoteSigning(ConfigurationError):
    """The catalog gives no keys for the table's files, and wants to sign each request itself."""

    code = "HG-120"


class NotAtomic(ConfigurationError):
    """Tables are to receive rows together, and their catalog commits to one at a time."""

    code = "HG-121"


class SecretInClear(ConfigurationError):
    """A secret stands in clear text in the sink file of a fleet, whose specs many may read."""

    code = "HG-122"


class FleetFilesUnfit(ConfigurationError):
    """Some of the sink files that a fleet should follow are wrong, so none of them is."""

    code = "HG-123"


class FleetTopicUnfit(ConfigurationError):
    """A topic of the fleet is missing, or cannot be one."""

    code = "HG-124"


class SpecNotBelieved(ConfigurationError):
    """A spec on the fleet's topic is not signed as it should be, or cannot be read."""

    code = "HG-125"


class SinkProcessUnstarted(ConfigurationError):
    """A worker cannot start the process of a sink: the system has no task or memory left for it."""

    code = "HG-126"


class CreationUnfit(ConfigurationError):
    """Tables are to be created from types that the records' format does not carry."""

    code = "HG-127"


class SinksClash(ConfigurationError):
    """Sinks of one process have a name or an address in common, or need what it has once."""

    code = "HG-128"


class RouteUnfit(ConfigurationError):
    """A route contradicts itself, or cannot name a table."""

    code = "HG-134"


class TablesUnfit(ConfigurationError):
    """The sections of many tables do not go with another setting of the sink file."""

    code = "HG-135"


class ColumnsCannotEvolve(ConfigurationError):
    """The record format or a transform cannot report fields that a table lacks."""

    code = "HG-140"


class KeyUnfit(ConfigurationError):
    """Columns of ``table.key`` cannot name rows, or a setting does not go with a keyed table."""

    code = "HG-145"


class NameReserved(ConfigurationError):
    """A column has a name that Iceberg keeps for itself: engines could not read the table."""

    code = "HG-146"


class MaintenanceUnfit(ConfigurationError):
    """What [maintenance] asks for cannot be done, or would delete what may still be committed."""

    code = "HG-147"


class EnvelopeUnfit(ConfigurationError):
    """The topic's records are changes of another kind than ``changes.envelope`` says."""

    code = "HG-148"


class TableFormatUnknown(ConfigurationError):
    """There is no such table format, or the package that brings it is not installed."""

    code = "HG-150"


class TableFormatLacks(ConfigurationError):
    """A setting or a command asks for what this table format does not do."""

    code = "HG-151"


class GuaranteeTooWeak(ConfigurationError):
    """The table format does not promise that every record is there once."""

    code = "HG-152"


class TableUnfit(ConfigurationError):
    """The table has features or columns that a sink of its kind cannot write."""

    code = "HG-153"


class HudiUnsafe(ConfigurationError):
    """The settings let others break what a commit to a Hudi table promises."""

    code = "HG-155"


class HudiMissing(ConfigurationError):
    """PySpark 3.5, or Hudi's bundle for it, is missing."""

    code = "HG-156"


class PutsUnconditional(CatalogRefused):
    """The store overwrites on a conditional put: versions of a log would get lost."""

    code = "HG-157"


class PredicateUnfit(ConfigurationError):
    """A predicate cannot be read, or names no column of the table, or no value that it can have."""

    code = "HG-158"


class DeletionRefused(ConfigurationError):
    """Rows of this table are not deleted by a person: another way is the right one."""

    code = "HG-159"


class JvmMissing(ConfigurationError):
    """The catalog is reached through Java, and this process has no JVM with Iceberg."""

    code = "HG-160"


class HiveCannotSwap(CatalogRefused):
    """The Hive metastore, or the table's committers, do not compare and set."""

    code = "HG-161"


class HiveClientUnfit(ConfigurationError):
    """The Hive client in the JVM asks the metastore for calls that it does not know."""

    code = "HG-162"


class RereadRefused(ConfigurationError):
    """What was pending for a table, which never received it, is not to be had any more."""

    code = "HG-163"


class ReplayUnfit(ConfigurationError):
    """The sink's file, or its quarantine, does not say how records would be put again."""

    code = "HG-164"


class MemberRefused(ConfigurationError):
    """The cluster refuses a member of a consumer group for good: it gets nothing any more."""

    code = "HG-166"


# --------------------------------------------------------- HG-2..: the sink stops; a person decides


class StopSink(HeadgateError):
    """Going on could lose or double rows, or would loop: stop and say what to do."""

    code = "HG-200"


class StopBefore(StopSink):
    """A record stops the sink, which first commits what lies before it (BATCH-2).

    ``first``: in each partition where such a record was met, the first one; empty: not known.
    """

    def __init__(self, message: str, hint: str = "", first: Offsets = _NOWHERE) -> None:
        super().__init__(message, hint)
        self.first = first

    def merge_first_offsets_in_place(self, others: Iterable[StopBefore]) -> StopBefore:
        """Return it, with the places that the others have met, too."""
        self.first = reduce(
            Offsets.minimum_per_partition, (other.first for other in others), self.first
        )
        return self


class TableRolledBack(StopSink):
    """The branch was moved to a snapshot before the sink's tag."""

    code = "HG-201"


class TableRecreated(StopSink):
    """The table was dropped and created again: another UUID under the same name."""

    code = "HG-202"


class TagMissing(StopSink):
    """The sink's tag is gone although the table says that it once had one."""

    code = "HG-203"


class HistoryUndecidable(StopSink):
    """Snapshots between the branch head and the tag have expired: a rollback cannot be excluded."""

    code = "HG-204"


class OffsetOutOfRange(StopSink):
    """A stored offset lies before the log's begin or behind its end."""

    code = "HG-205"


class TopicRecreated(StopSink):
    """A source topic has another id than the one the stored offsets belong to."""

    code = "HG-206"


class PoisonRecord(StopBefore):
    """A record cannot be converted to the table's schema."""

    code = "HG-207"


class TableChanged(StopSink):
    """The table no longer has what the sink needs (dropped, or an incompatible schema)."""

    code = "HG-208"


class RecordUnreadable(StopSink):
    """The tag's snapshot carries a commit record that this version cannot read."""

    code = "HG-209"


class WriterGone(StopSink):
    """What writes the data files (a Spark session) has ended under the sink: start it again."""

    code = "HG-210"


class TooManyBadRecords(StopSink):
    """More records cannot be converted than the sink's limits bear."""

    code = "HG-211"


class TransformFailed(StopSink):
    """The transform of the records raised, or returned more than one row per record."""

    code = "HG-212"


class TransformRaised(TransformFailed):
    """The transform raised on some or all of its records."""


class CommitRejected(StopSink):
    """The catalog calls a commit malformed (400) again and again: no repetition mends it."""

    code = "HG-213"


class TagsDropped(StopSink):
    """The catalog took a commit, and dropped the tag that was in it."""

    code = "HG-214"


class SecondaryForeign(StopSink):
    """The quarantine was written for another table, or for more than this table has decided."""

    code = "HG-215"


class StatusRefused(StopSink):
    """What a participant wrote is refused again and again for the same reason (RANGE-3)."""

    code = "HG-216"


class BatchHopeless(StopSink):
    """A batch failed again and again for a reason that no other system gave: its records are at
    fault, or headgate is, and none of them could be singled out."""

    code = "HG-218"


class BatchStuck(StopSink):
    """A batch did not end in time, again and again: what it waits for (Spark, a storage) hangs."""

    code = "HG-219"


class GrowthUnordered(StopSink):
    """Partitions were added so that keys move between the ones that were there before."""

    code = "HG-222"


class RecordUnmatched(StopBefore):
    """No route sends a record to a table, and tables.unmatched is fail."""

    code = "HG-223"


class UnknownField(StopBefore):
    """A record has a field that its table has no column for, and the settings say to stop."""

    code = "HG-227"


class TableStillSuspended(StopSink):
    """A suspended table was asked for again, and what was wrong with it still is."""

    code = "HG-229"


class TooManySuspended(StopSink):
    """So many tables have trouble that it cannot be theirs."""

    code = "HG-230"


class IncompatibleValue(StopBefore):
    """A record has a value that its column does not take, and the settings say to stop."""

    code = "HG-232"


class SinkStopped(StopSink):
    """A person has stopped the sink: nobody works until a person starts it."""

    code = "HG-235"


class KeyChanged(StopSink):
    """The table was filled by another key than the settings name."""

    code = "HG-240"


class KeyInTwoPartitions(StopSink):
    """Records of one key are in different partitions, and no order tells which one is newer."""

    code = "HG-241"


class KeyedPartitionsAdded(StopSink):
    """The topics of a keyed table have new partitions, to which keys may have moved."""

    code = "HG-242"


class KeyIndexFull(StopSink):
    """The keys of the table need more memory than the settings allow."""

    code = "HG-243"


class KeysUnreadable(StopSink):
    """A file of a keyed table does not tell the keys and records of its rows."""

    code = "HG-244"


class SourceTruncated(StopBefore):
    """A record reports that the table at its source was truncated; no setting says what to do."""

    code = "HG-245"


class DeletedBack(StopSink):
    """A command would bring back what a person deleted, or nothing tells that it would not."""

    code = "HG-246"


class DeletedMeanwhile(StopSink):
    """Records were deleted from the quarantine while their rows were given back to a table."""

    code = "HG-247"


class JointCommitsMissing(StopSink):
    """Tables are to receive rows together, and the catalog's server does not know that call."""

    code = "HG-250"


class HudiForked(StopSink):
    """Two commits of the sink continue the same one: a stopped coordinator's landed after all."""

    code = "HG-255"


class LogUnreadable(StopSink):
    """A table's log is not a log of its kind: a file of it is cut off, empty, or missing."""

    code = "HG-256"


class RollbackUnfinished(StopSink):
    """Some tables of the sink went back, others have not yet."""

    code = "HG-260"


class ReplayRefused(StopSink):
    """A table is not as its ledger left it, or the quarantine is not: nothing is put again."""

    code = "HG-261"


class BatchConflict(StopSink):
    """A query proposes a batch with other offsets than the table has for it."""

    code = "HG-270"


class BatchGap(StopSink):
    """Records between the table's offsets and a query's batch would be lost."""

    code = "HG-271"


class QuerySuperseded(StopSink):
    """Somebody else has claimed the table since this run of the query did."""

    code = "HG-272"


class KeyTwice(StopSink):
    """Two rows of one key come from the same record, or the same batch: none is the newer one."""

    code = "HG-273"


class CheckpointUnreadable(StopSink):
    """A query's checkpoint is of another version, torn, or not where the sink looks for it."""

    code = "HG-274"


class RowsUnfit(StopSink):
    """Rows of a query do not have the columns and types of their table."""

    code = "HG-275"


class BatchTooOld(StopSink):
    """Writing a query's batch took so long that its files may count as orphans."""

    code = "HG-276"


# ------------------------------------------------------------ HG-28.: how clients authenticate


class AuthenticationUnfit(ConfigurationError):
    """The section of authentication lacks something, or contradicts the client's settings."""

    code = "HG-280"


class KerberosMissing(ConfigurationError):
    """Tickets are to be used, and the Kafka client of this installation was built without them."""

    code = "HG-281"


class TokenServerRefused(MissingRights):
    """The token server refuses the client: nothing was sent to a broker."""

    code = "HG-282"


class TokenUnfit(ConfigurationError):
    """What came instead of a token has no life, is over, or is none."""

    code = "HG-283"


# ------------------------------------------------- HG-284 to 291: moving over from Kafka Connect


class ConnectorFileUnfit(ConfigurationError):
    """A file is not the configuration of a connector: its message names the place."""

    code = "HG-284"


class ConnectorRefused(ConfigurationError):
    """A connector does what a sink cannot: nothing was written."""

    code = "HG-285"


class ConnectorAwake(ConfigurationError):
    """A connector is still at work, or may be: its tasks are in its group, or a transaction is
    open."""

    code = "HG-286"


class AnnouncementUnreadable(ConfigurationError):
    """A connector's control topic has an event that cannot be read, or half of an announcement."""

    code = "HG-287"


class TakeoverInexact(ConfigurationError):
    """Nobody can tell which offsets a connector's table holds, or it does not hold all of them."""

    code = "HG-288"


class TakeoverUnfit(ConfigurationError):
    """A sink cannot go on where this connector stopped: their tables or topics differ."""

    code = "HG-289"


class AdoptionRefused(ConfigurationError):
    """Files that a connector announced are gone, or do not fit the table."""

    code = "HG-290"


class ConnectorReturned(ConfigurationError):
    """A connector whose table a sink has taken over is at work again, beside the sink."""

    code = "HG-291"


# -------------------------------------------------------------------- HG-292: the schema registry


class SchemaIdReused(StopSink):
    """The registry gives another schema than before under the same id."""

    code = "HG-292"


class ShapeUnfit(ConfigurationError):
    """A rule of [shape] does not fit the columns of a table, or another setting."""

    code = "HG-293"


class RecordNotKept(StopBefore):
    """A table cannot take a record, and the quarantine may not keep it: [shape] hides columns."""

    code = "HG-294"


class ReportUnfit(ConfigurationError):
    """[lineage] or [signal] names no receiver, two, or one that cannot be."""

    code = "HG-295"


class ReceiverAway(HeadgateError):
    """The receiver of lineage or signals does not take what is sent: no reason to stop."""

    code = "HG-296"


# --------------------------------------------------------------- HG-297 to HG-299: the life of rows


class DeletesChanged(StopSink):
    """Deletes would do something else to the rows of a table than they did so far."""

    code = "HG-297"


class RowExpiryUnfit(ConfigurationError):
    """Rows of the table cannot expire by the column that the settings name."""

    code = "HG-298"


# -------------------------------------------------------------- HG-3..: this coordinator steps down


class StepDown(HeadgateError):
    """This process must not coordinate any longer; another one does, or it may claim again."""

    code = "HG-300"


class LogDiscontinuity(StepDown):
    """The control topic was truncated or re-created under the reader: a new epoch is due."""

    code = "HG-301"


class FleetChangedMeanwhile(StepDown):
    """Somebody else changed the fleet at the same time; this change did not happen."""

    code = "HG-302"


# -------------------------------------------------------------------------- HG-4..: try again later


class RetryLater(HeadgateError):
    """Something foreign did not answer, or answered that it cannot now."""

    code = "HG-400"
    exit_code = 3


class Unreachable(RetryLater):
    """A broker or catalog cannot be reached."""

    code = "HG-401"


class TokenAway(Unreachable):
    """The token server gives no token now; it is asked again."""


class AppendUnconfirmed(RetryLater):
    """The control log did not confirm an event in time: it may be there, or not."""

    code = "HG-402"


class WriteFailed(RetryLater):
    """A batch could not be written; its ranges are done again."""

    code = "HG-403"


class Unforeseen(WriteFailed):
    """A batch could not be written, and no other system is to blame: a record may be."""

    code = "HG-404"


class CallHangs(RetryLater):
    """A call to the catalog or the store did not return: this process cannot coordinate."""

    code = "HG-405"


class DeletionUnsettled(RetryLater):
    """Others were faster each time, or nobody knows whether the rows are deleted."""

    code = "HG-406"


class ParticipantStarves(RetryLater):
    """A participant's files always come after the transaction that they were written in."""

    code = "HG-407"


class FolderElsewhere(WriteFailed):
    """START names a folder that is not below the table's data, as its writer reads it (TOKEN-1)."""

    code = "HG-408"


class LeadershipReleased(RetryLater):
    """The coordinator's calls are not answered: it leaves leadership to another participant
    (ELECTION-2).

    ``away_ms``: how long it claims nothing.
    """

    code = "HG-409"

    def __init__(self, message: str, hint: str = "", away_ms: int = 0) -> None:
        super().__init__(message, hint)
        self.away_ms = away_ms


class ClockDiffers(AppendUnconfirmed):
    """This machine's clock is not that of the brokers, which refuse events for their time."""

    code = "HG-410"


class WorkersSilent(RetryLater):
    """No worker of the fleet has told of itself lately, or took up what it was asked."""

    code = "HG-411"


# ---------------------------------------------------------------- errors of other libraries, quoted


_CHARACTERS_MAX = 500


def type_and_first_line_of(error: BaseException) -> str:
    """Return type and first line: the rest of a driver's message is for its own authors."""
    text = str(error).strip().partition("\n")[0][:_CHARACTERS_MAX]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def to_exception(error: BaseException) -> Exception:
    """Return the error, or one of the same words for a panic of a library written in Rust.

    That is no ``Exception``: raised again, it would pass every handler.
    """
    if isinstance(error, Exception):
        return error
    made = RuntimeError(type_and_first_line_of(error))
    made.__cause__ = error
    return made
