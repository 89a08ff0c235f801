"""Keeps Iceberg's Kafka Connect sink from committing to a table that a sink has taken over.

Before it commits, the connector looks in the branch's live snapshots for its position in the
control topic, and leaves out what lies before it. A snapshot of ours that carries the last position
there can be keeps it from adding anything: what it had under way when it was taken over, and what
it announces if it is started again (rule TAKEOVER-11).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping

from headgate.control_protocol.commit_record_codec import holds_record
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.table_history import FencedConnector

_TAKEN = ".took-over"
_KEPT_MS = 7 * 24 * 3_600_000
"""Kafka has ended a connector's transactions and sessions, and forgotten its group, by then."""


PASSED = 2**63 - 1
"""Where the connector finds itself: behind everything that it will ever announce."""


def connector_position_property(control_topic: str, group: str) -> str:
    """Return the property in which the connector stores its position in the control topic."""
    return f"kafka.connect.offsets.{control_topic}.{group}"


def mark_property_for_ends(
    control_topic: str, group: str, ends: Mapping[int, int]
) -> dict[str, str]:
    """Return the mark that lets the connector go on behind ``ends``, and nothing before them."""
    mark = {str(partition): end for partition, end in sorted(ends.items())}
    return {
        connector_position_property(control_topic, group): json.dumps(mark, separators=(",", ":"))
    }


def properties_of_fence(
    sink: SinkName, control_topic: str, group: str, ends: Mapping[int, int]
) -> dict[str, str]:
    """Return what a takeover's snapshot carries: the connector's own mark, and for how long commits
    repeat it."""
    at = {str(partition): end for partition, end in sorted(ends.items())}
    until_ms = int(time.time() * 1000) + _KEPT_MS
    taken = {"group": group, "control_topic": control_topic, "ends": at, "until_ms": until_ms}
    return {
        **mark_property_for_ends(control_topic, group, dict.fromkeys(ends, PASSED)),
        _takeover_property_name(sink): json.dumps(taken, separators=(",", ":")),
    }


def is_fence_mark(mark: str) -> bool:
    """Return whether a mark was set by a takeover, and not by the connector or on the way back."""
    return PASSED in json.loads(mark).values()


def sinks_that_fence(properties: Mapping[str, str]) -> frozenset[str]:
    """Return the sinks whose takeover a snapshot shows."""
    return frozenset(
        key.removeprefix("headgate.").removesuffix(_TAKEN) for key in properties if _TAKEN in key
    )


def find_fenced_connector(
    sink: SinkName, newest_first: Iterable[tuple[int, Mapping[str, str]]]
) -> FencedConnector | None:
    """Return the connector that is kept away, and what it has committed beside the sink.

    ``newest_first``: the snapshots of the branch with their properties, newest first.
    """
    group, mark = "", ""
    since_takeover = list[int]()
    passed = list[tuple[int, Mapping[str, str]]]()
    for snapshot_id, properties in newest_first:
        text = properties.get(_takeover_property_name(sink))
        if text is None and not group and holds_record(sink, properties):
            return None
        if text is None:
            passed.append((snapshot_id, properties))
            continue
        taken = json.loads(text)
        if not group:
            if time.time() * 1000 > taken["until_ms"]:
                return None
            group = taken["group"]
            mark = connector_position_property(taken["control_topic"], group)
        since_takeover += (each for each, found in passed if mark in found)
        passed.clear()
    return FencedConnector(group, tuple(since_takeover)) if group else None


def fence_properties_to_repeat(sink: SinkName, properties: Mapping[str, str]) -> dict[str, str]:
    """Return what the next commit repeats of the sink's newest snapshot: nothing after a week."""
    text = properties.get(_takeover_property_name(sink))
    if text is None:
        return {}
    taken = json.loads(text)
    if time.time() * 1000 > taken["until_ms"]:
        return {}
    own = {
        _takeover_property_name(sink),
        connector_position_property(taken["control_topic"], taken["group"]),
    }
    return {key: properties[key] for key in own if key in properties}


def _takeover_property_name(sink: SinkName) -> str:
    return f"headgate.{sink}{_TAKEN}"
