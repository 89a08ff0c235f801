"""Takes specs from a fleet's topic, and tells its state topic: a worker among others.

A thread of its own has the group's seat, so that brokers which do not answer hold up no look at the
sinks. What it follows is a level: the worker compares it with its processes on each turn.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from headgate.config.worker_settings import WorkerSettings
from headgate.control_protocol.errors import (
    ConfigurationError,
    FleetTopicUnfit,
    HeadgateError,
    SpecNotBelieved,
    Unreachable,
)
from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.kafka.compacted_topics import (
    CompactedProducer,
    CompactedRecord,
    KeyedValue,
    TopicAdmin,
)
from headgate.kafka.fleet_group_member import (
    SlotMember,
    SlotRead,
    SlotsGained,
    SlotsLost,
    SlotsRevoked,
)
from headgate.runtime.fleet.balancer import Balancer
from headgate.runtime.fleet.fleet_records import (
    CommandWire,
    ObservedSink,
    ObservedWorker,
    SinkSpec,
    encode_observed,
    revision_of,
    sink_of_key,
    state_topic_key_of,
)
from headgate.runtime.fleet.fleet_topics import (
    FleetReader,
    missing_topic_error,
    parse_command_record,
    read_reported_lags,
)
from headgate.runtime.fleet.fleet_view import describe_refusal
from headgate.runtime.fleet.followed_specs import FollowedSlots
from headgate.runtime.fleet.linux_process_calls import private_bytes
from headgate.runtime.fleet.outage_log import OutageLog
from headgate.runtime.fleet.sink_files import (
    JVM_MIB_MIN,
    has_own_jvm,
    parse_sink_document,
    with_fleet_defaults,
)
from headgate.runtime.fleet.sink_life import LifeState, Wanted
from headgate.runtime.fleet.spec_source import DesiredSink, ToldSink

_log = redacted_logger("headgate.worker")

_KEY = re.compile(r"[A-Za-z0-9_#-]+")
POLL_S = 0.2
IDENTITY_S = 10.0
"""How often it is asked whether the topic is still the same one."""
AGAIN_S = 5.0
"""After so long a fleet whose topic is gone, or whose brokers refuse, is asked again."""
SIGN_OF_LIFE_S = 5.0
TELL_S = 10.0
"""How often a sink's figures are told that nobody waits for."""
FLUSH_S = 5.0
LAGS_S = 2.0
"""So long may it take to learn which sinks have most to read; no start waits longer (FLEET-12)."""


@dataclass(frozen=True, slots=True)
class _WrittenFile:
    """Holds the desired text of a sink file that its process reads, and why it is refused."""

    text: str
    revision: str
    refused: HeadgateError | None
    has_jvm: bool

    @property
    def may_be_retried(self) -> bool:
        """Return whether it could not be written, which is tried again."""
        return self.refused is not None and self.refused.code == ConfigurationError.code


