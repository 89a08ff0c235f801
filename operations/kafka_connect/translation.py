"""Turns a connector's configuration into sink files, and says of each key what became of it."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headgate.config.sink_sections import ControlSettings
from headgate.operations.kafka_connect.catalog_properties import fill_catalog
from headgate.operations.kafka_connect.converters_and_transforms import (
    fill_format_of_converters,
    translate_transforms,
)
from headgate.operations.kafka_connect.kafka_properties import fill_kafka
from headgate.operations.kafka_connect.tables_and_routes import (
    fill_columns_and_creation,
    fill_tables,
    is_routed,
    tables_of,
)
from headgate.operations.kafka_connect.translation_report import Fate, Report, Verdict

APACHE = "org.apache.iceberg.connect.IcebergSinkConnector"
ANCESTOR = "io.tabular.iceberg.connect.IcebergSinkConnector"
_CLASSES = {
    APACHE: APACHE,
    ANCESTOR: ANCESTOR,
    "IcebergSinkConnector": APACHE,
    "IcebergSink": APACHE,
}

_NOT_NEEDED = {
    "name": "it names the sink",
    "connector.class": "read",
    "tasks.max": "start as many participants as you want tasks (headgate run)",
    "tasks.max.enforce": "start as many participants as you want tasks (headgate run)",
    "iceberg.control.topic": "of the connector; a sink has a control topic of its own",
    "iceberg.control.group-id": "participants need no groups for the control topic",
    "iceberg.control.group-id-prefix": "participants need no groups for the control topic",
    "iceberg.connect.group-id": "of the connector; a sink has a group of its own",
    "iceberg.control.commit.timeout-ms": "a slow participant holds nobody else's rows back",
    "iceberg.control.commit.threads": "commits to several tables have threads of their own",
    "iceberg.control.commit.max-consecutive-failures": "failures are tried again, and reported",
    "iceberg.coordinator-executor-keep-alive-timeout-ms": "of the connector's threads",
    "iceberg.coordinator.transactional.prefix": "control events need no transactions",
    "iceberg.coordinator.transactional.suffix": "control events need no transactions",
    "errors.log.enable": "errors are always logged",
    "errors.log.include.messages": "quarantine.excerpts says what errors show of records",
    "errors.retry.timeout": "what did not answer is tried again without end",
    "errors.retry.delay.max.ms": "participant.retry_backoff_max_ms",
    "config.action.reload": "headgate restart",
    "predicates": "told of with the transforms that use them",
    "config.providers": "a sink file has ${env:NAME} and ${file:PATH}",
    "offset.flush.interval.ms": "of Connect's worker",
    "offset.flush.timeout.ms": "of Connect's worker",
    "heartbeat.interval.ms": "of Connect's worker",
    "write.upsert.enabled": "the connector does not know this key",
}
_OF_WORKER = "of Connect's worker"
_NAME_CHARACTERS_MAX = 63
_INTERVAL = "iceberg.control.commit.interval-ms"
_KNOWN_ICEBERG = (
    *(key for key in _NOT_NEEDED if key.startswith("iceberg.")),
    _INTERVAL,
    *("iceberg.tables", "iceberg.tables.dynamic-enabled", "iceberg.tables.route-field"),
    *("iceberg.tables.default-commit-branch", "iceberg.tables.default-id-columns"),
    *("iceberg.tables.default-partition-by", "iceberg.tables.auto-create-enabled"),
    *("iceberg.tables.evolve-schema-enabled", "iceberg.tables.schema-force-optional"),
    *("iceberg.tables.schema-case-insensitive", "iceberg.tables.replace-null-with-default"),
    *("iceberg.catalog", "iceberg.hadoop-conf-dir", "iceberg.catalog.type"),
)


@dataclass(frozen=True, slots=True)
class Translated:
    """One sink file to write, as sections, and what became of each key."""

    name: str
    document: Mapping[str, object]
    fates: tuple[Fate, ...]
    variables: Mapping[str, str]
    """The variables that the file refers to, and the key that each one came from."""

    @property
    def refused_fates(self) -> tuple[Fate, ...]:
        return tuple(fate for fate in self.fates if fate.verdict is Verdict.REFUSED)

    @property
    def fates_to_add_by_hand(self) -> tuple[Fate, ...]:
        return tuple(fate for fate in self.fates if fate.verdict is Verdict.MISSING)


def translate_connector(
    keys: Mapping[str, str],
    worker: Mapping[str, str],
    *,
    left_out: Sequence[str] = (),
    topic: str = "",
) -> tuple[Translated, ...]:
    """Return a sink file for the connector; several where each table gets every record.

    ``left_out``: keys without which to go on, though they are refused. ``topic``: one that the
    connector's pattern matches.
    """
    report = Report(keys, worker)
    tables = tables_of(report)
    several = len(tables) > 1 and not is_routed(report)
    whole = to_sink_name(
        report.connector_value("name") or report.connector_value("iceberg.tables") or "connector"
    )
    names = _sink_names_of_tables(whole, tables) if several else {None: whole}
    return tuple(
        _translate_to_one_sink(keys, worker, name, only_table, left_out=left_out, first_topic=topic)
        for only_table, name in names.items()
    )


def _translate_to_one_sink(
    keys: Mapping[str, str],
    worker: Mapping[str, str],
    name: str,
    only_table: str | None,
    *,
    left_out: Sequence[str],
    first_topic: str,
) -> Translated:
    report = Report(keys, worker)
    for key in left_out:
        report.note_first_fate(key, Verdict.NOT_NEEDED, "left out, as asked")
    report.document["name"] = name
    _note_class(report)
    _fill_topics(report, first_topic)
    fill_kafka(report)
    fill_catalog(report)
    fill_format_of_converters(report)
    fill_tables(report, only_table)
    translate_transforms(report)
    fill_columns_and_creation(report)
    _fill_quarantine(report)
    _fill_commit_interval(report)
    report.ensure_section("spark").setdefault("writer", "in-process")
    _note_other_keys(report)
    fates = tuple(report.fates.values())
    return Translated(name, _in_section_order(report.document), fates, dict(report.variables))


def _sink_names_of_tables(connector: str, tables: Sequence[str]) -> dict[str | None, str]:
    """Return the name of each table's sink; marked where plain names would be the same."""
    plain = {table: to_sink_name(f"{connector}-{table}") for table in tables}
    times = Counter(plain.values())
    return {
        table: name if times[name] == 1 else _with_mark(name, table)
        for table, name in plain.items()
    }


