"""What ``headgate check --kafka`` says of topics, and of a trial that may leave something."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.control_protocol.errors import ControlTopicUnfit, MissingRights
from headgate.kafka.cluster_queries import ResourceRights
from headgate.operations.check.cluster_report import _check_topic
from headgate.operations.check.required_grants import RIGHTS, Role
from headgate.operations.check.table import NotChecked


def refuse(topic: str) -> object:
    raise MissingRights(f"topic {topic}: the cluster refuses to tell its settings")


def checked(*, control: bool) -> str:
    """What is said of a topic whose settings this principal may not see."""
    rights = RIGHTS[Role.SINK].control if control else RIGHTS[Role.SINK].source
    cluster = SimpleNamespace(describe_topic=lambda _: ResourceRights(3, frozenset(rights)))
    trial = SimpleNamespace(topic_settings_of=refuse, topic_id=lambda _: "id-1")
    return _check_topic(cast("Any", cluster), cast("Any", trial), "orders", control=control)


def test_a_source_whose_settings_may_not_be_seen_is_well() -> None:
    """A sink reads it; only of the control topic it needs to see the settings."""
    said = checked(control=False)
    assert said == (
        "3 partitions, id id-1, cleanup.policy not told; this principal may read, describe"
    )
    with pytest.raises(MissingRights):
        checked(control=True)


def test_a_control_topic_that_is_not_there_decides_nothing_if_it_is_refused() -> None:
    """It may be created in the provider's own console; the trial's own topic shows with what."""

    def refuse_settings(topic: str) -> bool:
        raise ControlTopicUnfit(f"control topic {topic} is missing and cannot be created: policy")

    cluster = SimpleNamespace(
        describe_topic=lambda _: None, may_create_control_topic=refuse_settings
    )
    with pytest.raises(NotChecked, match="is missing and cannot be created: policy"):
        _check_topic(cast("Any", cluster), cast("Any", None), "control", control=True)
