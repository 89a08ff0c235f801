"""Reaches an Iceberg catalog through Java, in the JVM beside this process.

Python proposes: requirements and updates, in the JSON of the REST protocol, and it has written
manifests and lists by then. Java checks the requirements against the table as it is, makes the new
metadata, writes it, and swaps. Every call ends in time, as seen from here: a call that was given up
may still land in Java, and the table shows it (rule OUTCOME-2).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from headgate.control_protocol.errors import (
    CatalogRefused,
    HiveCannotSwap,
    HiveClientUnfit,
    JvmMissing,
    WriterGone,
)
from headgate.tables.iceberg.catalog_types import require_tag_support
from headgate.tables.iceberg.jvm import Jvm, java_field_of
from headgate.tables.storage.call_with_timeout import call_with_timeout

# Translates what Java's Iceberg throws into pyiceberg's exceptions.


_SAME: dict[str, type[Exception]] = {
    "CommitFailedException": CommitFailedException,
    "CommitStateUnknownException": CommitStateUnknownException,
    "NoSuchTableException": NoSuchTableError,
    "NoSuchNamespaceException": NoSuchNamespaceError,
    "AlreadyExistsException": TableAlreadyExistsError,
    "ForbiddenException": ForbiddenError,
    "NotAuthorizedException": UnauthorizedError,
    "BadRequestException": BadRequestError,
    "ValidationException": ValueError,
    "IllegalArgumentException": ValueError,
}
_CAUSES_MAX = 3
_UNKNOWN_METHOD = "Invalid method name"


class JavaError(Exception):
    """Anything else that Java threw. Its stack trace stays in Java: it may quote settings."""


def translate_java_error(error: Exception) -> Exception:
    """Return what to raise instead of an error of py4j; any other error is returned as it is."""
    thrown = getattr(error, "java_exception", None)
    if thrown is not None:
        return _to_python_error(thrown)
    if type(error).__module__.startswith("py4j"):
        return JavaError(str(error).strip().partition("\n")[0])
    return error


def _to_python_error(thrown: Any) -> Exception:
    text = _error_text(thrown)
    if _UNKNOWN_METHOD in text:
        return HiveClientUnfit(
            f"the Hive client in Spark's JVM asks for what this metastore does not know: {text}",
            "Spark's own client is Hive 2.3's; for Hive 4 put its hive-standalone-metastore-common "
            "into spark.driver.extraClassPath, as docs/guides/catalogs.md shows",
        )
    java_class = thrown.getClass()
    while java_class is not None:
        if same := _SAME.get(java_class.getSimpleName()):
            return same(text)
        java_class = java_class.getSuperclass()
    return JavaError(text)


def _error_text(thrown: Any) -> str:
    """Return the first line of it and of its causes."""
    lines: list[str] = []
    while thrown is not None and len(lines) < _CAUSES_MAX:
        text = str(thrown.getMessage() or "").strip().partition("\n")[0]
        line = f"{thrown.getClass().getSimpleName()}: {text}"
        if not lines or line not in lines[-1]:
            lines.append(line)
        thrown = thrown.getCause()
    return "; ".join(lines)


# Checks that a Hive metastore compares and sets, without changing anything.
#
# A commit is ``alter_table`` with the metadata's location. It states the location that it expects
# (HIVE-26882: Hive 2.3.10, 4.0), and the metastore swaps only if that still holds; an older one
# ignores expectations. Locks do not replace it: they time out, and their owner's ``alter_table``
# may come later all the same.


UNLOCKED = {"engine.hive.lock-enabled": "false"}
"""The property that makes every committer of a table state an expectation instead of locking.

