"""Opens an Iceberg catalog, in one way for both roles; the adapter for pyiceberg's catalogs.

Not imported by the package itself: only code that opens a catalog needs pyiceberg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyarrow.fs import AwsStandardS3RetryStrategy
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog import load_catalog as load_any_catalog
from pyiceberg.exceptions import (
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    UnauthorizedError,
)
from pyiceberg.io import PY_IO_IMPL, FileIO
from pyiceberg.table import StagedTable, Table
from pyiceberg.typedef import EMPTY_DICT, Properties, RecursiveDict
from pyiceberg.utils.config import Config, merge_config

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    LogUnreadable,
    MissingRights,
    TableMissing,
    Unreachable,
    type_and_first_line_of,
)
from headgate.tables.iceberg.catalog_types import (
    require_supported_java_type,
    require_supported_type,
    require_tag_support,
)
from headgate.tables.iceberg.java_catalog import JavaCatalog
from headgate.tables.iceberg.jvm import Jvm
from headgate.tables.iceberg.metadata_files import UNDECODED, MetadataFiles
from headgate.tables.storage.avro_integrity import check_avro_files_of
from headgate.tables.storage.damaged_file_error import FileDamaged
from headgate.tables.storage.file_io import (
    PATIENCE,
    is_for_our_s3_client,
    needs_timeouts,
    open_file_io,
)
from headgate.tables.storage.local_file_io import LocalFiles, local_file_path
from headgate.tables.storage.object_stores import refused_operation_of

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import Connection

TIMEOUT_S = 30.0

_GLUE_CONNECT_S, _GLUE_READ_S, _GLUE_RETRIES = 5, 8, 2

_CATALOG_TABLES = 2
"""The tables of a SQL catalog itself."""

_STORE_TRIES = 5

_RESTORE = "restore the file from a backup of the store"
_PATIENT = {
    "s3.retry-strategy-impl": PATIENCE,
    "s3.connect-timeout": "3",
    "s3.request-timeout": "3",
}
"""The settings of an S3 client where the sink file has none. A request that hangs ends after at
most 30 s, and ``SlowDown`` is retried for 15 s at most, in growing pauses."""

_LIBPQ_DRIVERS = {"postgresql", "postgresql+psycopg2", "postgresql+psycopg"}


class StorePatience(AwsStandardS3RetryStrategy):  # type: ignore[misc] # pyarrow is not typed
    """Retries a request to S3 after pauses that double; pyarrow's own strategy gives up after 3.

    A batch that fails is read and written again as a whole, which costs more than waiting here.
    """

    def __init__(self) -> None:
        super().__init__(max_attempts=_STORE_TRIES)


def load_catalog(
    name: str,
    properties: Mapping[str, str],
    timeout_s: float = TIMEOUT_S,
    jvm: Jvm | None = None,
    *,
    read_only: bool = False,
) -> Catalog:
    """Return the catalog ``name``, of pyiceberg's own properties; its calls are bounded in time.

    With a ``jvm`` it is reached through Java, and the properties are those of Iceberg's Java
    library. ``read_only``: the caller only reads, so a database is left as it is.

    ``timeout_s`` bounds each HTTP request (connecting, and each wait for bytes) of a REST catalog
    and of its token server, the wait for a lock of SQLite or PostgreSQL, and for PostgreSQL also
    connecting, waiting for a server that is no longer reached (both by psycopg2 or psycopg only),
    and holding a lock while doing nothing. pyiceberg's configuration file and environment count
    for ``name`` too; ``properties`` win. The caller closes the catalog.

    Raises ``CatalogRefused`` for a catalog that cannot be a sink's lock, before anything is
    written, ``ConfigurationError``, ``MissingRights``, ``Unreachable``; no message repeats a value
    of ``properties``.
    """
    try:
        if jvm is not None:
            kind = require_supported_java_type(name, properties)
            return _patch_catalog_io_and_metadata(
                JavaCatalog(name, properties, kind, jvm, timeout_s=timeout_s)
            )
        told = {**properties, **({"init_catalog_tables": "false"} if read_only else {})}
        return _patch_catalog_io_and_metadata(
            _catalog_opener(name, told, timeout_s)(), read_only=read_only
        )
    except Exception as error:  # noqa: BLE001 - whatever a driver raises becomes one of ours
        failure = translate_catalog_error(error, f"catalog {name!r} cannot be opened")
        raise type(failure)(
            _text_without_secrets(properties, failure.message), failure.hint
        ) from None


def translate_catalog_error(error: Exception, what: str) -> HeadgateError:
    """Translate an error of pyiceberg; its message begins with ``what`` went wrong."""
    said = f"{what}: {type_and_first_line_of(error)}"
    if isinstance(error, HeadgateError):
        return error
    if _is_unreadable_rest_answer(error):  # before its type counts: what fails is only the reading
        return Unreachable(
            f"{what}: what answers there is no REST catalog", "correct catalog.properties.uri"
        )
    match error:
        case FileDamaged():
            return LogUnreadable(f"{what}: {error}", _RESTORE)
        case NoSuchTableError() | NoSuchNamespaceError():
            return TableMissing(said, "check catalog and identifier, or let the sink create it")
        case ForbiddenError() | UnauthorizedError() | OAuthError():
            return MissingRights(said, "check the catalog's credential, and what it may do")
        case NotInstalledError() | ImportError():
            return ConfigurationError(said, "install what this kind of catalog needs")
        case ValueError() | KeyError() | TypeError() | NoSuchPropertyException():
            return ConfigurationError(said, "check the catalog's properties")
    if operation := refused_operation_of(error):
        return MissingRights(
            f"{what}: {operation} is refused: {type_and_first_line_of(error)}",
            "check the keys or the role for the catalog, and for the table's files",
        )
    if type(error).__name__ in ("ArgumentError", "NoSuchModuleError"):  # SQLAlchemy's, of the uri
        return ConfigurationError(said, "check the catalog's uri")
    if type(error).__name__ == "NoRegionError":  # botocore's
        return ConfigurationError(said, "set glue.region, or AWS_REGION in the environment")
    return Unreachable(said, "is the catalog up, and its address right?")


def _is_unreadable_rest_answer(error: Exception) -> bool:
    """Return whether something answered that says nothing a REST catalog would say."""
    kind, text = type(error).__name__, str(error)
    unread = kind == "ValidationError" and "ConfigResponse" in text
    return unread or kind == "JSONDecodeError" or "unexpected JSON" in text


def translate_metadata_error(error: Exception, what: str) -> HeadgateError:
    """Do as ``translate_catalog_error`` for fetched metadata: what does not decode is damaged."""
    if isinstance(error, UNDECODED) and not isinstance(error, FileDamaged):
        said = f"its metadata cannot be decoded: {type_and_first_line_of(error)}"
        return LogUnreadable(f"{what}: {said}", _RESTORE)
    return translate_catalog_error(error, what)


@contextmanager
def translating_table_errors(identifier: str) -> Iterator[None]:
    """Name the table whose metadata is fetched in what goes wrong. Raises ``HeadgateError``."""
    try:
        yield
    except Exception as error:
        raise translate_metadata_error(error, f"table {identifier} cannot be read") from error


def require_atomic_swap(catalog: Catalog, identifier: str) -> None:
    """Raise ``CatalogRefused`` where the table's commits could be lost; changes nothing."""
    if isinstance(catalog, JavaCatalog):
        try:
            catalog.require_atomic_swap(identifier)
        except Exception as error:  # noqa: BLE001 - whatever Java throws becomes one of ours
            raise translate_catalog_error(error, f"table {identifier} cannot be asked") from None


