"""Defines the settings for the catalog of a sink's tables, and for the client that talks to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headgate.config.setting_types import Properties, Text


class Backend(StrEnum):
    """Whose client talks to the catalog: pyiceberg's, or Java's in Spark's JVM."""

    PYICEBERG = "pyiceberg"
    JAVA = "java"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """The Iceberg catalog, in the property names of pyiceberg, or of Java's Iceberg."""

    name: Text = "default"
    """Name of the catalog. SQL catalogs store it in their tables, so every program that uses such a
    catalog must use the same name."""
    backend: Backend = Backend.PYICEBERG
    """Client for the catalog: pyiceberg, or java (Iceberg's Java library in Spark's JVM on this
    machine), for Hive metastores (docs/guides/catalogs.md)."""
    properties: Properties = Properties()
    """Catalog properties such as type, uri and warehouse, with pyiceberg's names; with backend
    java, those of Iceberg's Java library, plus pyiceberg's for file stores. For a table
    format without a catalog: the properties of its store."""
