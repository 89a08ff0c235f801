"""The commit record survives the snapshot summary; nothing else is taken for one."""

from __future__ import annotations

import base64
import json
import random
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit, Replayed
from headgate.control_protocol.commit_record_codec import PENDING_COMMITS_MAX, TEXT_BYTES_MAX
from headgate.control_protocol.errors import RecordUnreadable
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets

SINK = SinkName("orders")
LONG = st.integers(0, 2**63 - 1)
TEXT = st.text(max_size=20)
PARTITIONS = st.builds(
    TopicPartition, st.sampled_from(["a", "b.c", "ü"]), st.integers(0, 9) | st.integers(0, 2**31)
).filter(lambda at: at.partition < 2**31)
PENDING_COMMITS = st.builds(
    PendingCommit,
    transaction=st.builds(
        TransactionId, LONG.map(Epoch), st.integers(0, 2**40).map(TransactionNumber)
    ),
    coordinator=st.builds(Sender, TEXT, TEXT),
    secondary=TEXT,
    table=TEXT,
    manifest=TEXT,
    size_bytes=LONG,
    rows=LONG,
    since_ms=LONG,
    deletes=LONG,
)
RECORDS = st.builds(
    CommitRecord,
    sink=st.just(SINK),
    group_id=TEXT,
    transaction=st.builds(
        TransactionId, LONG.map(Epoch), st.integers(0, 2**40).map(TransactionNumber)
    ),
    coordinator=st.builds(Sender, TEXT, TEXT),
    offsets=st.dictionaries(PARTITIONS, LONG).map(Offsets),
    topic_ids=st.dictionaries(TEXT, TEXT.map(TopicId)),
    records=LONG,
    quarantined=LONG,
    skipped=LONG,
    valid_through_ms=st.none() | st.integers(-(2**60), 2**60),
    paused=st.booleans(),
    control_topic=st.none() | TEXT,
    control_topic_id=st.none() | TEXT.map(TopicId),
    command=st.none() | TEXT,
    actor=st.none() | TEXT,
    stopped=st.booleans(),
    primary=st.none() | TEXT,
    secondaries=st.dictionaries(TEXT, TEXT),
    pending_commits=st.lists(PENDING_COMMITS).map(tuple),
    expired=st.lists(PENDING_COMMITS).map(tuple),
    routing=st.none() | TEXT,
    recreated_topics=st.none() | TEXT,
    cohorts=st.dictionaries(
        TEXT,
        st.sets(st.integers(1, 2**31 - 1), min_size=1, max_size=3).map(sorted).map(tuple),
        max_size=2,
    ),
)


def record(offsets: Offsets, **fields: object) -> CommitRecord:
    values: dict[str, object] = {
        "sink": SINK,
        "group_id": "g",
        "transaction": TransactionId(Epoch(3), TransactionNumber(7)),
        "coordinator": Sender("m", "1"),
        "offsets": offsets,
        **fields,
    }
    return CommitRecord(**values)  # type: ignore[arg-type]


def broken(name: str, value: str) -> dict[str, str]:
    summary = commit_record_codec.encode_record(record(Offsets({TopicPartition("a", 0): 1})))
    return {**summary, f"headgate.orders.{name}": value}


@given(RECORDS)
def test_a_record_comes_back_as_it_went(written: CommitRecord) -> None:
    summary = commit_record_codec.encode_record(written)
    assert all(key.startswith("headgate.orders.") for key in summary)
    assert commit_record_codec.decode_record(SINK, {"operation": "append", **summary}) == written


def test_short_offsets_can_be_read_by_a_person() -> None:
    offsets = Offsets(
        {TopicPartition("t", 0): 12, TopicPartition("t", 1): 5, TopicPartition("t", 3): 9}
    )
    summary = commit_record_codec.encode_record(record(offsets, topic_ids={"t": TopicId("kS0b")}))
    assert summary["headgate.orders.offsets"] == (
        '{"t":{"id":"kS0b","offsets":{"0":[12,5],"3":[9]}}}'
    )


def test_runs_end_where_a_topic_or_a_number_does() -> None:
    """Neighbours by number alone: ``b/1`` follows ``a/0`` when they are sorted."""
    at = [("a", 0), ("b", 1), ("b", 2), ("b", 4), ("c", 5), ("ü", 6)]
    offsets = Offsets({TopicPartition(*place): 100 + n for n, place in enumerate(at)})
    written = record(offsets, topic_ids={"a": TopicId("A"), "empty": TopicId("E")})
    text = commit_record_codec.encode_record(written)["headgate.orders.offsets"]
    runs = {topic: state.get("offsets") for topic, state in json.loads(text).items()}

    assert (
        commit_record_codec.decode_record(SINK, commit_record_codec.encode_record(written))
        == written
    )
    assert runs == {
        "a": {"0": [100]},
        "b": {"1": [101, 102], "4": [103]},
        "c": {"5": [104]},
        "empty": None,
        "ü": {"6": [105]},
    }