class FleetMember:
    """Implements ``SpecSource`` (FLEET-7, FLEET-10). ``close`` ends its thread."""

    def __init__(self, settings: WorkerSettings, release: str) -> None:
        self._settings = settings
        self._name = settings.worker.name
        self._release = release
        self._incarnation = uuid.uuid4().hex[:12]
        self._begun_s = time.monotonic()
        self._own_folder = not settings.worker.folder
        # First what may be refused: a folder of its own would stay behind.
        self._producer = CompactedProducer(settings.kafka)
        self._folder = _make_working_folder(settings.worker.folder)
        self._lock = threading.Lock()
        self._followed = FollowedSlots()
        self._specs: Mapping[str, SinkSpec] = {}
        self._lags: Mapping[str, int] = {}
        """What was told of sinks when slots were gained: those that a dead worker leaves."""
        self._owned: frozenset[int] = frozenset()
        self._here: frozenset[int] = frozenset()
        """Slots that nobody else is known to have: also those that were lost and are kept."""
        self._refused: frozenset[str] = frozenset()
        self._written: dict[str, _WrittenFile] = {}
        self._revisions: dict[str, str] = {}
        """FleetCommand revisions by those of the files that were written for them."""
        self._told: dict[str, tuple[ObservedSink, float]] = {}
        self._placed: dict[str, ObservedSink] = {}
        self._alive_s = -math.inf
        self._alive = ObservedWorker(worker=self._name, incarnation=self._incarnation)
        self._seat_trouble = OutageLog(f"fleet {settings.fleet.name} is not heard, sinks go on")
        self._state_trouble = OutageLog("states are not told")
        self._ends = threading.Event()
        self._left = threading.Event()
        self._balancer = Balancer(settings)
        self._thread = threading.Thread(
            target=self._stay_in_group_until_closed, name="headgate-fleet", daemon=True
        )
        self._thread.start()

    # --------------------------------------------------------------------- of the worker's thread

    def read_desired_sinks(self) -> Mapping[str, DesiredSink]:
        """Return the followed specs as desired sinks, each once its file is written."""
        with self._lock:
            specs, lags = self._specs, self._lags
        for key in self._written.keys() - specs.keys():
            del self._written[key]  # its process may still read it: the file stays
        return {
            key: self._prepare_desired_sink(key, spec, lags.get(key, 0))
            for key, spec in specs.items()
        }

    def _prepare_desired_sink(self, key: str, spec: SinkSpec, lag_records: int) -> DesiredSink:
        path = self._folder / f"{key}.toml"
        written = self._written.get(key)
        # Who cleans TMPDIR takes files away that were read long ago; the next start reads it again.
        is_gone = written is not None and not written.refused and _is_gone(path)
        if written is None or is_gone or written.text != spec.file or written.may_be_retried:
            refused: HeadgateError | None = None
            has_jvm = has_own_jvm(spec.file)
            try:
                self._write_file(key, spec, path)
            except HeadgateError as error:
                refused = error
            except OSError as error:
                text = f"{path} cannot be written: {error.strerror}"
                refused = ConfigurationError(text, "correct worker.folder")
            written = _WrittenFile(spec.file, spec.revision, refused, has_jvm)
            self._written[key] = written
        may_mib = spec.memory_mib
        if written.has_jvm and not may_mib and self._settings.worker.memory_mib:
            may_mib = max(self._settings.worker.memory_mib, JVM_MIB_MIN)
        jvm_mib = (may_mib or JVM_MIB_MIN) if written.has_jvm else 0
        wanted = Wanted(written.revision, spec.state, spec.restarts, spec.number, jvm_mib)
        return DesiredSink(path, wanted, may_mib or None, written.refused, lag_records)

    def _write_file(self, key: str, spec: SinkSpec, path: Path) -> None:
        _require_file_names_its_sink(key, spec)
        text = with_fleet_defaults(
            spec.file, sink_of_key(key), self._settings.worker.session_timeout_ms
        )
        content = text.encode()  # not as a locale has it: all sinks would end with the worker
        self._require_folder()
        draft = path.with_suffix(".new")
        draft.write_bytes(content)
        draft.replace(path)
        self._revisions[revision_of(content)] = spec.revision

    def _require_folder(self) -> None:
        """Make the folder again if it is gone. Raises ``ConfigurationError`` if it is not ours."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Below TMPDIR anybody may have made one of its name, and would say which code runs.
        if self._own_folder and self._folder.lstat().st_uid != os.getuid():
            raise ConfigurationError(
                f"{self._folder} was removed, and made anew by another user",
                "set worker.folder, and restart the worker",
            )

    def report_sinks(self, told: Sequence[ToldSink], now_ms: int) -> None:
        """Tell what has changed at once, figures now and then, and that somebody is here.

        Of a slot that was given away its new owner tells: a process that still leaves here would
        take its word back, under the same key.
        """
        now_s = time.monotonic()
        with self._lock:
            specs, here = self._specs, self._here
        self._placed = {observed.key: observed for observed, _ in self._told.values()}
        seen: dict[str, tuple[ObservedSink, float]] = {}
        for each in told:
            observed = self._to_observed_sink(each, specs, now_ms)
            key = state_topic_key_of(observed)
            before, told_s = self._told.get(key, (None, 0.0))
            is_due = before is None or _is_news(before, observed) or now_s - told_s >= TELL_S
            is_due = is_due and (each.name in specs or observed.slot in here)
            if is_due and self._try_enqueue_state(key, encode_observed(observed)):
                before, told_s = observed, now_s
            if before is not None:
                seen[key] = (before, told_s)
        for key in self._told.keys() - seen.keys():
            if self._told[key][0].slot in here and not self._try_enqueue_state(key, None):
                seen[key] = self._told[key]
        self._told = seen
        self._report_worker(now_s, sum(bool(t.life and t.life.has_process) for t in told))

    def _to_observed_sink(
        self, told: ToldSink, specs: Mapping[str, SinkSpec], now_ms: int
    ) -> ObservedSink:
        spec, life = specs.get(told.name), told.life
        before = self._placed.get(told.name)
        slot = spec.slot if spec else before.slot if before else 0
        number = spec.number if spec else before.number if before else 0
        base = ObservedSink(
            key=told.name,
            slot=slot,
            number=number,
            worker=self._name,
            incarnation=self._incarnation,
            state=LifeState.IDLE,
        )
        if life is None:
            refused = told.wanted.refused if told.wanted else None
            code, text = (refused.code, str(refused)) if refused else ("", "")
            return replace(base, state=LifeState.ERROR, code=code, text=text)
        failed = life.state is LifeState.ERROR
        return replace(
            base,
            state=life.state,
            for_ms=max(0, now_ms - life.since_ms),
            revision=self._revisions.get(told.report.revision, told.report.revision)
            if life.has_process
            else "",
            pid=life.pid,
            doing=life.doing or told.waits_for,
            code=life.code if failed else "",
            text=life.text if failed else "",
            tries=life.tries,
            next_try_in_ms=max(0, life.due_ms - now_ms) if failed else None,
            restarts=life.restarts,
            memory_bytes=told.usage.memory_bytes,
            cpu_ms=told.usage.cpu_ms,
            cpu_permille=told.usage.cpu_permille,
            leads=told.report.leads,
            partitions=told.report.partitions,
            lag_records=told.report.lag_records,
        )

    def _report_worker(self, now_s: float, processes: int) -> None:
        with self._lock:
            slots, refused = self._owned, len(self._refused)
        alive = ObservedWorker(
            worker=self._name,
            incarnation=self._incarnation,
            release=self._release,
            slots=tuple(sorted(slots)),
            for_ms=round((now_s - self._begun_s) * 1_000),
            leaving=self._left.is_set() or self._ends.is_set(),
            processes=processes,
            cores=os.cpu_count() or 0,
            memory_bytes=self._alive.memory_bytes,
            refused=refused,
        )
        is_news = (alive.slots, alive.leaving) != (self._alive.slots, self._alive.leaving)
        if not is_news and now_s - self._alive_s < SIGN_OF_LIFE_S:
            return
        alive = replace(alive, memory_bytes=private_bytes(os.getpid()))
        if self._try_enqueue_state(state_topic_key_of(alive), encode_observed(alive)):
            self._alive, self._alive_s = alive, now_s
        self._state_trouble.log_or_end_outage_of_producer(self._producer)

    def _try_enqueue_state(self, key: str, value: bytes | None) -> bool:
        topic = self._settings.fleet.state_topic
        return self._producer.try_enqueue(KeyedValue(topic, 0, key, value))

    def begin_leaving_and_has_left(self) -> bool:
        self._ends.set()
        return self._left.is_set()

    def close(self) -> None:
        self._ends.set()
        self._balancer.close()
        with self._lock:
            here = self._here
        for key, (observed, _) in self._told.items():
            if observed.slot in here:
                self._try_enqueue_state(key, None)
        self._try_enqueue_state(state_topic_key_of(self._alive), None)
        self._producer.flush(FLUSH_S)
        self._thread.join(FLUSH_S)
        if self._own_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    # ---------------------------------------------------------------------------- of its thread

    def _stay_in_group_until_closed(self) -> None:
        admin: TopicAdmin | None = None
        while not self._ends.is_set() and not self._left.is_set():
            try:
                admin = admin or TopicAdmin(self._settings.kafka)
                self._stay_in_group(admin)
                continue
            except HeadgateError as error:
                self._seat_trouble.log_outage_once_per_reason(self._settings.redact(str(error)))
            except Exception:  # noqa: BLE001 - a bug here must stop no sink
                _log.exception(
                    "fleet %s: a bug in headgate; sinks go on", self._settings.fleet.name
                )
            self._ends.wait(AGAIN_S)
        self._left.set()

    def _stay_in_group(self, admin: TopicAdmin) -> None:
        """Hold a seat until asked to leave. Raises ``HeadgateError`` if the topic is gone."""
        fleet, worker = self._settings.fleet, self._settings.worker
        facts = admin.describe_topic(fleet.name)
        if facts is None:
            raise missing_topic_error(fleet.name)
        wire = CommandWire(fleet.signing_keys, facts.topic_id)
        member = SlotMember(
            self._settings.kafka,
            fleet.name,
            fleet.name,
            session_timeout_ms=worker.session_timeout_ms,
            instance_id=worker.name if worker.static_member else "",
        )
        self._followed.on_lost()  # of a seat before this one
        try:
            with closing(member):
                self._follow_slots_until_left(member, wire, admin, facts.topic_id)
        finally:
            self._balancer.start_or_stop(leads=False)  # others balance, where this one has no seat
        self._on_left()

    def _follow_slots_until_left(
        self, member: SlotMember, wire: CommandWire, admin: TopicAdmin, topic_id: TopicId
    ) -> None:
        looked_s = time.monotonic()
        orphans_s = 0.0
        while not self._ends.is_set() and not self._left.is_set():
            self._poll_group(member, wire, admin, topic_id)
            now_s = time.monotonic()
            if now_s - looked_s >= IDENTITY_S:
                looked_s = now_s
                self._orphan_specs_and_raise_if_topic_gone(admin, topic_id)
            if self._followed.orphans and now_s - orphans_s >= IDENTITY_S:
                orphans_s = now_s
                self._release_orphan_specs_applied_again()
            self._balancer.start_or_stop(
                leads=0 in self._followed.owned_and_read_slots and not self._followed.orphans
            )

    def _poll_group(
        self, member: SlotMember, wire: CommandWire, admin: TopicAdmin, topic_id: TopicId
    ) -> None:
        now_ms = time.monotonic_ns() // 1_000_000
        events = member.poll(POLL_S)
        for event in events:
            match event:
                case SlotsGained(slots):
                    self._followed.on_gained(slots, now_ms)
                    self._seat_trouble.end_outage()
                    if slots:
                        self._try_refresh_lags()
                    self._log_slots("gained", slots)
                case SlotsRevoked(slots):
                    # A topic that is gone has no slots, and takes nothing back.
                    self._orphan_specs_and_raise_if_topic_gone(admin, topic_id)
                    self._followed.on_revoked(slots)
                    self._log_slots("gave away", slots)
                case SlotsLost(slots):
                    self._followed.on_lost(slots)
                    self._log_slots("lost (its session has expired)", slots)
                case SlotRead(slot):
                    self._followed.on_slot_read(slot)
                case CompactedRecord():
                    self._followed.on_record(parse_command_record(event, wire))
        self._followed.on_tick(now_ms)
        self._share_followed_specs_with_worker()
        if self._followed.is_drain_requested(self._name, self._incarnation):
            _log.info(
                "worker %s: gives its slots to others, as it is asked to",
                self._name,
                extra=event_extra(LogEvent.SINK_STATE),
            )
            self._left.set()

    def _orphan_specs_and_raise_if_topic_gone(self, admin: TopicAdmin, topic_id: TopicId) -> None:
        """Raise ``FleetTopicUnfit`` if the topic is gone, or another one. What cannot be asked is
        as before."""
        try:
            found = admin.describe_topic(self._settings.fleet.name)
        except Unreachable:
            return
        if found is not None and found.topic_id == topic_id:
            return
        self._followed.on_topic_gone()
        self._share_followed_specs_with_worker()
        if found is None:
            raise missing_topic_error(self._settings.fleet.name)
        raise FleetTopicUnfit(
            f"topic {self._settings.fleet.name} was created anew, without the former specs",
            "apply the folder again: until then each worker goes on with the sinks that it has",
        )

    def _try_refresh_lags(self) -> None:
        """Ask who has most to read, for a worker starts few at a time. Without an answer all wait
        alike."""
        try:
            lags = read_reported_lags(self._settings, LAGS_S)
        except HeadgateError:
            return
        with self._lock:
            self._lags = lags

    def _release_orphan_specs_applied_again(self) -> None:
        """Let go of sinks whose topic was lost, as soon as the fleet has specs of them again."""
        try:
            with closing(FleetReader(self._settings)) as reader:
                records = reader.read_to_end()
        except Unreachable:  # asked again: the seat is none the worse
            return
        said = frozenset(key for _, key in records.specs)
        self._followed.release_orphan_specs(said & self._followed.orphans.keys())
        self._share_followed_specs_with_worker()

    def _share_followed_specs_with_worker(self) -> None:
        """Let the worker's thread see what is followed."""
        refused = {
            f"{record.key} ({SpecNotBelieved.code}): {describe_refusal(record)}"
            for record in self._followed.refused_records()
        }
        for text in sorted(refused - self._refused):
            _log.warning("sink %s", text, extra=event_extra(LogEvent.SINK_STATE))
        specs = self._followed.followed_specs()
        with self._lock:
            self._specs, self._owned = specs, self._followed.owned_and_read_slots
            self._here = frozenset(self._followed.slots)
            self._refused = frozenset(refused)

    def _on_left(self) -> None:
        with self._lock:
            self._specs, self._owned, self._here = {}, frozenset(), frozenset()
        self._followed = FollowedSlots()
        self._left.set()

    def _log_slots(self, what_happened: str, slots: frozenset[int]) -> None:
        if slots:
            some = ", ".join(map(str, sorted(slots)))
            _log.info("worker %s: %s slots %s", self._name, what_happened, some)


