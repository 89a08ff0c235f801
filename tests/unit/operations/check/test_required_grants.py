"""The rights of each role, as commands; and check asks exactly those."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest
from click.testing import CliRunner
from support.security_page import rights_by_resource
from unit.config.test_load import MINIMAL
from unit.operations.routed_shop import shop_settings

from headgate.config.load import parse
from headgate.config.setting_types import Properties
from headgate.control_protocol.errors import MissingRights
from headgate.kafka.cluster_queries import ResourceRights
from headgate.operations.check import check as module
from headgate.operations.check.check import check
from headgate.operations.check.required_grants import RIGHTS, Role, sink_grant_commands
from headgate.operations.cli.main import main

SETTINGS = parse(MINIMAL)


def acls(role: Role) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in sink_grant_commands(SETTINGS, role, "ann").splitlines():
        if line.startswith("kafka-acls"):
            words = shlex.split(line)
            kind, name = words[-2].removeprefix("--"), words[-1]
            found[f"{kind} {name}"] = {
                words[i + 1] for i, word in enumerate(words) if word == "--operation"
            }
    return found


@pytest.mark.parametrize("role", list(Role))
def test_each_role_has_its_commands(role: Role) -> None:
    found = acls(role)
    assert found.keys() == {"topic trips", "topic headgate-control", "group headgate-trips"}
    assert ("Write" in found["topic headgate-control"]) is (role is not Role.VIEWER)
    assert ("Read" in found["topic trips"]) is (role is Role.SINK)


def test_they_are_those_of_the_security_page() -> None:
    """The page was proved on a real broker (tests/integration/operations/test_least_rights.py)."""
    page = str(rights_by_resource())
    for operation in ("describe_configs", "write"):
        assert operation in page.lower().replace("describeconfigs", "describe_configs")


@pytest.mark.parametrize("name", ["a; rm -rf /", "$(id)", "it's", 'x" y'])
def test_names_are_quoted_for_the_shell(name: str) -> None:
    told = sink_grant_commands(SETTINGS, Role.SINK, name)
    line = next(line for line in told.splitlines() if line.startswith("kafka-acls"))
    assert f"User:{name}" in shlex.split(line)


def test_a_database_gets_its_grants() -> None:
    properties = 'type = "sql"\nuri = "postgresql+psycopg2://u:secret@db/lake"\n'
    settings = parse(f"{MINIMAL}[catalog.properties]\n{properties}")
    told = {role: sink_grant_commands(settings, role, 'a"b') for role in Role}
    assert 'GRANT SELECT, UPDATE ON iceberg_tables TO "a""b";' in told[Role.SINK]
    assert 'GRANT SELECT ON iceberg_tables TO "a""b";' in told[Role.VIEWER]
    creating = parse(
        f'{MINIMAL}[catalog.properties]\n{properties}[quarantine]\npolicy = "quarantine"\n'
    )
    creates = 'GRANT SELECT, UPDATE, INSERT ON iceberg_tables TO "a""b";'
    assert creates in sink_grant_commands(creating, Role.SINK, 'a"b')
    assert creates not in sink_grant_commands(creating, Role.OPERATOR, 'a"b')
    assert not any("secret" in text for text in told.values())


def test_tables_of_routes_are_named_too(tmp_path: Path) -> None:
    route = '[[tables.route]]\nfield = "zone"\nto = "db.{field}"\n'
    quarantine = '[quarantine]\npolicy = "quarantine"\n'
    settings = shop_settings(tmp_path, f'{route}[[tables.route]]\nto = "db.rest"\n{quarantine}')
    rest = replace(
        settings, catalog=replace(settings.catalog, properties=Properties({"type": "rest"}))
    )
    names = "db.ledger, db.rest, every db.{field} and db.ledger_quarantine"
    for role, may in {Role.SINK: "load and commit", Role.VIEWER: "load"}.items():
        told = sink_grant_commands(rest, role, "ann")
        assert any(may in line and names in line for line in told.splitlines()), told


class Cluster:
    """Brokers that allow nothing but what a role needs."""

    def __init__(self, role: Role, without: str = "") -> None:
        self.rights, self.without = RIGHTS[role], without

    def count_brokers(self) -> int:
        return 1

    def describe_topic(self, name: str) -> ResourceRights:
        of = self.rights.control if name == SETTINGS.control.topic else self.rights.source
        return ResourceRights(1, frozenset(of) - {self.without})

    def describe_group(self, name: str) -> ResourceRights:
        return ResourceRights(0, frozenset(self.rights.group) - {self.without}, "empty")


class Topics:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def describe(self) -> dict[str, object]:
        return {"trips": replace(ResourceRights(), partitions=0)}


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.VIEWER])
def test_check_asks_a_role_for_its_own_rights_only(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Described:
        partitions = (0,)
        silent = ()

    def exists(*_: object) -> bool:
        """Looks at its settings as well."""
        if "describe_configs" not in RIGHTS[role].control:
            raise MissingRights("the cluster refuses to tell of it")
        return True

    topics = Topics()
    topics.describe = lambda: {"trips": Described()}  # type: ignore[method-assign, dict-item]
    monkeypatch.setattr(module, "require_fitting_topic_if_present", exists)
    monkeypatch.setattr(module, "will_use_append_time", exists)
    monkeypatch.setattr(module, "open_reachable_source_topics", lambda _: topics)
    for without in ("", *RIGHTS[role].control):
        if without == "describe_configs":
            continue
        given = Cluster(role, without)
        monkeypatch.setattr(module, "Cluster", lambda _, given=given: given)
        answers = {a.what: a for a in check(SETTINGS, role)}
        wrong = {a.code for a in answers.values() if a.what == "control topic"} - {""}
        assert wrong == ({MissingRights.code} if without else set())
        assert "writer" not in answers


def test_another_role_is_bad_usage(tmp_path: Path) -> None:
    path = tmp_path / "sink.toml"
    path.write_text(MINIMAL)
    for command in ("rights", "check"):
        assert CliRunner().invoke(main, [command, str(path), "--role", "king"]).exit_code == 2
    told = CliRunner().invoke(main, ["rights", str(path), "--role", "viewer", "--principal", "ann"])
    assert (told.exit_code, "User:ann" in told.stdout) == (0, True)
