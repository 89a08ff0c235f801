"""Alert rules and dashboard ask for metrics that exist, and do what they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from repository.tree import ROOT

from headgate.runtime.telemetry.metric_catalog import INSTRUMENTS, Kind

ALERTS = ROOT / "deploy/alerts.yaml"
DASHBOARDS = [ROOT / "deploy/dashboard.json", ROOT / "deploy/dashboard-fleet.json"]
EXPRESSIONS = {
    path: [
        rule["expr"]
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]
    for path in [ALERTS]
} | {
    path: [
        target["expr"]
        for panel in json.loads(path.read_text())["panels"]
        for target in panel["targets"]
    ]
    for path in DASHBOARDS
}


@pytest.mark.parametrize("path", EXPRESSIONS, ids=lambda path: path.name)
def test_only_metrics_that_exist_are_asked_for(path: Path) -> None:
    histograms = {name for name, of in INSTRUMENTS.items() if of.kind is Kind.HISTOGRAM}
    told = (INSTRUMENTS.keys() - histograms) | {
        f"{name}_{part}" for name in histograms for part in ("bucket", "count", "sum")
    }
    asked = {name for e in EXPRESSIONS[path] for name in re.findall(r"headgate_\w+", e)}
    assert asked <= told
    assert asked, "it asks for something"


@pytest.mark.parametrize("path", EXPRESSIONS, ids=lambda path: path.name)
def test_only_labels_that_they_have_are_asked_for(path: Path) -> None:
    for expression in EXPRESSIONS[path]:
        known = {"sink", "fleet", "instance", "le"}.union(
            *(of.labels for name, of in INSTRUMENTS.items() if name in expression)
        )
        grouped = re.findall(r"by \(([^)]*)\)", expression)
        matched = re.findall(r"[{,](\w+)=", expression)
        asked = {label.strip() for group in grouped for label in group.split(",")} | {*matched}
        assert asked <= known, expression


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_rules_and_their_tests() -> None:
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        run = subprocess.run(
            ["promtool", *command], cwd=ALERTS.parent, capture_output=True, text=True, timeout=120
        )
        assert run.returncode == 0, run.stdout + run.stderr


def test_every_alert_has_a_test() -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    cases = yaml.safe_load((ROOT / "deploy/alerts_test.yaml").read_text())["tests"]
    raised = {
        case["alertname"]
        for test in cases
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert raised == {rule["alert"] for group in groups for rule in group["rules"]}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_panels_do_not_overlap_and_have_ids_of_their_own(path: Path) -> None:
    panels = json.loads(path.read_text())["panels"]
    places = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert max(x for x, _ in places) < 24
