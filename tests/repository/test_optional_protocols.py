"""Every protocol that is asked for at run time is kept by a class that ships.

``isinstance`` answers no, and says nothing, where a method was renamed in the protocol or in the
class alone: what depends on it is then quietly left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from repository.tree import modules

from headgate.control_protocol.table_format import SupportsColumnCheck
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.storage.avro_integrity import Kept
from headgate.tables.storage.s3_file_io import S3Object


def defined(node: ast.ClassDef) -> Iterator[str]:
    """Yield what a class has by itself: methods, fields, attributes that it sets."""
    for part in ast.walk(node):
        match part:
            case ast.FunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def classes() -> list[ast.ClassDef]:
    """Parse the product: seconds, so that no collection of tests should do it."""
    trees = (ast.parse(path.read_text()) for path in modules().values())
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_a_protocol_that_is_asked_for_is_kept_by_some_class() -> None:
    known = classes()
    by_name = {node.name: {*defined(node)} for node in known}
    bases = {node.name: [ast.unparse(base).split("[")[0] for base in node.bases] for node in known}

    def all_of(name: str, seen: frozenset[str]) -> set[str]:
        if name in seen or name not in by_name:
            return set()
        return by_name[name].union(*(all_of(base, seen | {name}) for base in bases[name]))

    def is_kept(protocol: str) -> bool:
        wanted = {name for name in by_name[protocol] if not name.startswith("__")}
        others = by_name.keys() - {protocol}
        return any(wanted <= all_of(name, frozenset({protocol})) for name in others)

    asked = [
        node.name
        for node in known
        if any("runtime_checkable" in ast.unparse(each) for each in node.decorator_list)
    ]
    assert asked
    assert [name for name in asked if not is_kept(name)] == []


@pytest.mark.parametrize(
    ("kept_by", "protocol"), [(IcebergTable, SupportsColumnCheck), (S3Object, Kept)]
)
def test_what_only_one_class_has_is_asked_of_that_one(kept_by: type, protocol: type) -> None:
    assert issubclass(kept_by, protocol)
