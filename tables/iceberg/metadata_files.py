"""Reads and writes metadata files where a catalog does not: as much as is new, not as there is.

pyiceberg parses every snapshot that the table keeps, copies all of them with each update, and
writes them through their models: some tenths of a millisecond for each, in each commit. A metadata
file never changes, so what was read or written last is the next commit's base. Its snapshots are
taken over, as objects and as text, and so is everything in it that pyiceberg does not know: what
other writers put there stays.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from typing import Any, Final

from pyiceberg.exceptions import ResolveError, ValidationError
from pyiceberg.io import FileIO, InputFile
from pyiceberg.serializers import Compressor, ToOutputFile
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, TableMetadataV3
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import IcebergBaseModel, Identifier
from pyiceberg.utils.config import Config

from headgate.tables.storage.damaged_file_error import FileDamaged
from headgate.tables.storage.local_file_io import local_file_path

UNDECODED: Final = (
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    SystemError,
    ResolveError,
    zlib.error,
)
"""What pyiceberg's decoder raises for bytes that are no metadata."""

_TRIES = 3
_BYTES_MAX = 8 * 2**20
"""The text of all files that are remembered, but for the newest. Parsed, it takes up to
twenty times as much memory."""

_LISTS: Final = {"snapshots": "snapshots", "snapshot_log": "snapshot-log"}
"""Fields that grow with the history, and their names in a file."""

_APPENDS = (AddSnapshotUpdate, SetSnapshotRefUpdate, SetPropertiesUpdate, RemovePropertiesUpdate)
"""Updates that look at no snapshots but those that they name."""

_Stage = Callable[
    [Table | None, Identifier, tuple[TableRequirement, ...], tuple[TableUpdate, ...]], StagedTable
]


class _Version3(TableMetadataV3):
    """pyiceberg 0.12 reads and updates such metadata, but refuses to write it."""

    model_dump_json = IcebergBaseModel.model_dump_json  # type: ignore[pydantic-field]


@dataclass(frozen=True, slots=True)
class _Item:
    """A snapshot, or an entry of the log: as parsed, and as it stands in a file.

    ``unknown``: its fields that pyiceberg has no name for.
    """

    parsed: IcebergBaseModel
    text: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Content:
    """What is in a file: ``written`` is all but the ``items`` of the lists, as its writer put it;
    ``understood`` is what pyiceberg made of that."""

    written: Mapping[str, Any]
    understood: Mapping[str, Any]
    items: Mapping[str, Mapping[int, _Item]]


@dataclass(frozen=True)
class _Known:
    """A file that was read or written, and the bytes of its text, which may be compressed in
    ``octets``. Only a commit looks into its text."""

    metadata: TableMetadata
    size_bytes: int
    octets: bytes
    text: str = ""

    @cached_property
    def content(self) -> _Content:
        written = json.loads(self.text)
        items: dict[str, dict[int, _Item]] = {}
        for name, key in _LISTS.items():
            listed, raw = getattr(self.metadata, name), written.pop(key, None) or []
            items[name] = {
                id(parsed): _Item(parsed, unknown=_unknown_fields_of(parsed, found))
                for parsed, found in zip(listed, raw, strict=True)
            }
        return _Content(written, _dump_with_lists_emptied(self.metadata), items)


_NOTHING = _Content({}, {}, {name: {} for name in _LISTS})


