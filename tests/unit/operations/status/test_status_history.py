"""A page of a long history looks into what it shows, and into no more."""

from __future__ import annotations

import pytest
from unit.operations.filled_table import SINK, FilledTable

from headgate.control_protocol.table_history import Newest
from headgate.tables.iceberg import history as module
from headgate.tables.iceberg.history import read_history


def test_only_the_newest_is_decoded(filled: FilledTable, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.good_start()
    filled.table.refresh()
    whole = read_history(filled.table, SINK, "main")
    decoded: list[int] = []
    right = module.decode_record

    def counted(*arguments: object) -> object:
        decoded.append(1)
        return right(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "decode_record", counted)
    late = whole.commits[-1].committed_ms
    seen = read_history(filled.table, SINK, "main", Newest(1, late + 1))
    assert seen.commits == whole.commits[-1:]
    assert len(decoded) == 2, "the newest, and what is under the tag"
    assert (seen.complete, seen.tag_on_branch, seen.current_record) == (
        False,
        True,
        whole.current_record,
    )


def test_what_was_before_a_time_is_there_with_the_one_before_it(
    filled: FilledTable,
) -> None:
    filled.good_start()
    filled.table.refresh()
    whole = read_history(filled.table, SINK, "main")
    times = [commit.committed_ms for commit in whole.commits]
    seen = read_history(filled.table, SINK, "main", Newest(1, times[0]))
    assert seen.commits[0].committed_ms <= times[0]
    assert read_history(filled.table, SINK, "main", Newest(1, 0)).commits == whole.commits
    assert read_history(filled.table, SINK, "main", Newest(9, times[-1])).complete
