"""Which tables there are under names that a sink's routes can make."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError

from headgate.sink.settings import SinkSettings

_PLACEHOLDER = re.compile(r"\{\w+\}")


def named_tables(settings: SinkSettings, catalog: Catalog) -> Iterator[str]:
    """List them, whoever made them; each may be named more than once."""
    patterns = [_pattern(route.to) for route in settings.tables.route]
    for namespace in _namespaces(settings, catalog):
        try:
            tables = catalog.list_tables(namespace)
        except NoSuchNamespaceError:
            continue
        for found in tables:
            name = ".".join(found)
            if any(pattern.fullmatch(name) for pattern in patterns):
                yield name


def _namespaces(settings: SinkSettings, catalog: Catalog) -> set[str]:
    wanted = {route.to.rpartition(".")[0] for route in settings.tables.route}
    plain = {name for name in wanted if not _PLACEHOLDER.search(name)}
    patterns = [_pattern(name) for name in wanted - plain]
    if not patterns:
        return plain
    there = (".".join(found) for found in catalog.list_namespaces())
    return plain | {name for name in there if any(p.fullmatch(name) for p in patterns)}


def _pattern(text: str) -> re.Pattern[str]:
    parts = [re.escape(part) for part in _PLACEHOLDER.split(text)]
    return re.compile("[a-z0-9_]+".join(parts))
