"""What a takeover refuses before it asks anybody."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.operations.routed_shop import shop_settings

from headgate.control_protocol.errors import TakeoverUnfit
from headgate.operations.kafka_connect.takeover import TakeoverRequest, plan_takeover_of_sink


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
        plan_takeover_of_sink(shop_settings(tmp_path), {"connector.class": kind}, TakeoverRequest())


@pytest.mark.parametrize(
    ("more", "group"),
    [({"name": "shop"}, "cg-control-shop"), ({"iceberg.control.group-id": "own"}, "own")],
)
def test_the_ancestor_s_group_is_named(tmp_path: Path, more: dict[str, str], group: str) -> None:
    keys = {"connector.class": "io.tabular.iceberg.connect.IcebergSinkConnector", **more}
    with pytest.raises(TakeoverUnfit) as refused:
        plan_takeover_of_sink(shop_settings(tmp_path), keys, TakeoverRequest())
    assert refused.value.hint.endswith(f"--from-group {group}")
