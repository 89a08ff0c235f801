"""A release is built from the commit alone, and installs what its lists say."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from repository.tree import PROJECT, ROOT

TOOLS, PYTHON = "build/release/.made", "build/release/bin/python"
LOCKS = {
    "requirements.lock": ("glue", "metrics", "postgres", "private-key"),
    "requirements-spark.lock": ("glue", "metrics", "postgres", "private-key", "spark"),
}


def required(extra: str) -> list[Requirement]:
    """What an extra brings, those that it includes among it."""
    found: list[Requirement] = []
    for line in PROJECT["project"]["optional-dependencies"][extra]:
        wanted = Requirement(line)
        included = wanted.extras if wanted.name == "headgate" else ()
        found += [each for name in included for each in required(name)] or [wanted]
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_an_image_installs_versions_that_the_project_allows(lock: str) -> None:
    text = (ROOT / "deploy" / lock).read_text()
    pinned = re.findall(r"^([a-z0-9._-]+)==([^ ]+)", text, re.MULTILINE)
    wanted = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
    wanted += [each for extra in LOCKS[lock] for each in required(extra)]
    for each in wanted:
        versions = [version for name, version in pinned if name == canonicalize_name(each.name)]
        assert versions, f"{each} is not in {lock}: make lock"
        assert all(version in each.specifier for version in versions), f"{each}: make lock"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release of this commit, which ``release.py`` builds twice and compares."""
    folder = tmp_path_factory.mktemp("release") / "dist"
    subprocess.run(["make", "-s", TOOLS, f"PYTHON={sys.executable}"], cwd=ROOT, check=True)
    subprocess.run([ROOT / PYTHON, ROOT / "deploy/release/release.py", folder], check=True)
    return folder


@pytest.mark.soak
def test_a_release_has_a_wheel_for_each_platform_and_the_sum_of_each_file(release: Path) -> None:
    sums = dict(
        reversed(line.split()) for line in (release / "SHA256SUMS").read_text().splitlines()
    )
    names = {path.name for path in release.iterdir()} - {"SHA256SUMS"}
    assert {
        name: hashlib.sha256((release / name).read_bytes()).hexdigest() for name in names
    } == sums
    platforms = {name.split("-")[-1] for name in names if name.endswith(".whl")}
    assert platforms == {
        "any.whl",
        "macosx_11_0_arm64.whl",
        "macosx_11_0_x86_64.whl",
        "manylinux2014_aarch64.manylinux_2_17_aarch64.whl",
        "manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    }


@pytest.mark.soak
def test_the_compiled_loops_of_a_released_wheel_are_used(release: Path, tmp_path: Path) -> None:
    (wheel,) = release.glob("*manylinux2014_x86_64*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)
    asked = "from headgate.native import kernels as k; print(k.__file__, type(k.loops()).__name__)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", asked],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert said == [str(tmp_path / "headgate/native/kernels.py"), "InC"]


@pytest.mark.soak
def test_the_list_of_contents_names_every_package_of_the_image(release: Path) -> None:
    (listed,) = release.glob("*.cdx.json")
    components = {each["name"] for each in json.loads(listed.read_text())["components"]}
    assert {"headgate", "pyarrow", "pyiceberg", "confluent-kafka"} <= components
    assert not {"pip", "setuptools", "cyclonedx-bom"} & components


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation of this tree as a site."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(["make", "-s", TOOLS, f"PYTHON={sys.executable}"], cwd=ROOT, check=True)
    subprocess.run([ROOT / PYTHON, ROOT / "deploy/release/site.py", folder], check=True)
    return folder


class Links(HTMLParser):
    """The links of a page, what it loads, and the places in it that others may link to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: text for name, text in attrs if text is not None}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a":
            self.links.append(given.get("href", ""))
        self.loaded += [given[name] for name in ("src",) if name in given]
        if tag == "link":
            self.loaded.append(given["href"])


@pytest.mark.wide
def test_every_link_of_the_site_leads_to_a_page_and_a_place_in_it(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html")}
    assert len(pages) > 50
    dead = []
    for page, found in pages.items():
        for link in found.links:
            target = urlsplit(link)
            if target.scheme or page.name == "404.html":
                continue
            there = (page.parent / unquote(target.path)).resolve() if target.path else page
            there = there / "index.html" if there.is_dir() else there
            if not there.exists() or (
                target.fragment and there in pages and target.fragment not in pages[there].places
            ):
                dead.append(f"{page.relative_to(site)}: {link}")
    assert dead == []


@pytest.mark.wide
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    foreign = {
        f"{page.relative_to(site)}: {loaded}"
        for page in site.rglob("*.html")
        for loaded in Links(page).loaded
        if urlsplit(loaded).netloc
    }
    styles = {
        f"{sheet.relative_to(site)}: {found}"
        for sheet in site.rglob("*.css")
        for found in re.findall(r"(?:@import|url\()\s*['\"]?(https?:[^'\")]+)", sheet.read_text())
    }
    assert foreign | styles == set()
