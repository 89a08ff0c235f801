"""A worker's seat in a fleet, whose brokers are played: what it keeps, and what it says."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fleet_records import FILE
from unit.operations.check.test_table_and_catalog import nobody, open_to_all

from headgate.config.load import load_worker_file
from headgate.control_protocol.errors import ConfigurationError, MemberRefused, Unreachable
from headgate.control_protocol.identifiers import TopicId
from headgate.kafka.compacted_topics import CompactedRecord, KeyedValue, TopicFacts
from headgate.kafka.fleet_group_member import SlotEvent, SlotRead, SlotsGained
from headgate.runtime.fleet import fleet_member
from headgate.runtime.fleet.balancer import Balancer
from headgate.runtime.fleet.fleet_member import FleetMember
from headgate.runtime.fleet.fleet_records import CommandWire, Drain, SinkSpec
from headgate.runtime.fleet.outage_log import OutageLog


class Cluster:
    """Brokers as a fleet's member sees them, and every client that it has of them."""

    def __init__(self) -> None:
        self.topic_id: str | None = "one"
        self.events: list[list[SlotEvent]] = []
        self.refusal: MemberRefused | None = None
        self.seats = 0
        self.left = 0
        self.asked_for_specs = 0
        self.failed: list[str] = []
        self.written = False
        self.is_queue_full = False
        self.stored: list[str] = []
        self.leads: list[bool] = []
        self.lags: dict[str, int] | None = {}

    def says(self, *events: SlotEvent) -> None:
        self.events.append([*events])

    def gives(self, *specs: SinkSpec | Drain, slot: int = 0) -> None:
        records = [
            CompactedRecord("fleet", slot, at, 0, each.key, CommandWire().encode(each))
            for at, each in enumerate(specs)
        ]
        self.says(SlotsGained(frozenset({slot})), *records, SlotRead(slot))

    # What stands for a client, or for the balancer.

    def client(self, *_: object) -> Cluster:
        return self

    def seat(self, *_: object, **__: object) -> Cluster:
        self.seats += 1
        return self

    def reader(self, *_: object) -> Cluster:
        self.asked_for_specs += 1
        raise Unreachable("the brokers are away")

    def read_reported_lags(self, *_: object) -> dict[str, int]:
        if self.lags is None:
            raise Unreachable("the brokers are away")
        return self.lags

    def describe_topic(self, _: str) -> TopicFacts | None:
        return TopicFacts(TopicId(self.topic_id), 4) if self.topic_id else None

    def poll(self, _: float) -> list[SlotEvent]:
        time.sleep(0.001)
        if self.refusal:
            refusal, self.refusal = self.refusal, None
            raise refusal
        return self.events.pop(0) if self.events else []

    def close(self) -> None:
        self.left += 1

    def try_enqueue(self, value: KeyedValue) -> bool:
        if not self.is_queue_full:
            self.stored.append(value.key)
        return not self.is_queue_full

    def take_failures(self) -> list[str]:
        failed, self.failed = self.failed, []
        return failed

    def take_written_flag(self) -> bool:
        return self.written

    def flush(self, _: float) -> None:
        """Wait for nothing."""

    def start_or_stop(self, *, leads: bool) -> None:
        self.leads.append(leads)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    played = Cluster()
    for name in ("TopicAdmin", "CompactedProducer", "Balancer"):
        monkeypatch.setattr(fleet_member, name, played.client)
    monkeypatch.setattr(fleet_member, "SlotMember", played.seat)
    monkeypatch.setattr(fleet_member, "FleetReader", played.reader)
    monkeypatch.setattr(fleet_member, "read_reported_lags", played.read_reported_lags)
    for name in ("AGAIN_S", "IDENTITY_S", "SIGN_OF_LIFE_S"):
        monkeypatch.setattr(fleet_member, name, 0.02)
    return played


@pytest.fixture
def member(cluster: Cluster, tmp_path: Path) -> Iterator[FleetMember]:
    file = tmp_path / "worker.toml"
    file.write_text(
        f'[fleet]\nname = "fleet"\n[worker]\nname = "w0"\nfolder = "{tmp_path}/sinks"\n'
        '[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'
    )
    made = FleetMember(load_worker_file(file), "0.1.0")
    yield made
    made.close()


