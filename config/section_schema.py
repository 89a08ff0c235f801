"""Describes a section of the sink file: each key, its type, its unit, and the text below."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

_UNITS = ("ms", "bytes", "records", "files")
"""A number whose name contains one of these words counts it; other units are annotated."""


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """One key of a section.

    ``name``: in the file, which may be a word that Python cannot use. ``hint``: its type.
    """

    section: type
    field: dataclasses.Field[Any]
    name: str
    hint: Any
    unit: str

    @property
    def is_required(self) -> bool:
        return self.field.default is dataclasses.MISSING

    @property
    def description(self) -> str:
        """Return the text below the key; empty if the package was installed without its sources."""
        return key_descriptions(self.section).get(self.field.name, "")

    @property
    def inner_section(self) -> type | None:
        """Return the section that the key holds, or holds a list of; ``None`` for a value."""
        listed = typing.get_origin(self.hint) is tuple
        part = typing.get_args(self.hint)[0] if listed else self.hint
        return part if isinstance(part, type) and dataclasses.is_dataclass(part) else None


@functools.cache
def keys_of(section: type) -> Mapping[str, Key]:
    """Return the keys of a section by their names in the file, in order."""
    hints = typing.get_type_hints(section)
    annotated = typing.get_type_hints(section, include_extras=True)
    found = {}
    for field in dataclasses.fields(section):
        hint, extras = hints[field.name], getattr(annotated[field.name], "__metadata__", ())
        name = next((e.alias for e in extras if getattr(e, "alias", None)), field.name)
        text = [e for e in extras if isinstance(e, str)]
        text += [word for word in field.name.split("_") if hint is int and word in _UNITS]
        found[name] = Key(section, field, name, hint, text[0] if text else "")
    return found


@functools.cache
def key_descriptions(section: type) -> Mapping[str, str]:
    """Read what stands below each field. It is not kept at run time, so this reads the source."""
    found: dict[str, str] = {}
    for each in section.__mro__[-2::-1]:
        try:
            module = ast.parse(inspect.getsource(sys.modules[each.__module__]))
        except OSError:
            continue
        classes = (node for node in module.body if isinstance(node, ast.ClassDef))
        body = next(node.body for node in classes if node.name == each.__name__)
        for field, below in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                text = ast.literal_eval(below.value)
                found[ast.unparse(field.target)] = " ".join(text.split())
    return found
