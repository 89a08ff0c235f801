"""Opens Delta tables, and refuses those that a sink could not fill."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import (
    PutsUnconditional,
    TableMissing,
    TableUnfit,
    Unreachable,
    type_and_first_line_of,
)
from headgate.control_protocol.table_format import FileSchema, TableSpec, schema_id_of_text
from headgate.tables.delta.columns import can_partition_by, columns_from_delta
from headgate.tables.delta.locations import storage_options
from headgate.tables.delta.log import Log, log_unreadable_error
from headgate.tables.delta.protocol_support_trial import (
    delta_library_version,
    newest_protocol_refusal_or_empty,
    protocol_refusal_or_empty,
)
from headgate.tables.delta.unsupported_years import year_check_for
from headgate.tables.storage.file_io import is_s3_files, open_file_io
from headgate.tables.storage.file_store import Folder, open_folder
from headgate.tables.storage.local_file_io import local_path_of_encoded_uri

_FEATURES = frozenset(
    (
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "timestampNtz"),
        *("generatedColumns", "identityColumns", "columnMapping", "deletionVectors"),
        *("v2Checkpoint", "vacuumProtocolCheck", "allowColumnDefaults", "domainMetadata"),
        "clustering",
    )
)
"""Features that appends may ignore, unless a property or a column uses them. Whether the library
commits to a table that has them is tried."""

_CONSTRAINT = "delta.constraints."
_TXN_RETENTION = "delta.setTransactionRetentionDuration"
_LOG_RETENTION = "delta.logRetentionDuration"
_LOG_DAYS_MIN = 2
_TRIES, _PAUSE_S = 3, 0.5
"""An invalid log is read again: a clean-up may have interfered with the first read."""

_PART = re.compile(r"(\d+)\s*(week|day|hour|minute|second|milli|micro)", re.IGNORECASE)
_DAYS_OF_PART = {"week": 7.0, "day": 1.0, "hour": 1 / 24, "minute": 1 / 1440}


@dataclass(frozen=True, slots=True)
class DeltaLocation:
    """A table's location, and the storage keys for its log and files, and for delta-rs."""

    name: str
    location: str
    storage: Mapping[str, str]

    @classmethod
    def from_spec(cls, spec: TableSpec) -> DeltaLocation:
        folder = local_path_of_encoded_uri(spec.location)
        location = spec.location if folder is None else f"file://{folder}"
        return cls(spec.name, location.rstrip("/"), spec.storage)

    @property
    def uri(self) -> str | Path:
        """Return the location for delta-rs, which takes addresses as well as plain paths."""
        return local_path_of_encoded_uri(self.location) or self.location

    @property
    def storage_options(self) -> dict[str, str]:
        return storage_options(self.location, self.storage)

    def open_log(self) -> Log:
        return Log(open_file_io(self.storage, self.location), self.location)

    def open_folder(self) -> Folder:
        return open_folder(self.location, self.storage)

    def require_conditional_puts(self) -> None:
        """Raise ``PutsUnconditional`` if two writers could put the same version; or ``OSError``."""
        files = open_file_io(self.storage, self.location)
        if is_s3_files(files) and not files.probe_conditional_puts(
            f"{self.location}/data/headgate"
        ):
            raise PutsUnconditional(
                f"the store of Delta table {self.name} at {self.location} overwrites what is "
                "there, though it was asked to put it only if it is absent",
                "two coordinators could overwrite each other's versions; use a store that knows "
                "conditional writes, or fill an Iceberg table",
            )

    def load_table(self) -> DeltaTable:
        """Raises ``TableMissing``, ``Unreachable``, ``LogUnreadable``, ``TableUnfit``."""
        messages = set[str]()
        for _ in range(_TRIES):
            try:
                table = self._load_delta_table()
                break
            except DeltaError as error:
                failure = error
                messages.add(type_and_first_line_of(error))
                time.sleep(_PAUSE_S)
        else:
            if len(messages) == 1:
                self._require_supported_protocol()
                raise log_unreadable_error(f"{self.location}/_delta_log", failure) from failure
            raise Unreachable(
                f"Delta table {self.name} cannot be read: {type_and_first_line_of(failure)}"
            )
        require_fit_table(self.name, table)
        return table

    def _require_supported_protocol(self) -> None:
        """Raise ``TableUnfit`` where the log is sound, but of a protocol that is not supported."""
        try:
            why = newest_protocol_refusal_or_empty(self.open_folder())
        except OSError as error:
            raise Unreachable(
                f"Delta table {self.name} cannot be read: {type_and_first_line_of(error)}"
            ) from error
        if why:
            raise _unsupported_protocol_error(self.name, why)

    def _load_delta_table(self) -> DeltaTable:
        """Load the table. Raises ``TableMissing``, ``Unreachable``; ``DeltaError``: invalid log."""
        try:
            return DeltaTable(self.uri, storage_options=self.storage_options)
        except TableNotFoundError as error:
            raise TableMissing(
                f"there is no Delta table {self.name} at {self.location}",
                "correct table.location, or set table.create with its columns",
            ) from error
        except OSError as error:
            raise Unreachable(
                f"Delta table {self.name} cannot be read: {type_and_first_line_of(error)}"
            ) from error