def test_five_thousand_partitions_fit_in_well_under_64_kilobytes() -> None:
    coin = random.Random(5)
    offsets = Offsets({TopicPartition("t", n): coin.randrange(10**9, 10**11) for n in range(5_000)})
    written = record(offsets, topic_ids={"t": TopicId("kS0bkS0bkS0bkS0bkS0bkS")})
    summary = commit_record_codec.encode_record(written)
    assert sum(len(key) + len(value) for key, value in summary.items()) < 44_000
    assert commit_record_codec.decode_record(SINK, summary) == written


def test_no_record_of_this_sink_is_none() -> None:
    other = SinkName("orders.eu")
    assert commit_record_codec.decode_record(SINK, {"operation": "append"}) is None
    summary = commit_record_codec.encode_record(record(Offsets(), sink=other))
    assert commit_record_codec.decode_record(SINK, summary) is None
    assert commit_record_codec.decode_record(other, summary) is not None


def test_the_marker_is_no_part_of_a_record() -> None:
    assert commit_record_codec.claim_marker_property(SINK) == "headgate.orders.claimed"
    assert (
        commit_record_codec.decode_record(
            SINK, {commit_record_codec.claim_marker_property(SINK): "true"}
        )
        is None
    )


@pytest.mark.parametrize("name", sorted(commit_record_codec.encode_record(record(Offsets()))))
def test_a_missing_property_is_named(name: str) -> None:
    summary = commit_record_codec.encode_record(record(Offsets()))
    del summary[name]
    with pytest.raises(RecordUnreadable, match=name):
        commit_record_codec.decode_record(SINK, summary)


def test_a_newer_version_asks_for_an_upgrade() -> None:
    with pytest.raises(RecordUnreadable, match=r"orders\.version is 5.*upgrade"):
        commit_record_codec.decode_record(SINK, broken("version", "5"))


def test_rollback_1_a_rollback_under_way_is_for_versions_that_know_what_it_is() -> None:
    begun = replace(record(Offsets()), going_back="4.17")
    summary = commit_record_codec.encode_record(begun)
    assert summary["headgate.orders.version"] == "3"
    assert commit_record_codec.decode_record(SINK, summary) == begun


def test_key_8_what_is_younger_is_for_versions_that_know_what_it_is() -> None:
    grown = replace(record(Offsets()), cohorts={"trips": (2, 6), "orders": (1,)})
    summary = commit_record_codec.encode_record(grown)
    assert summary["headgate.orders.version"] == "4"
    assert commit_record_codec.decode_record(SINK, summary) == grown
    for wrong in ("x", "[]", '{"trips":2}', '{"trips":[]}', '{"trips":[2,2]}', '{"trips":[0]}'):
        with pytest.raises(RecordUnreadable, match=r"orders\.generations is malformed"):
            commit_record_codec.decode_record(
                SINK, summary | {"headgate.orders.generations": wrong}
            )


def test_suspend_6_what_a_table_was_given_back_is_kept_with_the_topics_ids() -> None:
    at = TopicPartition("trips", 0)
    given = Replayed(Offsets({at: 17}), {"trips": TopicId("id-1")})
    followed = replace(record(Offsets()), replayed=given)
    assert (
        commit_record_codec.decode_record(SINK, commit_record_codec.encode_record(followed))
        == followed
    )
    assert (
        given.next_offset_of(at, TopicId("id-1")),
        given.next_offset_of(at, TopicId("id-2")),
    ) == (17, 0)
    summary = commit_record_codec.encode_record(followed) | {"headgate.orders.replayed": "[]"}
    with pytest.raises(RecordUnreadable, match=r"orders\.replayed is malformed"):
        commit_record_codec.decode_record(SINK, summary)


def test_suspend_6_up_to_where_expired_pending_commits_were_written_again_is_kept() -> None:
    given = Replayed(expired=TransactionId(Epoch(4), TransactionNumber(17)))
    followed = replace(record(Offsets()), replayed=given)
    summary = commit_record_codec.encode_record(followed)
    assert commit_record_codec.decode_record(SINK, summary) == followed
    with pytest.raises(RecordUnreadable, match=r"orders\.reread-epoch is no number"):
        commit_record_codec.decode_record(SINK, summary | {"headgate.orders.reread-epoch": "x"})


