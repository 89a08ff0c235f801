"""What a takeover refuses before it asks anybody."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.operations.routed_shop import shop_settings

from headgate.control_protocol.errors import TakeoverUnfit
from headgate.operations.kafka_connect.takeover import TakeoverRequest, plan


def test_takeover_9_a_sink_of_many_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TakeoverUnfit, match="one offset per partition"):
        plan(shop_settings(tmp_path), {}, TakeoverRequest())
