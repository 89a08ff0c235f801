"""Every rule of PROTOCOL.md, taken away or falsified: what the proofs must notice.

A mutant replaces functions of the product (or, for rules of the table, of the catalog) where they
are used. ``noticed.json`` says which seed or which small world notices it, and as what.
"""

from __future__ import annotations

from simulation.mutants import (
    answering,
    claiming,
    collecting,
    positions,
    setting_aside,
    speech,
    table,
)
from simulation.mutants.mutant import Mutant

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for family in (table, speech, claiming, collecting, answering, positions, setting_aside)
    for mutant in family.FAMILY
}

UNSHOWN = {
    "T6": "retention is the Iceberg adapter's: protocol/test_t6_retention.py and "
    "integration/iceberg/test_expiry.py",
    "Q6": "what a writer makes of a record is not the machines': protocol/test_q6_disposal.py and "
    "unit/participant/writers/test_aside.py",
    "T7": "the simulation has one sink: protocol/test_t7_shared.py and "
    "integration/sink/test_shared_source.py",
    "P10": "the simulation has one configuration: protocol/test_p10_one_configuration.py and "
    "unit/sink/test_lookout.py",
}
"""Rules that simulation and exploration cannot break, with who else shows them."""
