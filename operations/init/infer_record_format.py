"""Proposes what a sink file says about records: format, envelope, columns and key.

JSON is examined as it is, with embedded schemas or without. Formats whose records have a schema
elsewhere, in a registry or in the sink file, propose the columns of the schemas that the records
were written with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import islice
from typing import Any, NamedTuple, cast

from headgate.config.sink_sections import FormatSettings
from headgate.control_protocol.columns import Column, ListOf, MapOf, Struct, Type, unify_columns
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.schema_evolution import grow_columns, wide_structs_as_maps
from headgate.data_plane.cdc.detection import ENVELOPE_FIELDS, EnvelopeCounts, count_envelopes
from headgate.data_plane.cdc.policy import Envelope
from headgate.data_plane.cdc.unwrap import ROW_PLACES
from headgate.data_plane.formats.column_options import FROM
from headgate.data_plane.formats.format_registry import (
    ValueOptions,
    create_record_format,
    known_format_names,
)
from headgate.data_plane.formats.record_format import (
    NOTHING,
    RecordFormat,
    UndecodableRecords,
)
from headgate.data_plane.formats.registry.frames import (
    APICURIO_HEADER,
    FRAMING,
    GUID,
    ID,
    IDS_OF_HEADERS,
    has_glue_frame,
)
from headgate.data_plane.formats.unknown_fields import (
    EvolvingFormat,
    RowPlace,
    UnknownFieldFinder,
)
from headgate.kafka.record_samples import KeyAndValue
from headgate.operations.init.infer_columns import Proposal, ProposedColumn, propose_columns

_KINDS = ("long", "string", "date", "decimal")
"""Types of columns that a key may be guessed from."""

Document = Mapping[str, Any]


_JSON = ("json", "connect-json")
"""Formats whose columns are proposed from the values themselves."""

_REGISTRY = "-registry"
"""How the names of formats end whose records begin with the id of a schema in a registry."""
_GLUE_REGISTRY = "glue-registry"


class KeyChoice(NamedTuple):
    """The columns of a key, and whether they are a guess."""

    columns: tuple[str, ...]
    is_guess: bool


@dataclass(frozen=True, slots=True)
class ProposedRecords:
    """What records are, and the columns of their rows.

    ``key``: columns that message keys name, if they do.
    """

    format_name: str
    looks: EnvelopeCounts
    proposal: Proposal
    key: tuple[str, ...]

    @property
    def envelope(self) -> Envelope:
        return self.looks.most_common_envelope or Envelope.PLAIN

    def takes_given_format_options(self, *, is_format_given: bool) -> bool:
        """Return whether the options that were given belong to the format."""
        return is_format_given or self.format_name.endswith(_REGISTRY)

    def describe_records(self) -> str:
        """Say how many records there were, and how many of them had no fields to look at."""
        text = count_of(self.looks.record_count, "record")
        if self.looks.unreadable:
            text += f", {self.looks.unreadable:,} of them no {self.format_name} that can be read"
        if self.looks.tombstones:
            text += f", {self.looks.tombstones:,} of them without a value"
        return text

    def choose_key(self) -> KeyChoice:
        """Return the columns of the message keys, else the first suitable one as a guess."""
        known = {column.name for column in self.proposal.columns if not column.as_text}
        if self.key and all(name in known for name in self.key):
            return KeyChoice(self.key, is_guess=False)
        plain = (each for each in self.proposal.columns if not (each.as_text or each.path))
        fit = (column.name for column in plain if column.type.startswith(_KINDS))
        return KeyChoice(tuple(islice(fit, 1)), is_guess=True)


def propose_from_records(
    records: Sequence[KeyAndValue], given: FormatSettings, *, is_format_given: bool
) -> ProposedRecords:
    """Look at records; ``is_format_given``: their format is the given one, else it is found out.

    ``given`` may have a registry's address. Raises ``ConfigurationError`` where the format has no
    names for fields, and what a registry raises.
    """
    values = [value for _, value in records]
    name = given.type if is_format_given else _guess_format_name(values, given.options)
    if not is_format_given and not name.endswith(_REGISTRY):
        return _propose_from_json(records, "", {})
    if name in _JSON:
        return _propose_from_json(records, name, given.options)
    format_of = _factory_of_format(name, given.options)
    made = format_of()
    if FROM not in getattr(made, "rules", ()) or not hasattr(
        made, "unknown_columns_of_last_decode"
    ):
        raise ConfigurationError(
            f"no columns can be proposed for the format {name}: its records do not name their "
            "fields",
            "write the columns by hand: headgate init without --from-topic has an example",
        )
    looks = count_envelopes(values, format_of)
    place = ROW_PLACES.get(looks.most_common_envelope or Envelope.PLAIN, RowPlace())
    proposal = _proposal_from_columns(_columns_of_writer_schemas(values, format_of, place), looks)
    own = name.endswith(_REGISTRY)  # else all have the one schema of the sink file, keys have not
    keys = [key for key, _ in records if own]
    written = _columns_of_writer_schemas(keys, format_of, RowPlace())
    return ProposedRecords(name, looks, proposal, tuple(column.name for column in written.fields))


def _guess_format_name(values: Sequence[bytes | None], options: Mapping[str, str]) -> str:
    """Return a format of the registry that reads most of the values, or JSON.

    Raises ``ConfigurationError`` if the values need a registry whose address is not known.
    """
    there = [value for value in values if value is not None]
    if there and sum(map(has_glue_frame, there)) * 2 >= len(there):
        return _GLUE_REGISTRY
    # An id of a header may be a GUID, or Apicurio's; such values without one are of other formats.
    fronts = (ID, GUID, *IDS_OF_HEADERS) if FRAMING in options else (ID,)
    framed = [value for value in there if value and value[0] in fronts]
    if not there or len(framed) * 2 < len(there):
        return "json"
    if "registry.url" not in options:
        raise ConfigurationError(
            f"{len(framed)} of {len(values)} records begin as those with the id of a schema in a "
            "registry do",
            "say where the registry is: --registry URL",
        )
    # Backwards: the client keeps its first answer, and only Protobuf asks for a descriptor.
    names = [name for name in known_format_names() if name.endswith(_REGISTRY)][::-1]
    names.remove(_GLUE_REGISTRY)
    if options.get(FRAMING) == APICURIO_HEADER:
        names.remove("protobuf-registry")  # it refuses them
    envelopes = {name: count_envelopes(framed, _factory_of_format(name, options)) for name in names}
    return min(names, key=lambda name: envelopes[name].unreadable)


def _factory_of_format(name: str, options: Mapping[str, str]) -> Callable[[], RecordFormat]:
    return partial(create_record_format, name, ValueOptions.from_options(options).of_format)


def _columns_of_writer_schemas(
    values: Sequence[bytes | None], format_of: Callable[[], RecordFormat], place: RowPlace
) -> Struct:
    """Return the columns of the schemas that the values were written with, where rows are."""
    there = [value for value in values if value is not None]
    made = format_of()
    writer = cast("EvolvingFormat", made)
    writer.watch_unknown_fields(UnknownFieldFinder(NOTHING, (), (), caseless=False, place=place))
    bad: Mapping[int, str] = {}
    try:
        made.decode(there, NOTHING)
    except UndecodableRecords as found:
        bad = found.bad
    return reduce(
        unify_columns,
        (columns for _, columns in writer.unknown_columns_of_last_decode(there, bad)),
        Struct(),
    )


def _proposal_from_columns(written: Struct, envelope_counts: EnvelopeCounts) -> Proposal:
    """Return what a new table takes of these columns, as with ``unknown_fields = "evolve"``."""
    growth = grow_columns(Struct(), wide_structs_as_maps(written, Struct()), nanoseconds=False)
    columns = [ProposedColumn(each.name, _type_text(each.type)) for each in growth.columns.fields]
    left_out = [(".".join(refusal.path), refusal.reason) for refusal in growth.refused]
    return Proposal(
        tuple(columns), tuple(left_out), envelope_counts.record_count, envelope_counts.unreadable
    )


def _type_text(value_type: Type) -> str:
    """Return the type as a sink file has it."""
    match value_type:
        case Struct(fields):
            return f"struct<{', '.join(f'{c.name}: {_type_text(c.type)}' for c in fields)}>"
        case ListOf(Column(type=item)):
            return f"list<{_type_text(item)}>"
        case MapOf(key, Column(type=item)):
            return f"map<{_type_text(key)}, {_type_text(item)}>"
        case _:
            return str(value_type).replace("[", "(").replace("]", ")")


def _propose_from_json(
    records: Sequence[KeyAndValue], name: str, options: Mapping[str, str]
) -> ProposedRecords:
    """Propose from JSON, with embedded schemas if ``name`` says so or more records have some."""
    values = [value for _, value in records]
    names = (name,) if name else _JSON
    known = {each: count_envelopes(values, _factory_of_format(each, options)) for each in names}
    if not name:
        enclosed = known["connect-json"].envelopes.total() > len(values) // 2
        name = "connect-json" if enclosed else "json"
    looks = known[name]
    documents = [_parse_document(value, name) for value in values]
    envelope = looks.most_common_envelope or Envelope.PLAIN
    rows = [
        _find_row_in_envelope(document, envelope) for document in documents if document is not None
    ]
    proposal = propose_columns(row for row in rows if row is not None)
    if name == "connect-json":  # its schemas tell times and decimals from numbers and texts
        place = ROW_PLACES.get(envelope, RowPlace())
        written = _columns_of_writer_schemas(values, _factory_of_format(name, options), place)
        proposal = _proposal_from_columns(written, looks) if written.fields else proposal
    keys = [_parse_document(key, name) for key, _ in records]
    return ProposedRecords(
        name,
        looks,
        replace(proposal, records=looks.record_count, others=looks.unreadable),
        _fields_if_same_in_all_keys(key for key in keys if key),
    )


def _parse_document(value: bytes | None, format_name: str) -> Document | None:
    try:
        document = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    if format_name == "connect-json" and isinstance(document, dict):
        document = document.get("payload")
    return document if isinstance(document, dict) else None


def _find_row_in_envelope(document: Document, envelope: Envelope) -> Document | None:
    """Return the row in a value, as far as it shows one."""
    if envelope is Envelope.PLAIN:
        return document
    nested = {Envelope.DEBEZIUM: ("after", "before"), Envelope.DMS: ("data",)}
    for name in nested.get(envelope, ()):
        if isinstance(document.get(name), dict):
            return dict(document[name])
    if envelope is Envelope.DEBEZIUM or (envelope is Envelope.DMS and "metadata" in document):
        return None
    return {name: value for name, value in document.items() if name not in ENVELOPE_FIELDS}


def _fields_if_same_in_all_keys(keys: Iterable[Document]) -> tuple[str, ...]:
    """Return the fields of the keys, if all have the same."""
    distinct = {tuple(key) for key in keys}
    return distinct.pop() if len(distinct) == 1 else ()