def pending(number: int, **fields: object) -> PendingCommit:
    values: dict[str, object] = {
        "transaction": TransactionId(Epoch(5), TransactionNumber(number)),
        "coordinator": Sender("worker-1", "c1"),
        "secondary": "9c2e4a5c-6d0f-4c53-8f6f-0d4b8f8a2f10",
        "table": "lake.trips_quarantine",
        "manifest": f"s3://lake/q/metadata/headgate/trips/5-c1/{number}-m0.avro",
        "size_bytes": 6_812,
        "rows": 12,
        "since_ms": 1_700_000_000_000,
        **fields,
    }
    return PendingCommit(**values)  # type: ignore[arg-type]


def test_pending_3_a_pending_commit_can_be_read_by_a_person() -> None:
    summary = commit_record_codec.encode_record(record(Offsets(), pending_commits=(pending(118),)))
    assert json.loads(summary["headgate.orders.debts"]) == [
        {
            "epoch": 5,
            "transaction": 118,
            "coordinator": "worker-1",
            "incarnation": "c1",
            "follower": "9c2e4a5c-6d0f-4c53-8f6f-0d4b8f8a2f10",
            "table": "lake.trips_quarantine",
            "manifest": "s3://lake/q/metadata/headgate/trips/5-c1/118-m0.avro",
            "bytes": 6_812,
            "rows": 12,
            "since-ms": 1_700_000_000_000,
        }
    ]


def test_pending_3_a_pending_commit_of_key_files_says_how_many_records_delete() -> None:
    keys = pending(118, rows=0, deletes=7)
    written = record(Offsets(), pending_commits=(pending(118), keys))
    summary = commit_record_codec.encode_record(written)
    first, second = json.loads(summary["headgate.orders.debts"])
    assert second == {**first, "rows": 0, "deletes": 7}
    decoded = commit_record_codec.decode_record(written.sink, summary)
    assert decoded is not None
    assert decoded.pending_commits == written.pending_commits
    assert (keys.record_count, keys.description) == (7, "7 deletes")


def test_pending_3_many_pending_commits_stay_small_and_in_order() -> None:
    written = record(Offsets(), pending_commits=tuple(pending(number) for number in range(200)))
    summary = commit_record_codec.encode_record(written)
    assert len(summary["headgate.orders.debts"]) < 8_000
    decoded = commit_record_codec.decode_record(SINK, summary)
    assert decoded
    assert decoded.pending_commits == written.pending_commits


@pytest.mark.parametrize("name", ["pending_commits", "expired"])
def test_pending_7_more_pending_commits_than_can_be_read_are_not_written(name: str) -> None:
    most = record(Offsets(), **{name: (pending(1),) * PENDING_COMMITS_MAX})
    assert commit_record_codec.decode_record(SINK, commit_record_codec.encode_record(most)) == most
    with pytest.raises(ValueError, match="20001 pending commits"):
        commit_record_codec.encode_record(
            replace(most, **{name: (pending(1),) * (PENDING_COMMITS_MAX + 1)})
        )


def test_pending_7_pending_commits_whose_texts_are_too_long_to_be_read_are_not_written() -> None:
    with pytest.raises(ValueError, match="at most"):
        commit_record_codec.encode_record(
            record(Offsets(), pending_commits=(pending(1, manifest="m" * TEXT_BYTES_MAX),))
        )


VERSION_1 = {
    "headgate.orders.version": "1",
    "headgate.orders.group-id": "g",
    "headgate.orders.epoch": "3",
    "headgate.orders.transaction": "7",
    "headgate.orders.coordinator": "m",
    "headgate.orders.incarnation": "1",
    "headgate.orders.offsets": '{"a":{"id":"A","offsets":{"0":[12]}}}',
    "headgate.orders.records": "5",
    "headgate.orders.quarantined": "2",
    "headgate.orders.skipped": "0",
    "headgate.orders.paused": "false",
    "headgate.orders.quarantine": "uuid-of-the-quarantine",
}


def test_a_record_of_version_1_is_read() -> None:
    decoded = commit_record_codec.decode_record(SINK, VERSION_1)
    assert decoded
    assert (decoded.pending_commits, decoded.primary, decoded.routing) == ((), None, None)
    assert decoded.secondary_uuid("lake.whatever") == "uuid-of-the-quarantine"
    assert decoded.offsets == Offsets({TopicPartition("a", 0): 12})


