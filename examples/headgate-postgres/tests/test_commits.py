"""Tests what a commit to a PostgreSQL table does, and what happens to it in the end."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.errors import (
    KeyInTwoPartitions,
    TableChanged,
    TableUnfit,
    Unreachable,
)
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.identifiers import SinkName, TopicId
from headgate.control_protocol.ports import CommitOutcome, Landed, Lineage, Refused, Unknown
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)


def test_other_sinks_of_the_table_say_what_they_read(world) -> None:
    claim_table(world.open("copy"), sink="copy")
    view = world.open().read()
    assert view.others == {SinkName("copy"): {"trips": TopicId("id-of-trips")}}


def test_files_are_gone_once_their_rows_are_committed(world) -> None:
    table = world.open()
    view = require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    assert list(world.folder.iterdir()) == []
    world.lose_next_answer(landed=True)
    assert isinstance(commit(table, view, record(1, 2, 6), world.write_file(2)), Unknown)
    assert len(list(world.folder.iterdir())) == 1, "nobody knows yet whether they are needed"
    table.read()
    assert list(world.folder.iterdir()) == []
    assert world.visible_file_numbers() == [1, 2]


def test_files_of_a_commit_that_did_not_land_stay(world) -> None:
    table = world.open()
    view = claim_table(table)
    file = world.write_file(1)
    world.lose_next_answer(landed=False)
    assert isinstance(commit(table, view, record(1, 1, 3), file), Unknown)
    view = table.read()
    require_landed(commit(table, view, record(1, 1, 3), file))
    assert world.visible_file_numbers() == [1]


def test_a_commit_with_the_same_number_in_a_restored_database_is_another_one(world) -> None:
    """As after the promotion of a replica that had not received the newest transactions."""
    zombie = world.open()
    first = claim_table(zombie)
    stale = require_landed(commit(zombie, first, record(1, 1, 3), world.write_file(1)))
    oid = world.sql("SELECT '{}'::regclass::oid")[0]
    world.sql("DELETE FROM {}")
    world.sql("UPDATE headgate.sinks SET position = 1 WHERE relation = %s", oid)
    world.sql("DELETE FROM headgate.commits WHERE relation = %s AND position = 2", oid)
    world.sql(
        "UPDATE headgate.sinks SET record = c.record FROM headgate.commits c "
        "WHERE c.relation = sinks.relation AND sinks.relation = %s",
        oid,
    )
    heir = world.open()
    view = heir.read()
    assert view == first
    after = claim_table(heir, epoch=2)
    assert after.tag == stale.tag
    assert isinstance(commit(zombie, stale, record(1, 2, 6), world.write_file(2)), Refused)
    assert world.visible_file_numbers() == []


def test_a_row_that_somebody_removed_is_no_first_start(world) -> None:
    """Filling the table again from the beginning would double its rows."""
    table = world.open()
    before = require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    world.sql("DELETE FROM headgate.sinks WHERE relation = '{}'::regclass")
    assert isinstance(commit(table, before, record(1, 2, 6), world.write_file(2)), Refused)
    view = world.open().read()
    assert (view.tag, view.record, view.lineage) == (None, None, Lineage.TAG_MISSING)
    assert view.branch_record == before.record
    after = require_landed(commit(world.open(), view, record(2, 0)))  # a person has accepted it
    assert after.lineage is Lineage.CONTAINS_TAG
    assert world.open().read() == after


def test_a_file_that_was_changed_stops_the_sink(world) -> None:
    table = world.open()
    view = claim_table(table)
    file = world.write_file(1)
    more = WrittenFile(file.path, file.records + 1, file.size_bytes)
    with pytest.raises(TableChanged, match="have 3 rows, their writers wrote 4"):
        commit(table, view, record(1, 1, 3), more)
    other = world.write_unfit_file()
    with pytest.raises(TableChanged, match="written for other columns"):
        commit(table, view, record(1, 1, 3), other)
    Path(world.folder / "gone.parquet").unlink(missing_ok=True)
    gone = WrittenFile((world.folder / "gone.parquet").as_uri(), 1, 1)
    with pytest.raises(TableChanged, match="is gone"):
        commit(table, view, record(1, 1, 3), gone)
    assert world.open().read() == view


@pytest.mark.parametrize(
    "rule",
    [
        "ALTER TABLE {} ADD CHECK (number < 0)",
        "ALTER TABLE {} ALTER number TYPE smallint",
        "CREATE UNIQUE INDEX ON {} (number)",
        "CREATE UNIQUE INDEX ON {} (number) WHERE row > 0",
        "CREATE RULE odd AS ON INSERT TO {} DO INSTEAD NOTHING",
    ],
)
def test_a_rule_that_was_added_stops_the_sink_and_leaves_nothing(world, rule) -> None:
    table = world.open()
    view = claim_table(table)
    world.sql(rule)
    with pytest.raises(TableUnfit):
        commit(table, view, record(1, 1, 3), world.write_file(1))
    assert world.visible_file_numbers() == []


# ------------------------------------------------------------------------------- a zombie's lock


def test_who_stands_still_with_the_lock_is_cut_off(world) -> None:
    """A coordinator is paused between its last statement and COMMIT, and continues much later."""
    zombie, heir = world.open(), world.open()
    zombie._patience_ms = 300
    stale = claim_table(zombie)
    seen: list[CommitOutcome] = []

    def stopped(connection: psycopg.Connection) -> None:
        while not isinstance(seen[-1] if seen else None, Landed):  # the lock is ours: waited
            seen.append(commit(heir, heir.read(), record(2, 0)))
        connection.commit()

    zombie._commit = stopped
    assert isinstance(commit(zombie, stale, record(1, 1, 3), world.write_file(1)), Unknown)
    assert world.open().read().record == record(2, 0)
    assert world.visible_file_numbers() == []


def test_a_commit_on_its_way_is_waited_for(world) -> None:
    """An answer is lost while the server still commits: the next one comes behind it."""
    one, other = world.open(), world.open()
    view = claim_table(one)
    stale = other.read()
    held: list[psycopg.Connection] = []

    def slow(connection: psycopg.Connection) -> None:
        held.append(connection)
        connection.execute("SAVEPOINT here")
        with pytest.raises(psycopg.errors.LockNotAvailable), psycopg.connect(world.uri) as asking:
            oid = world.sql("SELECT '{}'::regclass::oid")[0]
            asking.execute("SELECT FROM headgate.sinks WHERE relation = %s FOR UPDATE NOWAIT", oid)
        connection.commit()

    one._commit = slow
    require_landed(commit(one, view, record(1, 1, 3), world.write_file(1)))
    assert held
    assert isinstance(commit(other, stale, record(1, 1, 3), world.write_file(2)), Refused)
    assert world.visible_file_numbers() == [1]


# ------------------------------------------------------------------------------------------- keys


def rows(*told: tuple[int, str, int, int]) -> pa.Table:
    ids, names, partitions, offsets = zip(*told, strict=True)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array(names),
            "at_partition": pa.array(partitions, pa.int32()),
            "at_offset": pa.array(offsets, pa.int64()),
        }
    )


def deletes(*told: tuple[int, int, int]) -> pa.Table:
    ids, partitions, offsets = zip(*told, strict=True)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "_partition": pa.array(partitions, pa.int32()),
            "_offset": pa.array(offsets, pa.int64()),
        }
    )


def test_the_newest_record_of_a_key_wins_whatever_file_it_came_in(keyed) -> None:
    table = keyed.open()
    view = require_landed(
        commit(
            table,
            claim_table(table),
            record(1, 1, 5),
            keyed.written(rows((1, "new", 0, 3), (2, "x", 0, 4))),
            keyed.written(rows((1, "old", 0, 1), (3, "y", 1, 1))),
        )
    )
    assert view.record.keys == KeyCounts(inserted=3, superseded=1)
    view = require_landed(
        commit(
            table,
            view,
            record(1, 2, 9),
            keyed.written(rows((1, "newer", 0, 5), (2, "z", 0, 6), (4, "four", 0, 9))),
            keyed.written(deletes((2, 0, 7), (3, 1, 2), (9, 1, 3), (4, 0, 8)), FileKind.KEYS),
        )
    )
    assert view.record.keys == KeyCounts(inserted=1, updated=1, deleted=2, absent=1, superseded=2)
    assert view.record.keys.record_count == 7
    found = keyed.sql("SELECT id, name, at_offset FROM {} ORDER BY id")
    assert found == [(1, "newer", 5), (4, "four", 9)]
    assert keyed.open().read() == view


def test_a_key_in_two_partitions_stops_the_sink(keyed) -> None:
    table = keyed.open()
    view = require_landed(
        commit(table, claim_table(table), record(1, 1, 5), keyed.written(rows((1, "a", 0, 3))))
    )
    for told in (rows((1, "b", 1, 9)), rows((7, "b", 1, 9), (7, "c", 0, 9))):
        with pytest.raises(KeyInTwoPartitions):
            commit(table, view, record(1, 2, 9), keyed.written(told))
    gone = keyed.written(deletes((1, 2, 4)), FileKind.KEYS)
    with pytest.raises(KeyInTwoPartitions):
        commit(table, view, record(1, 2, 9), gone)
    assert keyed.open().read() == view


def test_a_keyed_commit_is_refused_and_lost_like_any_other(keyed) -> None:
    zombie, heir = keyed.open(), keyed.open()
    stale = claim_table(zombie)
    view = claim_table(heir, epoch=2)
    file = keyed.written(rows((1, "a", 0, 3)))
    assert isinstance(commit(zombie, stale, record(1, 1, 3), file), Refused)
    keyed.lose_next_answer(landed=True)
    heirs = keyed.open()
    assert isinstance(commit(heirs, view, record(2, 1, 3), file), Unknown)
    assert keyed.open().read().record.keys == KeyCounts(inserted=1)
    assert len(keyed.sql("SELECT * FROM {}")) == 1


# ------------------------------------------------------------------------------------------ rights


def test_a_role_with_the_rights_of_the_readme_is_enough(world, uri) -> None:
    claim_table(world.open("owner"), sink="owner")  # the owner has made the ledger
    role = f"role_{world.wanted.name.partition('.')[2]}"
    world.sql(f"CREATE ROLE {role} LOGIN")
    database = psycopg.conninfo.conninfo_to_dict(uri)["dbname"]
    granted = readme_grants().replace("ROLE", role).replace("DATABASE_NAME", str(database))
    world.sql(granted.replace("SCHEMA.TABLE", "{}").replace("SCHEMA_NAME", "lake"))
    world.wanted = type(world.wanted)(
        **{
            **{name: getattr(world.wanted, name) for name in world.wanted.__slots__},
            "storage": {"uri": uri.replace("headgate@", f"{role}@")},
        }
    )
    table = world.open()
    require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    assert world.visible_file_numbers() == [1]
    world.sql(f"REVOKE INSERT ON {{}} FROM {role}")
    outcome = commit(table, table.read(), record(1, 2, 3), world.write_file(2))
    assert isinstance(outcome, Unknown)
    assert outcome.rights


def readme_grants() -> str:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    return text.split("```sql\n")[1].split("```")[0]


def test_a_server_that_is_not_there_is_tried_again(world) -> None:
    storage = {"uri": "postgresql://headgate@127.0.0.1:1/nothing"}
    world.wanted = type(world.wanted)(world.wanted.name, str(world.folder), storage=storage)
    with pytest.raises(Unreachable, match="did not answer"):
        world.open().read()
