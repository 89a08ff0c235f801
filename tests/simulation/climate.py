"""Draws a seed's faults once, so that they occur both alone and together."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from headgate.coordinator.driver import StartAt
from headgate.coordinator.settings import (
    CoordinatorSettings,
    OffsetPolicy,
    RollbackPolicy,
    TableRecreatedPolicy,
    TagMissingPolicy,
    TimeoutPolicy,
)
from headgate.participant.settings import ParticipantSettings

FOR_EVER_MS = 10**9
AGE_ROUNDS = 4
LOOKS, LOOKS_MS = 1 / 4, 400


class Weather(Enum):
    CALM = auto()
    """Nothing fails; members come and go properly, events may come twice. Nothing may be wasted."""

    SLOW = auto()
    """Nothing fails, but some participant is always slower than the time-out."""

    WILD = auto()
    """Everything fails, more or less of it."""

    UPHEAVAL = auto()
    """Somebody breaks the table or the source, amid a few failures; a policy says what then."""


class Handover(Enum):
    """How the group moves a partition from one member to another."""

    COOPERATIVE = auto()
    EAGER = auto()
    """Everybody gives everything up first."""
    GRADUAL = auto()
    """As with KIP-848: one partition at a time, each member when it gets round to it."""
    LATE = auto()
    """The next owner has it already when the previous one is told."""


@dataclass
class Rates:
    """How likely each strike is, per opportunity; 0 once the faults have stopped."""

    kill: float = 0.0
    stall: float = 0.0
    slow: float = 0.0
    commit: float = 0.0
    lie: float = 0.0
    append: float = 0.0
    torn: float = 0.0
    """Of several messages of one append only the first arrive."""
    again: float = 0.0
    batch: float = 0.0
    event: float = 0.0


@dataclass
class Climate:
    weather: Weather
    rates: Rates
    nodes: int
    partitions: int
    handover: Handover
    works_ms: tuple[int, ...]
    sluggish: frozenset[int]
    """These nodes' batches always take ``SLUGGISH_MS``."""
    deaf: float
    """How likely a coordinator hears nothing in a turn, though there is something."""
    part_bytes: int | None
    """Statuses are cut into parts of so many bytes, and travel through the real codec."""
    start_at: StartAt
    coordinators: CoordinatorSettings
    participants: ParticipantSettings
    faults_until_ms: int
    upheaval: str | None = None
    upheaval_ms: int = 0
    """When; 0: after a third of the time of the faults."""
    elections: bool = False
    """In calm weather the election partition moves too, and the control topic gets lost."""
    split: bool = False
    """One member never learns that it lost its seat, and leads for ever if it did."""
    pauses: bool = False
    poison: bool = False
    outages: bool = True
    expected: frozenset[str] = field(default_factory=frozenset)
    """Codes of the errors that may stop the sink."""

    @property
    def looks_round(self) -> bool:
        return self.coordinators.table_check_interval_ms == LOOKS_MS


SLUGGISH_MS = 1_800
UPHEAVALS = ("roll back", "delete tag", "recreate table", "recreate topic", "expire source")


def drawn(dice: random.Random) -> Climate:
    weather = dice.choices(list(Weather), (4, 1, 12, 3))[0]
    calm = weather in (Weather.CALM, Weather.SLOW)
    climate = Climate(
        weather=weather,
        rates=_calm_rates(dice) if calm else _wild_rates(dice),
        nodes=dice.randint(1, 3),
        partitions=dice.randint(1, 3),
        handover=Handover.COOPERATIVE if calm else dice.choice(list(Handover)),
        works_ms=(0, 20, 100) if calm else (0, 20, 200, 1_500),
        sluggish=frozenset(),
        deaf=dice.choice((0, 0, 0.3)) if calm else dice.choice((0, 0, 0.5, 0.9)),
        part_bytes=dice.choice((None, None, None, None, 300)),
        start_at=StartAt(dice.choice(("earliest", "earliest", "earliest", "latest"))),
        coordinators=_coordinators(dice, weather),
        participants=_participants(dice, weather),
        faults_until_ms=dice.choice((2_000, 4_000, 8_000)),
        elections=dice.random() < 0.5,
        pauses=dice.random() < 0.1,
        outages=not calm,
    )
    if weather is Weather.WILD:
        climate.split = climate.nodes > 1 and dice.random() < 0.12
    if weather is Weather.SLOW:
        climate.sluggish = frozenset({dice.randrange(climate.nodes)})
    if weather is Weather.UPHEAVAL:
        _breaks(climate, dice)
    return climate


