"""Decides which kinds of catalogs can be a sink's lock; others are refused by name, with a reason.

A sink needs two things of a catalog: a commit that lands only on what its requirements were checked
against, and tags that stay. ``docs/guides/catalogs.md`` lists those that were seen to have both.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from headgate.control_protocol.errors import CatalogRefused, NotAtomic

SQL_SCHEMES = ("sqlite", "postgresql")

_INSTEAD = "use a REST, Glue or SQL catalog (SQLite, PostgreSQL); docs/guides/catalogs.md says more"

_REFUSED = {
    "hive": "a Hive metastore can lose a commit that it has confirmed: pyiceberg commits to it "
    'under a lock that times out, and does not compare and set; catalog.backend = "java" does',
    "dynamodb": "pyiceberg creates tables in a DynamoDB catalog, but cannot commit to them",
    "bigquery": "pyiceberg creates tables in a BigQuery metastore, but cannot commit to them",
    "in-memory": "an in-memory catalog is gone with its process, and no other participant sees it",
}

_BY_URI = {"http": "rest", "https": "rest", "thrift": "hive", **dict.fromkeys(SQL_SCHEMES, "sql")}

JAVA_KINDS = ("hive", "rest")
"""The kinds that may be reached through Java."""

KINDS = ("sql", "rest", "glue", *_REFUSED)

_UNLOCKED = {"nolock", "immutable", "vfs"}
"""Options of SQLite's URIs."""

NESSIE = "nessie.is-nessie-catalog"
"""The property by which a Nessie server identifies itself."""


def require_supported_type(name: str, properties: Mapping[str, object]) -> str:
    """Return the kind of the catalog that these properties open.

    Raises ``CatalogRefused`` for a kind that cannot be a sink's lock, and for an unknown one. An
    empty kind has neither a type nor an address that reveals it.
    """
    if "py-catalog-impl" in properties:
        raise CatalogRefused(
            f"catalog {name!r} is of a class of its own (py-catalog-impl), and whether its commits "
            "compare and set was never seen",
            _INSTEAD,
        )
    uri, scheme = str(properties.get("uri") or ""), _uri_scheme_of(properties)
    declared = properties.get("type")
    kind = str(declared).lower() if declared else _BY_URI.get(scheme, "")
    if declared and kind not in KINDS:
        raise CatalogRefused(
            f"catalog {name!r}: {declared!r} is not a catalog that pyiceberg has",
            f"known are {', '.join(KINDS)}",
        )
    if reason := _REFUSED.get(kind):
        raise CatalogRefused(f"catalog {name!r}: {reason}", _INSTEAD)
    if kind == "rest" and ":" in uri and scheme not in ("http", "https"):
        raise CatalogRefused(
            f"catalog {name!r}: a REST catalog does not answer at a {scheme} address",
            'write its "http://..." or "https://..." address, or the type that the address belongs '
            "to",
        )
    if kind == "sql":
        _require_known_database(name, scheme, uri)
    return kind


def require_supported_java_type(name: str, properties: Mapping[str, object]) -> str:
    """Do as ``require_supported_type``, for a catalog that is reached through Java."""
    if own := properties.get("catalog-impl"):
        raise CatalogRefused(
            f"catalog {name!r} is of a class of its own ({own}), and whether its commits compare "
            "and set was never seen",
            f"in Java, type may be {' or '.join(JAVA_KINDS)}",
        )
    kind = str(properties.get("type") or _BY_URI.get(_uri_scheme_of(properties), "")).lower()
    if kind not in JAVA_KINDS:
        raise CatalogRefused(
            f"catalog {name!r}: in Java a catalog of type {kind or 'no known kind'!r} was never "
            "seen to compare and set",
            f"with catalog.backend = java, type may be {' or '.join(JAVA_KINDS)}; other kinds "
            "are spoken to without Java",
        )
    return kind


def _uri_scheme_of(properties: Mapping[str, object]) -> str:
    return str(properties.get("uri") or "").partition(":")[0].partition("+")[0]


def not_atomic_error(name: str) -> NotAtomic:
    """Return the error for a catalog whose tables cannot be delivered together (PENDING-5)."""
    return NotAtomic(
        f"tables.atomic is set; catalog {name!r} commits to one table at a time",
        "only a REST catalog, without catalog.backend = java, can commit to several: use one, or "
        "remove tables.atomic",
    )


def require_tag_support(name: str, properties: Mapping[str, object]) -> None:
    """Raise ``CatalogRefused`` for a REST server whose configuration says that it keeps no tags."""
    if str(properties.get(NESSIE, "")).lower() == "true":
        raise CatalogRefused(
            f"catalog {name!r} is a Nessie server, which takes a commit and drops the tag in it: "
            "the sink's lock would be gone with its first claim",
            _INSTEAD,
        )


def _require_known_database(name: str, scheme: str, uri: str) -> None:
    if ":" in uri and scheme not in SQL_SCHEMES:
        raise CatalogRefused(
            f"catalog {name!r}: a SQL catalog in {scheme} was never seen to compare and set",
            "SQL catalogs may be in SQLite or PostgreSQL",
        )
    if scheme != "sqlite":
        return
    database, _, options = uri.partition("://")[2].lstrip("/").partition("?")
    asked = parse_qs(options)
    if ":memory:" in uri or not database or "memory" in asked.get("mode", ()):
        raise CatalogRefused(f"catalog {name!r}: {_REFUSED['in-memory']}", _INSTEAD)
    if unlocked := sorted(_UNLOCKED & asked.keys()):
        raise CatalogRefused(
            f"catalog {name!r}: option {unlocked[0]} can take away the locks of its SQLite file",
            "remove it from catalog.properties.uri",
        )
