"""A sink over a format that lies does not pass the contract, and each of its tests can fail."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from contract.broken import NOTICED
from contract.sink_worlds import DeltaSinkWorld, FolderSinkWorld, IcebergSinkWorld
from support import able_folder, folder_kind

from headgate.control_protocol.errors import HeadgateError, Unreachable
from headgate.control_protocol.events import FileKind
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    EvolvedTable,
    Lineage,
    TableView,
)
from headgate.tables.delta.table import DeltaSinkTable
from headgate.tables.delta.table_format import DeltaFormat
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.upsert.upsert_commit import KeyedRows
from headgate.testing import contract
from headgate.testing.sink_in_process import SinkInProcess

KEYS = FileKind.KEYS
TURNS_MAX = 110
"""A test of the contract takes 55 turns at most, with all its lives, on a format that is right."""
LIARS: dict[str, Liar] = {}


@dataclass(frozen=True)
class Liar:
    """A format that is wrong in one way, and the tests that must notice, by their names' begin."""

    what: str
    tests: tuple[str, ...]
    where: Callable[[], Any]
    name: str
    step: Callable[..., Any]


def liar(
    where: Callable[[], Any], name: str, *tests: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have a function stand in for a step of a table; it is given the right one in front."""

    def plant(wrong: Callable[..., Any]) -> Callable[..., Any]:
        assert wrong.__doc__, f"{wrong.__name__} does not say what is wrong"
        LIARS[wrong.__name__.replace("_", "-")] = Liar(wrong.__doc__, tests, where, name, wrong)
        return wrong

    return plant


def page() -> Any:
    """The folder's table, of the module that was just installed."""
    return __import__(folder_kind.MODULE).FolderTable


def delta() -> Any:
    return DeltaSinkTable


@liar(
    page,
    "commit",
    "SinkContract.test_each_record_is_there_once",
    "SinkContract.test_a_death_at_a_step",
    "SinkContract.test_a_death_in_a_claim",
    "SinkContract.test_the_table_tells_a_new_life",
)
def a_claim_begins_anew(
    right: Callable[..., CommitOutcome], self: Any, attempt: CommitAttempt
) -> CommitOutcome:
    """It stores of a claim that nothing was read so far."""
    forgets = replace(attempt, record=replace(attempt.record, offsets=Offsets()))
    return right(self, forgets if attempt.record.is_claim else attempt)


@liar(page, "commit", "SinkContract.test_a_commit_whose_answer_is_lost")
def a_commit_lands_with_half_of_its_files_for_the_second_time(
    right: Callable[..., CommitOutcome], self: Any, attempt: CommitAttempt
) -> CommitOutcome:
    """It keeps the files of a commit apart, and adds them to the next one as well."""
    kept, self.kept = getattr(self, "kept", ()), attempt.files
    return right(self, replace(attempt, files=(*kept, *attempt.files)))


@liar(page, "commit", "SinkContract.test_a_commit_that_arrives_when_another_life_goes_on")
def a_commit_lands_on_whatever_is_there(
    right: Callable[..., CommitOutcome], self: Any, attempt: CommitAttempt
) -> CommitOutcome:
    """It does not compare the table with what the coordinator has seen."""
    return right(self, replace(attempt, base=self.read()))


@liar(page, "evolve", "EvolutionSinkContract.test_a_column_that_records_need")
def a_column_is_promised(
    right: Callable[..., EvolvedTable], self: Any, base: TableView, _columns: Any
) -> EvolvedTable:
    """It says that it has added a column."""
    return EvolvedTable(self.read(), ("tip",), ())


@liar(
    delta,
    "commit",
    "QuarantineSinkContract.test_bad_records_are_in_the_quarantine",
    "ManyTablesSinkContract.test_each_record_is_in_its_table",
)
def what_is_delivered_has_no_files(
    right: Callable[..., CommitOutcome], self: Any, attempt: CommitAttempt
) -> CommitOutcome:
    """It notes that a delivery has landed, without its rows."""
    return right(self, replace(attempt, files=()) if attempt.record.primary else attempt)


@liar(
    delta,
    "read",
    "QuarantineSinkContract.test_a_death_at_a_step_of_a_delivery",
    "QuarantineSinkContract.test_a_delivery_whose_answer_is_lost",
    "RollbackSinkContract.test_what_the_quarantine_has",
)
def a_delivery_is_forgotten(right: Callable[..., TableView], self: Any) -> TableView:
    """It does not know what was delivered to it."""
    view = right(self)
    if view.record is None or not view.record.primary:
        return view
    return replace(view, record=None, branch_record=None)


@liar(
    delta, "commit", "QuarantineSinkContract.test_a_delivery_that_arrives_when_another_life_goes_on"
)
def a_delivery_lands_on_whatever_is_there(
    right: Callable[..., CommitOutcome], self: Any, attempt: CommitAttempt
) -> CommitOutcome:
    """It does not compare a secondary table with what the coordinator has seen."""
    return right(self, replace(attempt, base=self.read()) if attempt.record.primary else attempt)


@liar(
    delta,
    "commit",
    "QuarantineSinkContract.test_whoever_comes_next_delivers",
    "ManyTablesSinkContract.test_a_coordinator_dies_between_two_tables",
)
def what_is_pending_is_forgotten(
    right: Callable[..., CommitOutcome], self: Any, attempt: CommitAttempt
) -> CommitOutcome:
    """It does not store what it has decided for other tables."""
    return right(self, replace(attempt, record=replace(attempt.record, pending_commits=())))


@liar(delta, "read", "RollbackSinkContract.test_a_table_that_its_owner_rolled_back")
def a_table_that_went_back_has_always_been_so(
    right: Callable[..., TableView], self: Any
) -> TableView:
    """It says of whatever there is that it contains the sink's newest commit."""
    view = right(self)
    return replace(view, lineage=Lineage.CONTAINS_TAG, branch_record=view.record)


@liar(lambda: IcebergTable, "read", "TagSinkContract.test_a_sink_whose_tag_is_gone")
def without_its_tag_it_is_a_new_table(right: Callable[..., TableView], self: Any) -> TableView:
    """It does not look whether the sink has been there."""
    view = right(self)
    if view.lineage is not Lineage.TAG_MISSING:
        return view
    return replace(view, lineage=Lineage.FRESH, branch_record=None)


@liar(delta, "read", "SuspensionSinkContract.test_a_table_that_cannot_be_filled")
def whatever_is_wrong_will_pass(right: Callable[..., TableView], self: Any) -> TableView:
    """It says of a damaged table that it cannot be reached just now."""
    try:
        return right(self)
    except HeadgateError as error:
        raise Unreachable(str(error)) from error


@liar(lambda: DeltaFormat, "create", "CreatedTablesSinkContract.test_tables_of_a_field_are_made")
def a_new_table_keeps_no_properties(right: Callable[..., bool], self: Any, spec: Any) -> bool:
    """It makes tables without what they were to keep."""
    return right(self, replace(spec, properties={}))


@liar(
    lambda: KeyedRows,
    "build_deletions_by_key",
    "KeyedSinkContract.test_a_table_with_a_key_is_the_fold",
    "KeyedSinkContract.test_a_death_at_a_step_of_a_delivery_by_key",
    "KeyedSinkContract.test_a_delivery_by_key_whose_answer_is_lost",
)
def a_row_whose_key_was_deleted_stays(
    right: Callable[..., Any], self: Any, *where: Any, **named: Any
) -> Any:
    """It takes no notice of keys whose rows are to go."""
    *at, written = where
    return right(self, *at, [each for each in written if each[0].kind is not KEYS], **named)


WORLDS: dict[str, Callable[[Path], Any]] = {
    "SinkContract": FolderSinkWorld,
    "EvolutionSinkContract": FolderSinkWorld,
    "KeyedSinkContract": IcebergSinkWorld,
    "TagSinkContract": IcebergSinkWorld,
}
"""The format that each contract is lied to with; else Delta."""


def is_cheap(test: str) -> bool:
    """A table in a folder; real ones are lied to in `make wide`."""
    return WORLDS.get(test.partition(".")[0]) is FolderSinkWorld


CASES = [(name, test) for name, each in LIARS.items() for test in each.tests]


def own_tests(name: str) -> dict[str, Callable[..., None]]:
    own = vars(getattr(contract, name))
    return {test: made for test, made in own.items() if test.startswith("test_")}


@pytest.mark.parametrize(
    ("name", "test"),
    [pytest.param(*case, marks=() if is_cheap(case[1]) else pytest.mark.wide) for case in CASES],
)
def test_a_sink_over_a_liar_does_not_pass(
    name: str, test: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped, _, begin = test.partition(".")
    ((_, function),) = ((n, f) for n, f in own_tests(shipped).items() if n.startswith(begin))
    install = able_folder.install if shipped == "EvolutionSinkContract" else folder_kind.install
    install(tmp_path, monkeypatch)
    lies = LIARS[name]
    right = getattr(lies.where(), lies.name)
    step = lies.step
    monkeypatch.setattr(lies.where(), lies.name, lambda *args, **named: step(right, *args, **named))
    world = WORLDS.get(shipped, DeltaSinkWorld)
    with pytest.raises(NOTICED):
        for n, named in enumerate(_parameters(function)):
            home = tmp_path / f"{n}"
            home.mkdir()
            with _so_many_turns(monkeypatch):
                function(getattr(contract, shipped)(), world(home), **named)


@contextmanager
def _so_many_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a sink fail that waits for ever, by its turns: a clock would run on a busy machine."""
    left = iter(range(TURNS_MAX))
    turn = SinkInProcess.turn

    def count_turn(sink: SinkInProcess) -> None:
        assert next(left, None) is not None, (
            f"for ever: {sink.tables_with_pending_commits()}, {sink.lag()} behind"
        )
        turn(sink)

    with monkeypatch.context() as counting:
        counting.setattr(SinkInProcess, "turn", count_turn)
        yield


def _parameters(test: Callable[..., None]) -> Iterator[dict[str, object]]:
    (mark,) = getattr(test, "pytestmark", None) or (None,)
    if mark is None:
        yield {}
        return
    name, values = mark.args
    assert name in inspect.signature(test).parameters
    yield from ({name: value} for value in values)


@pytest.mark.parametrize("shipped", contract.__all__)
def test_each_shipped_test_of_sinks_has_a_liar_that_fails_it(shipped: str) -> None:
    begins = [test.partition(".")[2] for _, test in CASES if test.startswith(f"{shipped}.")]
    unseen = [test for test in own_tests(shipped) if not any(map(test.startswith, begins))]
    assert unseen == []


@pytest.mark.parametrize("shipped", contract.__all__)
def test_the_page_for_authors_says_what_each_contract_of_sinks_is_for(shipped: str) -> None:
    assert f"`{shipped}`" in folder_kind.PAGE
