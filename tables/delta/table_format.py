"""Implements ``TableFormat`` for Delta. Imports delta-rs only once a table is opened."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from typing import TYPE_CHECKING

from headgate.control_protocol.errors import (
    ConfigurationError,
    TableFormatUnknown,
    TableMissing,
    type_and_first_line_of,
)
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import SinkTable
from headgate.control_protocol.table_format import (
    Capability,
    FileSchema,
    Guarantee,
    TableFormat,
    TableSpec,
    Use,
)
from headgate.control_protocol.table_history import TableReader
from headgate.tables.delta.columns import delta_schema_from_columns, require_partitionable
from headgate.tables.delta.locations import require_supported_location
from headgate.tables.storage.file_io import open_file_io
from headgate.tables.storage.file_store import folder_names_in
from headgate.tables.storage.object_stores import require_usable_timeouts

if TYPE_CHECKING:
    from headgate.tables.delta.open_table import DeltaLocation


_RENEWED_MS_MAX = 24 * 3_600_000
"""Tables that keep their log for less than two days are refused."""


class DeltaFormat(TableFormat):
    """Delta tables below a path, without a catalog: the log is the lock."""

    guarantee = Guarantee.EXACTLY_ONCE
    capabilities = frozenset({Capability.SECONDARY_TABLES, Capability.MANY_TABLES})

    def require_supported(self, spec: TableSpec) -> None:
        if find_spec("deltalake") is None:
            raise TableFormatUnknown(
                "table.type is delta, but deltalake is not installed",
                "pip install 'headgate[delta]'",
            )
        if not spec.location:
            raise ConfigurationError(
                "table.location is missing: a Delta table is found by it", "write its address"
            )
        require_supported_location(spec.location)
        if foreign := sorted(key for key in spec.storage if not key.startswith("s3.")):
            raise ConfigurationError(
                f"catalog.properties.{foreign[0]} is set, but a Delta table has no catalog",
                "leave keys of an S3 store there (s3....), which its files and its log need",
            )
        require_usable_timeouts(spec.storage)
        if not 0 < spec.renewed_ms <= _RENEWED_MS_MAX:
            raise ConfigurationError(
                f"coordinator.tag_refresh_interval_ms, or tables.valid_through_refresh_ms, is "
                f"{spec.renewed_ms}: an idle sink's record could be gone from the table's log "
                "before it is renewed",
                f"use {_RENEWED_MS_MAX} at most (a day), and not 0",
            )
        delta_schema_from_columns(spec.columns, spec.comments)
        if spec.create:
            require_partitionable(spec.columns, spec.partition_by)

    def create(self, spec: TableSpec) -> bool:
        place = _location_of_spec(spec)
        try:
            place.load_table()
        except TableMissing:
            if not spec.create:
                raise
            self._create_table(place, spec)
            place.load_table()
            return True
        return False

    def open(self, spec: TableSpec, sink: SinkName, use: Use = Use.OPERATOR) -> SinkTable:
        del use  # nothing is read ahead
        from headgate.tables.delta.table import DeltaSinkTable

        return DeltaSinkTable(_location_of_spec(spec), sink)

    def file_schema(self, spec: TableSpec) -> FileSchema:
        from headgate.tables.delta.open_table import file_schema_of

        place = _location_of_spec(spec)
        return file_schema_of(place, place.load_table())

    def reader(self, spec: TableSpec, sink: SinkName) -> TableReader:
        from headgate.tables.delta.reader import DeltaReader

        return DeltaReader(_location_of_spec(spec), sink)

    def list_table_names(self, beside: TableSpec) -> Collection[str]:
        from headgate.control_protocol.errors import Unreachable

        parent = _location_of_spec(beside).location.rpartition("/")[0]
        try:
            return folder_names_in(open_file_io(beside.storage, parent), parent)
        except OSError as error:
            raise Unreachable(
                f"{parent} cannot be listed: {type_and_first_line_of(error)}"
            ) from error

    def _create_table(self, place: DeltaLocation, spec: TableSpec) -> None:
        """Create the table.

        Another process may be first: what exists then is loaded and checked.
        """
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        from headgate.control_protocol.errors import Unreachable

        try:
            DeltaTable.create(
                place.uri,
                schema=Schema.from_json(delta_schema_from_columns(spec.columns, spec.comments)),
                mode="ignore",
                partition_by=list(spec.partition_by),
                name=spec.name,
                configuration=dict(spec.properties),
                raise_if_key_not_exists=False,  # our property, as well as other engines'
                storage_options=place.storage_options,
            )
        except (DeltaError, OSError) as error:
            raise Unreachable(
                f"Delta table {spec.name} cannot be made at {place.location}: "
                f"{type_and_first_line_of(error)}",
                "grant write access to the place, or correct table.properties",
            ) from error


def _location_of_spec(spec: TableSpec) -> DeltaLocation:
    from headgate.tables.delta.open_table import DeltaLocation

    return DeltaLocation.from_spec(spec)
