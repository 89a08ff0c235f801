"""Holds the contract of a sink's table, as tests that an author runs against a table of their own.

A class per capability, for pytest: inherit those that apply, and give them a fixture ``world``::

    class TestMyTable(CoreContract, OthersContract):
        @pytest.fixture
        def world(self, tmp_path: Path) -> MyWorld:
            return MyWorld(tmp_path)
"""

from headgate.control_protocol.testing.contract.branches import BranchContract
from headgate.control_protocol.testing.contract.commit_tokens import CommitTokenContract
from headgate.control_protocol.testing.contract.commits import CoreContract
from headgate.control_protocol.testing.contract.evolution import EvolutionContract
from headgate.control_protocol.testing.contract.expiry import ExpiryContract
from headgate.control_protocol.testing.contract.keys import KeyContract, KeyedSecondaryContract
from headgate.control_protocol.testing.contract.ledger import LedgerContract
from headgate.control_protocol.testing.contract.other_writers import OthersContract
from headgate.control_protocol.testing.contract.races import RaceContract
from headgate.control_protocol.testing.contract.reading import (
    OthersReaderContract,
    ReaderContract,
)
from headgate.control_protocol.testing.contract.rollback import RollbackContract
from headgate.control_protocol.testing.contract.secondaries import SecondaryContract
from headgate.control_protocol.testing.contract.tags import TagContract

__all__ = [
    "BranchContract",
    "CommitTokenContract",
    "CoreContract",
    "EvolutionContract",
    "ExpiryContract",
    "KeyContract",
    "KeyedSecondaryContract",
    "LedgerContract",
    "OthersContract",
    "OthersReaderContract",
    "RaceContract",
    "ReaderContract",
    "RollbackContract",
    "SecondaryContract",
    "TagContract",
]
