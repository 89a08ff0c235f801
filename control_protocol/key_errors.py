"""Errors of tables whose rows have a key: each stops the sink, and a person decides."""

from __future__ import annotations

from headgate.control_protocol.errors import StopBefore, StopSink


class KeyChanged(StopSink):
    """The table was filled by another key than the settings name."""

    code = "HG-240"


class KeyInTwoPartitions(StopSink):
    """Records of one key are in different partitions, and no order tells which one is newer."""

    code = "HG-241"


class KeyedPartitionsAdded(StopSink):
    """The topics of a keyed table have new partitions, to which keys may have moved."""

    code = "HG-242"


class GrowthUnordered(StopSink):
    """Partitions were added so that keys move between the ones that were there before."""

    code = "HG-222"


class KeyIndexFull(StopSink):
    """The keys of the table need more memory than the settings allow."""

    code = "HG-243"


class KeysUnreadable(StopSink):
    """A file of a keyed table does not tell the keys and records of its rows."""

    code = "HG-244"


class SourceTruncated(StopBefore):
    """A record reports that the table at its source was truncated; no setting says what to do."""

    code = "HG-245"
