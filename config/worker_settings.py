"""Defines the file that the workers of a fleet share with the commands that change it."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from headgate.config.kafka_auth_settings import KafkaAuthSettings
from headgate.config.setting_types import Properties, Secret, Text
from headgate.config.telemetry_and_http_settings import (
    HttpSettings,
    TelemetrySettings,
    require_valid_observability,
)
from headgate.config.validation import require_valid_kafka_settings, require_valid_signing_keys
from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.redaction import Redaction
from headgate.control_protocol.signatures import Keys

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,200}")
_SLOTS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Which fleet it is: all workers and sinks that share one pair of topics."""

    name: Text = "headgate-fleet"
    """Name of the fleet: of its topic, of its consumer group, and of its transactional id; the
    state topic is called NAME-state."""
    slots: Annotated[int, "partitions"] = 64
    """Partitions of the topic when `headgate fleet apply` creates it: several for each worker that
    there may ever be."""
    key: Secret = Secret()
    """Secret that signs every spec, as ${file:PATH} or ${env:NAME}: at least 32 characters, the
    same for all; empty: specs are not signed."""
    accepted_key: Secret = Secret()
    """A second key, accepted while keys are rotated."""

    @property
    def signing_keys(self) -> Keys:
        return Keys(tuple(key.text for key in (self.key, self.accepted_key) if key))

    @property
    def state_topic(self) -> str:
        return f"{self.name}-state"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcessSettings:
    """How a worker runs the sinks that fall to it. Commands do not read it."""

    name: Text = ""
    """Name of this worker, such as the pod's, unique in the fleet; empty: the machine's."""
    folder: Text = ""
    """Folder for the sink files of its processes; empty: one of its own below TMPDIR."""
    memory_mib: Annotated[int, "MiB"] = 1_024
    """Private memory that a sink's process may take, where its spec says nothing; 0: any. One that
    writes with a Spark of its own may take 1,500 at least, with its JVM."""
    jvms_memory_mib: Annotated[int, "MiB"] = 0
    """What all sinks that write with a Spark of their own may be promised here together: others
    wait; 0: the memory of the machine, or of the worker's control group."""
    session_timeout_ms: int = 10_000
    """After so long without a sign of life its sinks go to other workers; brokers allow 6,000 and
    more unless set otherwise."""
    static_member: bool = False
    """Whether its sinks wait for it, for the session's time-out, when it ends: then a restart of
    the worker moves no sink, and its death is noticed as late as ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """A worker's file: the fleet, how to reach its topics, and this worker.

    Building one checks it as a whole. Raises ``ConfigurationError``.
    """

    fleet: FleetSettings = FleetSettings()
    """The fleet."""
    worker: WorkerProcessSettings = WorkerProcessSettings()
    """This worker."""
    kafka: Properties
    """Client settings in librdkafka's names, limited to an allow-list, as in a sink file."""
    kafka_auth: Annotated[KafkaAuthSettings, Field(alias="kafka.auth")] = KafkaAuthSettings()
    """How clients of Kafka get tokens, as in a sink file."""
    http: HttpSettings = HttpSettings()
    """What `headgate serve --fleet` listens to, as in a sink file."""

    def __post_init__(self) -> None:
        name = self.worker.name or socket.gethostname()
        object.__setattr__(self, "worker", replace(self.worker, name=name))
        require_valid_kafka_settings(self.kafka, self.kafka_auth, on_executors=False)
        require_valid_signing_keys("fleet", self.fleet.key, self.fleet.accepted_key)
        require_valid_observability(TelemetrySettings(), self.http)
        _require_valid_fleet(self.fleet)
        _require_valid_worker(self.worker)
        object.__setattr__(self, "kafka", self.kafka_auth.kafka_settings_with_auth_json(self.kafka))

    @property
    def redaction(self) -> Redaction:
        """Return the mask for this file's secrets."""
        tokens = (
            *(self.http.viewer_token.text, self.http.operator_token.text),
            *(self.kafka_auth.client_secret.text, self.kafka_auth.private_key.text),
        )
        return Redaction(
            frozenset((*self.fleet.signing_keys.texts, *filter(None, tokens))) | self.kafka.secrets
        )

    def redact(self, text: str) -> str:
        """Mask this file's secrets in a text from a foreign library."""
        return self.redaction(text)


def _require_valid_fleet(fleet: FleetSettings) -> None:
    if not _TOPIC.fullmatch(fleet.name) or fleet.name in (".", ".."):
        raise ConfigurationError(
            f"fleet.name cannot be {fleet.name!r}",
            "use up to 200 letters, digits, '.', '-' and '_': it names topics",
        )
    if not 1 <= fleet.slots <= _SLOTS_MAX:
        raise ConfigurationError(
            f"fleet.slots cannot be {fleet.slots}", f"it must be from 1 to {_SLOTS_MAX}"
        )


def _require_valid_worker(worker: WorkerProcessSettings) -> None:
    if not worker.name.isprintable() or len(worker.name) > 200:
        raise ConfigurationError(
            f"worker.name cannot be {worker.name!r}", "use up to 200 printable characters"
        )
    if worker.memory_mib < 0:
        raise ConfigurationError(f"worker.memory_mib is {worker.memory_mib}", "0 means any")
    if worker.jvms_memory_mib < 0:
        raise ConfigurationError(
            f"worker.jvms_memory_mib is {worker.jvms_memory_mib}", "0 means what the machine has"
        )
    if worker.session_timeout_ms < 1_000:
        raise ConfigurationError(
            f"worker.session_timeout_ms is {worker.session_timeout_ms}", "use 1000 or more"
        )
