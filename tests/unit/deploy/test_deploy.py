"""What is shipped around a sink file can be read by those whom it is for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from repository.tree import ROOT

from headgate.config.load import load

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = ("deployment", "disruption", "monitor", "network")


def manifest(name: str) -> dict[str, Any]:
    (found,) = yaml.safe_load_all((KUBERNETES / f"{name}.yaml").read_text())
    assert isinstance(found, dict)
    return found


def test_the_base_names_what_is_there() -> None:
    base = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    assert base["resources"] == [f"{name}.yaml" for name in MANIFESTS]
    named = {*base["resources"], *base["configMapGenerator"][0]["files"], "kustomization.yaml"}
    assert named == {path.name for path in KUBERNETES.iterdir() if path.is_file()}
    assert all(manifest(name)["metadata"]["name"] == "headgate" for name in MANIFESTS)


def test_a_pod_may_do_little_and_is_given_time_to_leave() -> None:
    pod = manifest("deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert pod["terminationGracePeriodSeconds"] >= 60
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_the_example_is_a_sink_file_that_listens_where_the_pod_says(
    tmp_path: Path,
) -> None:
    text = (KUBERNETES / "sink.toml").read_text()
    for name in ("viewer-token", "operator-token"):
        (tmp_path / name).write_text(f"{name}-{'x' * 16}")
        text = text.replace(f"/etc/headgate/secrets/{name}", str(tmp_path / name))
    path = tmp_path / "sink.toml"
    path.write_text(text)
    port = load(path).http.listen.rpartition(":")[2]
    (container,) = manifest("deployment")["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "https", "containerPort": int(port)}]
    assert manifest("network")["spec"]["ingress"][0]["ports"][0]["port"] == int(port)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("headgate@.service", "headgate@trips.service"),
        ("headgate-worker.service", "headgate-worker.service"),
        ("headgate-fleet-worker.service", "headgate-fleet-worker.service"),
        ("headgate-fleet-page.service", "headgate-fleet-page.service"),
    ],
)
def test_systemd_takes_the_unit(tmp_path: Path, file: str, name: str) -> None:
    unit = tmp_path / name
    text = (DEPLOY / file).read_text()
    unit.write_text(text.replace("/opt/headgate/bin/headgate", "/bin/true"))
    run = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = [line for line in run.stderr.splitlines() if name.partition("@")[0] in line]
    assert (run.returncode, said) == (0, []), run.stderr


def test_the_image_is_no_root_and_begins_with_the_command() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    assert "USER 65532:65532" in lines
    assert 'ENTRYPOINT ["headgate"]' in lines
    assert "STOPSIGNAL SIGTERM" in lines
