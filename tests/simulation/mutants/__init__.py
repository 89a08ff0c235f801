"""Falsifies or removes every rule of PROTOCOL.md: the proofs must notice.

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
    following,
    forging,
    growing,
    keyed_following,
    maintaining,
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
    *(changing, growing, keyed_following, stamping, wedging),
)

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant for family in FAMILIES for mutant in family.FAMILY
}

UNSHOWN = {
    "T8": "a snapshot's number and its sources fence it already: its mutants are planted where "
    "they show, in protocol/test_t8_compaction.py",
    "U11": "as T8: planted in protocol/test_u11_compaction.py",
    "R1": "routes are the writers' own: unit/data_plane/batch/test_routes.py",
    **dict.fromkeys(("R2", "R3"), "as R1"),
    "R6": "what a batch costs is the writers': unit/data_plane/write/test_multi_table_write.py",
    "R7": "as R6: unit/data_plane/spark/test_multi_table_stages.py",
    "R8": "as R1: unit/data_plane/write/test_multi_table_write.py",
    "D1": "a claim of a secondary table besides costs a call, and no row: protocol/test_d1_lead.py",
    "D10": "nobody takes a ledger back there: protocol/test_d10_going_back.py and "
    "unit/operations/control/test_rollback_many.py",
    "Q1": "its tag is the lock of deliveries, whose mutants are those of D5 and D6: "
    "protocol/test_q1_second_table.py",
    "Q2": "what a quarantine lost is nothing that happens there: protocol/test_q2_claims.py",
    "R4": "who counts new tables is no machine: unit/runtime/test_tables_of_records.py",
    **dict.fromkeys(
        ("N1", "N2", "N3", "N4"),
        "the simulation makes no tables: protocol/test_n_creation.py",
    ),
    "N5": "as N1: protocol/test_n5_dropped.py",
    "U12": "settings refuse it: unit/config/test_keyed_table_checks.py",
    "S1": "a writer's finding: unit/data_plane/write/test_missing_columns.py",
    "S4": "what waits is younger than what is claimed beside it: protocol/test_s_evolution.py",
    "S5": "what a table takes up is arithmetic: unit/control_protocol/test_columns.py",
    "S6": "as S5, and unit/data_plane/write/test_missing_columns.py",
    "S7": "as S6",
    "S10": "what a table's columns may become is its adapter's: protocol/test_s10_kept_columns.py",
    "S8": "a schema that others change is one more that START names: protocol/test_s_evolution.py",
    "C12": "when END comes decides about size and progress alone: protocol/test_c12_size.py",
    "P12": "as C12: protocol/test_p12_presence.py",
    "V1": "what a delivery says is D5's record: protocol/test_v_freshness.py",
    "V2": "no table stands still there for so long: protocol/test_v_freshness.py",
    "V4": "how long pending commits gather loses and doubles nothing: protocol/test_v_freshness.py",
    "I3": "who has pending too much, or for too long, is counted: protocol/test_i_isolation.py",
    "I4": "the quarantine has no trouble there: protocol/test_i_isolation.py",
    "I5": "what is resumed wrongly is what I1 falsifies: protocol/test_i_isolation.py",
    "I6": "nobody replays there: protocol/test_i6_replayed.py, unit/operations/"
    "test_replay_tables.py",
    "P10": "a writer that hangs, or fails for no reason of others, is not in the simulation: "
    "protocol/test_p10_hopeless.py",
    "G5": "its parts are C3, C5, C6, C9, C11 and P7, and each is judged by itself: "
    "protocol/test_g5_replays.py",
    "Q6": "what a writer makes of a record is not the machines': protocol/test_q6_disposal.py and "
    "unit/data_plane/quarantine/test_rejected_records.py",
    "T7": "the simulation has one sink: protocol/test_t7_shared.py and "
    "integration/sink/test_shared_source.py",
    "P11": "the simulation has one configuration: protocol/test_p11_one_configuration.py and "
    "unit/runtime/test_wrong_group_detection.py",
}
"""Rules that simulation and exploration cannot break, with who else shows them."""
