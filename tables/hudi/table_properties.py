"""Locates a Hudi table and reads its properties, without a JVM."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import (
    ConfigurationError,
    HudiUnsafe,
    MissingRights,
    PutsUnconditional,
    TableMissing,
    TableUnfit,
    Unreachable,
)
from headgate.control_protocol.table_format import FileSchema, RowKey, TableSpec, schema_id_of_text
from headgate.tables.hudi.base_files import KEY_TYPES, PARTITION_TYPES, HudiFileMarking
from headgate.tables.hudi.columns import columns_of, require_no_reserved_names
from headgate.tables.hudi.jvm import open_spark_context
from headgate.tables.hudi.record_keys import (
    HIVE_STYLE,
    URL_ENCODED,
    SupportedTexts,
    columns_in_property,
    describe_buckets,
    key_generator_for,
    require_same_key,
    require_supported_key,
)
from headgate.tables.hudi.s3_locations import (
    hadoop_settings,
    require_supported_location,
    select_store_properties,
    to_hadoop_address,
)
from headgate.tables.hudi.write_configuration import (
    KEY,
    OURS,
    SPARK,
    TIME_ZONE,
    build_safe_writer_settings,
    secondary_properties,
)
from headgate.tables.storage.file_store import Folder, open_folder

_TABLE = "hoodie.table."
_WRITE = "hoodie.datasource.write."
_VERSION_MIN = 8
_NAME = "hoodie.table.name"
AUX = ".hoodie/.aux/headgate"
"""Where headgate keeps files of its own; Hudi leaves it alone."""
STAGED = f"{AUX}/staged"
"""Where files lie until they have become Hudi's."""

