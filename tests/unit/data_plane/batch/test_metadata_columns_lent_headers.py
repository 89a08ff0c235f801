"""Headers end with the messages that lent them: records that wait for a table keep copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.local_catalog import local_catalog
from unit.data_plane.write.test_write_batch_multi_table import BY_TOPIC, Desk, some

from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.ports import Batch, BatchOutcome
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.routing.routes import Route
from headgate.data_plane.write.write_batch import write_chunks
from headgate.kafka.librdkafka_binding import LentHeaders
from headgate.kafka.record_fetch import Chunk
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing


class NoHeaders:
    """Stands for librdkafka: messages without headers."""

    def message_headers(self, _message: int, _headers: Any) -> int:
        return 1


class LendingDesk(Desk):
    """A desk whose records come in one chunk, which ends before the batch does."""

    def written(self, plan: WriterPlan, batch: Batch, chunk: Chunk) -> BatchOutcome:
        def chunks() -> Iterator[Chunk]:
            count = len(chunk.offsets)
            lent = LentHeaders(NoHeaders(), np.arange(count, dtype=np.uint64))  # type: ignore[arg-type]
            yield replace(chunk, headers=lent)
            lent.invalidate()

        return write_chunks(plan, batch, chunks())


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    local = local_catalog(tmp_path)
    create_table_if_missing(local.catalog, "db.ledger", TableDeclaration({"note": "string"}))
    create_table_if_missing(local.catalog, "db.q", quarantine_declaration())
    yield LendingDesk(local, (Route(topic=BY_TOPIC.topic, to="db.together", merge=True),))
    local.catalog.close()


def test_several_topics_into_one_table_outlive_the_chunk_that_brought_them(
    desk: Desk,
) -> None:
    desk.table("db.together")
    batch = {"shop.a": some(1, 2), "shop.b": some(3), "shop.c": [*some(4), {"id": "x"}]}
    assert desk.write(batch) == {"together": [1, 2, 3, 4], "q": ["x"]}
