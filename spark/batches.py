"""What a Spark query calls: each batch goes into the sink's table once, whatever ended in between.

Only Spark's public API is used, on the driver. The table decides what a batch is (QUERY-1).
"""

from __future__ import annotations

import atexit
import json
import pickle
import re
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any

import pyspark
import pyspark.sql
from pyspark.errors import AnalysisException

from headgate.config.load import load
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.current_sink import working_for_sink
from headgate.control_protocol.errors import (
    BatchGap,
    ConfigurationError,
    HeadgateError,
    RowsUnfit,
    TableMissing,
)
from headgate.control_protocol.identifiers import Sender, TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import SourceTopics
from headgate.control_protocol.redacting_loggers import redacted_logger, redacting
from headgate.control_protocol.redaction import Redaction
from headgate.control_protocol.spark_batch_decision import Done, ProposedBatch, without_query_offset
from headgate.coordinator.recovery import record_to_resume_from
from headgate.data_plane.spark.query_records import (
    RECORD_COLUMNS,
    SOURCE_COLUMNS,
    needed_source_columns,
)
from headgate.data_plane.spark.query_rows import DELETED, OUTCOME, RowsWritten
from headgate.data_plane.spark.session import ship_package_once
from headgate.kafka.source_topics import KafkaSourceTopics
from headgate.runtime.sink_tables import open_tables_creating_nothing
from headgate.spark.checkpoint import read_proposed_batch
from headgate.spark.query_batch_commits import PlannedBatch, QueryTable, require_settings_fit_query

