"""Errors of kinds of tables (``table_kinds``), grouped as in ``errors``."""

from __future__ import annotations

from headgate.control_protocol.errors import ConfigurationError


class KindUnknown(ConfigurationError):
    """There is no such kind of table, or the package that brings it is not installed."""

    code = "HG-150"


class KindLacks(ConfigurationError):
    """A setting or a command asks for what this kind of table does not do."""

    code = "HG-151"


class GuaranteeTooWeak(ConfigurationError):
    """The kind of table does not promise that every record is there once."""

    code = "HG-152"


class TableUnfit(ConfigurationError):
    """The table has features or columns that a sink of its kind cannot write."""

    code = "HG-153"