One that locks overwrites what landed between its own check and its ``alter_table``.
"""

_EXPECTING = {"expected_parameter_key": "metadata_location", "expected_parameter_value": "headgate"}
_REFUSED = "The table has been modified"


def require_commits_without_locks(identifier: str, properties: Any) -> None:
    """Raise ``HiveCannotSwap`` for a table whose committers lock instead."""
    for name, value in UNLOCKED.items():
        if str(properties.get(name)).lower() != value:
            raise HiveCannotSwap(
                f"table {identifier}: its property {name} is not {value}: a committer that "
                "locks can overwrite a commit of the sink's",
                f"stop its other writers, and set it: ALTER TABLE {identifier} SET TBLPROPERTIES "
                f"('{name}' = '{value}')",
            )


def require_compare_and_set(jvm: Jvm, conf: Any, database: str, name: str) -> None:
    """Raise ``HiveCannotSwap`` for a metastore (of ``conf``) that ignores an expectation.

    It is asked to add a partition key, which every metastore refuses for every table, while
    expecting a location that the table never had: one that knows expectations complains of that
    first. Raises what the metastore's client throws, if it answers neither.
    """
    java = jvm.gateway.jvm
    hive = java.org.apache.hadoop.hive
    client = hive.metastore.HiveMetaStoreClient(hive.conf.HiveConf(conf, conf.getClass()))
    try:
        table = client.getTable(database, name)
        key = hive.metastore.api.FieldSchema("headgate", "string", "")
        table.setPartitionKeys(jvm.java_list([key]))
        expecting = hive.metastore.api.EnvironmentContext(jvm.java_map(_EXPECTING))
        try:
            client.alter_table_with_environmentContext(database, name, table, expecting)
        except Exception as error:  # noqa: BLE001 - what Java threw is told from its text
            failure = translate_java_error(error)
            if _REFUSED in str(failure):
                return
            if "partition keys can not be changed" not in str(failure):
                raise failure from None
    finally:
        client.close()
    raise _cannot_swap_error(f"{database}.{name}")


def require_compare_and_set_by_view(jvm: Jvm, conf: Any, database: str) -> None:
    """Do as ``require_compare_and_set`` where there is no table yet, with a view, removed again.

    A view has no files. It is created in the database, else in ``default``, which every metastore
    has.
    """
    java = jvm.gateway.jvm
    hive = java.org.apache.hadoop.hive
    client = hive.metastore.HiveMetaStoreClient(hive.conf.HiveConf(conf, conf.getClass()))
    name = f"headgate_check_{uuid.uuid4().hex[:12]}"
    try:
        known = [str(each) for each in client.getAllDatabases()]
        database = database if database in known else "default"
        client.createTable(_build_probe_view(hive.metastore.api, jvm, database, name))
        try:
            expecting = hive.metastore.api.EnvironmentContext(jvm.java_map(_EXPECTING))
            view = client.getTable(database, name)
            try:
                client.alter_table_with_environmentContext(database, name, view, expecting)
            except Exception as error:  # noqa: BLE001 - what Java threw is told from its text
                failure = translate_java_error(error)
                if _REFUSED in str(failure):
                    return
                raise failure from None
        finally:
            client.dropTable(database, name)
    finally:
        client.close()
    raise _cannot_swap_error(f"{database}.{name}")


def _build_probe_view(api: Any, jvm: Jvm, database: str, name: str) -> Any:
    store = api.StorageDescriptor()
    store.setCols(jvm.java_list([api.FieldSchema("headgate", "string", "")]))
    store.setSerdeInfo(api.SerDeInfo(name, "", jvm.java_map({})))
    view = api.Table()
    view.setDbName(database)
    view.setTableName(name)
    view.setSd(store)
    view.setPartitionKeys(jvm.java_list([]))
    view.setParameters(jvm.java_map({"metadata_location": name}))
    view.setTableType("VIRTUAL_VIEW")
    view.setViewOriginalText("SELECT 'headgate'")
    view.setViewExpandedText("SELECT 'headgate'")
    return view


def _cannot_swap_error(name: str) -> HiveCannotSwap:
    return HiveCannotSwap(
        f"the Hive metastore of table {name} does not compare and set: it ignored what a change "
        "expected",
        "use one that knows expectations (HIVE-26882: Hive 2.3.10, 4.0), or a REST, Glue or SQL "
        "catalog; docs/guides/catalogs.md says more",
    )


CALL_S_MIN = 30.0
"""A first call loads classes, which takes some time."""

_PARSERS = ("CatalogUtil", "UpdateRequirementParser", "MetadataUpdateParser", "hive.HiveCatalog")
_RESPONSE = "org.apache.iceberg.rest.responses.LoadTableResponse"
_HIVE_TIMEOUT = "hive.metastore.client.socket.timeout"
_REST_TIMEOUTS = ("rest.client.connection-timeout-ms", "rest.client.socket-timeout-ms")

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class _Read:
    """A table's metadata as Java returned it; ``files``: the properties that open its files."""

    metadata: str
    location: str
    files: Mapping[str, str]


