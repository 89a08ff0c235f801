"""Runs a participant on real ports, which also watches for others that commit elsewhere."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import sink_in_offset_metadata
from headgate.control_protocol.ports import PrimaryTable
from headgate.coordinator.service import CoordinatorService
from headgate.kafka.control_log import KafkaLog
from headgate.kafka.source_topics import KafkaSourceTopics
from headgate.participant import driver as participant
from headgate.participant.state import State
from headgate.runtime.misconfigured_participant_detection import MisconfigurationDetector, Sources


@dataclass(slots=True)
class Current:
    """The settings with which the next coordinator's life begins."""

    settings: SinkSettings


class OpenSink(participant.ParticipantDriver):
    """A participant on real ports. Its turns can also raise ``OtherConfiguration`` (rule
    CONFIG-1)."""

    def __init__(
        self,
        initial: State,
        world: participant.World,
        service: CoordinatorService,
        lookout: MisconfigurationDetector,
        *,
        current: Current | None = None,
    ) -> None:
        super().__init__(initial, world)
        self._current = current
        self._service = service
        self._lookout = lookout
        self._clock = world.clock

    def run_once(self, timeout_ms: int) -> None:
        super().run_once(timeout_ms)
        self._lookout.require_not_misconfigured_or_stopped(
            self.state, self._clock.monotonic_ms(), leads=self.leads
        )

    def adopt_settings(self, settings: SinkSettings) -> None:
        """Adopt other intervals and limits: at once here, and from the next START for all."""
        self.state = replace(self.state, settings=settings.participant)
        if self._current:
            self._current.settings = settings
        self._service.adopt_settings(settings.coordinator)

    @property
    def leads(self) -> bool:
        return self._service.driver is not None


def build_misconfiguration_detector(
    settings: SinkSettings, table: PrimaryTable, log: KafkaLog, now_ms: int
) -> MisconfigurationDetector:
    """Build a lookout over the sink's table, group and control topic.

    It reads them in the thread that polls Kafka: each call is bounded by its client, and nobody
    watches these as ``coordinator/service.py`` watches the coordinator's.
    """

    def sinks_in_group() -> frozenset[str]:
        source = settings.source
        with closing(KafkaSourceTopics(settings.kafka, source.topics, source.group_id)) as topics:
            named = map(sink_in_offset_metadata, topics.all_offset_metadata())
            return frozenset(sink for sink in named if sink)

    sources = Sources(
        lambda: table.read().record, sinks_in_group, log.topic_id, log.refused_event_count
    )
    return MisconfigurationDetector(settings, sources, now_ms)
