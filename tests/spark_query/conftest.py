"""Provides histories whose sources are played."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from spark_query.histories import History, NoCopies, PlayedSources

from headgate.spark import batches, query_batch_commits


@contextmanager
def played(made: History) -> Iterator[History]:
    with (
        patch.object(batches, "open_source_topics", lambda _: PlayedSources(made)),
        patch.object(query_batch_commits, "OffsetCopies", NoCopies),
    ):
        yield made


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with played(History(1, tmp_path)) as made:
        yield made


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[History]:
    with played(History(1, tmp_path, keyed=True)) as made:
        yield made