def partition_columns_of(table: DeltaTable) -> tuple[str, ...]:
    return tuple(table.metadata().partition_columns)


def columns_of(name: str, table: DeltaTable) -> Struct:
    return columns_from_delta(name, table.schema().to_json())


def schema_id_of(table: DeltaTable) -> int:
    return schema_id_of_parts(table.schema().to_json(), partition_columns_of(table))


def schema_id_of_parts(schema: str, partition_by: tuple[str, ...]) -> int:
    """Return the number of columns and partitioning; ``schema`` is delta-rs's JSON."""
    return schema_id_of_text(f"{schema} {partition_by}")


def file_schema_of(place: DeltaLocation, table: DeltaTable) -> FileSchema:
    columns, partition_by = columns_of(place.name, table), partition_columns_of(table)
    return FileSchema(
        uuid=str(table.metadata().id),
        schema_id=schema_id_of(table),
        columns=columns,
        location=place.location,
        partition_by=partition_by,
        values=year_check_for({name: columns[name].type for name in partition_by}),
        storage=place.storage,
        properties=table.metadata().configuration,
    )


def require_fit_table(name: str, table: DeltaTable) -> None:
    """Raise ``TableUnfit`` for unsupported features or types of partition columns."""
    protocol, properties = table.protocol(), table.metadata().configuration
    named = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    if unknown := sorted(named - _FEATURES):
        raise _unsupported_feature_error(name, f"has the table features {', '.join(unknown)}")
    for key, value in properties.items():
        if key.startswith(_CONSTRAINT):
            raise _unsupported_feature_error(
                name, f"has the constraint {key.removeprefix(_CONSTRAINT)}"
            )
        if key == "delta.columnMapping.mode" and value != "none":
            raise _unsupported_feature_error(name, f"maps its columns by {value}")
    if _TXN_RETENTION in properties:
        raise TableUnfit(
            f"Delta table {name} forgets after {_TXN_RETENTION} what applications have committed: "
            "a sink that stood still would take it for a table it never wrote to",
            f"unset {_TXN_RETENTION}",
        )
    _require_log_retention_long_enough(name, properties.get(_LOG_RETENTION) or "")
    if why := protocol_refusal_or_empty(table):
        raise _unsupported_protocol_error(name, why)
    types = {column.name: column.type for column in columns_of(name, table).fields}
    for column in partition_columns_of(table):
        if not can_partition_by(types[column]):
            raise _unsupported_feature_error(
                name, f"is partitioned by {column!r}, of type {types[column]}"
            )


def _unsupported_protocol_error(name: str, why: str) -> TableUnfit:
    return TableUnfit(
        f"Delta table {name}: {delta_library_version()} does not commit to tables of its protocol: "
        f"{why}",
        "drop the feature that it names, or fill another table; docs/table-formats/delta.md has "
        "more",
    )


def _unsupported_feature_error(name: str, has: str) -> TableUnfit:
    return TableUnfit(
        f"Delta table {name} {has}, which appends of headgate do not heed",
        "docs/table-formats/delta.md says which tables can be filled",
    )


def _require_log_retention_long_enough(name: str, interval: str) -> None:
    parts = [(int(count), unit.lower()) for count, unit in _PART.findall(interval)]
    days = sum(count * _DAYS_OF_PART.get(unit, 0.0) for count, unit in parts)
    if parts and days < _LOG_DAYS_MIN:
        raise TableUnfit(
            f"Delta table {name} keeps its log for {interval} only: the sink's offsets are in it",
            f"set {_LOG_RETENTION} to {_LOG_DAYS_MIN} days at least",
        )