def missing_rights_or_none(error: BaseException) -> MissingRights | None:
    """Return the error for a table that may not be read or written any more.

    Unknown credentials (401) are not the trouble of one table.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ForbiddenError) or (
            isinstance(cause, OSError) and refused_operation_of(cause)
        ):
            said = str(error).removeprefix(f"{Unreachable.code} ")  # which it is tried again by
            return MissingRights(said.removeprefix(f"{MissingRights.code} "))
        cause = cause.__cause__
    return None


def _catalog_opener(
    name: str, properties: Mapping[str, str], timeout_s: float
) -> Callable[[], Catalog]:
    known = merge_config(Config().get_catalog_config(name) or {}, _as_recursive_dict(properties))
    kind = require_supported_type(name, known)
    if not kind and "uri" not in known:
        raise ConfigurationError(
            f"catalog {name!r}: nothing says what it is", "set type and uri in [catalog.properties]"
        )
    if kind == "rest":
        return partial(_open_rest_catalog, name, {**_PATIENT, **known}, timeout_s)
    if kind == "glue":
        return partial(_open_glue_catalog, name, {**_PATIENT, **known})
    patient = {name: text for name, text in _PATIENT.items() if name not in known}
    if kind == "sql" and isinstance(uri := known.get("uri"), str):
        bounded = {**patient, **properties, "uri": _uri_with_timeouts(uri, timeout_s)}
        return partial(_open_sql_catalog, name, bounded, timeout_s)
    return partial(load_any_catalog, name, **patient, **properties)


def _open_rest_catalog(name: str, properties: RecursiveDict, timeout_s: float) -> Catalog:
    from headgate.tables.iceberg.rest_catalog import BoundedRestCatalog

    if "uri" not in properties:
        raise NoSuchPropertyException("a REST catalog needs its uri")
    catalog = BoundedRestCatalog(name, {"rest.sigv4.max-retries": "0", **properties}, timeout_s)
    require_tag_support(name, catalog.properties)
    return catalog


def _open_glue_catalog(name: str, properties: RecursiveDict) -> Catalog:
    """Open AWS Glue with bounded waits: botocore's own add up to ten minutes."""
    try:
        from botocore.config import Config as ClientConfig
        from botocore.session import Session as ClientSession
        from pyiceberg.catalog.glue import GlueCatalog
    except ImportError as error:
        raise _not_installed_error("Glue", error, "glue") from error
    session = ClientSession()
    session.set_default_client_config(
        ClientConfig(
            connect_timeout=_GLUE_CONNECT_S,
            read_timeout=_GLUE_READ_S,
            retries={"max_attempts": _GLUE_RETRIES},  # for whoever provides a profile's role
        )
    )
    retries = int(str(properties.get("glue.max-retries", _GLUE_RETRIES)))
    known = {"botocore_session": session, **properties, "glue.max-retries": retries}
    return GlueCatalog(name, **known)


