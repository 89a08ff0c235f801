"""What is shipped for a fleet on Kubernetes is what kubectl renders, and headgate reads."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from repository.tree import ROOT

from headgate.config.load import load_worker_file
from headgate.operations.cli.main import main
from headgate.runtime.fleet.sink_files import read_sink_files

FLEET = ROOT / "deploy/kubernetes/fleet"
LIST_SINKS = FLEET / "list_sinks.py"
SECRETS = ("fleet-key", "viewer-token", "operator-token")
FILE = (FLEET / "sinks/trips.toml").read_text()
renders = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


def rendered(folder: Path) -> list[dict[str, Any]]:
    run = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return [each for each in yaml.safe_load_all(run.stdout) if each]


def copied(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    shutil.copytree(FLEET, folder)
    return folder


def list_sinks(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(LIST_SINKS), str(folder)], capture_output=True, text=True, timeout=120
    )


def pods() -> dict[str, dict[str, Any]]:
    """The pods of workers, page and Job, by their kind."""
    found = {}
    for name in ("workers", "page", "apply"):
        manifest = next(iter(yaml.safe_load_all((FLEET / f"{name}.yaml").read_text())))
        found[name] = manifest["spec"]["template"]["spec"]
    return found


def test_the_base_names_what_is_there() -> None:
    base = yaml.safe_load((FLEET / "kustomization.yaml").read_text())
    named = {*base["resources"], *base["components"], *base["configMapGenerator"][0]["files"]}
    there = {path.name for path in FLEET.iterdir()} - {"__pycache__"}
    assert named | {"kustomization.yaml", "list_sinks.py"} == there


@pytest.mark.parametrize("name", ["workers", "page", "apply"])
def test_a_pod_may_do_little(name: str) -> None:
    pod = pods()[name]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    volumes = {volume["name"] for volume in pod["volumes"]}
    wanted = {mount["name"] for mount in container["volumeMounts"]}
    assert wanted - volumes == ({"sinks"} if name == "apply" else set())  # the list brings it


def test_workers_have_time_to_leave_and_go_one_after_the_other() -> None:
    workers = next(iter(yaml.safe_load_all((FLEET / "workers.yaml").read_text())))
    assert workers["kind"] == "StatefulSet"
    assert workers["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 60
    assert workers["spec"]["minReadySeconds"] >= 10
    assert "updateStrategy" not in workers["spec"]  # one pod at a time is the default


@pytest.mark.parametrize("name", ["workers", "page", "apply"])
def test_the_commands_are_ones_that_there_are(name: str) -> None:
    (container,) = pods()[name]["containers"]
    words = [word for word in container["args"] if not word.startswith("/")]
    run = CliRunner().invoke(main, [*_without_values(words), "--help"])
    assert run.exit_code == 0, run.output
    assert all(word in run.output for word in words if word.startswith("--") and word != "--fleet")


def _without_values(words: list[str]) -> list[str]:
    return [word for word in words if not word.startswith("--")]


def test_the_example_of_the_workers_file_can_be_read(tmp_path: Path) -> None:
    text = (FLEET / "worker.toml").read_text()
    for name in SECRETS:
        (tmp_path / name).write_text(f"{name}-{'x' * 32}")
        text = text.replace(f"/etc/headgate/secrets/{name}", str(tmp_path / name))
    file = tmp_path / "worker.toml"
    file.write_text(text)
    settings = load_worker_file(file)
    port = int(settings.http.listen.rpartition(":")[2])
    (container,) = pods()["page"]["containers"]
    assert container["ports"] == [{"name": "https", "containerPort": port}]
    assert settings.fleet.signing_keys


def test_the_example_sinks_can_be_applied() -> None:
    assert [*read_sink_files(FLEET / "sinks")] == ["trips"]


def test_the_list_is_that_of_the_folder() -> None:
    listed = runpy.run_path(str(LIST_SINKS))
    groups = listed["share_out"](sorted((FLEET / "sinks").glob("*.toml")))
    assert (FLEET / "sinks/kustomization.yaml").read_text() == listed["render_component"](groups)


@renders
def test_kubectl_renders_it_and_each_part_finds_the_others() -> None:
    documents = rendered(FLEET)
    kinds = [each["kind"] for each in documents]
    for kind in ("StatefulSet", "Deployment", "Job", "PodDisruptionBudget", "PodMonitor"):
        assert kinds.count(kind) == 1
    maps = {each["metadata"]["name"] for each in documents if each["kind"] == "ConfigMap"}
    for kind in ("StatefulSet", "Deployment", "Job"):
        (found,) = [each for each in documents if each["kind"] == kind]
        spec = found["spec"]["template"]["spec"]
        assert {name for volume in spec["volumes"] for name in _config_maps(volume)} <= maps
        labels = found["spec"]["template"]["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "headgate-fleet"
    closed = [each for each in documents if each["kind"] == "NetworkPolicy"]
    assert all(each["spec"]["podSelector"].get("matchLabels") for each in closed)


def _config_maps(volume: dict[str, Any]) -> list[str]:
    sources = [volume, *volume.get("projected", {}).get("sources", ())]
    return [each["configMap"]["name"] for each in sources if "configMap" in each]


@pytest.mark.wide
@renders
def test_two_thousand_files_come_through_in_several_config_maps(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    long = "".join(f"# {'x' * 90}\n" for _ in range(20))
    for number in range(2_000):
        name = f"sink-{number:04}"
        text = FILE.replace('name = "trips"', f'name = "{name}"') + long
        (folder / "sinks" / f"{name}.toml").write_text(text)
    assert list_sinks(folder / "sinks").stdout == "2001 files in 7 ConfigMaps\n"
    documents = rendered(folder)
    maps = {each["metadata"]["name"]: each for each in documents if each["kind"] == "ConfigMap"}
    (job,) = [each for each in documents if each["kind"] == "Job"]
    (sinks,) = [v for v in job["spec"]["template"]["spec"]["volumes"] if v["name"] == "sinks"]
    named = _config_maps(sinks)
    assert all(len(yaml.safe_dump(maps[name])) < 1 << 20 for name in named)
    files = [file for name in named for file in maps[name]["data"]]
    assert sorted(files) == sorted(path.name for path in (folder / "sinks").glob("*.toml"))


def test_an_empty_folder_is_refused_since_the_job_prunes(tmp_path: Path) -> None:
    run = list_sinks(tmp_path)
    assert (run.returncode, "has no sink file" in run.stderr) == (1, True)
    assert not [*tmp_path.iterdir()]


def test_a_file_that_no_config_map_holds_is_named(tmp_path: Path) -> None:
    (tmp_path / "huge.toml").write_text("#" * 900_000)
    run = list_sinks(tmp_path)
    assert (run.returncode, "huge.toml has 900000 bytes" in run.stderr) == (1, True)
