"""Which rows of a quarantine are still to be sent: by snapshots, and where these are gone."""

from __future__ import annotations

import pytest
from support.local_catalog import LocalCatalog
from support.quarantine_rows import IDENTIFIER, QuarantineRows

from headgate.control_protocol.errors import TableMissing
from headgate.coordinator.dead_letter_message import Progress


@pytest.fixture
def quarantine(sqlite_catalog: LocalCatalog) -> QuarantineRows:
    return QuarantineRows(sqlite_catalog)


def unsent(
    quarantine: QuarantineRows, progress: Progress | None = None, sink: str = "sink"
) -> tuple[list[list[int]], Progress | None]:
    """The offsets portion by portion, and the progress after them."""
    found = []
    for portion in quarantine.unsent(sink).unsent_rows_by_commit(progress):
        found.append(sorted(row["offset"] for row in portion.rows))
        progress = portion.upto
    return found, progress


def test_at_first_everything_of_this_sink(quarantine: QuarantineRows) -> None:
    assert unsent(quarantine) == ([], None)
    quarantine.claim(1)
    quarantine.commit(1, 1, 10, 11)
    quarantine.claim(1, sink="other")
    quarantine.commit(1, 1, 500, sink="other")
    quarantine.commit(1, 2, 12)
    (rows,), progress = unsent(quarantine)
    assert rows == [10, 11, 12]
    assert unsent(quarantine, progress) == ([], progress)
    assert unsent(quarantine, sink="other")[0] == [[500]]


def test_then_commit_by_commit_in_their_order(quarantine: QuarantineRows) -> None:
    """Also a batch of an older transaction that is committed after a younger one's."""
    quarantine.claim(1)
    progress = unsent(quarantine)[1]
    quarantine.commit(1, 5, 50, 51)
    quarantine.claim(1, sink="other")
    quarantine.commit(1, 1, 500, sink="other")
    quarantine.commit(1, 4, 40)
    quarantine.claim(2)
    found, reached = unsent(quarantine, progress)
    assert found == [[50, 51], [40], []]
    quarantine.commit(2, 1, 60)
    assert unsent(quarantine, reached)[0] == [[60]]


def test_the_newest_rows_are_shown_after_commits_without_any(quarantine: QuarantineRows) -> None:
    """A coordinator that takes over claims the quarantine by a commit without rows."""
    assert quarantine.unsent().last_rows_of_newest_commit_with_rows(5, ("offset",), 100) == []
    quarantine.claim(1)
    quarantine.commit(1, 1, 10)
    quarantine.commit(1, 2, 11, 12)
    quarantine.claim(2)
    quarantine.claim(1, sink="other")
    quarantine.commit(1, 1, 500, sink="other")
    quarantine.claim(3)
    found = quarantine.unsent().last_rows_of_newest_commit_with_rows(5, ("offset",), 100)
    assert [row["offset"] for row in found] == [11, 12]
    assert (
        quarantine.unsent("nobody").last_rows_of_newest_commit_with_rows(5, ("offset",), 100) == []
    )


def test_what_a_compaction_wrote_anew_is_not_sent_again(quarantine: QuarantineRows) -> None:
    quarantine.claim(1)
    quarantine.commit(1, 1, 10, 11)
    progress = unsent(quarantine)[1]
    quarantine.commit(1, 2, 20)
    table = quarantine.local.catalog.load_table(IDENTIFIER)
    table.overwrite(table.scan().to_arrow())
    quarantine.commit(1, 3, 30)
    assert unsent(quarantine, progress)[0] == [[20], [30]]


@pytest.mark.parametrize(
    ("expired", "expected"),
    [(1, [[21], [], [30]]), (2, [[20, 21, 30]])],
    ids=["none is missing after it", "one is, and the epochs tell"],
)
def test_snapshots_expire_before_they_are_sent(
    quarantine: QuarantineRows, expired: int, expected: list[list[int]]
) -> None:
    quarantine.claim(1)
    quarantine.commit(1, 1, 10)
    quarantine.claim(2)
    quarantine.commit(2, 1, 20)
    progress = unsent(quarantine)[1]
    assert progress
    quarantine.commit(2, 2, 21)
    quarantine.claim(3)
    quarantine.commit(3, 1, 30)
    table = quarantine.local.catalog.load_table(IDENTIFIER)
    gone = [s.snapshot_id for s in table.snapshots()[3:][:expired]]
    assert gone[0] == progress.snapshot_id
    table.maintenance.expire_snapshots().by_ids(gone).commit()
    found, reached = unsent(quarantine, progress)
    assert found == expected
    assert unsent(quarantine, reached)[0] == []


def test_another_quarantine_under_the_name_is_new_altogether(quarantine: QuarantineRows) -> None:
    quarantine.claim(7)
    progress = unsent(quarantine)[1]
    quarantine.local.catalog.drop_table(IDENTIFIER)
    with pytest.raises(TableMissing):
        unsent(quarantine, progress)
    anew = QuarantineRows(quarantine.local)
    anew.claim(1)
    anew.commit(1, 1, 10)
    assert unsent(anew, progress)[0] == [[10]]


def test_rows_that_a_merged_manifest_brings_along_are_not_sent_again(
    quarantine: QuarantineRows,
) -> None:
    """A commit of the sink's own lists old files in its manifest, as existing ones."""
    table = quarantine.local.catalog.load_table(IDENTIFIER)
    with table.transaction() as change:
        change.set_properties({"commit.manifest.min-count-to-merge": "2"})
    quarantine.claim(1)
    quarantine.commit(1, 1, 10)
    progress = unsent(quarantine)[1]
    quarantine.commit(1, 2, 20)
    quarantine.commit(1, 3, 30)
    table.refresh()
    snapshot = table.current_snapshot()
    assert snapshot
    assert len(snapshot.manifests(table.io)) < 3
    assert unsent(quarantine, progress)[0] == [[20], [30]]


def test_without_the_tag_nothing_is_known_to_be_unsent(quarantine: QuarantineRows) -> None:
    """Whoever removed it stops the sink (HG-203); nothing is sent that may have been sent."""
    quarantine.claim(1)
    quarantine.commit(1, 1, 10)
    progress = unsent(quarantine)[1]
    table = quarantine.local.catalog.load_table(IDENTIFIER)
    table.manage_snapshots().remove_tag("headgate-sink").commit()
    assert unsent(quarantine, progress) == ([], progress)
    assert unsent(quarantine) == ([], None)


def test_a_tag_that_was_put_on_anothers_snapshot_sends_nothing(
    quarantine: QuarantineRows,
) -> None:
    quarantine.claim(1)
    quarantine.commit(1, 1, 10)
    quarantine.claim(1, sink="other")
    table = quarantine.local.catalog.load_table(IDENTIFIER)
    head = table.current_snapshot()
    assert head
    table.manage_snapshots().remove_tag("headgate-sink").commit()
    table.manage_snapshots().create_tag(head.snapshot_id, "headgate-sink").commit()
    assert unsent(quarantine) == ([], None)
