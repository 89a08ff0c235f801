"""The guide for users of Kafka Connect's workers names commands and paths that exist."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from repository.tree import ROOT
from support.made_up_fleet import made_up_fleet
from unit.operations.http.test_fleet_routes import MadeUpServed

from headgate.control_protocol.errors import HeadgateError
from headgate.operations.cli.main import main
from headgate.operations.http.fleet_routes import Asked, answer_fleet_request, path_parts
from headgate.operations.http.responses import json_error_answer
from headgate.runtime.fleet.sink_life import LifeState

GUIDE = (ROOT / "docs/guides/from-connect-workers.md").read_text()
CALLS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in GUIDE.split("## Calls beside commands")[1].split("## Moving")[0].splitlines()
    if line.startswith(("| `", "| none"))
]
COMMANDS = sorted(set(re.findall(r"`headgate ([^`]+)`", GUIDE)))
PATHS = sorted({path for *_, cell in CALLS for path in re.findall(r"`([^`]+)`", cell)})
CONNECT = """
GET /connectors, POST /connectors, GET /connectors/NAME, GET /connectors/NAME/config,
PUT /connectors/NAME/config, PATCH /connectors/NAME/config, GET /connectors/NAME/status,
POST /connectors/NAME/restart, PUT /connectors/NAME/pause, PUT /connectors/NAME/resume,
PUT /connectors/NAME/stop, DELETE /connectors/NAME, GET /connectors/NAME/tasks,
GET /connectors/NAME/tasks/ID/status, POST /connectors/NAME/tasks/ID/restart,
GET /connectors/NAME/topics, GET /connectors/NAME/offsets, PATCH /connectors/NAME/offsets,
DELETE /connectors/NAME/offsets, GET /connector-plugins,
PUT /connector-plugins/CLASS/config/validate, GET /admin/loggers, GET /
"""
"""What Kafka's documentation lists of Connect's REST interface."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_exists_with_its_options(command: str) -> None:
    found: click.Command = main
    words = shlex.split(command)
    while words and isinstance(found, click.Group):
        with click.Context(found) as context:
            sub = found.get_command(context, words.pop(0))
        assert sub is not None, command
        found = sub
    known = {option for each in found.params for option in each.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("path", PATHS)
def test_a_path_of_the_guide_is_answered(path: str) -> None:
    method, _, url = path.partition(" ")
    parts = path_parts(url.replace("NAME", "busy").replace("WORKER", "worker-0"))
    asked = Asked(method, parts, {}, b"", "ann", json_error_answer(403, "known, and not allowed"))
    try:
        answer = answer_fleet_request(MadeUpServed(made_up_fleet()), asked)
    except HeadgateError:
        return  # there is such a path, and it asks the sink, which is made up
    assert answer.status == (403 if method in ("PUT", "DELETE") else 200)


def test_every_call_of_connect_is_named() -> None:
    named = set()
    for cell, *_ in CALLS:
        before = ("", "")
        for call in re.findall(r"`([^`]+)`", cell):
            method, _, path = call.rpartition(" ")
            path = path.partition("?")[0]
            method = method or before[0]
            if method == before[0] and not path.startswith("/conn") and before[1] != "/":
                base = before[1].removesuffix("/restart").removesuffix("/status")
                path = path if path.startswith("/admin") else base + path
            before = before if before[1] else (method, path)
            named.add(f"{method} {path}")
    assert {call.strip() for call in CONNECT.replace("\n", " ").split(",")} <= named


def test_states_of_the_guide_are_those_of_a_sink() -> None:
    (row,) = [line for line in GUIDE.splitlines() if line.startswith("| states")]
    named = set(re.findall(r"\*(\w+)\*", row.replace("[", "").replace("]", "")))
    assert named == {state.value for state in LifeState}
