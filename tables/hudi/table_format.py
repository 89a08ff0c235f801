"""Implements ``TableFormat`` for Hudi. Starts a JVM only to create, read or commit to a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.util import find_spec

from headgate.control_protocol.errors import (
    ConfigurationError,
    HudiMissing,
    TableMissing,
    Unreachable,
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
from headgate.tables.hudi.columns import (
    avro_schema_of,
    require_partitionable,
    require_supported_record_key,
)
from headgate.tables.hudi.lock_check import check_lock_server
from headgate.tables.hudi.record_keys import require_supported_key
from headgate.tables.hudi.s3_locations import require_supported_location, select_store_properties
from headgate.tables.hudi.table_properties import HudiLocation
from headgate.tables.hudi.write_configuration import (
    KEY,
    require_known_table_type,
    require_no_ignored_settings,
)
from headgate.tables.storage.file_io import open_file_io
from headgate.tables.storage.file_store import folder_names_in
from headgate.tables.storage.object_stores import require_usable_timeouts


class HudiFormat(TableFormat):
    """Hudi tables below a path; Hudi's lock provider decides who commits."""

    guarantee = Guarantee.EXACTLY_ONCE
    capabilities = frozenset(
        {
            Capability.SECONDARY_TABLES,
            Capability.KEYED_TABLES,
            Capability.KEYS,
            Capability.MANY_TABLES,
        }
    )

    def require_supported(self, spec: TableSpec) -> None:
        if find_spec("pyspark") is None:
            raise HudiMissing(
                "table.type is hudi, but PySpark is not installed", "pip install 'headgate[hudi]'"
            )
        if not spec.location:
            raise ConfigurationError(
                "table.location is missing: a Hudi table is found by it", "write its folder"
            )
        section = "table.properties" if spec.primary is None else "tables.create.properties"
        storage = spec.storage.keys() - select_store_properties(
            require_supported_location(spec.location), spec.storage
        )
        require_usable_timeouts(spec.storage)
        require_no_ignored_settings(section, spec.properties, storage, create=spec.create)
        if spec.key and KEY in spec.properties:
            raise ConfigurationError(
                f"table.properties.{KEY} is set, and table.key as well", "remove the first"
            )
        HudiLocation.from_spec(spec)
        require_known_table_type(spec.properties)
        if spec.create:
            avro_schema_of(spec.name, spec.columns, spec.comments)
            require_partitionable(spec.columns, spec.partition_by)
            key = spec.properties.get(KEY)
            if spec.key:
                require_supported_key(spec.columns, spec.key, spec.partition_by)
            elif key:
                require_supported_record_key(spec.columns, key, spec.partition_by)

    def create(self, spec: TableSpec) -> bool:
        place, made = HudiLocation.from_spec(spec), False
        try:
            place.read_config_ensuring_uuid()
        except TableMissing:
            if not spec.create:
                raise
            self._create_table(place, spec)
            place.read_config_ensuring_uuid()
            made = True
        if spec.key:
            place.require_same_buckets()
        return made

    def open(self, spec: TableSpec, sink: SinkName, use: Use = Use.OPERATOR) -> SinkTable:
        del use  # nothing is read ahead
        from headgate.tables.hudi.open_table import open_table

        return open_table(HudiLocation.from_spec(spec), sink)

    def file_schema(self, spec: TableSpec) -> FileSchema:
        return HudiLocation.from_spec(spec).file_schema()

    def reader(self, spec: TableSpec, sink: SinkName) -> TableReader:
        from headgate.tables.hudi.reader import HudiReader

        return HudiReader(HudiLocation.from_spec(spec), sink)

    def probe_lock(self, spec: TableSpec) -> str:
        """See ``table_format.SupportsLock``."""
        return check_lock_server(spec.name, HudiLocation.from_spec(spec).settings)

    def spark_conf(self, spec: TableSpec) -> Mapping[str, str]:
        """See ``table_format.SupportsSparkSession``."""
        from headgate.tables.hudi.jvm import SESSION

        own = HudiLocation.from_spec(spec).spark
        return {**SESSION, **{key: value for key, value in own.items() if key != "spark.master"}}

    def list_table_names(self, beside: TableSpec) -> Collection[str]:
        place = HudiLocation.from_spec(beside)
        parent = place.location.rpartition("/")[0]
        try:
            return folder_names_in(open_file_io(place.storage, parent), parent)
        except OSError as error:
            raise Unreachable(f"{parent} cannot be listed: {error}") from error

    def _create_table(self, place: HudiLocation, spec: TableSpec) -> None:
        """Create the table. Another process may be first: what exists then is read and checked."""
        from headgate.tables.hudi.jvm import error_text
        from headgate.tables.hudi.table_properties import create_hudi_table

        schema = avro_schema_of(place.table_name, spec.columns, spec.comments)
        place.store_own_properties(spec.properties)
        try:
            create_hudi_table(
                place, schema, spec.partition_by, require_known_table_type(spec.properties)
            )
        except HudiMissing:
            raise
        except Exception as error:
            if place.exists():
                return
            raise Unreachable(
                f"Hudi table {place.name} cannot be made at {place.location}: {error_text(error)}",
                "grant write access to the place, or correct table.properties",
            ) from error
