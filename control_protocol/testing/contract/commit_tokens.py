"""Tests a table whose files bear the mark of the one commit that may bring them (rule TOKEN-2)."""

from __future__ import annotations

from headgate.control_protocol.commit_tokens import ANY, SupportsCommitTokens, is_path_of_token
from headgate.control_protocol.ports import Landed, Refused
from headgate.control_protocol.testing.contract.world import (
    TokenWorld,
    claim_table,
    commit,
    record,
    require_landed,
)


class CommitTokenContract:
    """The tests take a fixture ``world``, a ``TokenWorld``."""

    def test_token_2_no_token_is_given_twice_and_files_belong_to_their_own(
        self, world: TokenWorld
    ) -> None:
        tables = world.open(), world.open(), world.open("other")
        assert all(isinstance(table, SupportsCommitTokens) for table in tables)
        tokens = [table.new_token() for table in tables for _ in range(2)]
        assert len(set(tokens)) == len(tokens)
        assert {token.count(ANY) for token in tokens} == {1}
        file = world.write_marked_file(tokens[0], 1)
        assert [is_path_of_token(token, file.path) for token in tokens] == [True] + [False] * 5

    def test_token_2_files_land_under_the_token_that_came_before_the_claim(
        self, world: TokenWorld
    ) -> None:
        table = world.open()
        token = table.new_token()
        view = claim_table(table)
        files = world.write_marked_file(token, 1), world.write_marked_file(token, 2)
        require_landed(commit(table, view, record(1, 1, 6), *files))
        assert world.visible_file_numbers() == [1, 2]

    def test_token_2_the_next_transaction_has_its_token_before_one_lands(
        self, world: TokenWorld
    ) -> None:
        table = world.open()
        first = table.new_token()
        view = claim_table(table)
        second = table.new_token()
        later, sooner = world.write_marked_file(second, 2), world.write_marked_file(first, 1)
        view = require_landed(commit(table, view, record(1, 1, 3), sooner))
        require_landed(commit(table, view, record(1, 2, 6), later))
        assert world.visible_file_numbers() == [1, 2]

    def test_token_2_an_unused_token_blocks_no_later_commit(self, world: TokenWorld) -> None:
        table = world.open()
        view = claim_table(table)
        table.new_token()
        view = require_landed(commit(table, view, record(1, 1)))
        require_landed(
            commit(table, view, record(1, 2, 3), world.write_marked_file(table.new_token(), 1))
        )
        assert world.visible_file_numbers() == [1]

    def test_token_2_what_comes_after_its_commit_is_refused_for_good(
        self, world: TokenWorld
    ) -> None:
        table = world.open()
        token = table.new_token()
        view = claim_table(table)
        view = require_landed(
            commit(table, view, record(1, 1, 3), world.write_marked_file(token, 1))
        )
        outcome = commit(table, view, record(1, 2, 6), world.write_marked_file(token, 2))
        assert isinstance(outcome, Refused)
        assert outcome.for_good, "no repetition mends it: the ranges are written again"
        require_landed(
            commit(
                table, table.read(), record(1, 2, 6), world.write_marked_file(table.new_token(), 3)
            )
        )
        assert world.visible_file_numbers() == [1, 3]

    def test_token_2_files_of_two_tokens_never_land_in_one_commit(self, world: TokenWorld) -> None:
        table = world.open()
        files = (
            world.write_marked_file(table.new_token(), 1),
            world.write_marked_file(table.new_token(), 2),
        )
        assert not isinstance(commit(table, claim_table(table), record(1, 1, 6), *files), Landed)
        assert world.visible_file_numbers() == []
        assert world.open().read().record == record(1, 0)