def wait_until(is_so: Callable[[], Any]) -> None:
    until_s = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def spec(key: str = "trips", file: str = FILE) -> SinkSpec:
    return SinkSpec(key=key, slot=0, number=1, file=file)


def test_a_file_is_written_as_utf_8_in_any_locale(
    cluster: Cluster, member: FleetMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("io.text_encoding", lambda encoding, *_: encoding or "ascii")
    cluster.gives(spec(file=f"{FILE}# \u20ac\n"))
    wait_until(lambda: "trips" in member.read_desired_sinks())
    found = member.read_desired_sinks()["trips"]
    assert found.refused is None
    assert "# \u20ac" in found.file.read_text(encoding="utf-8")


@pytest.mark.parametrize("gone", ["file", "folder"])
def test_a_file_that_was_cleaned_away_is_written_again(
    cluster: Cluster, member: FleetMember, gone: str
) -> None:
    cluster.gives(spec())
    wait_until(lambda: "trips" in member.read_desired_sinks())
    written = member.read_desired_sinks()["trips"]
    text = written.file.read_text()
    written.file.unlink()
    if gone == "folder":
        written.file.parent.rmdir()
    assert member.read_desired_sinks()["trips"] == written
    assert written.file.read_text() == text


def test_a_file_on_a_disk_that_does_not_answer_is_as_it_was(
    cluster: Cluster, member: FleetMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.gives(spec())
    wait_until(lambda: "trips" in member.read_desired_sinks())
    written = member.read_desired_sinks()["trips"]

    def fail(path: Path, **_: bool) -> None:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    monkeypatch.setattr(Path, "stat", fail)
    assert member.read_desired_sinks()["trips"] == written


def test_a_working_folder_below_one_that_may_not_be_searched_is_refused(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    tmp_path.chmod(0)
    try:
        with nobody(), pytest.raises(ConfigurationError, match="Permission denied"):
            fleet_member._make_working_folder(f"{tmp_path}/sinks")
    finally:
        tmp_path.chmod(0o755)


def test_a_folder_below_tmpdir_that_another_user_made_anew_takes_no_file(
    cluster: Cluster, member: FleetMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    member._own_folder = True
    monkeypatch.setattr(fleet_member.os, "getuid", lambda: -1)
    cluster.gives(spec())
    wait_until(lambda: "trips" in member.read_desired_sinks())
    found = member.read_desired_sinks()["trips"]
    assert "made anew by another user" in str(found.refused)
    assert not found.file.exists()


@pytest.mark.parametrize("key", ["../outside", "a/b", "nul\0"])
def test_a_key_that_is_no_sink_s_writes_no_file(
    cluster: Cluster, member: FleetMember, key: str
) -> None:
    cluster.gives(spec(key, 'name = "${env:ANY}"'), spec("trips#2"))
    wait_until(lambda: member.read_desired_sinks().keys() == {key, "trips#2"})
    found = member.read_desired_sinks()
    assert "names no sink" in str(found[key].refused)
    assert not found[key].file.exists()
    assert found["trips#2"].refused is None


def test_fleet_9_brokers_that_are_away_while_orphans_are_asked_for_cost_no_seat(
    cluster: Cluster, member: FleetMember
) -> None:
    cluster.gives(spec())
    wait_until(lambda: "trips" in member.read_desired_sinks())
    cluster.topic_id = "another"
    wait_until(lambda: cluster.seats == 2)
    wait_until(lambda: cluster.asked_for_specs > 2)
    assert (cluster.seats, cluster.left) == (2, 1), "it has kept its seat"
    assert "trips" in member.read_desired_sinks()


def test_fleet_10_who_is_drained_balances_no_more(cluster: Cluster, member: FleetMember) -> None:
    cluster.gives(spec())
    wait_until(lambda: True in cluster.leads)
    drain = Drain(worker="w0", incarnation=member._incarnation, slot=0, number=2)
    value = CommandWire().encode(drain)
    cluster.says(CompactedRecord("fleet", 0, 5, 0, drain.key, value))
    wait_until(lambda: cluster.left == 1)
    wait_until(lambda: cluster.leads[-1] is False)


def test_who_lost_the_topic_balances_no_more(cluster: Cluster, member: FleetMember) -> None:
    cluster.gives(spec())
    wait_until(lambda: True in cluster.leads)
    cluster.topic_id = None
    wait_until(lambda: cluster.leads[-1] is False)
    assert "trips" in member.read_desired_sinks()


def test_a_refused_seat_is_asked_for_again_and_each_outage_is_told(
    cluster: Cluster, member: FleetMember, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> int:
        return sum("HG-166" in each.message for each in caplog.records)

    cluster.gives(spec())
    for outage in (1, 2):
        wait_until(lambda: "trips" in member.read_desired_sinks())
        cluster.refusal = MemberRefused("the cluster refuses this worker for good: fenced")
        wait_until(lambda outage=outage: cluster.seats == outage + 1)
        assert told() == outage
        assert "trips" in member.read_desired_sinks(), "its sinks go on"
        cluster.gives(spec())
        wait_until(lambda: not cluster.events)


def test_two_workers_of_one_name_are_told_once_until_it_is_over(
    member: FleetMember, caplog: pytest.LogCaptureFixture
) -> None:
    balancer = Balancer(member._settings)
    for names in (["w0"], ["w0"], [], ["w0"]):
        balancer._log_shared_worker_names(names)
    told = [each.message for each in caplog.records if "HG-166" in each.message]
    assert len(told) == 2
    assert "two workers are called w0" in told[0]


def test_each_outage_of_the_state_topic_is_told_once(
    cluster: Cluster, member: FleetMember, caplog: pytest.LogCaptureFixture
) -> None:
    for failures, written in ((["away"], False), (["away"], False), ([], True), (["away"], False)):
        cluster.failed, cluster.written = failures, written
        time.sleep(0.05)
        member.report_sinks([], 0)
    assert sum("states are not told: away" in each.message for each in caplog.records) == 2


def test_a_sign_of_life_that_the_full_queue_refused_is_given_again(
    cluster: Cluster, member: FleetMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_member, "SIGN_OF_LIFE_S", 3_600)
    cluster.is_queue_full = True
    member.report_sinks([], 0)
    assert cluster.stored == []
    cluster.is_queue_full = False
    for _ in range(2):
        member.report_sinks([], 0)
        assert len(cluster.stored) == 1


def test_failures_to_write_are_told_once_until_something_was_written(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    trouble = OutageLog("states are not taken back")
    for failures, written in (("no right", False), ("no right", True), ("", True), ("no right", 0)):
        cluster.failed, cluster.written = [failures] if failures else [], bool(written)
        trouble.log_or_end_outage_of_producer(cluster)  # type: ignore[arg-type]
    assert [each.message for each in caplog.records] == 2 * ["states are not taken back: no right"]


def test_fleet_12_a_gained_sink_has_the_lag_that_its_former_worker_told(
    cluster: Cluster, member: FleetMember
) -> None:
    cluster.lags = {"trips": 12_345}
    cluster.gives(spec(), spec("zones"))
    wait_until(lambda: len(member.read_desired_sinks()) == 2)
    lags = {key: each.lag_records for key, each in member.read_desired_sinks().items()}
    assert lags == {"trips": 12_345, "zones": 0}


def test_fleet_12_without_an_answer_about_lags_sinks_are_wanted_all_the_same(
    cluster: Cluster, member: FleetMember
) -> None:
    cluster.lags = None
    cluster.gives(spec())
    wait_until(lambda: "trips" in member.read_desired_sinks())
    assert cluster.seats == 1


@pytest.mark.parametrize(
    ("spark", "desired_mib", "may_mib", "jvm_mib"),
    [
        ("", 0, 1_500, 1_500),
        ("", 4_000, 4_000, 4_000),
        ('[spark]\nwriter = "in-process"', 0, None, 0),
        ('[spark]\nremote = "sc://spark:15002"', 700, 700, 0),
    ],
)
def test_fleet_13_a_sink_with_a_jvm_is_promised_memory_for_it(
    cluster: Cluster,
    member: FleetMember,
    *,
    spark: str,
    desired_mib: int,
    may_mib: int | None,
    jvm_mib: int,
) -> None:
    file = f"{FILE}{spark}\n"
    cluster.gives(SinkSpec(key="trips", slot=0, number=1, file=file, memory_mib=desired_mib))
    wait_until(lambda: "trips" in member.read_desired_sinks())
    wanted = member.read_desired_sinks()["trips"]
    assert (wanted.memory_mib, wanted.wanted.jvm_mib) == (may_mib, jvm_mib)
