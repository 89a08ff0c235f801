"""Tries on scratch tables what a sink asks of a catalog, and says what the catalog answered.

Whether a server keeps what it is sent is not known from its name: it is tried, by the code that
commits for a sink. Nothing but the two scratch tables is written, and both are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import BadRequestError, CommitFailedException, NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table, TableIdentifier
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
)
from pyiceberg.types import LongType, NestedField

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import (
    CatalogRefused,
    HeadgateError,
    StopSink,
    TagsDropped,
    Unreachable,
)
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
    tag_name,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    Refused,
    TableView,
    Unknown,
)
from headgate.tables.iceberg.catalog import translate_catalog_error
from headgate.tables.iceberg.prepared_commit import PreparedCommit
from headgate.tables.iceberg.rest_catalog import BoundedRestCatalog
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import with_default_properties
from headgate.tables.storage.object_stores import file_io_properties

SINK = SinkName("headgate-check")
_TOPIC = "headgate-check"
_TOPIC_ID = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
_MARK = "headgate.check"
_CENTURY_MS = 100 * 365 * 86_400_000
_SECRETS = ("key", "token", "secret", "password", "credential", "sas")


@dataclass(frozen=True, slots=True)
class VendedKeys:
    """What a catalog sent with a table for its files: names of properties, never values."""

    names: tuple[str, ...]
    signs_remotely: bool

    @property
    def secret_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if any(part in name for part in _SECRETS))


class CatalogTrial:
    """Two scratch tables; once ``made`` names some, ``drop_tables_finding_unpurged_locations``.

    Questions are asked in the order of the methods. Raises one of ``HeadgateError``.
    """

    def __init__(self, catalog: Catalog, namespace: str, name: str) -> None:
        self.names = (f"{namespace}.{name}", f"{namespace}.{name}_other")
        self.made: list[str] = []
        self._catalog = catalog
        self._namespace = namespace
        self._tables: dict[str, Table] = {}
        self._refused: list[PreparedCommit] = []
        self._first = IcebergTable(catalog, self.names[0], SINK, threads=False)
        self._tag = tag_name(SINK)

    def describe_catalog(self) -> str:
        """Return what the catalog says of itself."""
        catalog = self._catalog
        if not isinstance(catalog, RestCatalog):
            return f"{type(catalog).__name__}, which lists nothing about itself"
        listed = sorted(map(str, catalog._supported_endpoints))  # noqa: SLF001 - read nowhere else
        return f"a REST server; calls that it lists: {len(listed)}"

    def namespace_exists_or_unknown(self) -> bool:
        """Return whether the namespace of the scratch tables is there, as far as it can be asked.

        A trial makes none.
        """
        try:
            with self._translating_errors("the namespace"):
                return self._catalog.namespace_exists(self._namespace)
        except Unreachable as error:
            if isinstance(error.__cause__, NotImplementedError):  # creating will tell
                return True
            raise

    def create_scratch_tables(self) -> str:
        """Make both tables; return the location of the first."""
        schema = Schema(NestedField(1, "id", LongType(), required=False))
        for name in self.names:
            try:
                with self._translating_errors(f"creating {name}"):
                    self._tables[name] = self._catalog.create_table(
                        name, schema, properties=with_default_properties({})
                    )
            except (
                Unreachable
            ) as error:  # ``drop_tables_finding_unpurged_locations`` knows nothing of it
                text = f"{error.message}; it may have been made all the same"
                raise Unreachable(text, f"look for {name}, and drop it") from error
            self.made.append(name)
        return self._table.location()

    @property
    def _table(self) -> Table:
        return self._tables[self.names[0]]

    def vended_credentials(self) -> VendedKeys:
        """Return what came with the table that the sink file does not have."""
        own = self._catalog.properties
        files = self._table.io.properties
        given = sorted(name for name in file_io_properties(files) if own.get(name) != files[name])
        signs = str(files.get("s3.remote-signing-enabled", "")).lower() == "true"
        return VendedKeys(tuple(given), signs and "s3.access-key-id" not in files)

    def file_properties_and_location(self) -> tuple[dict[str, str], str]:
        """Return the properties by which a participant reaches the table's files, and where."""
        location = self._table.location()
        return file_io_properties(self._table.io.properties, location), location

    def require_first_claim_kept(self) -> None:
        """Commit as a sink's first claim does: a snapshot, its properties, branch and tag at once.

        What comes back must be what was sent.
        """
        view = self._first.read()
        try:
            landed = self._require_landed(self._first.commit(_build_attempt(view, 0)))
        except TagsDropped:
            raise
        except StopSink as error:  # what a sink would say here names persons, who had no part
            raise CatalogRefused(f"a claim came back changed: {error.message}", "") from error
        self._require_record_kept(landed, 0)

    def tag_retention_ms(self) -> int | None:
        """Return for how long the catalog says that it keeps the tag; ``None``: no word of it."""
        return self._load_table().metadata.refs[self._tag].max_ref_age_ms

    def is_tag_retention_kept(self) -> bool:
        """Return whether the tag's own retention, which a claim sets, was kept."""
        lasts_ms = self.tag_retention_ms()
        return lasts_ms is not None and lasts_ms >= _CENTURY_MS

    def require_refusal_of_stale_commit(self) -> str:
        """Send two commits that were prepared on the same state: only one may land."""
        view = self._first.read()
        one, other = (self._prepare_commit(view, number) for number in (1, 2))
        self._require_record_kept(self._require_landed(self._first.send_commit(one)), 1)
        return self._send_and_require_refusal(other, "a commit on a state that was gone")

    def require_refusal_after_moved_tag(self) -> str:
        """Move the tag, and nothing else: a commit that was prepared before must be refused."""
        view = self._first.read()
        call = self._prepare_commit(view, 3)
        older = self._load_table().metadata.snapshots[0].snapshot_id
        moved = SetSnapshotRefUpdate(
            ref_name=self._tag,
            type=SnapshotRefType.TAG,
            snapshot_id=older,
            max_ref_age_ms=2**63 - 1,
            max_snapshot_age_ms=None,
            min_snapshots_to_keep=None,
        )
        with self._translating_errors("moving a tag"):
            self._catalog.commit_table(self._load_table(), (), (moved,))
        if self._load_table().metadata.refs[self._tag].snapshot_id != older:
            raise CatalogRefused("a tag that was moved stands where it stood", "")
        return self._send_and_require_refusal(call, "a commit whose tag had been moved")

    def try_joint_commit(self) -> bool:
        """Return whether it commits to two tables at once, and to none if one is refused.

        ``False``: it has no such call. Raises ``CatalogRefused`` if half of one landed.
        """
        catalog = self._catalog
        if (
            not isinstance(catalog, BoundedRestCatalog)
            or not catalog.may_support_multi_table_commits
        ):
            return False
        tables = [self._load_table(name) for name in self.names]
        try:
            with self._translating_errors("a commit to two tables"):
                catalog.commit_tables([_build_property_change(table, "1") for table in tables])
        except Unreachable as error:
            if isinstance(error.__cause__, NotImplementedError):
                return False
            raise
        if self._read_test_properties() != ["1", "1"]:
            raise CatalogRefused("a commit to two tables was answered well, and is not there", "")
        with self._translating_errors("a commit to two tables, of which one is another"):
            try:
                catalog.commit_tables(
                    [
                        _build_property_change(tables[0], "2"),
                        _build_property_change(tables[1], "2", wrong_uuid=True),
                    ]
                )
            except (CommitFailedException, BadRequestError):
                pass
            else:
                raise CatalogRefused(
                    "a commit to two tables landed, though one was another table", ""
                )
        if self._read_test_properties() != ["1", "1"]:
            raise CatalogRefused("half of a commit to two tables landed", "")
        return True

    def drop_tables_finding_unpurged_locations(self) -> tuple[str, ...]:
        """Drop the tables with their files; return the locations whose files may stay.

        Raises what hinders the first one, once all was tried.
        """
        stay: list[str] = []
        failed: list[Exception] = []
        for name in tuple(self.made):
            try:
                self._drop_table_noting_leftovers(name, stay)
            except Exception as error:  # noqa: BLE001 - raised below
                failed.append(error)
            else:
                self.made.remove(name)
        for call in self._refused:  # no table refers to their files, so no purge finds them
            for update in call.updates:
                if isinstance(update, AddSnapshotUpdate):
                    with suppress(Exception):
                        call.table.io.delete(update.snapshot.manifest_list)
        if failed:
            what = f"dropping {' and '.join(self.made)}, which stayed"
            raise translate_catalog_error(failed[0], what) from failed[0]
        return tuple(stay)

    # ---------------------------------------------------------------------------------- in detail

    def _drop_table_noting_leftovers(self, name: str, locations: list[str]) -> None:
        try:
            self._catalog.purge_table(name)
        except NoSuchTableError:
            pass
        except Exception:  # noqa: BLE001 - some have no such call, or forbid it
            locations.append(self._tables[name].location())
            self._catalog.drop_table(name)

    def _load_table(self, name: str = "") -> Table:
        name = name or self.names[0]
        with self._translating_errors(f"loading {name}"):
            return self._catalog.load_table(name)

    def _prepare_commit(self, view: TableView, number: int) -> PreparedCommit:
        prepared = self._first.prepare_commit(_build_attempt(view, number))
        if isinstance(prepared, PreparedCommit):
            return prepared
        assert not isinstance(prepared, Landed), "nothing had been sent"
        raise Unreachable(f"a commit could not be prepared: {prepared.reason}", "")

    def _require_landed(self, outcome: CommitOutcome) -> TableView:
        if isinstance(outcome, Landed):
            return outcome.view
        if isinstance(outcome, Unknown):
            raise Unreachable(f"not known whether the commit landed: {outcome.reason}", "")
        raise CatalogRefused(f"the commit did not land: {outcome.reason}", "")

    def _require_record_kept(self, view: TableView, number: int) -> None:
        """Raise unless the table tells the commit record as it was sent."""
        read = self._first.read()
        if (view.record, read.record) != (_build_record(number), _build_record(number)):
            raise CatalogRefused("a claim came back changed: its properties are others", "")

    def _send_and_require_refusal(self, prepared: PreparedCommit, what: str) -> str:
        """Return the catalog's own words for the refusal."""
        outcome = self._first.send_commit(prepared)
        if isinstance(outcome, Refused):
            self._refused.append(prepared)
            return outcome.reason
        if isinstance(outcome, Landed):
            raise CatalogRefused(f"{what} landed: two coordinators could commit", "")
        raise Unreachable(f"{what}: not known whether it landed: {outcome.reason}", "")

    def _read_test_properties(self) -> Sequence[str | None]:
        return [self._load_table(name).properties.get(_MARK) for name in self.names]

    @contextmanager
    def _translating_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except HeadgateError:
            raise
        except Exception as error:
            raise translate_catalog_error(error, what) from error


def _build_record(number: int) -> CommitRecord:
    topics: Mapping[str, TopicId] = {_TOPIC: _TOPIC_ID}
    return CommitRecord(
        sink=SINK,
        group_id="headgate-check",
        transaction=TransactionId(Epoch(1), TransactionNumber(number)),
        coordinator=Sender("headgate-check", "trial"),
        offsets=Offsets({TopicPartition(_TOPIC, 0): number}),
        topic_ids=topics,
    )


def _build_attempt(view: TableView, number: int) -> CommitAttempt:
    return CommitAttempt(view, _build_record(number))


def _build_property_change(
    table: Table, value: str, *, wrong_uuid: bool = False
) -> CommitTableRequest:
    """Return a change of one property; ``wrong_uuid``: one that requires another table."""
    *namespace, name = table.name()
    uuid = table.metadata.table_uuid
    required = type(uuid)(int=uuid.int ^ 1) if wrong_uuid else uuid
    return CommitTableRequest(
        identifier=TableIdentifier(namespace=namespace, name=name),
        requirements=(AssertTableUUID(uuid=required),),
        updates=(SetPropertiesUpdate(updates={_MARK: value}),),
    )