def limited(climate: Climate, dice: random.Random) -> None:
    """One seed in twelve ends transactions by size, or by size alone (COMMIT-5).

    Where that makes the interval longer, files have ``AGE_ROUNDS`` of it to be committed. With the
    3,000 ms of the short intervals a round of 2,000 ms outlived its own files, also in the calm:
    no sink file may say that (TOKEN-1), and a sink that refuses such files is right (seeds 3686,
    9136).
    """
    if dice.random() < 1 / 12:
        given = climate.coordinators
        records = dice.choice((1, 10, 40))
        interval_ms = dice.choice((given.commit_interval_ms, 2_000))
        longer = interval_ms > given.commit_interval_ms
        least_ms = AGE_ROUNDS * interval_ms if longer else 0
        climate.coordinators = replace(
            given,
            commit_records=records,
            commit_interval_ms=interval_ms,
            claim_age_max_ms=max(given.claim_age_max_ms, least_ms),
        )


def looks_round(seed: int) -> bool:
    """Whether END looks at the tables every ``LOOKS_MS`` (TABLE-4), not once in ten minutes; by
    dice of its own, so that the other seeds are what they would be without.
    """
    return random.Random(f"looks round {seed}").random() < LOOKS


def looking_round(climate: Climate, seed: int) -> None:
    if looks_round(seed):
        climate.coordinators = replace(climate.coordinators, table_check_interval_ms=LOOKS_MS)


def _calm_rates(dice: random.Random) -> Rates:
    """Answers get lost and events come late or twice: all that may cost time, but no work."""
    return Rates(
        commit=dice.choice((0, 0.2)),
        append=dice.choice((0, 0, 0.1)),
        again=dice.choice((0, 0.2)),
        event=0.15,
    )


def _wild_rates(dice: random.Random) -> Rates:
    return Rates(
        kill=dice.choice((0, 0.002, 0.008)),
        stall=dice.choice((0, 0.006, 0.03)),
        slow=dice.choice((0, 0, 0.1)),
        commit=dice.choice((0, 0.15, 0.5)),
        lie=dice.choice((0, 0, 0, 0.1)),
        append=dice.choice((0, 0.05, 0.2)),
        torn=dice.choice((0, 0.05, 0.2)),
        again=dice.choice((0, 0.05, 0.3)),
        batch=dice.choice((0, 0.05, 0.2)),
        event=dice.choice((0.1, 0.3)),
    )


def _coordinators(dice: random.Random, weather: Weather) -> CoordinatorSettings:
    wild = weather in (Weather.WILD, Weather.UPHEAVAL)
    return CoordinatorSettings(
        commit_interval_ms=dice.choice((100, 300, 1_000)),
        commit_timeout_ms=3_000 if weather is Weather.CALM else dice.choice((800, 1_500)),
        timeout_policy=dice.choice(list(TimeoutPolicy)),
        rebalance_delay_ms=100,
        election_timeout_ms=1_000,
        idleness_ms=dice.choice((2_000, FOR_EVER_MS, FOR_EVER_MS)),
        claim_age_max_ms=dice.choice((3_000, FOR_EVER_MS)) if wild else FOR_EVER_MS,
        delivery_timeout_ms=100,
        retry_backoff_ms=20,
        retry_backoff_max_ms=300,
        on_rollback=dice.choice(list(RollbackPolicy)),
        on_tag_missing=dice.choice(list(TagMissingPolicy)),
        on_table_recreated=dice.choice(list(TableRecreatedPolicy)),
        on_offset_out_of_range=dice.choice(list(OffsetPolicy)),
        on_topic_recreated=dice.choice(list(OffsetPolicy)),
    )


def _participants(dice: random.Random, weather: Weather) -> ParticipantSettings:
    return ParticipantSettings(
        batch_records_max=dice.choice((5, 30)),
        presence_interval_ms=1_000,
        end_offset_interval_ms=100,
        release_timeout_ms=FOR_EVER_MS if weather is Weather.CALM else 300,
        retry_backoff_ms=50,
    )


def _breaks(climate: Climate, dice: random.Random) -> None:
    climate.upheaval = dice.choice((*UPHEAVALS, "poison"))
    climate.rates.kill /= 2
    climate.rates.lie = 0
    climate.poison = climate.upheaval == "poison"
    climate.expected = EXPECTED[climate.upheaval](climate.coordinators)


def _stops(policy: str, *codes: str) -> frozenset[str]:
    return frozenset(codes) if policy == "fail" else frozenset()


EXPECTED = {
    # under "follow-table" snapshots may have expired, or no commit of ours may be left to follow
    "roll back": lambda s: (
        frozenset({"HG-201", "HG-204"})
        if s.on_rollback != RollbackPolicy.KEEP_OFFSETS
        else frozenset()
    ),
    "delete tag": lambda s: _stops(s.on_tag_missing, "HG-203"),
    # a zombie of the table before may deliver to a secondary table that the new one has claimed
    # (seed 201305)
    "recreate table": lambda s: _stops(s.on_table_recreated, "HG-202", "HG-215"),
    "recreate topic": lambda s: _stops(s.on_topic_recreated, "HG-206"),
    "expire source": lambda s: _stops(s.on_offset_out_of_range, "HG-205"),
    "poison": lambda s: frozenset({"HG-207"}),
}
"""Which errors may stop the sink after each upheaval; every other stop is a violation."""
