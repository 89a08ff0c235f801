"""Binds librdkafka's C interface, as far as reading many messages at once needs it.

Through confluent-kafka a message costs an object, its parts, and a call for each: more than all of
librdkafka's own work. Here messages come as columns (``kernels``).

The functions are looked up in the library that confluent-kafka itself has loaded. They, and the
layout of ``rd_kafka_message_t``, are its public and stable interface (rdkafka.h).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

import numpy as np
from confluent_kafka import cimpl

from headgate.control_protocol.errors import ConfigurationError, WriteFailed
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Addresses, Integers, loops

Headers = Sequence[tuple[str, bytes | None]] | None
Partition = tuple[str, int]

_CONSUMER = 1
_TEXT_BYTES = 512
_NONE: Addresses = np.empty(0, np.uint64)
_MESSAGE = np.dtype(
    {
        "names": ["error", "topic", "partition", "value", "size", "key", "key_size", "offset"],
        "formats": ["i4", "u8", "i4", "u8", "u8", "u8", "u8", "i8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
        "itemsize": 72,
    }
)

_REFRESH = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_void_p)
"""What librdkafka calls when it wants a token: client, configuration, opaque."""

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "rd_kafka_conf_new": (c_void_p, ()),
    "rd_kafka_conf_destroy": (None, (c_void_p,)),
    "rd_kafka_conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "rd_kafka_new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "rd_kafka_destroy": (None, (c_void_p,)),
    "rd_kafka_poll_set_consumer": (c_int, (c_void_p,)),
    "rd_kafka_consumer_close": (c_int, (c_void_p,)),
    "rd_kafka_queue_get_consumer": (c_void_p, (c_void_p,)),
    "rd_kafka_queue_destroy": (None, (c_void_p,)),
    "rd_kafka_assign": (c_int, (c_void_p, c_void_p)),
    "rd_kafka_pause_partitions": (c_int, (c_void_p, c_void_p)),
    "rd_kafka_resume_partitions": (c_int, (c_void_p, c_void_p)),
    "rd_kafka_topic_partition_list_new": (c_void_p, (c_int,)),
    "rd_kafka_topic_partition_list_destroy": (None, (c_void_p,)),
    "rd_kafka_topic_partition_list_add": (c_void_p, (c_void_p, c_char_p, c_int32)),
    "rd_kafka_topic_partition_list_set_offset": (
        *(c_int,),
        (c_void_p, c_char_p, c_int32, c_int64),
    ),
    "rd_kafka_consume_batch_queue": (c_ssize_t, (c_void_p, c_int, c_void_p, c_size_t)),
    "rd_kafka_err2str": (c_char_p, (c_int,)),
    "rd_kafka_conf_get": (c_int, (c_void_p, c_char_p, c_char_p, POINTER(c_size_t))),
    "rd_kafka_conf_set_oauthbearer_token_refresh_cb": (None, (c_void_p, _REFRESH)),
    "rd_kafka_conf_enable_sasl_queue": (None, (c_void_p, c_int)),
    "rd_kafka_sasl_background_callbacks_enable": (c_void_p, (c_void_p,)),
    "rd_kafka_oauthbearer_set_token": (
        *(c_int,),
        (
            *(c_void_p, c_char_p, c_int64, c_char_p, POINTER(c_char_p), c_size_t),
            *(c_char_p, c_size_t),
        ),
    ),
    "rd_kafka_oauthbearer_set_token_failure": (c_int, (c_void_p, c_char_p)),
}
# Called about once per message and never waiting, so they keep Python's lock.
_QUICK: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "rd_kafka_message_timestamp": (c_int64, (c_void_p, c_void_p)),
    "rd_kafka_message_destroy": (None, (c_void_p,)),
    "rd_kafka_message_errstr": (c_char_p, (c_void_p,)),
    "rd_kafka_message_headers": (c_int, (c_void_p, POINTER(c_void_p))),
    "rd_kafka_header_get_all": (
        *(c_int,),
        (c_void_p, c_size_t, POINTER(c_char_p), POINTER(c_void_p), POINTER(c_size_t)),
    ),
    "rd_kafka_topic_name": (c_char_p, (c_void_p,)),
}


class _Library:
    """The functions, by their names without ``rd_kafka_``."""

    def __init__(self) -> None:
        """Raises ``ConfigurationError`` if they cannot be reached, as in a static build."""
        for load, functions in ((ctypes.CDLL, _FUNCTIONS), (ctypes.PyDLL, _QUICK)):
            library = load(cimpl.__file__)
            for name, (result, arguments) in functions.items():
                try:
                    function = getattr(library, name)
                except AttributeError as error:
                    raise ConfigurationError(
                        f"the librdkafka inside {cimpl.__file__} does not show {name}",
                        "install confluent-kafka's own wheel for Linux or macOS, or build it "
                        "against a shared librdkafka",
                    ) from error
                function.restype, function.argtypes = result, arguments
                setattr(self, name.removeprefix("rd_kafka_"), function)

    def __getattr__(self, name: str) -> Any:  # for the type checker: all are set above
        raise AttributeError(name)


@cache
def _load_library() -> _Library:
    return _Library()


@dataclass(frozen=True, slots=True)
class Event:
    """An event instead of a message: an error, or the end of a partition."""

    code: int
    text: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages, column by column. ``topics``: names, each with the positions of its messages.

    ``timestamps`` in epoch milliseconds, negative for none; a value of ``None`` is a tombstone.
    """

    topics: Sequence[tuple[str, Any]]
    partitions: Integers
    offsets: Integers
    timestamps: Integers
    sizes: Integers
    values: Packed
    keys: Packed | None
    headers: LentHeaders | None
    events: Sequence[Event]


