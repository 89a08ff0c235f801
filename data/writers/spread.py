"""Chooses a file's place in the sink's folder: by partition, or spread as object stores like it.

Stores partition objects by the first characters of their names. A table that asks for it
(``write.object-storage.enabled``) has twenty random bits in front of each file's name, as Iceberg's
own writers have it; here they stand behind the sink's folder, so that orphans stay provably ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from uuid import uuid4

from pyiceberg.table import TableProperties
from pyiceberg.utils.properties import property_as_bool

_BITS = 20
_FOLDER_CHARACTERS_MAX = 160
"""File systems take 255 bytes for a folder's name. No reader needs the value in a file's path."""
_CUT_ESCAPE = re.compile(r"%[0-9A-F]?$")
_FOLDERS = (slice(0, 4), slice(4, 8), slice(8, 12), slice(12, _BITS))


@dataclass(frozen=True, slots=True)
class Spread:
    """``partitioned``: whether the partition is in the path of files that are spread."""

    enabled: bool = False
    partitioned: bool = True

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Self:
        """Read the table's properties. Raises ``ValueError`` for what is not true or false."""
        asked = dict(properties)
        return cls(
            bool(
                property_as_bool(
                    asked,
                    TableProperties.OBJECT_STORE_ENABLED,
                    TableProperties.OBJECT_STORE_ENABLED_DEFAULT,
                )
            ),
            bool(
                property_as_bool(
                    asked,
                    TableProperties.WRITE_OBJECT_STORE_PARTITIONED_PATHS,
                    TableProperties.WRITE_OBJECT_STORE_PARTITIONED_PATHS_DEFAULT,
                )
            ),
        )

    def path(self, partition: str) -> str:
        """Return a new file's path below the sink's folder, without its ending."""
        name = uuid4()
        partition = "/".join(_short(folder) for folder in partition.split("/"))
        if not self.enabled:
            return f"{partition}/{name}" if partition else str(name)
        bits = f"{name.int & (1 << _BITS) - 1:0{_BITS}b}"
        spread = "/".join(bits[part] for part in _FOLDERS)
        if not self.partitioned:
            return f"{spread}-{name}"
        return f"{spread}/{partition}/{name}" if partition else f"{spread}/{name}"


def _short(folder: str) -> str:
    """Return the escaped name of a partition's folder, cut off if it is too long."""
    return _CUT_ESCAPE.sub("", folder[:_FOLDER_CHARACTERS_MAX])
