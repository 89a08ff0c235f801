"""Falsifies or removes every rule of the protocol: the proofs must notice.

A mutant replaces functions of the product (or, for rules of the table, of the catalog) where they
are used. ``noticed.json`` says which seed or which small world notices it, and as what.
"""

from __future__ import annotations

from simulation.mutants import (
    answering,
    changing,
    claiming,
    collecting,
    evolving,
    expiring,
    following,
    forging,
    growing,
    keyed_following,
    maintaining,
    marking,
    positions,
    real_tables,
    requesting,
    setting_aside,
    speech,
    stamping,
    suspension,
    table,
    wedging,
)
from simulation.mutants.mutant import Mutant

FAMILIES = (
    *(table, speech, claiming, collecting, answering, positions, requesting),
    *(setting_aside, following, forging, evolving, suspension, real_tables, maintaining),
    *(changing, growing, keyed_following, stamping, wedging, expiring, marking),
)

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant for family in FAMILIES for mutant in family.FAMILY
}

UNSHOWN = {
    **dict.fromkeys(
        (f"QUERY-{number}" for number in range(1, 28)),
        "no participants work there: spark_query/histories.py plays queries, and "
        "spark_query/mutants.py falsifies their rules",
    ),
    **dict.fromkeys(
        (f"TAKEOVER-{number}" for number in range(1, 15)),
        "no connector works there: unit/operations/kafka_connect/test_plan.py plays them, and "
        "integration/operations/test_takeover.py runs the real one",
    ),
    **dict.fromkeys(
        ("SHAPE-1", "SHAPE-2", "SHAPE-3", "SHAPE-4"),
        "records there have no contents: unit/data_plane/write/test_row_shape.py",
    ),
    "SHAPE-5": "as SHAPE-1: unit/data_plane/write/test_transformed_rows.py",
    **dict.fromkeys(
        ("KEY-14", "KEY-15", "KEY-16"),
        "as SHAPE-1, and its commits are appends: integration/sink/test_history.py kills",
    ),
    **dict.fromkeys(
        ("REPORT-1", "REPORT-2", "REPORT-3"),
        "nobody listens there: unit/runtime/reports/, and integration/sink/test_reports.py kills",
    ),
    **dict.fromkeys(
        (f"FLEET-{number}" for number in range(1, 14)),
        "a fleet places sinks and promises nothing of rows: protocol/test_fleet.py and its "
        "neighbours; integration/operations/test_fleet.py kills workers",
    ),
    "COMPACTION-1": "a snapshot's number and its sources fence it already: its mutants are planted "
    "where they show, in protocol/test_compaction_1_compaction.py",
    "BATCH-3": "how fast is read decides nothing there: protocol/test_batch_3_pace.py",
    "KEY-11": "as COMPACTION-1: planted in protocol/test_key_11_compaction.py",
    "ROUTE-1": "routes are the writers' own: unit/data_plane/batch/test_routes.py",
    **dict.fromkeys(("ROUTE-2", "ROUTE-3"), "as ROUTE-1"),
    "ROUTE-6": "what a batch costs is the writers': "
    "unit/data_plane/write/test_write_batch_multi_table.py",
    "ROUTE-7": "as ROUTE-6: unit/data_plane/spark/test_stages_multi_table.py",
    "ROUTE-5": "as ROUTE-1: unit/data_plane/write/test_write_batch_multi_table.py",
    "PENDING-1": "a claim of a secondary table besides costs a call, and no row; its tag is the "
    "lock of deliveries, whose mutants are those of PENDING-5 and PENDING-6: "
    "protocol/test_pending_1_primary.py",
    "ROLLBACK-1": "nobody takes a ledger back there: protocol/test_rollback_1_going_back.py and "
    "unit/operations/control/test_rollback_many.py",
    "QUARANTINE-1": "what a quarantine lost is nothing that happens there: "
    "protocol/test_quarantine_1_claims.py",
    "ROUTE-4": "who counts new tables is no machine: unit/runtime/test_routed_table_creation.py",
    **dict.fromkeys(
        ("CREATE-1", "CREATE-2", "CREATE-3", "CREATE-4"),
        "the simulation makes no tables: protocol/test_create_tables.py",
    ),
    "LEDGER-2": "as CREATE-1: protocol/test_ledger_2_dropped.py",
    "KEY-12": "settings refuse it: unit/config/test_keyed_table_checks.py",
    "SCHEMA-1": "a writer's finding: unit/data_plane/write/test_columns_to_add.py",
    "SCHEMA-4": "what waits is younger than what is claimed beside it: "
    "protocol/test_schema_evolution.py",
    "SCHEMA-5": "what a table takes up is arithmetic: unit/control_protocol/test_columns.py",
    "SCHEMA-6": "as SCHEMA-5, and unit/data_plane/write/test_columns_to_add.py",
    "SCHEMA-7": "as SCHEMA-6",
    "SCHEMA-9": "what a table's columns may become is its adapter's: "
    "protocol/test_schema_9_kept_columns.py",
    "COMMIT-5": "when END comes decides about size and progress alone: "
    "protocol/test_commit_5_size.py and protocol/test_commit_5_presence.py",
    "FRESH-1": "what a delivery says is PENDING-5's record: protocol/test_fresh_and_linger.py",
    "FRESH-2": "no table stands still there for so long: protocol/test_fresh_and_linger.py",
    "LINGER-1": "how long pending commits gather loses and doubles nothing: "
    "protocol/test_fresh_and_linger.py",
    "SUSPEND-3": "who has pending too much, or for too long, is counted: "
    "protocol/test_suspend_isolation.py",
    "SUSPEND-4": "the quarantine has no trouble there: protocol/test_suspend_isolation.py",
    "SUSPEND-6": "nobody replays there: protocol/test_suspend_6_replayed.py, "
    "unit/operations/test_replay_tables.py",
    "BATCH-1": "a writer that hangs, or fails for no reason of others, is not in the simulation: "
    "protocol/test_batch_1_hopeless.py",
    "QUARANTINE-4": "what a writer makes of a record is not the machines': "
    "protocol/test_quarantine_4_disposal.py and "
    "unit/data_plane/quarantine/test_rejected_records.py",
    "TABLE-5": "the simulation has one sink: protocol/test_table_5_shared.py and "
    "integration/sink/test_shared_source.py",
    "CONFIG-1": "the simulation has one configuration: protocol/test_config_1_one_configuration.py "
    "and unit/runtime/test_misconfigured_participant_detection.py",
}
"""Rules that simulation and exploration cannot break, with who else shows them."""
