"""Keeps Iceberg's Kafka Connect sink from committing to a table that a sink has taken over.

Before it commits, the connector looks in the branch's live snapshots for its position in the
control topic, and leaves out what lies before it. A snapshot of ours that carries such a position,
the end of the topic, keeps it from adding what it had under way (rule TAKEOVER-11).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from headgate.control_protocol.identifiers import SinkName

_KEPT_MS = 7 * 24 * 3_600_000
"""Kafka has ended a connector's transactions and sessions, and forgotten its group, by then."""


def mark_property(control_topic: str, group: str) -> str:
    """Return the property in which the connector stores its position in the control topic."""
    return f"kafka.connect.offsets.{control_topic}.{group}"


def fence_properties(
    sink: SinkName, control_topic: str, group: str, ends: Mapping[int, int]
) -> dict[str, str]:
    """Return what a takeover's snapshot carries: the connector's own mark, and for how long commits
    repeat it."""
    mark = {str(partition): end for partition, end in sorted(ends.items())}
    until_ms = int(time.time() * 1000) + _KEPT_MS
    taken = {"group": group, "control_topic": control_topic, "ends": mark, "until_ms": until_ms}
    return {
        mark_property(control_topic, group): json.dumps(mark, separators=(",", ":")),
        _taken_property(sink): json.dumps(taken, separators=(",", ":")),
    }


def kept_fence(sink: SinkName, properties: Mapping[str, str]) -> dict[str, str]:
    """Return what the next commit repeats of the sink's newest snapshot: nothing after a week."""
    text = properties.get(_taken_property(sink))
    if text is None:
        return {}
    taken = json.loads(text)
    if time.time() * 1000 > taken["until_ms"]:
        return {}
    own = {_taken_property(sink), mark_property(taken["control_topic"], taken["group"])}
    return {key: properties[key] for key in own if key in properties}


def _taken_property(sink: SinkName) -> str:
    return f"headgate.{sink}.took-over"