class LentHeaders(Sequence[Headers]):
    """Reads the messages' headers on access, since each costs more than its message's value.

    Mostly only a few are needed. They are valid as long as the messages. Bytes of a name that are
    not UTF-8 are halves of surrogate pairs, as Python escapes them.
    """

    def __init__(self, library: _Library, pointers: Addresses) -> None:
        self._library = library
        self._pointers: Addresses | None = pointers
        self._lenders: list[LentHeaders] = []

    def __len__(self) -> int:
        return len(self._require_alive())

    def __getitem__(self, row: Any) -> Any:
        return self._read_headers(int(self._require_alive()[row]))

    def take(self, rows: Integers) -> LentHeaders:
        """Return the headers of some messages; they stay valid as long as all of them."""
        some = LentHeaders(self._library, self._require_alive()[rows])
        self._lenders.append(some)
        return some

    def invalidate(self) -> None:
        self._pointers = None
        for some in self._lenders:
            some.invalidate()

    def _require_alive(self) -> Addresses:
        if self._pointers is None:
            raise RuntimeError("these headers were lent until the next records were read")
        return self._pointers

    def _read_headers(self, pointer: int) -> Headers:
        headers, size = c_void_p(), c_size_t()
        name, value = c_char_p(), c_void_p()
        if self._library.message_headers(pointer, byref(headers)):
            return None
        found: list[tuple[str, bytes | None]] = []
        parts = (byref(name), byref(value), byref(size))
        while not self._library.header_get_all(headers, len(found), *parts):
            octets = ctypes.string_at(value.value, size.value) if value.value else None
            found.append(((name.value or b"").decode(errors="surrogateescape"), octets))
        return found


class BearerToken(Protocol):
    """A token as librdkafka takes it; ``expires_at_s`` in seconds of the epoch."""

    @property
    def text(self) -> str: ...
    @property
    def expires_at_s(self) -> float: ...
    @property
    def principal(self) -> str: ...
    @property
    def extensions(self) -> Mapping[str, str]: ...


