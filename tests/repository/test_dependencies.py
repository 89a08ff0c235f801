"""Every imported library is declared, with bounds."""

from __future__ import annotations

import re
import sys
from importlib.metadata import packages_distributions

from repository.tree import PROJECT, imports, modules


def distribution(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return re.sub(r"[._-]+", "-", name.group()).lower()


def test_imported_libraries_are_declared() -> None:
    project = PROJECT["project"]
    extras = (r for extra in project["optional-dependencies"].values() for r in extra)
    declared = {distribution(line) for line in (*project["dependencies"], *extras)}
    provided = packages_distributions()
    undeclared = {
        f"{module} imports {name}"
        for module, path in modules().items()
        for name in {name.split(".")[0] for name in imports(path)}
        if name not in sys.stdlib_module_names
        and name != "headgate"
        and not declared & {distribution(found) for found in provided.get(name, [])}
    }
    assert undeclared == set()