ARROW_ROWS = 32_768
_ARROW_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
_SUPPORTED = ((3, 5), (4, 1))
"""Versions of Spark whose checkpoints a test has written and read (QUERY-11)."""
_SUPPORTED_CONNECT = ((4, 1),)
_EARLIEST, _LATEST = -2, -1
"""What the Kafka source calls the two ends of a partition."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LOCAL_SCHEME = re.compile(r"^file:(//)?/(?!/)")
"""With one slash, too: so Hadoop spells a path without a host."""

_log = redacted_logger(__name__)


def write(
    frame: Any,
    sink: str | Path,
    checkpoint: str,
    *,
    stateful: bool = False,
    records: bool = False,
) -> Any:
    """Return a ``DataStreamWriter`` that fills the sink's table with the frame; ``start()`` it.

    ``stateful``: the query remembers earlier rows (aggregations, joins of streams, deduplication);
    of a keyed table it updates rows. ``records``: the frame has the columns of Spark's Kafka
    source, and the sink file says how a record becomes a row. Raises ``ConfigurationError``, also
    for columns that the table lacks.
    """
    batches = Batches(sink, checkpoint, stateful=stateful, records=records)
    batches.require_usable_frame(frame)
    batches.session = frame.sparkSession
    writer = frame.writeStream.option("checkpointLocation", checkpoint)
    updates = stateful and batches.settings.table.key
    return writer.outputMode("update" if updates else "append").foreachBatch(batches)


def starting_offsets(sink: str | Path) -> str:
    """Return the Kafka source's ``startingOffsets``: where the sink's table is.

    Partitions that it does not know begin as ``source.start_at`` says, new ones at their first
    record. Raises as reading the table does; a table that is not there yet is an empty one.
    """
    settings = load(sink)
    with open_tables_creating_nothing(settings) as tables:
        try:
            record = record_to_resume_from(tables.reader.view(), settings.coordinator)
        except TableMissing:
            record = None
    with closing(open_source_topics(settings)) as sources:
        if record is None:
            return _starting_offsets_of_new_table(settings, sources)
        stored = without_query_offset(record.offsets)
        partitions = [
            TopicPartition(topic, partition)
            for topic, state in sources.describe().items()
            for partition in sorted({*state.partitions, *state.silent})
        ]
    return _offsets_json({at: stored.get(at, _EARLIEST) for at in partitions})


def _starting_offsets_of_new_table(settings: SinkSettings, sources: SourceTopics) -> str:
    at_ms = settings.source.start_at_ms
    return (
        str(settings.source.start_at) if at_ms is None else _offsets_json(sources.offsets_at(at_ms))
    )


def _offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    found: dict[str, dict[str, int]] = {}
    for at, offset in sorted(offsets.items()):
        found.setdefault(at.topic, {})[str(at.partition)] = offset
    return json.dumps(found)


def open_source_topics(settings: SinkSettings) -> SourceTopics:
    """Return what answers for the topics of the sink file."""
    return KafkaSourceTopics(settings.kafka, settings.source.topics, settings.source.group_id)


class Batches:
    """The function for ``foreachBatch``, or called within one: ``batches(frame, number)``.

    ``checkpoint`` is the folder that the query uses. Each object is one run (QUERY-13), with a
    table of its own: several in one function fill several tables (QUERY-20). ``close`` it when the
    query has ended. It raises a ``HeadgateError`` that ends the query. With Spark Connect the
    server calls it, and reads the sink file for itself, at the same path.
    """

    def __init__(
        self,
        sink: str | Path,
        checkpoint: str,
        *,
        stateful: bool = False,
        records: bool = False,
    ) -> None:
        if pyspark_version() not in _SUPPORTED:
            known = " and ".join(".".join(map(str, version)) for version in _SUPPORTED)
            raise ConfigurationError(
                f"PySpark {pyspark.__version__} is not supported for queries, only {known}: "
                "nobody has read its checkpoints yet",
                f"install pyspark {known.split()[-1]}, or use headgate run",
            )
        if stateful and records:
            raise ConfigurationError(
                "a query that hands records over cannot be stateful: its rows are those records",
                "use one of stateful and records",
            )
        self.settings = load(sink)
        require_settings_fit_query(self.settings, records=records)
        self._sink = Path(sink).absolute()
        self._checkpoint = checkpoint
        self._stateful = stateful
        self._records = records
        self._run = uuid.uuid4().hex[:12]
        self._table: QueryTable | None = None
        self._sources: SourceTopics | None = None
        self.session: Any = None
        """That of the query, as ``write`` knows it: a batch's frame has another."""

    def require_usable_frame(self, frame: Any) -> None:
        """Raise ``ConfigurationError`` for a session or a frame that cannot be used."""
        is_connect = type(frame).__module__.startswith("pyspark.sql.connect")
        if is_connect and pyspark_version() not in _SUPPORTED_CONNECT:
            raise ConfigurationError(
                f"PySpark {pyspark.__version__} is not supported for queries of Spark Connect, "
                "only 4.1: nobody has killed its server yet",
                "install pyspark 4.1 on client and server, or run the query in a classic session",
            )
        if self._records:
            _require_kafka_records(frame, RECORD_COLUMNS)
            return
        declared = {
            column.name for column in self.settings.table.columns
        } | self._delete_flag_columns
        self._require_defaulted_columns_selected(frame)
        if self.settings.table.create and (unknown := sorted(set(frame.columns) - declared)):
            raise unknown_columns_error(self.settings.table.identifier, unknown)

    def _require_defaulted_columns_selected(self, frame: Any) -> None:
        """QUERY-17: raise ``RowsUnfit`` where a row would lack what the sink file says."""
        filled = [
            column.name
            for column in self.settings.table.columns
            if (column.value is not None or column.default is not None)
            and column.name not in frame.columns
        ]
        if filled:
            raise RowsUnfit(
                f"the rows have no columns {', '.join(filled)}: that these have a value or default "
                "in the sink file fills them where it decodes the records",
                "select them in the query, for example with lit(), or hand records over "
                "(records=True)",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """QUERY-27: hand over what it was built from, never settings or secrets."""
        flags = {"stateful": self._stateful, "records": self._records}
        return _OnConnectServer, (partial(Batches, str(self._sink), self._checkpoint, **flags),)

    @property
    def _delete_flag_columns(self) -> set[str]:
        """Return the columns by which rows delete, which are none of the table's."""
        return {DELETED} if self.settings.table.key else set()

    def __call__(self, frame: Any, number: int) -> None:
        """Write the batch, unless the table has it."""
        self.require_usable_frame(frame)
        with working_for_sink(self.settings.name):
            self._write_batch(
                frame,
                read_proposed_batch(
                    self._checkpoint,
                    number,
                    lambda path: _read_text_file(frame, path),
                    spark_version=pyspark.__version__,
                ),
            )

    def close(self) -> None:
        """Close table and catalog. The next batch would open them again."""
        table, sources = self._table, self._sources
        self._table = self._sources = None
        for each in (table, sources):
            if each is not None:
                each.close()

    def _write_batch(self, frame: Any, proposed: ProposedBatch) -> None:
        table = self._open_or_reuse_table(proposed.query)
        now, found = table.wait_for_resume_and_decide_batch(proposed)
        if isinstance(found, Done):
            _log.info("batch %s is in the table already", proposed.number)
            if self._stateful:
                compute_and_discard_rows(frame)
            return
        planned = table.plan_batch(proposed, now, found)
        places = None
        if self._records:
            frame = self._select_record_columns(frame, planned)
        else:
            places = self._require_coordinate_columns(frame, planned)
            table_columns = planned.plan.shape.arrow_schema().names
            if unknown := sorted(set(frame.columns) - {*table_columns, *self._delete_flag_columns}):
                raise unknown_columns_error(now.view.table, unknown)
        ship_package_once(frame.sparkSession)
        written = write_frame(frame, planned, places)
        if table.commit(planned, written) is None:
            _log.info("batch %s was committed by another run", proposed.number)
        else:
            counts = proposed.number, written.rows, len(written.files)
            _log.info("batch %s: %s rows in %s files", *counts)

    def _open_or_reuse_table(self, query: str) -> QueryTable:
        if self._table is None:
            self._sources = self._sources or open_source_topics(self.settings)
            sender = Sender(f"spark-{query}", self._run)
            self._table = QueryTable(
                self.settings,
                self._sources,
                sender,
                stateful=self._stateful,
                may_wait=partial(self._require_query_not_stopping, query),
            )
        return self._table

    def _require_query_not_stopping(self, query: str) -> None:
        """QUERY-14: end a batch that waits, if the query is being stopped: Spark waits for it."""
        session = self.session or pyspark.sql.SparkSession.builder.getOrCreate()
        running = [each for each in session.streams.active if str(each.id) == query]
        if running and not any(each.isActive for each in running):
            raise InterruptedError(
                f"sink {self.settings.name} is paused, and its query was stopped"
            )

    def _select_record_columns(self, frame: Any, planned: PlannedBatch) -> Any:
        """Return the columns of records that tasks need. Raises ``ConfigurationError``."""
        if planned.proposed.by_number:
            raise ConfigurationError(
                "the query reads something else than Kafka, or one partition twice, and hands over "
                "what are to be Kafka's records",
                "leave records out, and select the table's columns in the query",
            )
        needed = needed_source_columns(planned.plan)
        _require_kafka_records(frame, needed)
        return frame.select(*needed)

    def _require_coordinate_columns(self, frame: Any, planned: PlannedBatch) -> Mapping[str, str]:
        """Return the column of each coordinate of a row's record (QUERY-6, QUERY-21).

        Raises ``RowsUnfit`` and ``BatchGap`` where rows lack what they need.
        """
        named = self.settings.table.record_columns.columns_by_part()
        places: dict[str, str] = {
            part: named[part] for part in ("topic", "partition", "offset") if part in named
        }
        lacking = {"partition", "offset"} - places.keys() | set(places.values()) - set(
            frame.columns
        )
        if self.settings.table.key:
            self._require_coordinates_fit_keyed_table(frame, places, planned)
            return places
        trim = planned.take.trim
        # Of all its topics: offsets of the one that is trimmed may be new ones of another.
        several = len({at.topic for at in planned.proposed.end}) > 1 and "topic" not in places
        if trim and (lacking or several):
            raise BatchGap(
                f"the batch begins below the table's offsets, at {Offsets(trim)}, and its "
                "rows do not say of which record they are",
                "start with an empty checkpoint folder at headgate.spark.starting_offsets(SINK), "
                "or fill the columns of table.record_columns",
            )
        return places

    def _require_coordinates_fit_keyed_table(
        self, frame: Any, coordinate_columns: Mapping[str, str], planned: PlannedBatch
    ) -> None:
        """Raise ``RowsUnfit`` for a keyed table's rows that do not say what orders them, or say it
        where the batch's number does."""
        given = set(coordinate_columns.values()) & set(frame.columns)
        lacking = set(coordinate_columns.values()) - given
        if planned.is_numbered and given:
            raise RowsUnfit(
                f"{', '.join(sorted(given))} say what orders the rows of a key, and in a query "
                "that is stateful, or has another source than Kafka, its batches do",
                "leave these columns out: they are filled by the sink",
            )
        if lacking and not planned.is_numbered:
            raise RowsUnfit(
                f"the rows have no column {', '.join(sorted(lacking))}, and a keyed table's are "
                "ordered by their records",
                "select the Kafka source's partition and offset (and topic) by these names; or say "
                "stateful=True where a row is of several records",
            )


class _OnConnectServer:
    """What a process of a Connect server calls for the ``Batches`` of a client (QUERY-27).

    It reads the sink file at its first batch, so that what fails is what ended the query.
    """

    def __init__(self, build: Callable[[], Batches]) -> None:
        self._build = build
        self._batches: Batches | None = None

    def __call__(self, frame: Any, number: int) -> None:
        redaction = Redaction()
        try:
            batches = self._batches = self._batches or self._build_batches_on_server()
            batches.session = frame.sparkSession
            redaction = batches.settings.redaction
            with redacting(redaction):
                batches(frame, number)
        # The client is told the whole chain of errors, and foreign ones may show a secret.
        except HeadgateError as error:
            raise redaction.redact_in_place(error) from None
        except Exception:  # noqa: BLE001 - its text is raised
            raise RuntimeError(redaction(traceback.format_exc())) from None

    def close(self) -> None:
        """Close table and catalog."""
        if self._batches is not None:
            self._batches.close()

    def _build_batches_on_server(self) -> Batches:
        try:
            opened = self._build()
        except ConfigurationError as error:
            error.message = f"on the Spark Connect server {gethostname()}: {error.message}"
            remedy = "have the sink file there at the same path, with the secrets that it names"
            error.hint = "; ".join(filter(None, (remedy, error.hint)))
            raise
        atexit.register(opened.close)
        return opened


def pyspark_version() -> tuple[int, int]:
    """Return the first two numbers of PySpark's version."""
    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


def unknown_columns_error(table: str, names: list[str]) -> RowsUnfit:
    return RowsUnfit(
        f"{table} has no columns {', '.join(names)}",
        "select the table's columns in the query, or add them to the table",
    )


def _require_kafka_records(frame: Any, needed: Sequence[str]) -> None:
    """QUERY-26: raise ``ConfigurationError`` for a frame that is not one of Kafka's records."""
    lacking = [name for name in needed if name not in frame.columns]
    unknown = sorted(set(frame.columns) - SOURCE_COLUMNS)
    if not lacking and not unknown:
        return
    named = [f"lacks {', '.join(lacking)}"] if lacking else []
    named += [f"has {', '.join(unknown)}"] if unknown else []
    raise ConfigurationError(
        f"the query hands records over, and its frame {' and '.join(named)}",
        "hand the columns of Spark's Kafka source over unchanged (headers: with the source's "
        "option includeHeaders), or leave records out",
    )


def write_frame(
    frame: Any, planned: PlannedBatch, coordinate_columns: Mapping[str, str] | None
) -> RowsWritten:
    """Write the frame in Spark's tasks. Raises the error of a task whose rows do not fit.

    ``coordinate_columns``: those that say of which record a row is; ``None``: it is that record.
    """
    writer = (
        planned.records_writer()
        if coordinate_columns is None
        else planned.rows_writer(coordinate_columns)
    )
    conf = frame.sparkSession.conf
    before = conf.get(_ARROW_SETTING)
    conf.set(_ARROW_SETTING, str(max(int(before), ARROW_ROWS)) if int(before) > 0 else before)
    try:
        outcomes = frame.mapInArrow(writer, f"{OUTCOME} binary").collect()
    finally:
        conf.set(_ARROW_SETTING, before)  # QUERY-19
    parts: list[RowsWritten] = []
    for row in outcomes:
        part = pickle.loads(bytes(row[OUTCOME]))  # noqa: S301 - our own tasks'
        if isinstance(part, HeadgateError):
            raise part
        parts.append(part)
    return RowsWritten.merge(parts)


def compute_and_discard_rows(frame: Any) -> None:
    """QUERY-9: compute rows and throw them away; Spark has no state of a batch without that."""
    frame.write.format("noop").mode("overwrite").save()


def _read_text_file(session_frame: Any, path: str) -> str:
    """Read a small file wherever the query can: it may be on any file system that Spark knows.

    A path without a scheme is on this machine or, if it is not there, on Spark's default file
    system. Raises ``FileNotFoundError``, or what else reading raises.
    """
    local = _LOCAL_SCHEME.sub("/", path)
    if not _SCHEME.match(local):
        with suppress(FileNotFoundError):
            return Path(local).read_text(encoding="utf-8")
    try:
        (row,) = session_frame.sparkSession.read.text(path, wholetext=True).collect()
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            raise FileNotFoundError(path) from error
        raise
    return str(row[0])