_KEPT = f"{AUX}/properties.json"
_PROPERTIES = (".hoodie/hoodie.properties", ".hoodie/hoodie.properties.backup")
_TRIES = 40
_PAUSE_S = 0.05
_LINE = re.compile(r"[ \t\f]*(?![#!])((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)")
"""A key ends at the first space, ``=`` or ``:`` that has no backslash before it."""
_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\n[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_KEY_GENERATORS = {"SimpleKeyGenerator", "NonpartitionedKeyGenerator"}
_SEVERAL = {"ComplexKeyGenerator", "NonpartitionedKeyGenerator"}
_KEY_TYPES = {
    "SIMPLE": "SimpleKeyGenerator",
    "NON_PARTITION": "NonpartitionedKeyGenerator",
    "COMPLEX": "ComplexKeyGenerator",
}


@dataclass(frozen=True, slots=True)
class TableConfig:
    """The content of ``hoodie.properties``. ``schema`` is Avro's, as of the table's creation."""

    uuid: str
    schema: str
    columns: Struct
    marking: HudiFileMarking
    merges_on_read: bool
    keys: tuple[str, ...] = ()
    generator: str = ""

    @property
    def schema_id(self) -> int:
        return schema_id_of_text(f"{self.schema} {self.marking.partition_by} {','.join(self.keys)}")


@dataclass(frozen=True, slots=True)
class HudiLocation:
    """The location of a table.

    ``settings``: Hudi's write configuration; ``spark``: the JVM's; ``storage``: the keys of its
    store. Files of a table with a ``key``, and of one that ``follows``, are staged: the committer
    rewrites them.
    """

    name: str
    location: str
    settings: Mapping[str, str] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)
    key: RowKey | None = None
    follows: bool = False
    storage: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_spec(cls, spec: TableSpec) -> HudiLocation:
        """Raises ``ConfigurationError``, ``HudiUnsafe``."""
        location = require_supported_location(spec.location)
        follows, given = spec.primary is not None and not spec.ledger, spec.properties
        keyed = spec.key is not None
        if spec.primary is not None:
            given = secondary_properties(
                spec.name.rpartition(".")[2], spec.primary, given, keyed=keyed
            )
        settings = build_safe_writer_settings(spec.name, given, keyed=keyed)
        spark = {key: each for key, each in spec.storage.items() if key.startswith(SPARK)}
        storage = select_store_properties(location, spec.storage)
        return cls(spec.name, location, settings, spark, spec.key, follows, storage)

    @property
    def folder(self) -> Folder:
        """Return the folder with the table's own files and ours."""
        return open_folder(self.location, self.storage)

    def exists(self) -> bool:
        return next(self.folder.file_sizes([_PROPERTIES[0]])) is not None

    @property
    def base_path(self) -> str:
        """Return Hudi's spelling of the location."""
        return to_hadoop_address(self.location)

    @property
    def hadoop_settings(self) -> Mapping[str, str]:
        """Return how Hadoop reaches the store."""
        return hadoop_settings(self.location, self.storage)

    @property
    def table_name(self) -> str:
        """Return the table's name in Hudi."""
        return self.name.rpartition(".")[2]

    @property
    def participant_files_address(self) -> str:
        """Return the address below which participants write."""
        return f"{self.location}/{STAGED}" if self.key or self.follows else self.location

    def read_config_ensuring_uuid(self, *, stores_uuid: bool = True) -> TableConfig:
        """Read the properties, and the UUID: a table without one gets it if ``stores_uuid``.

        Otherwise it may be empty. Raises ``TableMissing``, ``Unreachable``, ``TableUnfit``,
        ``MissingRights``.
        """
        config = self._parse_config(self._read_properties())
        if stores_uuid:
            return replace(config, uuid=self._ensure_table_uuid())
        return replace(config, uuid=self._read_text_or_none(f"{AUX}/uuid") or "")

    def file_schema(self) -> FileSchema:
        """Return how participants write its files. Raises as ``read_config_ensuring_uuid``."""
        config = self.read_config_ensuring_uuid()
        values = None
        if self.key or config.marking.partition_by:
            values = SupportedTexts(self.key.key if self.key else (), config.marking)
        if self.key or self.follows:
            return FileSchema(
                uuid=config.uuid,
                schema_id=config.schema_id,
                columns=config.columns,
                location=self.participant_files_address,
                partition_by=() if self.key else config.marking.partition_by,
                values=values,
                storage=self.storage,
                properties=self._read_own_properties(),
            )
        return FileSchema(
            uuid=config.uuid,
            schema_id=config.schema_id,
            columns=config.columns,
            location=self.location,
            partition_by=config.marking.partition_by,
            storage=self.storage,
            marking=config.marking,
            values=values,
            properties=self._read_own_properties(),
        )

    def _read_properties(self) -> Mapping[str, str]:
        """Read the properties.

        Hudi replaces the file, and keeps the former one next to it meanwhile.
        """
        for _ in range(_TRIES):
            texts = [self._read_text_or_none(path) for path in _PROPERTIES]
            # Whoever replaces the file may have ended between the looks at it and at its backup.
            if texts == [None, None] and self._read_text_or_none(_PROPERTIES[0]) is None:
                raise TableMissing(
                    f"there is no Hudi table {self.name} at {self.location}",
                    "correct table.location, or set table.create with its columns",
                )
            for text in texts:
                if text and text.endswith("\n") and _NAME in (properties := parse_properties(text)):
                    return properties
            time.sleep(_PAUSE_S)
        raise Unreachable(
            f"the properties of Hudi table {self.name} are not whole: "
            f"{self.location}/{_PROPERTIES[0]}",
            "if nobody is writing them, restore the file, from hoodie.properties.backup or another",
        )

    def _read_text_or_none(self, path: str) -> str | None:
        try:
            return self.folder.read(path).decode()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unreachable(f"Hudi table {self.name} cannot be read: {error}") from error

    def _parse_config(self, properties: Mapping[str, str]) -> TableConfig:
        if reason := _why_unsupported(properties, keyed=self.key is not None):
            raise TableUnfit(
                f"Hudi table {self.name} {reason}, which headgate does not heed",
                "docs/table-formats/hudi.md says which tables can be filled",
            )
        schema = properties[f"{_TABLE}create.schema"]
        columns = columns_of(self.name, schema)
        types = {column.name: column.type for column in columns.fields}
        keys = columns_in_property(properties, f"{_TABLE}recordkey.fields")
        partitions = columns_in_property(properties, f"{_TABLE}partition.fields")
        for name, known in (
            *((k, KEY_TYPES) for k in keys),
            *((p, PARTITION_TYPES) for p in partitions),
        ):
            if types.get(name) not in known:
                raise TableUnfit(
                    f"Hudi table {self.name}: {name}, of type {types.get(name)}, is no column "
                    "whose values headgate writes into keys and folders",
                    f"such columns are of {', '.join(known)}",
                )
        marking = HudiFileMarking(
            location=self.location,
            key=keys[0] if len(keys) == 1 else "",
            partition_by=partitions,
            hive_style=properties.get(HIVE_STYLE, "false") == "true",
            url_encoded=properties.get(URL_ENCODED, "false") == "true",
        )
        require_no_reserved_names(self.name, columns)
        self._require_key_and_folder_columns_fit(columns, marking, keys)
        if self.key:
            self._require_same_supported_key(properties, columns, partitions)
        return TableConfig(
            uuid="",
            schema=schema,
            columns=columns,
            marking=marking,
            merges_on_read=properties.get(f"{_TABLE}type", "") == "MERGE_ON_READ",
            keys=keys,
            generator=_key_generator(properties),
        )

    def _require_same_supported_key(
        self, properties: Mapping[str, str], columns: Struct, partitions: tuple[str, ...]
    ) -> None:
        assert self.key is not None, "asked for it"
        require_same_key(self.name, self.key, properties)
        try:
            require_supported_key(columns, self.key, partitions)
        except ConfigurationError as error:
            raise TableUnfit(f"Hudi table {self.name}: {error.message}", error.hint) from None

    def _require_key_and_folder_columns_fit(
        self, columns: Struct, marking: HudiFileMarking, keys: tuple[str, ...]
    ) -> None:
        for column in columns.fields:
            if column.name in keys and not column.required:
                raise TableUnfit(
                    f"Hudi table {self.name}: its record key {column.name} may be null",
                    "a record key is a required column",
                )
            if column.name not in marking.partition_by or column.type != "string":
                continue
            if not (marking.hive_style and marking.url_encoded):
                raise TableUnfit(
                    f"Hudi table {self.name}: values of {column.name} would become folders as "
                    "they are, whatever they say",
                    f"folders of text need {HIVE_STYLE} and {URL_ENCODED}",
                )

    def _ensure_table_uuid(self) -> str:
        """H10: return the table's UUID, a new one the first time: one re-created has another."""
        return self._put_if_absent_and_read("uuid", str(uuid.uuid4()))

    def require_same_buckets(self) -> None:
        """Require that the table is cut as the first upsert declared, if there was one.

        Raises ``HudiUnsafe`` if it is not: keys would be looked for in the wrong files.
        """
        held = self._read_text_or_none(f"{AUX}/buckets")
        declared = describe_buckets(self.name, self.settings)
        if held not in (None, declared):
            raise HudiUnsafe(
                f"Hudi table {self.name} is cut into {held or 'no buckets'}, and the sink file "
                f"says {declared or 'no buckets'}: keys would be there twice",
                "write the index of [table.properties] as it was",
            )

    def store_or_require_same_buckets(self) -> None:
        """Keep how the table is cut, if nobody has. Raises as ``require_same_buckets``.

        Call it after the files were compared, just before rows are written: what is refused must
        not be kept.
        """
        self._put_if_absent_and_read("buckets", describe_buckets(self.name, self.settings))
        self.require_same_buckets()

    def store_own_properties(self, properties: Mapping[str, str]) -> None:
        """Keep our properties next to a table about to be created; Hudi stores only its own."""
        kept = {key: value for key, value in properties.items() if key.startswith(OURS)}
        try:
            self.folder.put(_KEPT, json.dumps(kept).encode())
        except OSError as error:
            raise Unreachable(f"nothing can be kept beside {self.name}: {error}") from error

    def _read_own_properties(self) -> Mapping[str, str]:
        properties: dict[str, str] = json.loads(self._read_text_or_none(_KEPT) or "{}")
        return properties

    def _put_if_absent_and_read(self, name: str, text: str) -> str:
        """Return the value that the first caller gave for this table."""
        folder, path = self.folder, f"{AUX}/{name}"
        try:
            if next(folder.file_sizes([path])) is None:
                self._put_if_absent(folder, path, text)
            return folder.read(path).decode()
        except OSError as error:
            raise Unreachable(f"Hudi table {self.name} cannot be told apart: {error}") from error

    def _put_if_absent(self, folder: Folder, path: str, text: str) -> None:
        try:
            self._require_conditional_puts(folder)
            folder.put_if_absent(path, text.encode())
        except PermissionError as error:
            raise MissingRights(
                f"Hudi table {self.name}: {self.location}/{path} cannot be written: {error}",
                "grant write access to the table's folder",
            ) from error

    def _require_conditional_puts(self, folder: Folder) -> None:
        if not folder.probe_conditional_puts(AUX):
            raise PutsUnconditional(
                f"the store of Hudi table {self.name} at {self.location} overwrites what is "
                "there, though it was asked to put it only if it is absent",
                "two processes could take the table for two; use a store that knows conditional "
                "writes, or fill an Iceberg table",
            )


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java's properties, as Hudi writes them or people edit them."""
    lines = (_LINE.match(line) for line in _CONTINUED.sub(r"\1", text).splitlines())
    return {_unescape(line[1]): _unescape(line[2]) for line in lines if line and line[1]}


