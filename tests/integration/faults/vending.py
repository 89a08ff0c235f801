"""Provides keys that a REST catalog vends per table, and that the store refuses once old."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from support.object_store import ObjectStore
from support.small_rest_catalog import SmallRestCatalog
from support.store_proxy import Answer, Request, s3_error

LIFE_S = 40.0
EXPIRED = s3_error(400, "ExpiredToken")


class VendedKeys:
    """Each time others, good for ``life_s``. ``refused``: how often somebody came with old ones."""

    def __init__(self, life_s: float = LIFE_S) -> None:
        self._life_s = life_s
        self._ends: dict[str, float] = {}
        self._one_at_a_time = Lock()
        self.refused = 0

    def vend(self) -> Mapping[str, str]:
        token, ends = f"session-{uuid.uuid4().hex}", time.time() + self._life_s
        with self._one_at_a_time:
            self._ends[token] = ends
        return {
            "s3.access-key-id": f"ASIA{token[-8:]}",
            "s3.secret-access-key": "vended",
            "s3.session-token": token,
            "s3.session-token-expires-at-ms": str(int(ends * 1000)),
        }

    def judge(self, request: Request) -> Answer | None:
        """What the store answers to keys that are not good, or no more."""
        ends = self._ends.get(request.headers.get("x-amz-security-token", ""), 0.0)
        if time.time() < ends:
            return None
        with self._one_at_a_time:
            self.refused += 1
        return EXPIRED


class VendingCatalog(SmallRestCatalog):
    """It writes metadata with the store's own keys, and gives out others."""

    def __init__(self, folder: Path, store: ObjectStore, keys: VendedKeys) -> None:
        super().__init__(folder, store.s3())
        self._keys = keys

    def with_each_table(self) -> Mapping[str, str]:
        return self._keys.vend()

    def without_keys(self, store: Mapping[str, str]) -> dict[str, str]:
        """Properties of a catalog that reaches this store with what is vended, and else not."""
        given = {key: value for key, value in store.items() if "access-key" not in key}
        return {**given, "type": "rest", "uri": self.uri}
