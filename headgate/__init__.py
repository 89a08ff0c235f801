"""headgate: Kafka topics into lake tables, exactly once.

``load`` reads a sink file, ``run`` runs one participant until it is stopped, ``Sink`` is a
participant that your own loop drives (several share a process), and ``open_task`` is one inside
your own consumer loop. Errors are in ``headgate.control_protocol.errors``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.config.load import load
    from headgate.kafka.push_source import Record, Steering
    from headgate.kafka.user_consumer import ConsumerSteering, partitions_of, records_of
    from headgate.runtime.assembly import open_task
    from headgate.runtime.embedded_sink_task import SinkTask
    from headgate.runtime.process import run
    from headgate.runtime.sink import Sink

__all__ = [
    "ConsumerSteering",
    "Record",
    "Sink",
    "SinkTask",
    "Steering",
    "load",
    "open_task",
    "partitions_of",
    "records_of",
    "run",
]

_HOMES = {
    "ConsumerSteering": "headgate.kafka.user_consumer",
    "Record": "headgate.kafka.push_source",
    "Sink": "headgate.runtime.sink",
    "SinkTask": "headgate.runtime.embedded_sink_task",
    "Steering": "headgate.kafka.push_source",
    "load": "headgate.config.load",
    "open_task": "headgate.runtime.assembly",
    "partitions_of": "headgate.kafka.user_consumer",
    "records_of": "headgate.kafka.user_consumer",
    "run": "headgate.runtime.process",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: the protocol alone needs neither Kafka nor Arrow."""
    if name not in _HOMES:
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names, although most are not imported yet: completion asks for them."""
    return __all__