def _unescape(text: str) -> str:
    def unescape_match(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _NAMED.get(code, code)

    return _ESCAPE.sub(unescape_match, text)


def _key_generator(properties: Mapping[str, str]) -> str:
    """Return the table's key generator if its name is known."""
    generator = properties.get(f"{_TABLE}keygenerator.type", "").removesuffix("_AVRO")
    named = properties.get(f"{_TABLE}keygenerator.class", "").rpartition(".")[2]
    return named or _KEY_TYPES.get(generator, generator)


def _why_unsupported(properties: Mapping[str, str], *, keyed: bool) -> str | None:
    """Name a feature of the table that a commit would have to support.

    ``None`` if there is none.
    """
    generator = _key_generator(properties)
    keys = columns_in_property(properties, f"{_TABLE}recordkey.fields")
    if int(properties.get(f"{_TABLE}version", "0")) < _VERSION_MIN:
        return f"is of table version {properties.get(f'{_TABLE}version')}"
    if (zone := properties.get(TIME_ZONE, "LOCAL")).upper() != "UTC":
        return f"tells time in the zone {zone} ({TIME_ZONE}), in which times repeat"
    if f"{_TABLE}create.schema" not in properties:
        return "does not declare its columns (hoodie.table.create.schema)"
    if properties.get(f"{_TABLE}base.file.format", "PARQUET") != "PARQUET":
        return "has base files of another format than Parquet"
    if not keyed and "bloom_filters" in properties.get(f"{_TABLE}metadata.partitions", ""):
        return "has an index of Bloom filters"
    if properties.get("hoodie.populate.meta.fields", "true") != "true":
        return "has files without Hudi's columns"
    if properties.get(f"{_TABLE}cdc.enabled", "false") == "true":
        return "logs its changes"
    if properties.get(f"{_WRITE}drop.partition.columns", "false") == "true":
        return "leaves partition columns out of its files"
    known = _SEVERAL if len(keys) > 1 and keyed else _KEY_GENERATORS
    if (len(keys) > 1 and not keyed) or (keys and generator and generator not in known):
        return f"makes its record keys in a way of its own ({generator}, {len(keys)} columns)"
    if any(":" in name for name in columns_in_property(properties, f"{_TABLE}partition.fields")):
        return "makes its partitions in a way of its own"
    return None


# Creates Hudi tables, and sets the clock for instants.


_TABLE_VERSION = 9


def create_hudi_table(
    place: HudiLocation, schema: str, partition_by: Sequence[str], table_type: str
) -> None:
    """Create a table with these columns; others may do so first. Raises what Java raises."""
    spark = open_spark_context(place.spark, place.hadoop_settings)
    hudi = spark._jvm.org.apache.hudi  # noqa: SLF001 - PySpark gives no other way
    key = ",".join(place.key.key) if place.key else place.settings.get(KEY, "")
    generator = key_generator_for(key.split(","), partition_by)
    builder = (
        hudi.common.table.HoodieTableMetaClient.newTableBuilder()
        .setTableType(table_type)
        .setTableName(place.table_name)
        .setTableVersion(_TABLE_VERSION)
        .setTableCreateSchema(schema)
        .setKeyGeneratorClassProp(f"org.apache.hudi.keygen.{generator}")
        .setCommitTimezone(hudi.common.model.HoodieTimelineTimeZone.UTC)
    )
    if key:
        builder = builder.setRecordKeyFields(key)
    if partition_by:
        builder = builder.setPartitionFields(",".join(partition_by))
        builder = builder.setHiveStylePartitioningEnable(True)
        builder = builder.setUrlEncodePartitioning(True)
    conf = hudi.hadoop.fs.HadoopFSUtils.getStorageConf(spark._jsc.hadoopConfiguration())  # noqa: SLF001
    use_utc_instants(hudi)
    builder.initTable(conf, place.base_path)


def use_utc_instants(hudi: Any) -> None:
    """Keep instants growing through clock changes; tables of another time zone are refused."""
    utc = hudi.common.model.HoodieTimelineTimeZone.UTC
    hudi.common.table.timeline.HoodieInstantTimeGenerator.setCommitTimeZone(utc)
