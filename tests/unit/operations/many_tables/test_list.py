"""``headgate tables``: what is listed of a ledger's tables, and which may be asked to resume."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError

from headgate.config.load import load
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit, Suspended
from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.events import Pause, Resume
from headgate.control_protocol.identifiers import SinkName, TransactionId
from headgate.control_protocol.ports import CommitAttempt
from headgate.control_protocol.testing.contract.world import record, require_landed
from headgate.operations.cli import tables
from headgate.operations.cli.main import main
from headgate.operations.many_tables import replay_quarantined, resume, rewrite_expired_commits
from headgate.operations.many_tables.replay_quarantined import ReplayedTable
from headgate.operations.many_tables.rewrite_expired_commits import RewrittenTable
from headgate.operations.status.report import MEND_TABLES
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

SINK = SinkName("trips")
ROUTES = """
[tables]
ledger = "db.ledger"
[[tables.route]]
field = "zone"
to = "db.{field}"
"""


@dataclass
class Desk:
    """A sink file of many tables, its catalog, and the ledger's newest record."""

    path: Path
    catalog: Catalog

    def __post_init__(self) -> None:
        self.text = self.path.read_text()
        self.number = 0
        self.write("")
        create_table_if_missing(self.catalog, "db.ledger", TableDeclaration({"note": "string"}))
        self.decides()

    def write(self, more: str) -> None:
        begin, end = self.text.index("[table]"), self.text.index("[spark]")
        self.path.write_text(self.text[:begin] + ROUTES + more + self.text[end:])

    def table(self, name: str) -> IcebergTable:
        return IcebergTable(self.catalog, name, SINK)

    def decides(
        self, *pending_commits: PendingCommit, suspended: tuple[Suspended, ...] = ()
    ) -> CommitRecord:
        self.number += 1
        ledger = self.table("db.ledger")
        decided = replace(
            record(1, self.number, sink=SINK), pending_commits=pending_commits, suspended=suspended
        )
        require_landed(ledger.commit(CommitAttempt(ledger.read(), decided)))
        return decided

    def delivers(self, name: str, number: int) -> None:
        """The table is there, and was delivered up to a transaction."""
        create_table_if_missing(self.catalog, name, TableDeclaration({"id": "long"}))
        table, primary = self.table(name), self.table("db.ledger").read().uuid
        delivery = replace(
            record(1, number, sink=SINK), primary=primary, valid_through_ms=1_000 * number
        )
        require_landed(table.commit(CommitAttempt(table.read(), delivery)))

    def pending_commit(self, name: str, number: int, rows: int) -> PendingCommit:
        uuid = self.table(name).read().uuid if self.catalog.table_exists(name) else "uuid-gone"
        at = TransactionId(1, number)  # type: ignore[arg-type]
        by = record(1, number).coordinator
        return PendingCommit(at, by, uuid, name, manifest=f"{name}.avro", size_bytes=1, rows=rows)

    def asks(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["tables", str(self.path), *arguments])

    def listed(self) -> dict[str, dict[str, Any]]:
        return {each["table"]: each for each in json.loads(self.asks("--json").stdout)["tables"]}


@pytest.fixture
def desk(sink_file: Path, catalog: Catalog) -> Desk:
    return Desk(sink_file, catalog)


def test_tables_that_are_delivered_are_complete_through_the_ledgers_time(desk: Desk) -> None:
    desk.delivers("db.here", 1)
    decided = desk.decides()
    result = desk.asks()
    assert result.exit_code == 0
    assert "db.here" in result.stdout
    assert "1 table: 1 open; ledger db.ledger at 1.2" in result.stdout
    (shown,) = desk.listed().values()
    assert (shown["state"], shown["transaction"], shown["pending_rows"]) == ("open", "1.1", 0)
    assert shown["valid_through_ms"] == decided.valid_through_ms


def test_what_a_table_is_pending_holds_its_time_back(desk: Desk) -> None:
    desk.delivers("db.here", 1)
    desk.decides(desk.pending_commit("db.here", 2, 7), desk.pending_commit("db.here", 2, 3))
    shown = desk.listed()["db.here"]
    assert (shown["pending_rows"], shown["valid_through_ms"]) == (10, 1_000)


def test_suspended_and_missing_tables_are_named_with_why_and_end_not_well(desk: Desk) -> None:
    desk.delivers("db.here", 1)
    desk.decides(
        desk.pending_commit("db.gone", 2, 4),
        suspended=(
            Suspended("db.here", "HG-201 was rolled back", 5),
            Suspended("db.back", "HG-102 was dropped", 5, resuming=True),
        ),
    )
    result = desk.asks()
    assert result.exit_code == 1
    assert "db.here suspended: HG-201 was rolled back" in result.stdout
    assert MEND_TABLES in result.stdout
    states = {name: each["state"] for name, each in desk.listed().items()}
    assert states == {"db.here": "suspended", "db.back": "resuming", "db.gone": "missing"}


