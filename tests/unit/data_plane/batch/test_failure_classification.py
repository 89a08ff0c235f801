"""Which failures of a batch end the sink."""

from __future__ import annotations

import pytest

from headgate.data_plane.batch.failure_classification import failed_outcome_of


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(13, "Permission denied", "/lake/trips/data"),
        OSError("When initiating multiple part upload: AWS Error ACCESS_DENIED"),
    ],
)
def test_missing_rights_end_the_sink_by_name(error: OSError) -> None:
    outcome = failed_outcome_of(1, error)
    assert outcome.fatal is not None
    assert outcome.fatal.code == "HG-103"


def test_a_full_disk_is_tried_again() -> None:
    assert failed_outcome_of(1, OSError(28, "No space left on device")).fatal is None