def _is_news(last_told: ObservedSink, current: ObservedSink) -> bool:
    """Return whether somebody waits for what has changed: not spans and figures alone."""
    quiet = {"for_ms": 0, "next_try_in_ms": None, "doing": "", "memory_bytes": None}
    quiet |= {"cpu_ms": None, "cpu_permille": None, "lag_records": None}
    return replace(last_told, **quiet) != replace(current, **quiet)  # type: ignore[arg-type]


def _make_working_folder(name: str) -> Path:
    if not name:
        return Path(tempfile.mkdtemp(prefix="headgate-worker-"))
    path = Path(name)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"worker.folder {name} is no folder: {error.strerror}", "name one, or leave it out"
        ) from error
    return path


def _is_gone(path: Path) -> bool:
    """Return whether the file was removed; a disk that does not answer has it still."""
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def _require_file_names_its_sink(key: str, spec: SinkSpec) -> None:
    """Raise ``SpecNotBelieved`` if the file is another sink's, or the key no sink's. What cannot be
    read, its process tells."""
    if not _KEY.fullmatch(key):  # it names a file, which must be in the worker's folder
        raise SpecNotBelieved(f"the spec for {key} names no sink", "remove it from the topic")
    name = (parse_sink_document(spec.file) or {}).get("name")
    if isinstance(name, str) and "${" not in name and name != sink_of_key(key):
        raise SpecNotBelieved(
            f"the spec for {key} holds the file of sink {name}", "apply the folder again"
        )
