"""Runs a JVM beside this process, as a catalog in it needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Jvm:
    """``gateway``: py4j's. ``hadoop``: a ``Configuration`` of Hadoop that nobody else changes.

    Java values have no type here: only Iceberg's documents tell what a method returns.
    """

    gateway: Any
    hadoop: Any

    @property
    def iceberg(self) -> Any:
        """Return Java's package ``org.apache.iceberg``."""
        return self.gateway.jvm.org.apache.iceberg

    @property
    def has_ended(self) -> bool:
        """Return whether its process is known to be gone."""
        process = getattr(self.gateway, "proc", None)
        return process is not None and process.poll() is not None

    def has_class(self, name: str) -> bool:
        """Return whether the JVM has the class."""
        part_of_jvm = self.gateway.jvm
        for part in name.split("."):
            part_of_jvm = getattr(part_of_jvm, part)
        return type(part_of_jvm).__name__ == "JavaClass"

    def java_map(self, values: Mapping[str, str]) -> Any:
        made = self.gateway.jvm.java.util.HashMap()
        for key, value in values.items():
            made.put(key, value)
        return made

    def java_list(self, values: Sequence[Any]) -> Any:
        made = self.gateway.jvm.java.util.ArrayList()
        for value in values:
            made.add(value)
        return made

    def java_string_array(self, values: Sequence[str]) -> Any:
        made = self.gateway.new_array(self.gateway.jvm.java.lang.String, len(values))
        for place, value in enumerate(values):
            made[place] = value
        return made


def java_field_of(thing: Any, name: str) -> Any:
    """Return a field of a Java object that has no method to read it.

    Raises what Java raises if the object's class has no such field.
    """
    field = thing.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(thing)
