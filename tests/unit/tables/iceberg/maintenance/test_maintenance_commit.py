"""How often a maintenance call is tried, and what is waited for."""

from __future__ import annotations

from unittest.mock import Mock

from headgate.tables.iceberg.maintenance.maintenance_commit import Settled, retry_until_settled


def test_nobody_waits_after_the_last_try() -> None:
    ending, quiet = Mock(is_set=lambda: False), Mock()
    assert retry_until_settled(lambda: Settled.REFUSED, quiet, ending) is Settled.REFUSED
    assert quiet.call_count == 6
    assert [call.args for call in ending.wait.call_args_list] == [(1,), (2,), (4,), (8,), (16,)]