def require_sql_installed() -> None:
    """Raise ``ConfigurationError`` if what a SQL catalog needs is not installed."""
    try:
        import_module("sqlalchemy")
    except ImportError as error:
        raise _not_installed_error("a SQL catalog", error, "sql") from error


def _open_sql_catalog(name: str, properties: Mapping[str, str], timeout_s: float) -> Catalog:
    require_sql_installed()
    from sqlalchemy.event import listen
    from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

    for _ in range(_CATALOG_TABLES):
        # Two processes that open a new catalog at once both make its tables. The slower one's
        # attempt fails at each table that the other has just made, and the next attempt finds it.
        with suppress(IntegrityError, OperationalError, ProgrammingError):
            catalog = load_any_catalog(name, **properties)
            break
    else:
        catalog = load_any_catalog(name, **properties)
    engine = getattr(catalog, "engine", None)
    if engine is not None and engine.dialect.name == "postgresql":
        listen(engine, "begin", partial(_set_lock_and_idle_timeouts, round(timeout_s * 1000)))
    return catalog


def _not_installed_error(what: str, error: ImportError, extra: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} needs a library that is not installed: {error.name}",
        f"pip install 'headgate[{extra}]'",
    )


def install_own_metadata_writer(catalog: Catalog) -> MetadataFiles:
    """Have the catalog write metadata our way (version 3, too), unless a server writes it."""
    files = MetadataFiles()
    if isinstance(catalog, MetastoreCatalog):
        theirs = catalog._update_and_stage_table  # noqa: SLF001 - this catalog's only, as below

        def stage_table(current: Table | None, *requested: Any) -> StagedTable:
            return files.stage_without_copying_snapshots(theirs, current, requested)

        catalog._update_and_stage_table = stage_table  # type: ignore[assignment]  # noqa: SLF001
        catalog._write_metadata = files.write  # type: ignore[method-assign]  # noqa: SLF001
    return files