class JavaCatalog(Catalog):
    """``kind`` is ``hive`` or ``rest``; ``properties`` are Iceberg's own, as Java reads them.

    A call takes at most ``timeout_s``. The JVM belongs to its opener.
    """

    def __init__(
        self, name: str, properties: Mapping[str, str], kind: str, jvm: Jvm, *, timeout_s: float
    ) -> None:
        super().__init__(name, **properties)
        self.kind = kind
        self._jvm = jvm
        self._timeout_s = max(timeout_s, CALL_S_MIN)
        self._may_swap = kind != "hive"
        self._java = self._call_java(f"catalog {name}", self._open_java_catalog)

    def close(self) -> None:
        with suppress(Exception):  # the JVM may have ended before
            self._call_java(f"catalog {self.name}", self._java.close)

    # ----------------------------------------------------------------------------- what is there

    def load_table(self, identifier: str | Identifier) -> Table:
        names = self.identifier_to_tuple(identifier)
        read = self._call_java(".".join(names), lambda: self._read_table(names))
        metadata = TableMetadataUtil.parse_raw(read.metadata)
        files = self._load_file_io({**metadata.properties, **read.files}, read.location)
        return Table(names, metadata, read.location, files, self)

    def table_exists(self, identifier: str | Identifier) -> bool:
        names = self.identifier_to_tuple(identifier)
        return self._call_java(
            ".".join(names), lambda: bool(self._java.tableExists(self._java_identifier(names)))
        )

    def namespace_exists(self, namespace: str | Identifier) -> bool:
        names = self.identifier_to_tuple(namespace)
        return self._call_java(
            ".".join(names), lambda: bool(self._java.namespaceExists(self._java_namespace(names)))
        )

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        names = self.identifier_to_tuple(namespace)

        def list_identifiers() -> list[Identifier]:
            identifiers = self._java.listTables(self._java_namespace(names))
            return [(*each.namespace().levels(), each.name()) for each in identifiers]

        return self._call_java(".".join(names), list_identifiers)

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        names = self.identifier_to_tuple(namespace)

        def list_identifiers() -> list[Identifier]:
            identifiers = self._java.listNamespaces(self._java_namespace(names))
            return [tuple(each.levels()) for each in identifiers]

        return self._call_java(".".join(names), list_identifiers)

    # ------------------------------------------------------------------------------ what changes

    def create_namespace(
        self, namespace: str | Identifier, properties: Properties = EMPTY_DICT
    ) -> None:
        names = self.identifier_to_tuple(namespace)
        try:
            self._call_java(
                ".".join(names),
                lambda: self._java.createNamespace(
                    self._java_namespace(names), self._jvm.java_map(properties)
                ),
            )
        except TableAlreadyExistsError as error:  # Java has one name for both
            raise NamespaceAlreadyExistsError(str(error)) from None

    def create_table(  # type: ignore[override] # the last two are always named
        self,
        identifier: str | Identifier,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        *,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        """Raise ``CatalogRefused``, and leave nothing behind, where Hive cannot swap."""
        names = self.identifier_to_tuple(identifier)
        own = {**UNLOCKED, **properties} if self.kind == "hive" else dict(properties)
        assert isinstance(schema, Schema), "tables are declared in Iceberg's types"

        def create_in_java() -> None:
            iceberg = self._jvm.iceberg
            java = iceberg.SchemaParser.fromJson(schema.model_dump_json())
            spec = iceberg.PartitionSpecParser.fromJson(java, partition_spec.model_dump_json())
            order = iceberg.SortOrderParser.fromJson(java, sort_order.model_dump_json())
            builder = self._java.buildTable(self._java_identifier(names), java)
            builder = builder.withPartitionSpec(spec).withSortOrder(order)
            builder = builder.withProperties(self._jvm.java_map(own))
            (builder.withLocation(location) if location else builder).create()

        self._call_java(".".join(names), create_in_java)
        try:
            self.require_atomic_swap(identifier)
        except CatalogRefused:
            self._drop_in_java(names, purge=True)
            raise
        return self.load_table(identifier)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Commit. Raises ``CatalogRefused`` before anything is sent where Hive cannot swap."""
        names = table.name()
        if not self._may_swap:
            self.require_atomic_swap(names)
        requires = [each.model_dump_json() for each in requirements]
        changes = [each.model_dump_json() for each in updates]
        read = self._call_java(
            ".".join(names), lambda: self._commit_in_java(names, requires, changes)
        )
        metadata: TableMetadata = TableMetadataUtil.parse_raw(read.metadata)
        return CommitTableResponse(metadata=metadata, metadata_location=read.location)

    def drop_table(self, identifier: str | Identifier) -> None:
        names = self.identifier_to_tuple(identifier)
        if not self._drop_in_java(names, purge=False):
            raise NoSuchTableError(f"Table does not exist: {'.'.join(names)}")

    def require_atomic_swap(self, identifier: str | Identifier) -> None:
        """Raise ``CatalogRefused`` where a commit of the table could be lost; nothing changes."""
        names = self.identifier_to_tuple(identifier)
        name = ".".join(names)

        def require_in_java() -> None:
            require_commits_without_locks(
                name, self._table_operations(names).current().properties()
            )
            require_compare_and_set(
                self._jvm, self._java.getConf(), ".".join(names[:-1]), names[-1]
            )

        if self.kind == "hive":
            self._call_java(name, require_in_java)
            self._may_swap = True

    def require_atomic_swap_of_new_table(self, identifier: str | Identifier) -> None:
        """Do as ``require_atomic_swap`` for a table that does not exist yet, with a view, removed
        again."""
        names = self.identifier_to_tuple(identifier)

        def require_in_java() -> None:
            require_compare_and_set_by_view(self._jvm, self._java.getConf(), ".".join(names[:-1]))

        if self.kind == "hive":
            self._call_java(".".join(names), require_in_java)

    # ---------------------------------------------------------------------- in Java, within bounds

    def _call_java(self, what: str, call: Callable[[], _Answer]) -> _Answer:
        try:
            return call_with_timeout(self._timeout_s, what, call)
        except Exception as error:
            failure = translate_java_error(error)
            if self._jvm.has_ended:
                failure = WriterGone("Spark's JVM has ended", "start this process again")
            if failure is error:
                raise
        raise failure  # without py4j's, which holds a Java stack trace

    def _open_java_catalog(self) -> Any:
        if not all(self._jvm.has_class(f"org.apache.iceberg.{name}") for name in _PARSERS):
            raise JvmMissing(
                f"catalog {self.name!r}: Spark has no Iceberg, and catalog.backend is java",
                'add it, such as "spark.jars.packages" = '
                '"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0", to spark.conf',
            )
        bound_ms = str(round(self._timeout_s * 1000))
        properties = {
            **dict.fromkeys(_REST_TIMEOUTS, bound_ms),
            **self.properties,
            "type": self.kind,
        }
        self._jvm.hadoop.setIfUnset(_HIVE_TIMEOUT, f"{bound_ms}ms")
        java = self._jvm.iceberg.CatalogUtil.buildIcebergCatalog(
            self.name, self._jvm.java_map(properties), self._jvm.hadoop
        )
        if self.kind == "rest":
            require_tag_support(self.name, dict(java.properties()))
        return java

    def _table_operations(self, names: Identifier) -> Any:
        return self._java.loadTable(self._java_identifier(names)).operations()

    def _read_table(self, names: Identifier) -> _Read:
        operations = self._table_operations(names)
        vended = dict(operations.io().properties()) if self.kind == "rest" else {}
        return self._to_read_result(operations.current(), vended)

    def _to_read_result(self, metadata: Any, file_properties: Mapping[str, str]) -> _Read:
        text = self._jvm.iceberg.TableMetadataParser.toJson(metadata)
        return _Read(str(text), str(metadata.metadataFileLocation()), file_properties)

    def _commit_in_java(self, names: Identifier, requires: list[str], changes: list[str]) -> _Read:
        iceberg = self._jvm.iceberg
        operations = self._table_operations(names)
        base = operations.current()
        requirements = [iceberg.UpdateRequirementParser.fromJson(text) for text in requires]
        updates = [iceberg.MetadataUpdateParser.fromJson(text) for text in changes]
        if self.kind == "rest":
            return self._to_read_result(
                self._check_and_swap_on_server(operations, requirements, updates), {}
            )
        require_commits_without_locks(".".join(names), base.properties())
        for requirement in requirements:
            requirement.validate(base)
        builder = iceberg.TableMetadata.buildFrom(base)
        for update in updates:
            update.applyTo(builder)
        operations.commit(base, builder.build())
        return self._to_read_result(operations.current(), {})

    def _check_and_swap_on_server(
        self, operations: Any, requirements: list[Any], updates: list[Any]
    ) -> Any:
        """Let the server check and swap. ``operations.commit`` would require only what it derives
        from the updates, not the sink's own requirements."""
        rest = self._jvm.iceberg.rest
        request = rest.requests.UpdateTableRequest(
            self._jvm.java_list(requirements), self._jvm.java_list(updates)
        )
        response = java_field_of(operations, "client").post(
            java_field_of(operations, "path"),
            request,
            operations.getClass().getClassLoader().loadClass(_RESPONSE),
            java_field_of(operations, "mutationHeaders"),
            rest.ErrorHandlers.tableCommitHandler(),
        )
        return response.tableMetadata()

    def _drop_in_java(self, names: Identifier, *, purge: bool) -> bool:
        return self._call_java(
            ".".join(names), lambda: bool(self._java.dropTable(self._java_identifier(names), purge))
        )

    def _java_identifier(self, names: Identifier) -> Any:
        catalog = self._jvm.iceberg.catalog
        return catalog.TableIdentifier.of(self._java_namespace(names[:-1]), names[-1])

    def _java_namespace(self, names: Identifier) -> Any:
        return self._jvm.iceberg.catalog.Namespace.of(self._jvm.java_string_array(names))

    # ----------------------------------------------------------------- what a sink does not ask for

    def _raise_unsupported(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"catalog {self.name!r} in Java is not asked for this")

    create_table_transaction = register_table = purge_table = rename_table = _raise_unsupported
    drop_namespace = load_namespace_properties = update_namespace_properties = _raise_unsupported
    create_view = load_view = register_view = drop_view = view_exists = list_views = (
        _raise_unsupported
    )

    def supports_server_side_planning(self) -> bool:
        return False
