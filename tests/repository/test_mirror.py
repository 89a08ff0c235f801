"""Who looks for the tests of a module finds them by its name (tests/unit mirrors the product)."""

from __future__ import annotations

from pathlib import Path

from repository.tree import ROOT

UNIT = ROOT / "tests" / "unit"
OF_MODULES = {".py", ".yaml"}


def names(folder: Path) -> set[str]:
    """What the tests of a folder may begin with: its modules, and the folder as a whole."""
    found = {path.stem for path in folder.iterdir() if path.suffix in OF_MODULES}
    return {*found, folder.name}


def strangers(root: Path, unit: Path) -> list[str]:
    """Test modules that are neither ``test_<module>.py`` nor ``test_<module>_<aspect>.py``."""
    found = []
    for path in sorted(unit.rglob("test_*.py")):
        where = path.parent.relative_to(unit)
        # What the tests share is tested beside the rooms of the product, as if it were one.
        folders = [root / "tests" / where, *([root / where] if where.name else [])]
        known = set[str]().union(*(names(folder) for folder in folders if folder.is_dir()))
        about = path.stem.removeprefix("test_")
        if not any(about == name or about.startswith(f"{name}_") for name in known):
            found.append(str(path.relative_to(unit)))
    return found


def test_each_test_module_is_named_after_what_it_tests() -> None:
    assert strangers(ROOT, UNIT) == []


def test_one_that_mirrors_nothing_is_found(tmp_path: Path) -> None:
    product, unit = tmp_path / "room", tmp_path / "unit" / "room"
    product.mkdir()
    (product / "table.py").touch()
    unit.mkdir(parents=True)
    for name in ("table", "table_read_twice", "room_as_a_whole", "tables", "sink", "of_table"):
        (unit / f"test_{name}.py").touch()
    (unit / "gone").mkdir()
    (unit / "gone" / "test_table.py").touch()
    (unit.parent / "test_room.py").touch()
    named = ["room/gone/test_table.py", "room/test_of_table.py", "room/test_sink.py"]
    assert strangers(tmp_path, unit.parent) == [*named, "room/test_tables.py", "test_room.py"]