def deflated(text: bytes) -> str:
    return "zlib:" + base64.b64encode(zlib.compress(text, 9)).decode()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", "one"),
        ("version", "-1"),
        ("epoch", "٣"),
        ("epoch", "9" * 5000),
        ("transaction", "9223372036854775808"),
        ("records", "1e3"),
        ("valid-through-ms", ""),
        ("paused", "True"),
        ("debts", ""),
        ("debts", "{}"),
        ("debts", "[7]"),
        ("debts", '[{"epoch":1}]'),
        ("debts", "[" * 100_000),
        ("debts", "zlib:!!!!"),
        ("lapsed", '{"a":7}'),
        ("followers", "[]"),
        ("followers", '{"lake.q":7}'),
        ("offsets", ""),
        ("offsets", "[]"),
        ("offsets", "[" * 100_000),
        ("offsets", '{"a":{"offsets":[1]}}'),
        ("offsets", '{"a":{"offsets":{"0":7}}}'),
        ("offsets", '{"a":{"offsets":{"x":[7]}}}'),
        ("offsets", '{"a":{"offsets":{"-1":[7]}}}'),
        ("offsets", '{"a":{"offsets":{"0":[-7]}}}'),
        ("offsets", '{"a":{"offsets":{"0":[true]}}}'),
        ("offsets", '{"a":{"offsets":{"0":[1.0]}}}'),
        ("offsets", '{"a":{"offsets":{"0":[9223372036854775808]}}}'),
        ("offsets", '{"a":{"offsets":{"0":[' + "9" * 5000 + "]}}}"),
        ("offsets", '{"a":{"offsets":{"0":[1,2],"1":[3]}}}'),
        ("offsets", '{"a":{"offsets":{"2147483648":[1]}}}'),
        ("offsets", '{"a":{"id":7}}'),
        ("offsets", '{"a":{"more":7}}'),
        ("offsets", '{"a":7}'),
        ("offsets", "{}" + " " * commit_record_codec.OFFSETS_CHARS_MAX),
        ("offsets", "zlib:!!!!"),
        ("offsets", "zlib:ü"),
        ("offsets", "zlib:" + base64.b64encode(b"no deflated text").decode()),
        ("offsets", deflated(b"{}") [:-8]),
        ("offsets", deflated(b"\xff")),
        ("offsets", deflated(b" " * (commit_record_codec.OFFSETS_INFLATED_BYTES_MAX + 1))),
    ],
)  # fmt: skip
def test_malformed_values_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(RecordUnreadable, match=rf"headgate\.orders\.{name}"):
        commit_record_codec.decode_record(SINK, broken(name, value))


def test_a_small_text_cannot_inflate_to_endless_partitions() -> None:
    zeros = ",".join("0" * (commit_record_codec.PARTITIONS_MAX + 1))
    bomb = deflated(b'{"a":{"offsets":{"0":[' + zeros.encode() + b"]}}}")
    with pytest.raises(RecordUnreadable, match="more than 100000 partitions"):
        commit_record_codec.decode_record(SINK, broken("offsets", bomb))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT | st.just("offsets"), inner),
)


@given(
    st.dictionaries(
        st.sampled_from(
            sorted(commit_record_codec.encode_record(record(Offsets(), valid_through_ms=1)))
        ),
        TEXT | JSON.map(json.dumps) | st.binary().map(deflated),
    )
)
def test_hostile_summaries_raise_nothing_else(changes: dict[str, str]) -> None:
    summary = {**commit_record_codec.encode_record(record(Offsets())), **changes}
    try:
        commit_record_codec.decode_record(SINK, summary)
    except RecordUnreadable as refused:
        assert "headgate.orders." in str(refused)


def test_more_partitions_than_are_read_are_not_written() -> None:
    """A record that ``decode`` refuses bricks the table: nobody could claim it again."""

    def of(count: int) -> CommitRecord:
        offsets = Offsets({TopicPartition("a", number): 0 for number in range(count)})
        return CommitRecord(
            sink=SINK,
            group_id="group",
            transaction=TransactionId(Epoch(1), TransactionNumber(1)),
            coordinator=Sender("member", "1"),
            offsets=offsets,
        )

    most = commit_record_codec.PARTITIONS_MAX
    decoded = commit_record_codec.decode_record(SINK, commit_record_codec.encode_record(of(most)))
    assert decoded is not None
    assert len(decoded.offsets) == most
    with pytest.raises(ValueError, match="at most 100000 partitions"):
        commit_record_codec.encode_record(of(most + 1))
