"""Tells how files of an Iceberg table are written, as ``TableFormat`` says it of any table."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table import Table, TableProperties

from headgate.control_protocol.errors import TableChanged
from headgate.control_protocol.table_format import FileSchema, NativeSchema
from headgate.tables.iceberg.schema_evolution import columns_of


def data_location(properties: Mapping[str, str], location: str) -> str:
    """Return where a table with these properties wants its data files, without a slash at the
    end."""
    named = properties.get(TableProperties.WRITE_DATA_PATH, "").rstrip("/")
    return named or f"{location}/data"


def file_schema_of(
    table: Table, schema_id: int | None = None, spec_id: int | None = None
) -> FileSchema:
    """Return how files of a loaded table are written: now, or by a schema and spec that it had.

    Raises ``TableChanged`` if these are not there any more.
    """
    schemas, current = table.schemas(), table.schema()
    schema = current if schema_id is None else schemas.get(schema_id)
    spec = table.spec() if spec_id is None else table.specs().get(spec_id)
    if schema is None or spec is None:
        raise TableChanged(
            f"{'.'.join(table.name())} has no schema {schema_id} with partition spec {spec_id}",
            "they were removed under the sink; a restart reads the table again",
        )

    def older_schemas() -> tuple[str, ...]:
        # SCHEMA-6: the schema may be older than the table as it was loaded. A column that came
        # since is none that was dropped, else its values would be left out of rows of this
        # transaction. Ids do not tell which are later: a schema that comes back has its former id.
        since = {*current.field_ids} - {*schema.field_ids}
        return tuple(
            schemas[id_].model_dump_json()
            for id_ in sorted(schemas)
            if id_ != schema.schema_id and since.isdisjoint(schemas[id_].field_ids)
        )

    return FileSchema(
        uuid=str(table.metadata.table_uuid),
        schema_id=schema.schema_id,
        columns=columns_of(schema),
        location=table.location(),
        storage=table.io.properties,
        properties=table.properties,
        native=NativeSchema(
            schema_json=schema.model_dump_json(),
            spec_json=spec.model_dump_json(),
            sort_order_json=table.sort_order().model_dump_json(),
            older_schemas=older_schemas,
        ),
    )
