"""Lists a folder's sink files for kustomize, which knows no patterns: python list_sinks.py FOLDER.

Writes FOLDER/kustomization.yaml: ConfigMaps of at most 800 KB each, and the volume of the Job
headgate-apply that brings them together again. Run it whenever a file comes or goes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

BYTES_MAX = 800_000
"""A ConfigMap may have a megabyte, its keys and labels included."""
_OF_ENTRY = 300
_HEAD = """\
# Written by list_sinks.py: run it again when a file comes or goes.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
configMapGenerator:
"""
_VOLUME = """\
patches:
  - target: { kind: Job, name: headgate-apply }
    patch: |
      apiVersion: batch/v1
      kind: Job
      metadata: { name: headgate-apply }
      spec:
        template:
          spec:
            volumes:
              - name: sinks
                projected:
                  sources:
"""


def share_out(files: Iterable[Path]) -> list[list[Path]]:
    """Return groups of files that fit into a ConfigMap each. Raises ``ValueError``."""
    groups: list[list[Path]] = [[]]
    taken = 0
    for file in files:
        size = file.stat().st_size + len(file.name) + _OF_ENTRY
        if size > BYTES_MAX:
            raise ValueError(f"{file} has {file.stat().st_size} bytes; {BYTES_MAX} fit")
        if taken + size > BYTES_MAX:
            groups.append([])
            taken = 0
        groups[-1].append(file)
        taken += size
    return groups


def render_component(groups: Sequence[Sequence[Path]]) -> str:
    """Return the kustomization of these groups."""
    generators, sources = "", ""
    for number, files in enumerate(groups):
        name = f"headgate-sinks-{number}"
        names = "".join(f"      - {file.name}\n" for file in files)
        generators += f"  - name: {name}\n    files:\n{names}"
        sources += f"                    - configMap: {{ name: {name} }}\n"
    return _HEAD + generators + _VOLUME + sources


def main(folder: Path) -> str:
    """Write the list, and return what to tell. Raises ``ValueError``."""
    files = sorted(file for file in folder.glob("*.toml") if not file.name.startswith("."))
    if not files:
        # The Job prunes: an empty folder, by mistake, would remove every sink of the fleet.
        raise ValueError(f"{folder} has no sink file *.toml")
    groups = share_out(files)
    (folder / "kustomization.yaml").write_text(render_component(groups))
    return f"{len(files)} files in {len(groups)} ConfigMaps"


if __name__ == "__main__":
    try:
        sys.stdout.write(main(Path(sys.argv[1] if len(sys.argv) > 1 else "sinks")) + "\n")
    except ValueError as error:
        sys.exit(str(error))
