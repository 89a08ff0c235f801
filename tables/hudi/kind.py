"""Implements ``TableKind`` for Hudi. Starts a JVM only to create, read or commit to a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.util import find_spec

from headgate.control_protocol.errors import ConfigurationError, TableMissing, Unreachable
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.kind_errors import HudiMissing
from headgate.control_protocol.ports import SinkTable
from headgate.control_protocol.table_history import TableReader
from headgate.control_protocol.table_kinds import Capability, Guarantee, Layout, WantedTable
from headgate.tables.hudi.columns import avro_of, refuse_key, refuse_partitions
from headgate.tables.hudi.keys import refuse_row_key
from headgate.tables.hudi.lock_server import reach
from headgate.tables.hudi.places import HudiPlace
from headgate.tables.hudi.settings import KEY, refuse_idle, table_type
from headgate.tables.hudi.stores import location_of, storage_of
from headgate.tables.stores.files import open_files
from headgate.tables.stores.listing import folders_in


class HudiKind:
    """Hudi tables below a path; Hudi's lock provider decides who commits."""

    guarantee = Guarantee.EXACTLY_ONCE
    capabilities = frozenset(
        {
            Capability.FOLLOWERS,
            Capability.KEYED_TABLES,
            Capability.KEYS,
            Capability.MANY_TABLES,
        }
    )

    def refuse(self, wanted: WantedTable) -> None:
        if find_spec("pyspark") is None:
            raise HudiMissing(
                "table.type is hudi, but PySpark is not installed", "pip install 'headgate[hudi]'"
            )
        if not wanted.location:
            raise ConfigurationError(
                "table.location is missing: a Hudi table is found by it", "write its folder"
            )
        section = "table.properties" if wanted.lead is None else "tables.create.properties"
        storage = wanted.storage.keys() - storage_of(location_of(wanted.location), wanted.storage)
        refuse_idle(section, wanted.properties, storage, create=wanted.create)
        if wanted.key and KEY in wanted.properties:
            raise ConfigurationError(
                f"table.properties.{KEY} is set, and table.key as well", "remove the first"
            )
        HudiPlace.of(wanted)
        table_type(wanted.properties)
        if wanted.create:
            avro_of(wanted.name, wanted.columns, wanted.comments)
            refuse_partitions(wanted.columns, wanted.partition_by)
            key = wanted.properties.get(KEY)
            if wanted.key:
                refuse_row_key(wanted.columns, wanted.key, wanted.partition_by)
            elif key:
                refuse_key(wanted.columns, key, wanted.partition_by)

    def ensure(self, wanted: WantedTable) -> None:
        place = HudiPlace.of(wanted)
        try:
            place.config()
        except TableMissing:
            if not wanted.create:
                raise
            self._create(place, wanted)
            place.config()
        if wanted.key:
            place.hold_buckets()

    def open(self, wanted: WantedTable, sink: SinkName) -> SinkTable:
        from headgate.tables.hudi.opened import open_table

        return open_table(HudiPlace.of(wanted), sink)

    def layout(self, wanted: WantedTable) -> Layout:
        return HudiPlace.of(wanted).layout()

    def reader(self, wanted: WantedTable, sink: SinkName) -> TableReader:
        from headgate.tables.hudi.reader import HudiReader

        return HudiReader(HudiPlace.of(wanted), sink)

    def reach_lock(self, wanted: WantedTable) -> str:
        """See ``table_kinds.LockedKind``."""
        return reach(wanted.name, HudiPlace.of(wanted).settings)

    def spark_conf(self, wanted: WantedTable) -> Mapping[str, str]:
        """See ``table_kinds.SparkKind``."""
        from headgate.tables.hudi.jvm import SESSION

        own = HudiPlace.of(wanted).spark
        return {**SESSION, **{key: value for key, value in own.items() if key != "spark.master"}}

    def names(self, like: WantedTable) -> Collection[str]:
        place = HudiPlace.of(like)
        parent = place.location.rpartition("/")[0]
        try:
            return folders_in(open_files(place.storage, parent), parent)
        except OSError as error:
            raise Unreachable(f"{parent} cannot be listed: {error}") from error

    def _create(self, place: HudiPlace, wanted: WantedTable) -> None:
        """Create the table. Another process may be first: what exists then is read and checked."""
        from headgate.tables.hudi.creation import create
        from headgate.tables.hudi.jvm import said

        schema = avro_of(place.table, wanted.columns, wanted.comments)
        place.keep(wanted.properties)
        try:
            create(place, schema, wanted.partition_by, table_type(wanted.properties))
        except HudiMissing:
            raise
        except Exception as error:
            if place.exists():
                return
            raise Unreachable(
                f"Hudi table {place.name} cannot be made at {place.location}: {said(error)}",
                "grant write access to the place, or correct table.properties",
            ) from error