class BatchConsumer:
    """A consumer whose partitions are assigned by hand. It serves one thread at a time."""

    def __init__(
        self, settings: Mapping[str, str], token: Callable[[], BearerToken] | None = None
    ) -> None:
        """Raises ``WriteFailed`` with librdkafka's reason.

        ``token`` is called in a thread of librdkafka's own, and must not wait: it returns the
        newest token, or raises.
        """
        self._library = library = _load_library()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        conf = library.conf_new()
        if token is not None:
            # Kept as long as the handle: librdkafka calls it until the client is destroyed.
            self._refresh = _REFRESH(partial(_give_token, library, token))
            library.conf_set_oauthbearer_token_refresh_cb(conf, self._refresh)
            library.conf_enable_sasl_queue(conf, 1)
        for name, value in settings.items():
            if library.conf_set(conf, name.encode(), value.encode(), text, _TEXT_BYTES):
                library.conf_destroy(conf)
                raise _settings_refused_error(text)
        self._handle = library.new(_CONSUMER, conf, text, _TEXT_BYTES)  # and owns the settings
        if not self._handle:
            library.conf_destroy(conf)
            raise _settings_refused_error(text)
        if token is not None:
            # An idle consumer of the pool has nobody else to serve the callback.
            library.sasl_background_callbacks_enable(self._handle)
        self._taken = _NONE
        self._lent: LentHeaders | None = None
        library.poll_set_consumer(self._handle)
        self._queue = library.queue_get_consumer(self._handle)

    def close(self) -> None:
        """Close the consumer; has no effect the second time."""
        if self._handle:
            self._give_back_messages()  # before all else: librdkafka wants its messages back
            self._library.queue_destroy(self._queue)
            self._library.consumer_close(self._handle)
            self._library.destroy(self._handle)
            self._handle = None

    def assign(self, begins: Mapping[Partition, int]) -> None:
        """Read these partitions from the given offsets, and no others. None of them is paused."""
        with _PartitionList(self._library, begins) as listed:
            # A pause outlives an assignment, so it is undone first: a fetch that finds its
            # partition paused is not retried for a second, and resuming wakes nobody.
            self._require_success(self._library.resume_partitions(self._handle, listed))
            for (topic, partition), offset in begins.items():
                at = (topic.encode(), partition, offset)
                self._library.topic_partition_list_set_offset(listed, *at)
            self._require_success(self._library.assign(self._handle, listed))

    def unassign(self) -> None:
        self._give_back_messages()
        self._require_success(self._library.assign(self._handle, None))

    def pause(self, partitions: Iterable[Partition]) -> None:
        with _PartitionList(self._library, partitions) as listed:
            self._require_success(self._library.pause_partitions(self._handle, listed))

    def consume(
        self, count_max: int, timeout_ms: int, *, keys: bool = False, headers: bool = False
    ) -> Messages:
        """Return up to ``count_max`` messages and events, or what arrived in time.

        Headers are valid only until the next call of this consumer.
        """
        self._give_back_messages()
        pointers = np.empty(count_max, np.uint64)
        # From here on the messages are ours: librdkafka frees them only when they are given back.
        came = self._library.consume_batch_queue(
            self._queue, timeout_ms, pointers.ctypes.data, count_max
        )
        self._taken = pointers[: max(came, 0)]
        try:
            found = self._to_columns(self._taken, keys=keys, headers=headers)
        except BaseException:  # also an interrupt: who gets no columns gives nothing back
            self._give_back_messages()
            raise
        # Values and keys are copies by now, headers are not: they keep all messages alive.
        self._lent = found.headers
        if not headers:
            self._give_back_messages()
        return found

    def _give_back_messages(self) -> None:
        if self._lent is not None:
            self._lent.invalidate()  # first: whoever still asks gets an error, not freed memory
        # Forgotten before they are freed, so that an interrupt in between frees nothing twice.
        taken, self._taken, self._lent = self._taken, _NONE, None
        loops().destroy_messages(self._library.message_destroy, taken)

    def _to_columns(self, taken: Addresses, *, keys: bool, headers: bool) -> Messages:
        structs = _read_structs(taken)
        events = []
        if structs["error"].any():
            wrong = np.flatnonzero(structs["error"]).tolist()
            events = [self._build_event(int(taken[row]), structs[row]) for row in wrong]
            good = structs["error"] == 0
            structs, taken = structs[good], taken[good]
        sizes = structs["size"].astype(np.int64)
        return Messages(
            topics=self._rows_by_topic(structs["topic"]),
            partitions=structs["partition"].astype(np.int64),
            offsets=structs["offset"].astype(np.int64),
            timestamps=loops().message_timestamps(self._library.message_timestamp, taken),
            sizes=sizes,
            values=Packed.copy_from(structs["value"], sizes),
            keys=Packed.copy_from(structs["key"], structs["key_size"].astype(np.int64))
            if keys
            else None,
            headers=LentHeaders(self._library, taken) if headers else None,
            events=events,
        )

    def _rows_by_topic(self, handles: Addresses) -> list[tuple[str, Any]]:
        if (handles == handles[:1]).all():  # the usual case; sorting all of them costs more
            handles = handles[:1]
        distinct = np.unique(handles).tolist()
        names = [self._library.topic_name(handle).decode() for handle in distinct]
        if len(names) == 1:
            return [(names[0], slice(None))]
        return [(name, handles == handle) for name, handle in zip(names, distinct, strict=True)]

    def _build_event(self, pointer: int, struct: Any) -> Event:
        topic = self._library.topic_name(int(struct["topic"])) if struct["topic"] else b""
        text = self._library.message_errstr(pointer) or b""
        place = (topic.decode(), int(struct["partition"]), int(struct["offset"]))
        return Event(int(struct["error"]), text.decode(errors="replace"), *place)

    def _require_success(self, code: int) -> None:
        if code:
            raise WriteFailed(f"librdkafka: {self._library.err2str(code).decode()}")


