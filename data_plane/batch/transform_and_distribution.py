"""Treats rows between decoding and writing: by rules, a transform, and distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headgate.control_protocol.errors import ConfigurationError
from headgate.data_plane.batch.row_rules import RowRules
from headgate.participant.settings import Distribution

DISTRIBUTION_PROPERTY = "write.distribution-mode"


@dataclass(frozen=True, slots=True)
class TransformPlan:
    """Names a transform: ``sql``, or ``function`` as ``package.module:name``; the other is empty.

    ``schema_json``: the columns into which values are decoded, as an Iceberg schema; empty for the
    table's. ``in_process``: the function takes Arrow batches where records are decoded, and not a
    DataFrame of Spark's.
    """

    sql: str = ""
    function: str = ""
    schema_json: str = ""
    in_process: bool = False

    @property
    def name(self) -> str:
        """Return its name for errors."""
        return f"transform.python ({self.function})" if self.function else "transform.sql"


@dataclass(frozen=True, slots=True)
class Shaping:
    """Says how rows are treated between decoding and writing: by ``rules`` first."""

    transform: TransformPlan | None = None
    distribution: Distribution = Distribution.TABLE
    rules: RowRules | None = None

    @property
    def has_local_transform(self) -> bool:
        """Return whether a transform runs where records are decoded."""
        return self.transform is not None and self.transform.in_process

    def with_resolved_distribution(self, table: str, properties: Mapping[str, str]) -> Shaping:
        """Resolve ``TABLE`` from the table's properties."""
        if self.distribution is not Distribution.TABLE:
            return self
        word = properties.get(DISTRIBUTION_PROPERTY, "none").lower()
        if word not in ("none", "hash", "range"):
            raise ConfigurationError(
                f"{table}: {DISTRIBUTION_PROPERTY} is {word!r}", "use none, hash or range"
            )
        return replace(self, distribution=Distribution(word))
