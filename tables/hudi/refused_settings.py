"""Lists settings of Hudi that would conflict with a sink's commits, with the reasons (H1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.control_protocol.kind_errors import HudiUnsafe


@dataclass(frozen=True, slots=True)
class Refusal:
    """Keys with the same meaning, or nearly so; without ``accepted`` they must not be set."""

    keys: tuple[str, ...]
    accepted: tuple[str, ...]
    why: str


_OFF = ("FALSE",)
_JOBS = "compaction, clustering and deletion of old partitions are jobs of their own"
_ORDERS = "rows with a key are ordered by the sink: the last record of a key counts"

ALWAYS = (
    Refusal(
        (
            "hoodie.compact.inline",
            "hoodie.log.compaction.inline",
            "hoodie.clustering.inline",
            "hoodie.datasource.clustering.inline.enable",
        ),
        _OFF,
        f"it would run within each commit of the sink; {_JOBS}",
    ),
    Refusal(
        ("hoodie.compact.schedule.inline", "hoodie.clustering.schedule.inline"),
        _OFF,
        f"it would be planned within each commit of the sink, and nobody executes it; {_JOBS}",
    ),
    Refusal(
        (
            "hoodie.clustering.async.enabled",
            "hoodie.datasource.clustering.async.enable",
            "hoodie.datasource.compaction.async.enable",
        ),
        _OFF,
        f"a sink starts no such job beside its commits; {_JOBS}",
    ),
    Refusal(
        ("hoodie.partition.ttl.inline",),
        _OFF,
        f"it would delete partitions within each commit of the sink; {_JOBS}",
    ),
    Refusal(
        ("hoodie.populate.meta.fields",),
        ("TRUE",),
        "commits are found by Hudi's own columns",
    ),
    Refusal(
        ("hoodie.write.table.version",),
        ("8", "9"),
        "tables are of version 8 or later",
    ),
    Refusal(
        ("hoodie.base.file.format", "hoodie.table.base.file.format", "hoodie.table.ro.file.format"),
        ("PARQUET",),
        "participants write Parquet files",
    ),
    Refusal(
        ("hoodie.table.cdc.enabled",),
        _OFF,
        "files that participants write come without a log of changes",
    ),
    Refusal(
        ("hoodie.datasource.write.drop.partition.columns",),
        _OFF,
        "files that participants write hold all columns",
    ),
    Refusal(
        ("hoodie.base.path",),
        (),
        "the table is where table.location says",
    ),
)
WITHOUT_KEY = (
    Refusal(
        ("hoodie.metadata.index.bloom.filter.enable",),
        _OFF,
        "files that are appended have no Bloom filters",
    ),
)
WITH_KEY = (
    Refusal(
        ("hoodie.record.merge.mode", "hoodie.write.record.merge.mode"),
        ("COMMIT_TIME_ORDERING",),
        _ORDERS,
    ),
    Refusal(
        (
            "hoodie.table.ordering.fields",
            "hoodie.table.precombine.field",
            "hoodie.datasource.write.precombine.field",
            "hoodie.payload.ordering.field",
        ),
        (),
        _ORDERS,
    ),
    Refusal(
        (
            "hoodie.datasource.write.payload.class",
            "hoodie.compaction.payload.class",
            "hoodie.write.record.merge.custom.implementation.classes",
            "hoodie.datasource.write.record.merger.impls",
            "hoodie.write.record.merge.strategy.id",
            "hoodie.datasource.write.record.merger.strategy",
            "hoodie.record.merge.strategy.id",
            "hoodie.compaction.record.merger.strategy",
            "hoodie.table.partial.update.mode",
        ),
        (),
        f"a class of its own might merge rows in another way; {_ORDERS}",
    ),
)


def refuse_settings(table: str, given: Mapping[str, str], where: str, *, keyed: bool) -> None:
    """Raise ``HudiUnsafe`` for the first of them that is set."""
    for refusal in (*ALWAYS, *(WITH_KEY if keyed else WITHOUT_KEY)):
        for key in refusal.keys:
            value = given.get(key, "").strip()
            if value and value.upper() not in refusal.accepted:
                raise HudiUnsafe(
                    f"{table}: {key} = {value}, but {refusal.why}",
                    f"remove {key} from {where} (docs/hudi.md)",
                )