class _PartitionList:
    """Provides a list of partitions in librdkafka's own form, while the block lasts."""

    def __init__(self, library: _Library, partitions: Iterable[Partition]) -> None:
        self._library = library
        self._partitions = list(partitions)

    def __enter__(self) -> int:
        self._list = int(self._library.topic_partition_list_new(len(self._partitions)))
        for topic, partition in self._partitions:
            self._library.topic_partition_list_add(self._list, topic.encode(), partition)
        return self._list

    def __exit__(self, *_: object) -> None:
        self._library.topic_partition_list_destroy(self._list)


def _give_token(
    library: _Library, token: Callable[[], BearerToken], handle: int, *_: object
) -> None:
    """Serve librdkafka's callback; an error that left it would be printed, and nothing else."""
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    try:
        given = token()
        parts = [each.encode() for pair in given.extensions.items() for each in pair]
        listed = (c_char_p * max(1, len(parts)))(*parts)
        refused = library.oauthbearer_set_token(
            handle,
            given.text.encode(),
            int(given.expires_at_s * 1000),
            given.principal.encode(),
            listed,
            len(parts),
            text,
            _TEXT_BYTES,
        )
        reason = text.value if refused else b""
    except Exception as error:  # noqa: BLE001 - see above
        reason = str(error).encode() or b"no token"
    if reason:
        library.oauthbearer_set_token_failure(handle, reason)


def builtin_features() -> list[str]:
    """Return what the loaded librdkafka was built with."""
    library = _load_library()
    size = c_size_t(2 * _TEXT_BYTES)
    text = ctypes.create_string_buffer(size.value)
    conf = library.conf_new()
    library.conf_get(conf, b"builtin.features", text, byref(size))
    library.conf_destroy(conf)
    return text.value.decode().split(",")


def _settings_refused_error(text: ctypes.Array[ctypes.c_char]) -> WriteFailed:
    return WriteFailed(f"no Kafka consumer can be made: {text.value.decode(errors='replace')}")


def _read_structs(pointers: Addresses) -> np.ndarray[Any, Any]:
    octets = Packed.copy_from(pointers, np.full(len(pointers), _MESSAGE.itemsize, np.int64)).array
    return np.frombuffer(octets.buffers()[2] or b"", _MESSAGE, len(pointers))
