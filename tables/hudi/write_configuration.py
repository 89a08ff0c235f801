"""Configures how this sink's JVM writes to a Hudi table: fixed settings, and the file's (H1)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headgate.control_protocol.errors import ConfigurationError, HudiUnsafe
from headgate.tables.hudi.lock_check import LOCK, LOCK_KEY, require_fencing_lock
from headgate.tables.hudi.record_keys import INDEX, require_supported_index_type

# Lists settings of Hudi that would conflict with a sink's commits, with the reasons (H1).


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


def require_no_conflicting_settings(
    table: str, settings: Mapping[str, str], settings_section: str, *, keyed: bool
) -> None:
    """Raise ``HudiUnsafe`` for the first of them that is set."""
    for refusal in (*ALWAYS, *(WITH_KEY if keyed else WITHOUT_KEY)):
        for key in refusal.keys:
            value = settings.get(key, "").strip()
            if value and value.upper() not in refusal.accepted:
                raise HudiUnsafe(
                    f"{table}: {key} = {value}, but {refusal.why}",
                    f"remove {key} from {settings_section} (docs/table-formats/hudi.md)",
                )


HOODIE = "hoodie."
OURS = "headgate."
"""The prefix of properties that headgate keeps next to the table."""
SPARK = "spark."
TYPE = "hoodie.table.type"
TIME_ZONE = "hoodie.table.timeline.timezone"
KEY = "hoodie.datasource.write.recordkey.field"

_TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")

_ALWAYS = {
    # A commit's markers and statistics lie where participants without a JVM can put them.
    "hoodie.write.markers.type": "DIRECT",
    "hoodie.embed.timeline.server": "false",
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.streaming.write.enabled": "false",
    "hoodie.write.auto.upgrade": "false",
    TIME_ZONE: "UTC",
    # Nobody may roll back what another writer has under way.
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
}
_USUALLY = {
    "hoodie.bulkinsert.shuffle.parallelism": "1",
    "hoodie.finalize.write.parallelism": "1",
    "hoodie.markers.delete.parallelism": "1",
    "hoodie.rollback.parallelism": "1",
    "hoodie.cleaner.parallelism": "1",
    "hoodie.parquet.compression.codec": "zstd",
    f"{LOCK}wait_time_ms": "20000",
    f"{LOCK}num_retries": "2",
    f"{LOCK}client.num_retries": "1",
}
_SOON_AGAIN = {f"{LOCK}wait_time_ms": "5000", f"{LOCK}num_retries": "1"}
"""A delivery that does not get the lock is retried, and others wait for it meanwhile."""

_FOLDERS = (
    "hoodie.datasource.write.hive_style_partitioning",
    "hoodie.datasource.write.partitionpath.urlencode",
)

_OF_KEYS = ("hoodie.index.", "hoodie.bucket.")
_OF_ROWS = ("hoodie.table.", "hoodie.datasource.", *_OF_KEYS)
"""Settings for how a table's rows are stored and found; the others control writing."""

_WHERE = "[table.properties], or tables.create.properties"
_NOT_OF_APPENDS = ("BLOOM", "GLOBAL_BLOOM", "BUCKET")


def build_safe_writer_settings(
    table: str, properties: Mapping[str, str], *, keyed: bool = False
) -> dict[str, str]:
    """Return Hudi's write configuration.

    Raises ``HudiUnsafe`` for what would break the guarantee.
    """
    given = {key: value for key, value in properties.items() if key.startswith(HOODIE)}
    for key, value in _ALWAYS.items():
        if given.get(key, value).upper() != value.upper():
            raise HudiUnsafe(
                f"{table}: {key} = {given[key]}, but commits of headgate need {value}",
                f"remove {key} from {_WHERE}",
            )
    require_no_conflicting_settings(table, given, _WHERE, keyed=keyed)
    if keyed:
        require_supported_index_type(table, given)
    elif given.get(INDEX, "").upper() in _NOT_OF_APPENDS:
        raise HudiUnsafe(
            f"{table}: {INDEX} = {given[INDEX]}, but files that are appended have no Bloom "
            "filters, and belong to no bucket",
            "remove it: those who upsert into the table may use SIMPLE, or (see "
            "docs/table-formats/hudi.md) GLOBAL_RECORD_LEVEL_INDEX or RECORD_LEVEL_INDEX; "
            "or set table.key",
        )
    require_fencing_lock(table, given, _WHERE)
    return {**_USUALLY, **given, **_ALWAYS}


def secondary_properties(
    table: str, primary: Mapping[str, str], own: Mapping[str, str], *, keyed: bool
) -> dict[str, str]:
    """Return the properties of a secondary table: written in the same way, with a lock of its own.

    ``own`` determines how its rows are stored, and found if it is ``keyed``.
    """
    taken = {key: value for key, value in primary.items() if not key.startswith(_OF_ROWS)}
    if LOCK_KEY in taken:
        taken[LOCK_KEY] = f"{taken[LOCK_KEY]}_{table}"
    heeded = _OF_ROWS if keyed else tuple(each for each in _OF_ROWS if each not in _OF_KEYS)
    rows = {key: value for key, value in own.items() if key.startswith(heeded)}
    return {**_SOON_AGAIN, **taken, **rows}


def require_no_ignored_settings(
    section: str,
    properties: Mapping[str, str],
    other_catalog_keys: Collection[str],
    *,
    create: bool,
) -> None:
    """Raise ``ConfigurationError`` for keys of the sink file that would have no effect.

    ``section`` is where the properties are; ``other_catalog_keys``: keys of [catalog.properties]
    other than the store's.
    """
    for where, begin, keys, also in (
        (section, HOODIE, [key for key in properties if not key.startswith(OURS)], ""),
        (
            "catalog.properties",
            SPARK,
            other_catalog_keys,
            ", and of a table on S3 those in docs/table-formats/hudi.md",
        ),
    ):
        if idle := sorted(key for key in keys if not key.startswith(begin)):
            raise ConfigurationError(
                f"{where}.{idle[0]} is set, but a Hudi table has no use for it",
                f"leave keys there that begin with {begin}{also}",
            )
    for key in _FOLDERS if create else ():
        if properties.get(key, "true").lower() != "true":
            raise ConfigurationError(
                f"{section}.{key} is {properties[key]}, but folders of new tables are "
                "called column=value, and escaped",
                "remove it",
            )


def require_known_table_type(properties: Mapping[str, str]) -> str:
    """Return how a new table stores its updates. Raises ``HudiUnsafe`` for unknown types."""
    name = properties.get(TYPE, _TYPES[0]).upper()
    if name not in _TYPES:
        raise HudiUnsafe(f"{TYPE} is {properties[TYPE]}", f"known are {', '.join(_TYPES)}")
    return name