def to_sink_name(text: str) -> str:
    """Return a name that a sink may have; of a longer one the beginning, and a mark."""
    name = re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-_") or "connector"
    return name if len(name) <= _NAME_CHARACTERS_MAX else _with_mark(name, text)


def _with_mark(name: str, text: str) -> str:
    """Return the name's beginning, and what tells it from the names of other texts."""
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[: _NAME_CHARACTERS_MAX - len(mark) - 1]}-{mark}"


def _note_class(report: Report) -> None:
    key = "connector.class"
    found = report.connector_value(key)
    known = _CLASSES.get(found)
    if known == ANCESTOR:
        report.note_dropped(
            (key,),
            "the ancestor of Iceberg's sink: its settings are translated; what its control topic "
            "announces is of another form",
        )
    elif known:
        report.note_dropped((key,), "a sink file is for headgate run")
    else:
        report.note_refused(key, f"{found or 'none'} is not Iceberg's sink ({APACHE})")


def _fill_topics(report: Report, first_topic: str) -> None:
    source = report.ensure_section("source")
    if report.connector_value("topics"):
        source["topics"] = report.connector_list("topics")
        report.note_kept("topics", "source.topics")
        return
    pattern = report.connector_value("topics.regex")
    if not pattern:
        source["topics"] = []
        report.note_refused("topics", "no topic is named, and Connect would not start either")
        return
    whole, apart = f"(?:{pattern})\\Z", ""
    control = ControlSettings().topic  # the connector would have read that as well
    try:
        if any(re.match(whole, name) for name in (control, f"{control}-fleet")):
            apart = f"(?!{control}(?:-.*)?\\Z)"  # those of a fleet's sinks, too
    except re.error as error:
        report.note_refused("topics.regex", f"Java's pattern is none of Python's: {error}")
    leads = first_topic or report.add_variable_reference("topics.regex", "FIRST_TOPIC")
    source["topics"] = [leads, f"^{apart}{whole}"]
    if first_topic:
        report.note_kept(
            "topics.regex", f"source.topics; {first_topic} leads, for a pattern cannot"
        )
    else:
        report.note_to_add_by_hand(
            "topics.regex",
            "a pattern cannot stand first: give --topic NAME, one that matches it and will stay, "
            "or set FIRST_TOPIC",
        )


