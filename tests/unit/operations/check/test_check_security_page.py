"""The rights that docs/guides/security.md gives out are those that ``headgate check`` asks for."""

from __future__ import annotations

import pytest
from support.security_page import rights_by_resource

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.kafka.cluster_queries import Cluster, ResourceRights
from headgate.operations.check.check import _check_control_topic, _check_control_topic_writers
from headgate.operations.check.table import NotChecked


def settings() -> SinkSettings:
    return parse(
        'name = "trips"\n[source]\ntopics = ["trips"]\n[control]\ntopic = "trips-control"\n'
        '[kafka]\n"bootstrap.servers" = "127.0.0.1:9"\n[table]\nidentifier = "db.trips"\n'
    )


class Answering(Cluster):
    """A cluster that lets do what it is told to let do."""

    def __init__(self, *operations: str) -> None:
        self._granted = ResourceRights(1, frozenset(operations))

    def describe_topic(self, name: str) -> ResourceRights:
        del name
        return self._granted


def test_the_page_names_what_this_sink_uses() -> None:
    names = {name for _, _, name in rights_by_resource()}
    assert names == {"trips", settings().control.topic, settings().source.group_id}


@pytest.mark.parametrize("role", ["sink", "operator"])
def test_the_pages_rights_are_what_check_asks_for(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = rights_by_resource()[f"User:trips-{role}", "--topic", "trips-control"]
    monkeypatch.setattr(
        "headgate.operations.check.check.require_fitting_topic_if_present", lambda *_: True
    )
    monkeypatch.setattr("headgate.operations.check.check.will_use_append_time", lambda *_: True)
    cluster = Answering(*granted)
    assert "may be read and written" in _check_control_topic(settings(), cluster)
    assert "not signed" in _check_control_topic_writers(settings().control, cluster)
    read = rights_by_resource()["User:trips-sink", "--topic", "trips"]
    assert ResourceRights(1, frozenset(read)).known_missing_operations("read", "describe") == []


@pytest.mark.parametrize("wide", ["delete", "alter", "alter_configs"])
def test_check_tells_of_rights_that_are_too_wide(wide: str) -> None:
    with pytest.raises(NotChecked, match=f"may {wide} control topic trips-control, which no role"):
        _check_control_topic_writers(
            settings().control, Answering("read", "write", "describe", wide)
        )


def test_an_observer_writes_nothing() -> None:
    rights = rights_by_resource()
    observed = [ops for (who, _, _), ops in rights.items() if who == "User:trips-observer"]
    assert observed
    assert not any(ops - {"read", "describe"} for ops in observed)
