"""Tests the contract of a whole sink over one table format, for the format's author to run.

Everything is real but Kafka: machines, writers, the tables, and what the commands read of them. A
class per capability, for pytest: inherit those that apply, and give them a fixture ``world``::

    class TestMySink(SinkContract, QuarantineSinkContract):
        @pytest.fixture
        def world(self, tmp_path: Path) -> MySinkWorld:
            return MySinkWorld(tmp_path)

What a table must do by itself is in ``headgate.control_protocol.testing.contract``.
"""

from headgate.testing.contract.many_tables import (
    CreatedTablesSinkContract,
    KeyedSinkContract,
    ManyTablesSinkContract,
    SuspensionSinkContract,
)
from headgate.testing.contract.one_table import (
    EvolutionSinkContract,
    QuarantineSinkContract,
    RollbackSinkContract,
    SinkContract,
    TagSinkContract,
)

__all__ = [
    "CreatedTablesSinkContract",
    "EvolutionSinkContract",
    "KeyedSinkContract",
    "ManyTablesSinkContract",
    "QuarantineSinkContract",
    "RollbackSinkContract",
    "SinkContract",
    "SuspensionSinkContract",
    "TagSinkContract",
]