def _fill_quarantine(report: Report) -> None:
    quarantine = report.ensure_section("quarantine")
    tolerant = report.connector_value("errors.tolerance").lower() == "all"
    quarantine["policy"] = "quarantine" if tolerant else "fail"
    quarantine["tombstones"] = "skip"  # the connector drops records without a value
    report.note_kept(
        "errors.tolerance",
        "quarantine.policy: where Connect drops a bad record, headgate keeps it"
        if tolerant
        else "quarantine.policy: the sink stops before a bad record",
    )
    key = "errors.deadletterqueue.topic.name"
    if topic := report.connector_value(key):
        if tolerant:
            quarantine["dead_letter_topic"] = report.to_sink_file_value(
                "topic", "DEAD_LETTER", topic
            )
            report.note_kept(key, "quarantine.dead_letter_topic, which must exist")
        else:
            report.note_dropped((key,), "Connect uses it only with errors.tolerance = all")
    report.note_dropped(
        (k for k in report.keys if k.startswith("errors.deadletterqueue.")),
        "the quarantine table has the reason, and the record's place, key and headers",
    )


def _fill_commit_interval(report: Report) -> None:
    text = report.connector_value(_INTERVAL)
    if not text:
        return
    if not text.isdecimal() or int(text) == 0:
        report.note_refused(_INTERVAL, f"{text!r} is not a number of milliseconds")
        return
    coordinator = report.ensure_section("coordinator")
    interval = int(text)
    coordinator["commit_interval_ms"] = interval
    age = 4 * (interval + 30_000)
    if age > 43_200_000:
        coordinator["claim_age_max_ms"] = age
    report.note_kept(_INTERVAL, "coordinator.commit_interval_ms")


def _note_other_keys(report: Report) -> None:
    for key in report.keys:
        if key in report.fates:
            continue
        if key in _NOT_NEEDED:
            report.note_dropped((key,), _NOT_NEEDED[key])
        elif key.startswith("iceberg."):
            near = difflib.get_close_matches(key, _KNOWN_ICEBERG, n=1, cutoff=0.75)
            hint = f"; did you mean {near[0]}?" if near else ""
            report.note_refused(
                key, f"no release up to 1.12 knows it{hint} (--leave-out {key} goes on without it)"
            )
        elif key.startswith(("config.providers.", "consumer.", "producer.", "admin.")):
            report.note_dropped((key,), _OF_WORKER)
        else:
            report.note_dropped((key,), "no key of Connect's, or of Iceberg's sink")


_ORDER = (
    *("source", "kafka", "catalog", "table", "tables", "format"),
    *("quarantine", "coordinator", "spark"),
)


def _in_section_order(document: Mapping[str, object]) -> dict[str, object]:
    ordered = {name: document[name] for name in _ORDER if document.get(name)}
    rest = {name: value for name, value in document.items() if name not in _ORDER}
    return {**rest, **ordered}
