"""The warehouse is full: batches fail, nothing is committed, and the sink recovers by itself."""

from __future__ import annotations

import resource

import pytest
from integration.conftest import Deploy

pytestmark = pytest.mark.integration

# Above what catalog, manifests and log need here, below the size of the data file to come.
FILE_BYTES_MAX = 64 * 1024


@pytest.mark.wide
def test_a_full_disk_delays_and_loses_nothing(deploy: Deploy) -> None:
    sink = deploy()
    (participant,) = sink.start()
    sink.produce()
    sink.wait_until_lag_zero()
    before = sink.committed()
    participant.pause()  # it shall see all of them at once, as one file that is too large
    soft, hard = resource.prlimit(participant.pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, -1))
    sink.produce(40_000)
    participant.resume()
    sink.wait_until(lambda: participant.said("failed: HG-403"), "failed batch")
    assert sink.committed() == before
    resource.prlimit(participant.pid, resource.RLIMIT_FSIZE, (soft, hard))
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()
    failed = {path for path in sink.warehouse.rglob("*.parquet") if not path.stat().st_size}
    assert not failed, "a failed batch leaves no file behind"
