"""What a takeover refuses before it asks anybody."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.operations.routed_shop import shop_settings

from headgate.control_protocol.errors import TakeoverUnfit
from headgate.operations.kafka_connect.takeover import TakeoverRequest, plan


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("", "a connector without a class"),
        ("io.tabular.iceberg.connect.IcebergSinkConnector", "in another form"),
        ("org.apache.hudi.connect.HudiSinkConnector", "is not Iceberg's sink"),
    ],
)
def test_takeover_9_a_connector_of_another_kind_is_refused(
    tmp_path: Path, kind: str, said: str
) -> None:
    with pytest.raises(TakeoverUnfit, match=said):
        plan(shop_settings(tmp_path), {"connector.class": kind}, TakeoverRequest())
