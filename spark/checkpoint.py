"""Reads what Spark writes into a query's checkpoint before a batch runs (QUERY-11)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any

from headgate.control_protocol.errors import CheckpointUnreadable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.spark_batch_decision import ProposedBatch

_VERSION = "v1"
_UNUSED = "-"
"""Stands for a source that has given nothing yet."""


def read_proposed_batch(
    checkpoint: str, number: int, read: Callable[[str], str], *, spark_version: str = ""
) -> ProposedBatch:
    """Return the batch of this number. Raises ``CheckpointUnreadable``.

    ``read`` returns the text of a file by its path, or raises what reading it raises:
    ``FileNotFoundError`` if it is not there.
    """
    log = _CheckpointLog(checkpoint.rstrip("/"), read, spark_version)
    ends = log.read_source_lines(f"offsets/{number}")
    end = _parse_kafka_offsets(ends)
    before = log.read_source_lines(f"offsets/{number - 1}") if number else []
    begins = [
        log.read_initial_offset_line(source, needed=bool(end) and last != _UNUSED)
        if line == _UNUSED
        else line
        for source, (line, last) in enumerate(zip_longest(before, ends, fillvalue=_UNUSED))
    ]
    query = log.read_query_id()
    begin = _parse_kafka_offsets(begins)
    if begin is None or end is None:
        return ProposedBatch(query, number, by_number=True)
    added = {at: 0 for at in end if at not in begin}  # Spark reads new partitions from the first
    return ProposedBatch(query, number, begin.with_offsets(added), end)


class _CheckpointLog:
    def __init__(self, root: str, read: Callable[[str], str], spark_version: str) -> None:
        self._root = root
        self._read = read
        self._spark = f" (Spark {spark_version})" if spark_version else ""

    def read_query_id(self) -> str:
        try:
            return str(json.loads(self._read_text_file("metadata"))["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged_error("metadata") from error

    def read_source_lines(self, name: str) -> list[str]:
        """Return the line of each source."""
        lines = self._read_lines(name)
        if len(lines) < 3:  # the version, Spark's own metadata, and at least one source
            raise self._damaged_error(name)
        return [line.strip() for line in lines[2:]]

    def read_initial_offset_line(self, source: int, *, needed: bool) -> str:
        """Return where a source began. Only Kafka's says it, and of others it is not ``needed``."""
        try:
            lines = self._read_lines(f"sources/{source}/0")
        except _FileMissing:
            if needed:
                raise
            return _UNUSED
        return lines[-1].strip()

    def _read_lines(self, name: str) -> list[str]:
        # A zero byte precedes what the Kafka source writes, for the sake of Spark 2.1.
        lines = self._read_text_file(name).lstrip("\0").strip("\n").split("\n")
        if lines[0].strip() != _VERSION:
            raise CheckpointUnreadable(
                f"{self._root}/{name} has the version {lines[0][:40]!r}, not {_VERSION}"
                f"{self._spark}",
                "use a Spark that writes version 1 (docs/guides/spark-query.md)",
            )
        return lines

    def _read_text_file(self, name: str) -> str:
        path = f"{self._root}/{name}"
        try:
            return self._read(path)
        except Exception as error:
            # Where a source began is not there for all kinds: that says which kind it is.
            kind = _FileMissing if isinstance(error, FileNotFoundError) else CheckpointUnreadable
            raise kind(
                f"{path} cannot be read: {type(error).__name__}",
                "name the checkpoint folder that the query itself uses; if that is gone, start "
                "with an empty one",
            ) from error

    def _damaged_error(self, name: str) -> CheckpointUnreadable:
        return CheckpointUnreadable(
            f"{self._root}/{name} is cut off or no file of Spark's{self._spark}",
            "restore it, or start the query with an empty checkpoint folder",
        )


class _FileMissing(CheckpointUnreadable):
    """A file is not there."""


def _parse_kafka_offsets(lines: Iterable[str]) -> Offsets | None:
    """Return the offsets, ``None`` if they place no batch (QUERY-10).

    They may be empty: Kafka's source writes ``{}`` while no topic fits its pattern.
    """
    found: dict[TopicPartition, int] = {}
    given = [line for line in lines if line != _UNUSED]
    for line in given:
        offsets = _parse_offset_line(line)
        if offsets is None:
            return None
        for at, offset in offsets:
            if at in found:  # read twice, as by a join with itself
                return None
            found[at] = offset
    return Offsets(found) if given else None


def _parse_offset_line(line: str) -> list[tuple[TopicPartition, int]] | None:
    try:
        topics: Any = json.loads(line)
    except ValueError as error:
        raise CheckpointUnreadable(
            f"the offset log holds {line[:60]!r}, which is cut off",
            "restore the file, or start the query with an empty checkpoint folder",
        ) from error
    if not isinstance(topics, dict) or not all(isinstance(each, dict) for each in topics.values()):
        return None
    found = [(topic, *each) for topic, places in topics.items() for each in places.items()]
    if not all(
        place.isdecimal() and type(offset) is int and offset >= 0 for _, place, offset in found
    ):
        return None
    return [(TopicPartition(topic, int(place)), offset) for topic, place, offset in found]