class MetadataFiles:
    """The metadata files of one catalog's tables. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def read(self, file: InputFile) -> TableMetadata:
        """Raise ``FileDamaged`` where it is no JSON, also when it is read again."""
        with self._lock:
            if known := self._known.get(file.location):
                self._known.move_to_end(file.location)
        if known and local_file_path(file.location) is None:
            return known.metadata
        return self._parse_unless_unchanged(file, known).metadata

    def _parse_unless_unchanged(self, file: InputFile, known: _Known | None) -> _Known:
        """Read the file, again while it is no JSON, and remember it. Raises ``FileDamaged``.

        Returns ``known`` if the file still holds the same.
        """
        for tries_left in reversed(range(_TRIES)):
            try:
                with file.open() as stream:
                    octets = stream.read()
                if known and known.octets == octets:  # people do edit files on their own disks
                    return known
                text = _decompress(file.location, octets)
                metadata = TableMetadataUtil.parse_raw(text)
            except (ValidationError, *UNDECODED) as error:
                if isinstance(error, ValidationError) and "json_invalid" not in str(error):
                    raise  # it arrived, and holds what pyiceberg does not know
                if not tries_left:
                    raise FileDamaged(file.location, "it is not JSON") from error
            else:
                found = _Known(metadata, len(text), octets, text)
                self._remember(file.location, found)
                return found
        raise AssertionError("the last try returns or raises")

    def write(self, metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        """Write what is new, and what the file before it had."""
        if metadata.format_version == 1 or Config().get_bool("legacy-current-snapshot-id"):
            ToOutputFile.table_metadata(metadata, io.new_output(metadata_path))
            return
        if metadata.format_version == 3 and metadata.next_row_id is None:
            metadata = metadata.model_copy(update={"next_row_id": 0})  # pyiceberg omits it at first
        base = self._content_of_previous_file(metadata, io)
        understood = _dump_with_lists_emptied(metadata)
        written = _with_unknown_fields(understood, base.written, base.understood)
        items = {
            name: _encoded_items_by_python_id(getattr(metadata, name), base.items[name])
            for name in _LISTS
        }
        content = _Content(written, understood, items)
        encoded = _encode_content(content)
        octets = Compressor.get_compressor(metadata_path).bytes_compressor()(encoded)
        with io.new_output(metadata_path).create(overwrite=False) as stream:
            stream.write(octets)
        kept = octets if local_file_path(metadata_path) else b""
        known = _Known(metadata, len(encoded), kept)
        known.__dict__["content"] = content
        self._remember(metadata_path, known)

    def stage_without_copying_snapshots(
        self,
        pyiceberg_stage: _Stage,
        current: Table | None,
        requested: tuple[Identifier, tuple[TableRequirement, ...], tuple[TableUpdate, ...]],
    ) -> StagedTable:
        """Do as ``pyiceberg_stage``, without a copy of the snapshots that the updates do not name.

        It checks the requirements and applies the updates.
        """
        *_, updates = requested
        if current is None or not all(isinstance(update, _APPENDS) for update in updates):
            return pyiceberg_stage(current, *requested)
        base = current.metadata
        # Those that updates and requirements may ask for; and one, or the table would seem empty.
        named = {u.snapshot_id for u in updates if isinstance(u, SetSnapshotRefUpdate)}
        named |= {u.snapshot.snapshot_id for u in updates if isinstance(u, AddSnapshotUpdate)}
        named |= {ref.snapshot_id for ref in base.refs.values()}
        named |= {each.snapshot_id for each in base.snapshots[-1:]}
        kept = [each for each in base.snapshots if each.snapshot_id in named]
        light = base.model_copy(update={"snapshots": kept, "snapshot_log": []})
        table = Table(current.name(), light, current.metadata_location, current.io, current.catalog)
        staged = pyiceberg_stage(table, *requested)
        made = staged.metadata
        staged.metadata = made.model_copy(
            update={
                "snapshots": [*base.snapshots, *made.snapshots[len(kept) :]],
                "snapshot_log": [*base.snapshot_log, *made.snapshot_log],
            }
        )
        return staged

    def _content_of_previous_file(self, metadata: TableMetadata, io: FileIO) -> _Content:
        """Return what is in the file before, which is read where it is not known any more."""
        if not metadata.metadata_log:
            return _NOTHING
        before = metadata.metadata_log[-1].metadata_file
        with self._lock:
            known = self._known.get(before)
        if known is None:
            known = self._parse_unless_unchanged(io.new_input(before), None)
        return known.content

    def _remember(self, location: str, known: _Known) -> None:
        with self._lock:
            self._known[location] = known
            total = sum(each.size_bytes for each in self._known.values())
            while total > _BYTES_MAX and len(self._known) > 1:
                _, gone = self._known.popitem(last=False)
                total -= gone.size_bytes


def _decompress(location: str, octets: bytes) -> str:
    compressor = Compressor.get_compressor(location)
    with compressor.stream_decompressor(BytesIO(octets)) as stream:
        return stream.read().decode()


def _unknown_fields_of(parsed: IcebergBaseModel, found: Mapping[str, Any]) -> Mapping[str, Any]:
    known = {name.alias or key for key, name in type(parsed).model_fields.items()}
    return {key: value for key, value in found.items() if key not in known}


def _dump_with_lists_emptied(metadata: TableMetadata) -> dict[str, Any]:
    """Return all but the lists as pyiceberg writes it."""
    fields = {name: getattr(metadata, name) for name in type(metadata).model_fields}
    fields |= {name: [] for name in _LISTS}
    kind = type(metadata)
    if isinstance(metadata, TableMetadataV3):
        kind = _Version3
    made = kind.model_construct(**fields)
    result: dict[str, Any] = json.loads(made.model_dump_json())
    return result


def _encoded_items_by_python_id(
    listed: Sequence[IcebergBaseModel], before: Mapping[int, _Item]
) -> dict[int, _Item]:
    """Return the items with their texts, by identity; those that were written before have theirs.

    A snapshot that another one has replaced, whose parent is gone, keeps what is unknown of it.
    """
    replaced = {
        _snapshot_id_of(item.parsed): item.unknown for item in before.values() if item.unknown
    }
    result: dict[int, _Item] = {}
    for parsed in listed:
        item = before.get(id(parsed))
        if item is None or not item.text:
            unknown = item.unknown if item else replaced.get(_snapshot_id_of(parsed), {})
            item = _Item(parsed, _json_text_of(parsed, unknown), unknown)
        result[id(parsed)] = item
    return result


def _snapshot_id_of(parsed: IcebergBaseModel) -> Any:
    return parsed.snapshot_id  # type: ignore[attr-defined]  # both kinds have it


def _json_text_of(parsed: IcebergBaseModel, unknown: Mapping[str, Any]) -> str:
    text = parsed.model_dump_json()
    return json.dumps({**unknown, **json.loads(text)}) if unknown else text


def _with_unknown_fields(new: Any, raw_before: Any, parsed_before: Any) -> Any:
    """Return ``new`` with what is in ``raw_before`` and was not understood.

    What did not change since is taken as it was written; of what did, the fields beside.
    """
    if new == parsed_before:
        return raw_before
    if isinstance(new, dict) and isinstance(raw_before, dict) and isinstance(parsed_before, dict):
        kept = {key: value for key, value in raw_before.items() if key not in parsed_before}
        changed = {
            key: _with_unknown_fields(value, raw_before.get(key, value), parsed_before.get(key))
            for key, value in new.items()
        }
        return kept | changed
    if isinstance(new, list) and isinstance(raw_before, list) and isinstance(parsed_before, list):
        pairs = list(zip(parsed_before, raw_before, strict=False))
        return [next((was for said, was in pairs if said == item), item) for item in new]
    return new


def _encode_content(content: _Content) -> bytes:
    fields = {key: json.dumps(value) for key, value in content.written.items()}
    for name, key in _LISTS.items():
        fields[key] = "[" + ",".join(item.text for item in content.items[name].values()) + "]"
    text = ",".join(f"{json.dumps(key)}:{value}" for key, value in fields.items())
    return f"{{{text}}}".encode()