def test_a_catalog_that_lets_nobody_list_is_told_in_a_line(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ForbiddenError("may not list")

    monkeypatch.setattr(SqlCatalog, "list_tables", refuse)
    result = desk.asks()
    assert result.exit_code == Unreachable.exit_code
    assert "HG-401 HG-103 the tables of db cannot be listed: ForbiddenError" in result.stderr


def test_only_resume_takes_tables(desk: Desk) -> None:
    result = desk.asks("show", "db.here")
    assert result.exit_code == 2
    assert "only headgate tables SINK resume takes tables" in result.output
    assert desk.asks("show", "--replay").exit_code == 2


# ------------------------------------------------------------------------------------------ resume


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> list[tuple[str, ...]]:
    """The tables that were asked for; a coordinator opens those that are there."""
    said: list[tuple[str, ...]] = []

    def ask(
        _: SinkSettings, event: Pause | Resume, holds: Callable[[CommitRecord], bool], *__: object
    ) -> CommitRecord:
        assert isinstance(event, Resume)
        said.append(event.tables)
        before = desk.table("db.ledger").read().record
        assert before is not None
        assert not holds(before), "nobody has answered yet"
        after = tuple(
            replace(each, since_ms=99)
            for each in before.suspended
            if each.table not in event.tables or "rights" in each.why
        )
        answer = desk.decides(suspended=after)
        assert holds(answer)
        return answer

    monkeypatch.setattr(resume, "pause_or_resume_sink", ask)
    return said


def suspends(desk: Desk, **why: str) -> None:
    """Tables that are there are suspended."""
    for name in why:
        desk.delivers(f"db.{name}", 1)
    desk.decides(suspended=tuple(Suspended(f"db.{name}", text, 5) for name, text in why.items()))


def test_without_names_all_that_are_suspended_are_asked_for(
    desk: Desk, asked: list[tuple[str, ...]]
) -> None:
    suspends(desk, one="HG-201 was rolled back", two="HG-203 lost its tag")
    result = desk.asks("resume")
    assert result.exit_code == 0
    assert result.stdout == "resumed: db.one\nresumed: db.two\n"
    assert asked == [("db.one", "db.two")]


def test_a_table_that_is_not_suspended_is_refused_and_nobody_is_asked(
    desk: Desk, asked: list[tuple[str, ...]]
) -> None:
    suspends(desk, one="HG-201 was rolled back")
    result = desk.asks("resume", "db.other")
    assert result.exit_code == 2
    assert "db.other is not suspended" in result.output
    assert asked == []


def test_what_still_has_trouble_is_told(desk: Desk, asked: list[tuple[str, ...]]) -> None:
    suspends(desk, one="HG-103 rights are missing", two="HG-203 lost its tag")
    result = desk.asks("resume")
    assert result.exit_code == 1
    assert "HG-229 db.one stays suspended: HG-103 rights are missing" in result.output
    assert len(asked) == 1


def test_a_table_that_is_gone_is_asked_for_only_by_name_and_where_it_can_be_made(
    desk: Desk, asked: list[tuple[str, ...]]
) -> None:
    desk.decides(suspended=(Suspended("db.gone", "HG-102 was dropped", 5),))
    for names in ((), ("db.gone",)):
        result = desk.asks("resume", *names)
        assert "HG-229 db.gone stays suspended" in result.output
    assert asked == []
    desk.write('[tables.create]\nschema = "infer"\n')
    assert desk.asks("resume").exit_code != 0
    assert desk.asks("resume", "db.gone").stdout == "resumed: db.gone\n"
    assert asked == [("db.gone",)]


def test_suspend_5_who_asks_again_ends_no_pause_of_the_sink(
    desk: Desk, asked: list[tuple[str, ...]]
) -> None:
    """A RESUME that names no table would be the one that ends a pause."""
    resuming = Suspended("db.one", "HG-201 was rolled back", 5, resuming=True)
    desk.decides(suspended=(resuming,))
    for names in ((), ("db.one",)):
        result = desk.asks("resume", *names)
        assert result.exit_code == 0
        assert "resuming already" in result.stdout
    desk.decides(suspended=(resuming, Suspended("db.gone", "HG-102 was dropped", 5)))
    assert "HG-229 db.gone stays suspended" in desk.asks("resume").output
    assert asked == []


def test_reread_resumes_first(
    desk: Desk, asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    suspends(desk, one="HG-201 was rolled back")
    assert "HG-164 tables.record_columns names no topic" in desk.asks("resume", "--reread").output
    desk.write('[tables.record_columns]\ntopic = "t"\npartition = "p"\noffset = "o"\n')
    monkeypatch.setattr(tables, "resume_and_wait_until_open", lambda _, names: tuple(names))
    monkeypatch.setattr(
        rewrite_expired_commits,
        "rewrite_expired_commits_of_tables",
        lambda _, names: tuple(RewrittenTable(n, 7, 2) for n in names),
    )
    told = desk.asks("resume", "db.one", "--reread").stdout.splitlines()
    assert told == [
        "resumed: db.one",
        "reread: db.one: 7 rows written again; 2 were there already",
    ]
    assert desk.asks("resume", "--reread").stdout == "reread: nothing has expired\n"
    assert asked == []


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The tables that are given back what they missed, once they are open."""
    given: list[tuple[str, ...]] = []

    def replay(_: SinkSettings, names: Sequence[str]) -> tuple[ReplayedTable, ...]:
        given.append(tuple(names))
        return tuple(ReplayedTable(name, 7) for name in names)

    monkeypatch.setattr(replay_quarantined, "replay_tables", replay)
    return given


def test_replay_resumes_first_and_asks_for_open_tables_at_once(
    desk: Desk,
    asked: list[tuple[str, ...]],
    replayed: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suspends(desk, one="HG-201 was rolled back")
    # This module's own time: threads that other tests have left sleep meanwhile, too.
    times = {**vars(time), "sleep": lambda _: desk.decides()}
    monkeypatch.setattr(resume, "time", SimpleNamespace(**times))
    answer = resume.pause_or_resume_sink

    def resuming(settings: SinkSettings, event: Resume, *more: Any) -> CommitRecord:
        record: CommitRecord = answer(settings, event, *more)
        return desk.decides(suspended=tuple(replace(p, resuming=True) for p in record.suspended))

    monkeypatch.setattr(resume, "pause_or_resume_sink", resuming)
    told = desk.asks("resume", "db.one", "db.open", "--replay")
    assert told.stdout.splitlines() == [
        "resumed: db.one",
        "replayed: db.one: 7 records replayed",
        "replayed: db.open: 7 records replayed",
    ]
    assert (asked, replayed) == ([("db.one",)], [("db.one", "db.open")])
    told = desk.asks("resume", "--replay")
    assert told.stdout == "replayed: nothing waits in the quarantine\n"


def test_replay_of_a_table_that_stays_suspended_replays_nothing(
    desk: Desk, asked: list[tuple[str, ...]], replayed: list[tuple[str, ...]]
) -> None:
    suspends(desk, one="HG-103 rights are missing")
    assert "HG-229" in desk.asks("resume", "--replay").output
    assert (len(asked), replayed) == (1, [])


def test_ledger_2_replay_without_names_creates_no_table_that_is_gone(
    desk: Desk, asked: list[tuple[str, ...]], replayed: list[tuple[str, ...]]
) -> None:
    desk.write('[tables.create]\nschema = "infer"\n')
    desk.delivers("db.one", 1)
    mended = Suspended("db.one", "HG-201 was rolled back", 5)
    desk.decides(suspended=(mended, Suspended("db.gone", "HG-102 was dropped", 5)))
    assert desk.asks("resume", "--replay").exit_code == 0
    assert (asked, replayed) == ([("db.one",)], [()])


def test_ledger_2_a_table_whose_key_records_do_not_show_is_not_said_to_come_again(
    desk: Desk, asked: list[tuple[str, ...]]
) -> None:
    desk.write(
        '[tables.create]\nschema = "infer"\n'
        '[tables.record_columns]\ntopic = "t"\npartition = "p"\noffset = "o"\n'
        '[[tables.table]]\nmatch = "db.gone"\nkey = ["id"]\n'
    )
    routed = desk.path.read_text().replace('field = "zone"\nto = "db.{field}"', 'to = "db.gone"')
    desk.path.write_text(routed)
    desk.decides(suspended=(Suspended("db.gone", "HG-102 was dropped", 5),))
    assert "HG-229 db.gone stays suspended" in desk.asks("resume", "db.gone").output
    assert asked == []


def test_a_sink_of_one_table_has_none_to_resume(desk: Desk) -> None:
    desk.path.write_text(desk.text)
    for action in ("show", "resume"):
        result = desk.asks(action)
        assert result.exit_code == 2
        assert "fills one table" in result.output
    assert not load(desk.path).tables