def _patch_catalog_io_and_metadata(catalog: Catalog, *, read_only: bool = False) -> Catalog:
    """Give the tables of the catalog on S3 our files, wherever it asks for some.

    With ``read_only``, tables on this machine have them, too.
    """
    metadata = install_own_metadata_writer(catalog)
    theirs = catalog._load_file_io  # noqa: SLF001 - this catalog's only, as below

    def open_own_file_io(
        properties: Properties = EMPTY_DICT, location: str | None = None
    ) -> FileIO:
        merged = {**catalog.properties, **properties}
        if is_for_our_s3_client(merged, location) or needs_timeouts(location):
            return check_avro_files_of(open_file_io(merged, location))
        if read_only and location and local_file_path(location) and PY_IO_IMPL not in merged:
            return check_avro_files_of(LocalFiles(merged, location))
        return check_avro_files_of(theirs(properties, location))

    catalog._load_file_io = open_own_file_io  # type: ignore[method-assign]  # noqa: SLF001
    if hasattr(catalog, "_convert_orm_to_iceberg"):
        catalog._convert_orm_to_iceberg = partial(_build_sql_table, catalog, metadata)  # noqa: SLF001
    if hasattr(catalog, "_is_s3tables_database"):  # asked at each commit, though it never changes
        catalog._is_s3tables_database = lru_cache(catalog._is_s3tables_database)  # noqa: SLF001
        catalog._write_metadata_no_exist_check = metadata.write  # type: ignore[attr-defined]  # noqa: SLF001
    return catalog


def _build_sql_table(catalog: Catalog, known: MetadataFiles, row: IcebergTables) -> Table:
    """Build the table as pyiceberg's SQL catalog does, but with our files."""
    if not row.metadata_location:
        raise NoSuchTableError("Table property metadata_location is missing")
    files = catalog._load_file_io(location=row.metadata_location)  # noqa: SLF001 - see above
    metadata = known.read(files.new_input(row.metadata_location))
    return Table(
        identifier=(*Catalog.identifier_to_tuple(row.table_namespace), row.table_name),
        metadata=metadata,
        metadata_location=row.metadata_location,
        io=catalog._load_file_io(metadata.properties, row.metadata_location),  # noqa: SLF001
        catalog=catalog,
    )


def _set_lock_and_idle_timeouts(timeout_ms: int, connection: Connection) -> None:
    """Limit its time: a committer paused between update and commit holds the row's lock.

    Set per transaction, because a pooler in between may give the next one another connection, and
    may refuse settings that come with the connection.
    """
    for setting in ("lock_timeout", "idle_in_transaction_session_timeout"):
        connection.exec_driver_sql(f"SET LOCAL {setting} = {timeout_ms}")


def _uri_with_timeouts(uri: str, timeout_s: float) -> str:
    """Add the driver's time-outs to the address; their defaults are 5 s, two hours, or for ever."""
    wanted = _driver_timeouts(uri, max(1, round(timeout_s)))
    query = "&".join(f"{key}={wait}" for key, wait in wanted.items() if f"{key}=" not in uri)
    return f"{uri}{'&' if '?' in uri else '?'}{query}" if query else uri


def _driver_timeouts(uri: str, timeout_s: int) -> Mapping[str, int]:
    scheme = uri.partition(":")[0]
    if scheme.partition("+")[0] == "sqlite" and ":memory:" not in uri:
        return {"timeout": timeout_s}
    if scheme in _LIBPQ_DRIVERS:
        # Only the client's own settings: a pooler in front may refuse those for the server.
        return {
            "connect_timeout": timeout_s,
            "tcp_user_timeout": timeout_s * 1000,
            "keepalives_idle": timeout_s,
            "keepalives_interval": timeout_s,
            "keepalives_count": 1,
        }
    return {}


def _as_recursive_dict(properties: Mapping[str, str]) -> RecursiveDict:
    return dict(properties)


def _text_without_secrets(properties: Mapping[str, str], text: str) -> str:
    """Remove property values: foreign messages may quote passwords, or whole property sets."""
    for key, value in sorted(properties.items(), key=lambda item: -len(item[1])):
        if key != "type" and len(value) > 3:
            text = text.replace(value, f"<{key}>")
    return text
