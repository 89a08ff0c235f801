"""Which sink a data file is of, once the snapshot that added it has expired."""

from __future__ import annotations

import pytest

from headgate.operations.audit.files import sink_of_path

DATA = "s3://lake/warehouse/db/trips/data"
NESTED = "s3://lake/headgate/warehouse/db/trips/data"


@pytest.mark.parametrize(
    ("path", "sink"),
    [
        (f"{DATA}/headgate/copy/7-c1/1/a.parquet", "copy"),
        (f"{DATA}/headgate/copy/compacted/a.parquet", "copy"),
        (f"{DATA}/headgate/copy/reread/a.parquet", "copy"),
        (f"{DATA}/headgate/copy/replayed-0f/a.parquet", "copy"),
        (f"{NESTED}/headgate/copy/7-c1/1/a.parquet", "copy"),
        (f"{NESTED}/a.parquet", None),
        (f"{NESTED}/day=7/a.parquet", None),
        (f"{DATA}/compacted/a.parquet", None),
    ],
)
def test_only_a_folder_that_a_sink_made_names_it(path: str, sink: str | None) -> None:
    """A warehouse may lie below a folder with headgate's name: engines' files are no sink's."""
    assert sink_of_path(path) == sink
