"""Keeps writers' schemas of a registry: ids must not change their meaning.

A registry that was emptied or replaced may give an id anew. Avro has no names in its bytes, so the
wrong schema makes wrong rows, and no bad record. Hence each schema is asked for again from time to
time, and its digest stays when the schema itself is dropped.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from headgate.control_protocol.errors import MissingRights, SchemaIdReused, Unreachable
from headgate.data_plane.formats.avro.schema import UnfitSchema
from headgate.data_plane.formats.protobuf.descriptors import UnfitTypes
from headgate.data_plane.formats.registry.client import NoSuchSchema

_DIGESTS_MAX = 100_000
_KEPT_CHARACTERS_MAX = 32 * 1024 * 1024
_UUID_BYTES = 16

_Kind = TypeVar("_Kind")


class OtherKind(NoSuchSchema):
    """Says that there is a schema under the id, and it is of another format."""


@dataclass(frozen=True, slots=True)
class Fetched(Generic[_Kind]):
    """What was made of a schema, how many characters it has, and the digest of what it says."""

    made: _Kind
    characters: int
    digest: bytes


class SchemaCache(Generic[_Kind]):
    """Keeps what was made of schemas, within bounds: what was used last stays.

    What is older than ``fresh_s`` is fetched again, and must say the same; if nobody answers, or
    the id is gone, it stays. Digests outlast the schemas.
    """

    def __init__(self, count_max: int, fresh_s: float) -> None:
        self._count_max = count_max
        self._fresh_s = fresh_s
        self._found: OrderedDict[bytes, tuple[Fetched[_Kind], float]] = OrderedDict()
        self._digests: OrderedDict[bytes, bytes] = OrderedDict()
        self._characters = 0
        self._asked_in_vain_until_s = 0.0
        self._lock = threading.Lock()

    def get_or_fetch_unchanged(
        self, schema_id: bytes, fetch: Callable[[], Fetched[_Kind]]
    ) -> _Kind:
        """Return what is kept for this id; else fetch it.

        Raises what ``fetch`` raises, and ``SchemaIdReused``.
        """
        with self._lock:
            known, asked_s = self._found.get(schema_id, (None, 0.0))
            if known is not None:
                self._found.move_to_end(schema_id)
                now_s = time.monotonic()
                if now_s - asked_s < self._fresh_s or now_s < self._asked_in_vain_until_s:
                    return known.made
        try:
            found = fetch()
        except (OtherKind, UnfitSchema, UnfitTypes) as error:
            if known is None:
                raise
            raise _reused_error(schema_id) from error
        except NoSuchSchema:
            if known is None:
                raise
            found = known  # a quick answer, which says nothing of the other schemas
        except (Unreachable, MissingRights):
            if known is None:
                raise
            # Not once more for each of the other schemas: each question may take half a minute.
            self._asked_in_vain_until_s = time.monotonic() + self._fresh_s
            found = known
        with self._lock:
            self._note_or_require_same_digest(schema_id, found.digest)
            self._store_and_evict(schema_id, known or found)
        return (known or found).made

    def _note_or_require_same_digest(self, schema_id: bytes, digest: bytes) -> None:
        before = self._digests.setdefault(schema_id, digest)
        self._digests.move_to_end(schema_id)
        if len(self._digests) > _DIGESTS_MAX:
            self._digests.popitem(last=False)
        if before != digest:
            raise _reused_error(schema_id)

    def _store_and_evict(self, schema_id: bytes, kept: Fetched[_Kind]) -> None:
        if schema_id not in self._found:
            self._characters += kept.characters
        self._found[schema_id] = kept, time.monotonic()
        while len(self._found) > 1 and self._is_over_limit():
            _, (dropped, _) = self._found.popitem(last=False)
            self._characters -= dropped.characters

    def _is_over_limit(self) -> bool:
        return len(self._found) > self._count_max or self._characters > _KEPT_CHARACTERS_MAX


def _reused_error(schema_id: bytes) -> SchemaIdReused:
    return SchemaIdReused(
        f"the registry gives another schema than before as {describe_schema(schema_id)}",
        "was it emptied, restored or replaced? restore its ids, then restart",
    )


def describe_schema(schema_id: bytes) -> str:
    """Return what messages call the schema with this id, as records have it."""
    return f"the schema {schema_id_text(schema_id)}"


def schema_id_text(schema_id: bytes) -> str:
    """Return the registry's spelling of an id as records have it."""
    if len(schema_id) == 1 + _UUID_BYTES:
        return str(uuid.UUID(bytes=schema_id[1:]))
    return str(int.from_bytes(schema_id[1:], "big"))


def fetched_with_digest(made: _Kind, texts: Iterable[str]) -> Fetched[_Kind]:
    """Return what was made of these texts, with their size and digest."""
    every = tuple(texts)
    digest = hashlib.sha256(
        repr([*map(_normalized_if_json, every)]).encode("utf-8", "surrogatepass")
    )
    return Fetched(made, sum(map(len, every)), digest.digest())


def _normalized_if_json(text: str) -> str:
    """Return the text without what a registry may write otherwise: JSON's blanks and order."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text
