"""Builds the documentation as a site: ``python deploy/release/site.py OUT [--version 0.1.0]``.

OUT gets a folder for the version beside those of other versions, ``versions.json`` and a page that
leads to the newest. Pages keep their places, so that their links stay as they are; the order of
the navigation is that of docs/index.md. Nothing in the site comes from another host.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "control_protocol/PROTOCOL.md"),
    *("control_protocol/protocol", "deploy/release/README.md", "benchmarks/README.md", "examples"),
)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
LEADS_ON = (
    '<!doctype html><meta http-equiv="refresh" content="0; url={0}/"><a href="{0}/">{0}</a>\n'
)


def main() -> None:
    """Build the site of this tree."""
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--version", default=version, help=f"the folder's name ({version})")
    given = parser.parse_args()
    with TemporaryDirectory() as scratch:
        staged = Path(scratch) / "pages"
        _stage(staged)
        config = {
            "site_name": f"headgate {given.version}",
            "docs_dir": str(staged),
            "site_dir": str(given.out.resolve() / given.version),
            "theme": {"name": "mkdocs", "highlightjs": False, "color_mode": "auto"},
            "nav": _navigation(staged),
            "markdown_extensions": ["tables", "fenced_code"],
            "validation": {"omitted_files": "ignore", "links": {"anchors": "warn"}},
        }
        path = Path(scratch) / "mkdocs.yml"
        path.write_text(json.dumps(config))  # which is YAML, too
        command = (sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-f", path)
        if subprocess.run(command).returncode:
            sys.exit("the site was not built")
    versions = sorted(
        (each.parent.name for each in given.out.glob("*/index.html")), key=_version_numbers
    )
    (given.out / "versions.json").write_text(json.dumps(versions[::-1]))
    (given.out / "index.html").write_text(LEADS_ON.format(versions[-1]))


def _stage(staged: Path) -> None:
    """Copy the pages; a folder that a page links to gets a list of its pages."""
    for name in PAGES:
        source = REPOSITORY / name
        for path in source.rglob("*") if source.is_dir() else (source,):
            if path.suffix in {".md", ".svg", ".png"}:
                there = staged / path.relative_to(REPOSITORY)
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, there)
    for page in sorted(staged.rglob("*.md")):
        page.write_text(
            LINK.sub(lambda link, page=page: _rewrite_link(link, page, staged), page.read_text())
        )


def _rewrite_link(link: re.Match[str], page: Path, staged: Path) -> str:
    """Return a link as the site has it: without what it does not hold, such as source code."""
    image, text, target, anchor = link.groups("")
    if not target or "://" in target or target.startswith("mailto:"):
        return link[0]
    there = (page.parent / target).resolve()
    if there.is_dir():
        if not (there / "index.md").exists():
            _list_pages(there)
        target = f"{target.rstrip('/')}/index.md"
    elif not there.is_relative_to(staged.resolve()) or not there.exists():
        return text
    return f"{image}[{text}]({target}{anchor})"


def _list_pages(folder: Path) -> None:
    pages = [f"- [{_title(page)}]({page.name})" for page in sorted(folder.glob("*.md"))]
    title = folder.name.replace("-", " ").capitalize()
    (folder / "index.md").write_text(f"# {title}\n\n" + "\n".join(pages) + "\n")


def _title(page: Path) -> str:
    return page.read_text().partition("\n")[0].lstrip("# ").strip()


def _navigation(staged: Path) -> list[dict[str, object]]:
    """Return the groups of docs/index.md, each with the pages that its rows link to."""
    index = staged / "docs" / "index.md"
    groups: list[dict[str, object]] = [{"headgate": "README.md"}, {"Contents": "docs/index.md"}]
    pages: list[dict[str, str]] = []
    for line in index.read_text().splitlines():
        if line.startswith("| ") and "](" not in line:
            pages = []
            groups.append({line.strip("| ").capitalize(): pages})
        for _, text, target, _ in LINK.findall(line):
            place = (index.parent / target).resolve().relative_to(staged.resolve())
            pages.append({text: str(place)})
    return groups


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


if __name__ == "__main__":
    main()
