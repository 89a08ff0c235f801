"""Keys that were given out for a while are renewed in time, and with each failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.local_catalog import LocalCatalog, local_catalog

from headgate.control_protocol.errors import MissingRights, PoisonRecord, RemoteSigning
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome
from headgate.data_plane.batch.writer_task_plan import Plans, SourcePlan
from headgate.data_plane.write.in_process_writer import RenewingWriter
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing
from headgate.tables.storage.object_stores import (
    credential_time_left_s,
    has_temporary_credentials,
    require_no_remote_signing,
)

SOURCE = SourcePlan({})
VENDED = {"s3.access-key-id": "ASIA", "s3.secret-access-key": "s", "s3.session-token": "t"}


class Vending:
    """A catalog that gives out keys with each table that is loaded."""

    def __init__(self, local: LocalCatalog, keys: Mapping[str, str]) -> None:
        self.local = local
        self.keys = keys
        self.loaded = 0

    def load_table(self, name: str) -> object:
        self.loaded += 1
        table = self.local.catalog.load_table(name)
        # With an own client any store's keys stay, although the files are on this machine.
        told = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO", "number": str(self.loaded)}
        table.io.properties = {**table.io.properties, **self.keys, **told}
        return table


class Failing:
    """A ``BatchWriter`` whose next outcome is said."""

    def __init__(self) -> None:
        self.next: BatchOutcome | None = None

    def submit(self, batch: Batch) -> None: ...
    def wait_for_outcome(self, timeout_ms: int) -> BatchOutcome | None:
        return self.next

    def close(self) -> None: ...


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCatalog]:
    local = local_catalog(tmp_path)
    create_table_if_missing(local.catalog, "db.t", TableDeclaration({"id": "long"}))
    yield local
    local.catalog.close()


def start(local: LocalCatalog) -> TableStart:
    table = local.catalog.load_table("db.t")
    return TableStart("db.t", str(table.metadata.table_uuid), 0, 0, f"{table.location()}/data/x/")


@pytest.mark.parametrize(
    ("good_s", "renewed_after_s"),
    [(40, 20), (1_000, 600), (500, 250), (700, 400), (None, 600)],
)
def test_keys_are_renewed_after_half_their_life_or_five_minutes_early(
    local: LocalCatalog, good_s: int | None, renewed_after_s: int
) -> None:
    now = [1_000.0]
    ends = {"s3.session-token-expires-at-ms": str((1_000 + good_s) * 1000)} if good_s else {}
    catalog = Vending(local, {**VENDED, **ends})
    plans = Plans(catalog, monotonic_s=lambda: now[0], wall_s=lambda: now[0])  # type: ignore[arg-type]
    where = start(local)
    plans.plan_for_start(where, SOURCE)
    now[0] += renewed_after_s
    plans.plan_for_start(where, SOURCE)
    assert catalog.loaded == 1
    now[0] += 1
    plans.plan_for_start(where, SOURCE)
    assert catalog.loaded == 2


@pytest.mark.parametrize("keys", [VENDED, {"gcs.oauth2.token": "t"}, {"adls.sas-token.a": "t"}])
def test_a_failure_with_temporary_keys_renews_them_and_is_never_final(
    local: LocalCatalog, keys: Mapping[str, str]
) -> None:
    catalog, writer = Vending(local, keys), Failing()
    plans = Plans(catalog)  # type: ignore[arg-type]
    renewing = RenewingWriter(writer, plans)
    where = start(local)
    plans.plan_for_start(where, SOURCE)
    writer.next = BatchFailed(1, "HG-103 ExpiredToken", MissingRights("ExpiredToken"))
    assert renewing.wait_for_outcome(0) == BatchFailed(1, "HG-103 ExpiredToken")
    plans.plan_for_start(where, SOURCE)
    assert catalog.loaded == 2
    writer.next = poison = BatchFailed(1, "HG-207", PoisonRecord("a record"))
    assert renewing.wait_for_outcome(0) == poison


def test_keys_of_the_sink_file_are_what_they_are(local: LocalCatalog) -> None:
    catalog, writer = Vending(local, {"s3.access-key-id": "AKIA"}), Failing()
    plans = Plans(catalog)  # type: ignore[arg-type]
    where = start(local)
    plans.plan_for_start(where, SOURCE)
    writer.next = refused = BatchFailed(1, "HG-103", MissingRights("no"))
    assert RenewingWriter(writer, plans).wait_for_outcome(0) == refused
    plans.plan_for_start(where, SOURCE)
    assert catalog.loaded == 1


def test_a_plan_travels_whatever_opens_the_catalog(local: LocalCatalog) -> None:
    """A lock in it could not be pickled, and no two plans were equal."""
    import pickle
    import threading

    catalog = Vending(local, {**VENDED, "auth.manager": threading.Lock()})  # type: ignore[dict-item]
    plan = Plans(catalog).plan_for_start(start(local), SOURCE)  # type: ignore[arg-type]
    there = pickle.loads(pickle.dumps(plan))
    assert there == plan
    assert hash(there.shape) == hash(plan.shape)
    assert all(name.startswith(("s3.", "py-io-impl")) for name in plan.io_properties)
    assert VENDED.items() <= plan.io_properties.items()


def test_remote_signing_is_refused_by_name(local: LocalCatalog) -> None:
    catalog = Vending(local, {"s3.remote-signing-enabled": "true"})
    with pytest.raises(RemoteSigning, match=r"db\.t: its catalog signs requests") as refused:
        Plans(catalog).plan_for_start(start(local), SOURCE)  # type: ignore[arg-type]
    assert refused.value.code == "HG-120"
    require_no_remote_signing("db.t", {"s3.remote-signing-enabled": "true", **VENDED})
    require_no_remote_signing("db.t", {"s3.remote-signing-enabled": "false"})


def test_how_long_keys_are_good() -> None:
    assert credential_time_left_s({"s3.session-token-expires-at-ms": "5000"}, 1_000) == 4
    two = {"gcs.oauth2.token-expires-at": "9000", "adls.sas-token-expires-at-ms.a": "3000"}
    assert credential_time_left_s(two, 1_000) == 2
    assert credential_time_left_s({"s3.session-token": "x"}, 0) == float("inf")
    assert has_temporary_credentials(VENDED)
    assert not has_temporary_credentials({"s3.access-key-id": "AKIA"})
