"""PENDING-8 and SUSPEND-6: what expired of a table is written again from its files, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.types import LongType
from unit.operations.filled_table import sink_file_text
from unit.operations.routed_shop import (
    CLICKS,
    LEDGER,
    ORDERS,
    Shop,
    expire_all_but_refs,
    shop_settings,
    without_quarantine,
)

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import PendingCommit, Suspended
from headgate.control_protocol.errors import (
    ConfigurationError,
    ReplayRefused,
    ReplayUnfit,
    RereadRefused,
    RetryLater,
)
from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Landed, Refused, Unknown
from headgate.operations.audit.audit import audit
from headgate.operations.many_tables.rewrite_expired_commits import (
    RewrittenTable,
    rewrite_expired_commits_of_tables,
)
from headgate.tables.iceberg.pending_manifests import read_staged_files
from headgate.tables.iceberg.table import IcebergTable


@pytest.fixture
def settings(tmp_path: Path) -> SinkSettings:
    return shop_settings(tmp_path)


@pytest.fixture
def shop(catalog: Catalog, settings: SinkSettings, told: list[str]) -> Shop:
    """Two tables with rows; one of them was not delivered two transactions, which expired."""
    assert not told
    shop = Shop(catalog, settings)
    shop.commits({ORDERS: [0, 1], CLICKS: [2]})
    expires(shop, [*shop.decides({CLICKS: [3, 4]}), *shop.decides({CLICKS: [5]})])
    return shop


def expires(
    shop: Shop,
    pending_commits: Sequence[PendingCommit],
    *,
    delivered: bool = True,
    still: Sequence[PendingCommit] = (),
) -> None:
    """The next decision names them, has pending an empty pending commit that shuts them out, and
    that is delivered; ``still``: what it also has pending."""
    record = shop.ledger.read().record
    assert record is not None
    uuid = shop.table(CLICKS).read().uuid
    following = {**record.secondaries, CLICKS: uuid}
    expired = (*record.expired, *pending_commits)
    shop.decides({}, expired=expired, secondaries=following, still=still)
    record = shop.ledger.read().record
    assert record is not None
    shuts_out = PendingCommit(record.transaction, record.coordinator, uuid, CLICKS)
    if delivered:
        assert isinstance(shop.table(CLICKS).commit(shop.delivery(CLICKS, [shuts_out])), Landed)


def offsets(shop: Shop) -> list[int]:
    found: list[int] = shop.catalog.load_table(CLICKS).scan().to_arrow()["offset"].to_pylist()
    return sorted(found)


def findings(settings: SinkSettings) -> set[str]:
    return {finding.what for finding in audit(settings, with_source=False).findings}


def test_what_expired_is_written_again_once(shop: Shop, settings: SinkSettings) -> None:
    assert findings(settings) == {"rows-expired"}
    assert rewrite_expired_commits_of_tables(settings, [CLICKS]) == (RewrittenTable(CLICKS, 3),)
    assert offsets(shop) == [2, 3, 4, 5]
    assert rewrite_expired_commits_of_tables(settings, [CLICKS]) == (RewrittenTable(CLICKS),)
    assert offsets(shop) == [2, 3, 4, 5]
    report = audit(settings, with_source=False)
    assert report.findings == ()
    assert f"{CLICKS}: 3 rows that had expired were written again" in report.remarks


def test_the_audit_asks_for_no_quarantine_that_was_never_made(
    catalog: Catalog, tmp_path: Path
) -> None:
    settings = without_quarantine(shop_settings(tmp_path))
    shop = Shop(catalog, settings)
    catalog.drop_table(settings.quarantine.table)
    shop.commits({CLICKS: [0]})
    expires(shop, shop.decides({CLICKS: [1]}))
    assert rewrite_expired_commits_of_tables(settings, [CLICKS]) == (RewrittenTable(CLICKS, 1),)
    assert findings(settings) == set()


def test_without_names_all_are_meant_that_are_in_order(shop: Shop, settings: SinkSettings) -> None:
    assert rewrite_expired_commits_of_tables(settings, []) == (RewrittenTable(CLICKS, 3),)


def test_without_names_a_suspended_table_is_passed_over(shop: Shop, settings: SinkSettings) -> None:
    _suspend(shop)
    assert rewrite_expired_commits_of_tables(settings, []) == ()
    assert offsets(shop) == [2]


def test_its_files_need_not_stay(shop: Shop, settings: SinkSettings) -> None:
    """Whoever clears orphans away takes those of expired pending commits."""
    record = shop.ledger.read().record
    assert record is not None
    rewrite_expired_commits_of_tables(settings, [CLICKS])
    io = shop.catalog.load_table(CLICKS).io
    for pending_commit in record.expired:
        for file in read_staged_files(io, pending_commit.manifest):
            io.delete(file.file_path)
        io.delete(pending_commit.manifest)
    assert offsets(shop) == [2, 3, 4, 5]


def test_what_a_delivery_brought_that_was_slept_through_is_not_doubled(
    catalog: Catalog, settings: SinkSettings
) -> None:
    shop = Shop(catalog, settings)
    shop.commits({ORDERS: [0, 1], CLICKS: [2]})
    pending_commits = shop.decides({CLICKS: [3, 4]})
    late = shop.delivery(CLICKS, pending_commits)
    expires(shop, pending_commits, delivered=False)
    assert isinstance(shop.table(CLICKS).commit(late), Landed)
    (other,) = shop.decides({CLICKS: [5]})
    expires(shop, [other])
    assert rewrite_expired_commits_of_tables(settings, [CLICKS]) == (
        RewrittenTable(CLICKS, 1, there=2),
    )
    assert offsets(shop) == [2, 3, 4, 5]
    assert findings(settings) == set()


def test_some_rows_of_a_file_are_there(shop: Shop, settings: SinkSettings) -> None:
    """Somebody has put them there by hand: the file is written without them."""
    table = shop.catalog.load_table(CLICKS)
    table.append(table.scan().to_arrow().slice(0, 0))
    (row,) = [row for row in table.scan().to_arrow().to_pylist() if row["offset"] == 2]
    arrow = table.schema().as_arrow()
    table.append(type(table.scan().to_arrow()).from_pylist([row | {"offset": 4}], schema=arrow))
    assert rewrite_expired_commits_of_tables(settings, [CLICKS]) == (
        RewrittenTable(CLICKS, 2, there=1),
    )
    assert offsets(shop) == [2, 3, 4, 5]


def test_offsets_of_a_topic_that_was_created_anew_tell_nothing(
    shop: Shop, settings: SinkSettings
) -> None:
    """The table had a record of that number, of the new topic: the old one was left out for it,
    and told to be there."""
    pending_commits = shop.decides({CLICKS: [4]}, topic_ids={"shop": TopicId("topic-id-2")})
    assert isinstance(shop.table(CLICKS).commit(shop.delivery(CLICKS, pending_commits)), Landed)
    with pytest.raises(RereadRefused, match="shop was re-created"):
        rewrite_expired_commits_of_tables(settings, [CLICKS])
    assert offsets(shop) == [2, 4]


@pytest.mark.parametrize("noted", [None, "shop"])
def test_nor_do_they_when_the_commits_that_show_it_have_expired(
    catalog: Catalog, settings: SinkSettings, noted: str | None
) -> None:
    """What an older release wrote says nothing of it."""
    shop = Shop(catalog, settings)
    shop.commits({CLICKS: [0]})
    shop.epoch, shop.next_offset = 2, 0
    anew = {"topic_ids": {"shop": TopicId("topic-id-2")}, "recreated_topics": noted}
    expires(shop, shop.decides({CLICKS: [0]}, **anew))
    shop.decides({}, **anew)
    expire_all_but_refs(shop.catalog, LEDGER)
    with pytest.raises(RereadRefused, match="shop was re-created"):
        rewrite_expired_commits_of_tables(settings, [CLICKS])
    assert offsets(shop) == [0]


def test_while_it_may_still_be_delivered_nothing_is_written(
    catalog: Catalog, settings: SinkSettings
) -> None:
    shop = Shop(catalog, settings)
    shop.commits({ORDERS: [0, 1], CLICKS: [2]})
    pending_commits = shop.decides({CLICKS: [3]})
    expires(shop, pending_commits, delivered=False)
    with pytest.raises(RetryLater, match="are no newer than what expired"):
        rewrite_expired_commits_of_tables(settings, [CLICKS])
    assert offsets(shop) == [2]


@pytest.mark.parametrize("of_the_same", [False, True])
def test_while_older_rows_or_more_of_the_same_transaction_are_pending_nothing_is_written(
    catalog: Catalog, settings: SinkSettings, *, of_the_same: bool
) -> None:
    shop = Shop(catalog, settings)
    shop.commits({ORDERS: [0, 1], CLICKS: [2]})
    still = shop.decides({CLICKS: [3]})
    expired = shop.decides({CLICKS: [4]}, still=still)
    if of_the_same:
        still = tuple(replace(each, transaction=expired[0].transaction) for each in still)
    expires(shop, expired, still=still)
    with pytest.raises(RetryLater, match="are no newer than what expired"):
        rewrite_expired_commits_of_tables(settings, [CLICKS])
    assert offsets(shop) == [2]


def test_deliveries_carry_on_up_to_where_it_was_done(shop: Shop, settings: SinkSettings) -> None:
    rewrite_expired_commits_of_tables(settings, [CLICKS])
    shop.commits({CLICKS: [6]})
    expires(shop, shop.decides({CLICKS: [7]}))
    assert findings(settings) == {"rows-expired"}
    assert rewrite_expired_commits_of_tables(settings, [CLICKS]) == (RewrittenTable(CLICKS, 1),)
    assert offsets(shop) == [2, 3, 4, 5, 6, 7]
    assert findings(settings) == set()


def test_a_delivery_that_was_slept_through_is_refused(shop: Shop, settings: SinkSettings) -> None:
    pending_commits = shop.decides({CLICKS: [6]})
    late = shop.delivery(CLICKS, pending_commits)
    rewrite_expired_commits_of_tables(settings, [CLICKS])
    assert isinstance(shop.table(CLICKS).commit(late), Refused)
    assert isinstance(shop.table(CLICKS).commit(shop.delivery(CLICKS, pending_commits)), Landed)
    assert offsets(shop) == [2, 3, 4, 5, 6]
    assert rewrite_expired_commits_of_tables(settings, [CLICKS]) == (RewrittenTable(CLICKS),)


def test_of_two_that_do_it_at_once_the_second_finds_it_done(
    shop: Shop, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, first = IcebergTable.commit, [True]

    def raced(self: IcebergTable, attempt: CommitAttempt) -> CommitOutcome:
        if attempt.record.gives_back_missed_rows and first:
            first.clear()
            assert rewrite_expired_commits_of_tables(settings, [CLICKS]) == (
                RewrittenTable(CLICKS, 3),
            )
        return commit(self, attempt)

    monkeypatch.setattr(IcebergTable, "commit", raced)
    assert rewrite_expired_commits_of_tables(settings, [CLICKS]) == (RewrittenTable(CLICKS),)
    assert offsets(shop) == [2, 3, 4, 5]
    assert _reread_files(shop) == 1, "those of the refused call are gone"


@pytest.mark.parametrize("landed", [True, False])
def test_an_answer_that_is_lost_doubles_nothing(
    shop: Shop, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    commit, lost = IcebergTable.commit, [True]

    def losing(self: IcebergTable, attempt: CommitAttempt) -> CommitOutcome:
        if attempt.record.gives_back_missed_rows and lost:
            lost.clear()
            if landed:
                commit(self, attempt)
            return Unknown("the answer was lost")
        return commit(self, attempt)

    monkeypatch.setattr(IcebergTable, "commit", losing)
    if landed:
        assert rewrite_expired_commits_of_tables(settings, [CLICKS]) == (RewrittenTable(CLICKS, 3),)
    else:
        with pytest.raises(RetryLater, match="could not be written again"):
            rewrite_expired_commits_of_tables(settings, [CLICKS])
        assert rewrite_expired_commits_of_tables(settings, [CLICKS]) == (RewrittenTable(CLICKS, 3),)
    assert offsets(shop) == [2, 3, 4, 5]


def test_columns_that_came_since_are_null_in_what_expired(
    shop: Shop, settings: SinkSettings
) -> None:
    with shop.catalog.load_table(CLICKS).update_schema() as update:
        update.add_column("tip", LongType())
    assert rewrite_expired_commits_of_tables(settings, [CLICKS]) == (RewrittenTable(CLICKS, 3),)
    assert offsets(shop) == [2, 3, 4, 5]


def _suspend(shop: Shop) -> None:
    shop.decides({}, suspended=(Suspended(CLICKS, "HG-201 rolled back"),))


def _lose_the_tag(shop: Shop) -> None:
    shop.catalog.load_table(CLICKS).manage_snapshots().remove_tag("headgate-shop").commit()


def _clear_the_file_away(shop: Shop) -> None:
    record = shop.ledger.read().record
    assert record is not None
    io = shop.catalog.load_table(CLICKS).io
    io.delete(read_staged_files(io, record.expired[0].manifest)[0].file_path)


def _clear_the_manifest_away(shop: Shop) -> None:
    record = shop.ledger.read().record
    assert record is not None
    shop.catalog.load_table(CLICKS).io.delete(record.expired[0].manifest)


def _only_count(shop: Shop) -> None:
    record = shop.ledger.read().record
    assert record is not None
    sums = tuple(replace(pending_commit, manifest="") for pending_commit in record.expired)
    shop.decides({}, expired=sums)


def _of_a_table_that_is_gone(shop: Shop) -> None:
    record = shop.ledger.read().record
    assert record is not None
    gone = tuple(replace(pending_commit, secondary="another") for pending_commit in record.expired)
    shop.decides({}, expired=gone)


def _drop_a_column(shop: Shop) -> None:
    with shop.catalog.load_table(CLICKS).update_schema() as update:
        update.delete_column("offset")


@pytest.mark.parametrize(
    ("happens", "error", "why"),
    [
        (_suspend, ReplayRefused, f"{CLICKS} is suspended: HG-201 rolled back"),
        (_lose_the_tag, ReplayRefused, f"{CLICKS} is not as sink shop left it"),
        (_clear_the_file_away, RereadRefused, "files of expired rows are gone"),
        (_clear_the_manifest_away, RereadRefused, "files of expired rows are gone"),
        (_only_count, RereadRefused, "so much that the ledger counts it only: 1 rows"),
        (_of_a_table_that_is_gone, RereadRefused, "an earlier table of that name, which is gone"),
        (_drop_a_column, RereadRefused, "rows cannot be read here"),
    ],
)
def test_what_is_not_to_be_had_is_refused_by_name(
    shop: Shop,
    settings: SinkSettings,
    happens: Callable[[Shop], None],
    error: type[Exception],
    why: str,
) -> None:
    happens(shop)
    with pytest.raises(error, match=why):
        rewrite_expired_commits_of_tables(settings, [CLICKS])
    assert _reread_files(shop) == 0


def test_what_cannot_be_meant_is_refused_by_name(settings: SinkSettings) -> None:
    plain = replace(
        settings.tables, record_columns=replace(settings.tables.record_columns, topic="")
    )
    with pytest.raises(ReplayUnfit, match="names no topic, partition and offset"):
        rewrite_expired_commits_of_tables(replace(settings, tables=plain), [CLICKS])


def test_a_sink_of_one_table_has_none_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="fills one table"):
        rewrite_expired_commits_of_tables(parse(sink_file_text(tmp_path)), [CLICKS])


def _reread_files(shop: Shop) -> int:
    folder = Path(shop.catalog.load_table(CLICKS).location().removeprefix("file://"))
    return sum(1 for _ in folder.rglob("reread/**/*.parquet"))
