"""The same from the C as from Python, and Python where the C is missing."""

from __future__ import annotations

import ctypes
import hmac
import json
import mmap
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ctypes import c_int64, c_void_p
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import cimpl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

from headgate.data_plane.formats.avro.decoder import Buffer, Cursors
from headgate.data_plane.formats.json import bad_record_search, columns
from headgate.data_plane.formats.json import values as json_values
from headgate.data_plane.formats.record_format import Faults
from headgate.data_plane.spark.session import write_package_archive
from headgate.native import kernels as module
from headgate.native.kernels import InC, InPython, Loops, loops

MAP_NORESERVE = 0x4000  # Linux; only what is written to takes memory


def test_pieces_of_memory_are_copied_in_the_order_asked_for(either_loops: Loops) -> None:
    memory = ctypes.create_string_buffer(b"one, two, three, four")
    begin = ctypes.addressof(memory)
    places = [(10, 5), (0, 3), (10, 0), (17, 4), (0, 0), (5, 3)]
    addresses = np.array([0, *(begin + at for at, _ in places), 0, 1], np.uint64)
    sizes = np.array([0, *(size for _, size in places), 0, 0], np.int64)
    found = either_loops.gather(addresses, sizes)
    del memory
    wanted = [None, b"three", b"one", b"", b"four", b"", b"two", None, b""]
    assert found.to_pylist() == wanted
    empty = sizes == 0
    assert either_loops.gather(addresses[empty], sizes[empty]).to_pylist() == [
        None,
        b"",
        b"",
        None,
        b"",
    ]
    assert either_loops.gather(addresses[:0], sizes[:0]).to_pylist() == []


def test_pieces_that_lie_terabytes_apart_take_no_more_than_their_size(either_loops: Loops) -> None:
    """Arrow reserves by the mean distance; an allocator that keeps its word cannot give that."""
    apart = 1 << 41
    memory = mmap.mmap(-1, apart + 8, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    memory[:3], memory[apart:] = b"low", b"highhigh"
    begin = np.frombuffer(memory, np.uint8).ctypes.data
    places = [begin + apart, begin, 0, begin + apart + 4]
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        found = either_loops.gather(np.array(places, np.uint64), np.array([4, 3, 0, 4]))
    finally:
        pa.set_memory_pool(before)
    memory.close()
    assert found.to_pylist() == [b"high", b"low", None, b"high"]


def test_librdkafka_s_functions_are_called_once_for_each_message(either_loops: Loops) -> None:
    messages = np.array([11, 13, 12], np.uint64)
    asked: list[tuple[int, object]] = []
    gone: list[int] = []

    @ctypes.CFUNCTYPE(c_int64, c_void_p, c_void_p)
    def timestamp(message: int, kind: object) -> int:
        asked.append((message, kind))
        return message * 1000 - 12_000

    @ctypes.CFUNCTYPE(None, c_void_p)
    def destroy(message: int) -> None:
        gone.append(message)

    assert either_loops.message_timestamps(timestamp, messages).tolist() == [-1000, 1000, 0]
    assert asked == [(11, None), (13, None), (12, None)]
    either_loops.destroy_messages(destroy, messages)
    assert gone == [11, 13, 12]
    either_loops.destroy_messages(destroy, messages[:0])
    assert either_loops.message_timestamps(timestamp, messages[:0]).tolist() == []
    assert len(gone) == len(asked) == 3


def test_without_a_compiler_python_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMPILED", "_there_is_none.so")
    assert isinstance(loops.__wrapped__(), InPython)


def test_one_of_another_platform_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMPILED", "loops.c")  # which no machine loads
    assert isinstance(loops.__wrapped__(), InPython)


def test_one_of_another_version_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any shared object stands for it that loads, and has not all functions."""
    other = Path(cimpl.__file__)
    monkeypatch.setattr(module, "files", lambda _: other.parent)
    monkeypatch.setattr(module, "_COMPILED", other.name)
    assert isinstance(loops.__wrapped__(), InPython)


def test_an_archive_for_spark_s_executors_has_the_c_too(tmp_path: Path) -> None:
    here = loops()
    archive = write_package_archive(tmp_path / "headgate.zip")
    asked = (
        "import sys;"
        # What an editable install finds would come before the archive.
        "sys.meta_path[:] = [f for f in sys.meta_path if 'Editable' not in str(f)];"
        "from headgate.native import kernels as l; print(l.__file__, type(l.loops()).__name__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    done = subprocess.run(
        [sys.executable, "-c", asked],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    where, kind = done.stdout.split()
    assert where == f"{archive}/headgate/native/kernels.py"
    assert kind == type(here).__name__


def zigzag(number: int) -> bytes:
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def read(
    values: list[bytes], times: int
) -> tuple[list[list[int]], list[list[int]], dict[int, str]]:
    """So many numbers of each value, where the cursors then stand, and the faults."""
    faults = Faults()
    buffer = Buffer(values, 16)
    begins = np.roll(buffer.ends, 1)
    begins[:1] = 0
    cursors = Cursors(buffer, faults, np.arange(len(values)), begins)
    numbers, places = [], []
    for _ in range(times):
        numbers.append(cursors.read_longs().tolist())
        places.append(cursors.at.tolist())
    return numbers, places, dict(faults.reasons)


NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70)
PIECES = NUMBERS.map(zigzag) | st.binary(max_size=11) | st.sampled_from([b"\xff" * 9, b"\x80" * 10])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.lists(PIECES, max_size=3).map(b"".join), min_size=1, max_size=6))
def test_avro_s_numbers_and_what_is_none(either_loops: Loops, values: list[bytes]) -> None:
    assert loops() is either_loops
    found = read(values, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headgate.data_plane.formats.avro.decoder.loops", InPython)
        assert found == read(values, 3)


@pytest.mark.parametrize("number", [0, -1, 63, -64, 64, 2**62, 2**63 - 1, -(2**63), -sys.maxsize])
def test_one_number_comes_back_as_it_was(either_loops: Loops, number: int) -> None:
    numbers, _, faults = read([zigzag(number), zigzag(-number - 1)], 1)
    assert (numbers, faults) == ([[number, -number - 1]], {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TEXTS = JSON.map(lambda value: json.dumps(value).encode()) | JSON.map(
    lambda value: json.dumps(value, ensure_ascii=False, indent=1).encode(errors="surrogatepass")
)


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """JSON, mostly of an object, in which some bytes may be others, or too many, or too few."""
    whole = draw(TEXTS)
    whole = b'{"a":%s}' % whole if draw(st.booleans()) else whole
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(whole)))
        piece = draw(st.binary(max_size=2) | st.sampled_from([b"}", b'"', b",", b"\\u0000", b"-0"]))
        whole = whole[:at] + piece + whole[at + draw(st.integers(0, 2)) :]
    return whole


def judgement(value: bytes) -> int:
    """What Python's parser says of it: an object, none, or one that names a key twice."""
    try:
        json_values.parse_record(value)
    except json_values.KeyTwice:
        try:
            json.loads(
                value.decode(), strict=False, parse_constant=json_values._refuse_nan_and_infinity
            )
        except ValueError:
            return 1  # it broke off further on
        return 2
    except ValueError:
        return 1
    return 0


@st.composite
def keyed(draw: st.DrawFn, depth: int = 3) -> bytes:
    """Objects in one another whose keys are often the same, spelled in several ways."""
    kinds = ["object", "array", "single"] if depth < 3 else ["object"]
    match draw(st.sampled_from(kinds if depth else ["single"])):
        case "object":
            key = st.sampled_from(
                [b"a", b"\\u0061", b"b", b"", b"longer than eight", b"longer than eighty",
                 b"longer than \\u0065ight", "\u00e9".encode(), b"\\u00e9", b"\\n", b"\\u000A",
                 "\U0001f600".encode(), b"\\ud83d\\ude00", b"\\ud83d", "\u20ac".encode(),
                 b"\\u20ac", b"\\/", b"/", b"\\\\", b"\\u005c", b"x" * 600, b"\\u0078" + b"x" * 599]
            )  # fmt: skip
            pairs = draw(st.lists(st.tuples(key, keyed(depth=depth - 1)), max_size=4))
            return b"{" + b", ".join(b'"%s" :%s' % pair for pair in pairs) + b"}"
        case "array":
            items = draw(st.lists(keyed(depth=depth - 1), max_size=3))
            return b"[" + b",".join(items) + b"]"
        case _:
            return draw(st.sampled_from([b"1", b'"a"', b"null", b'"\\u0061"', b"{}"]))


@settings(max_examples=examples(1000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(keyed(), min_size=1, max_size=5), st.booleans())
def test_a_key_named_twice_is_seen(values: list[bytes], again: bool) -> None:
    values = [*values, *values] if again else values
    compiled = loops()
    wanted = [judgement(value) for value in values]
    array = pa.array([b"{}", *values], pa.large_binary())[1:]
    found = compiled.flag_json_objects(array)
    if found is not None:
        # Keys that are too long to be unescaped are looked at by others.
        sure = [b"\\u0078" not in value for value in values]
        assert [f for f, s in zip(found.tolist(), sure, strict=True) if s] == [
            w for w, s in zip(wanted, sure, strict=True) if s
        ]
        assert all(f == w or f == 2 for f, w in zip(found.tolist(), wanted, strict=True))
    ill_formed, twice, _ = bad_record_search.flag_suspect_records(array)
    assert not ill_formed.any()
    assert all(flag for flag, w in zip(twice.tolist(), wanted, strict=True) if w == 2)


def test_many_keys_are_no_burden(either_loops: Loops) -> None:
    wide = [b"{" + b",".join(b'"k%d":1' % n for n in range(count)) + b"}" for count in (511, 2_500)]
    many = b'{"a":[' + b",".join([b'{"x":1,"y":2}'] * 1_000) + b"]}"
    values = [*wide, many, *wide, many, wide[1][:-1] + b',"k7":2}', many[:-1] + b',"a":1}']
    found = either_loops.flag_json_objects(pa.array(values, pa.large_binary()))
    assert found is None or found.tolist() == [0] * 6 + [2, 2]
    huge = b"{" + b",".join(b'"k%d":1' % n for n in range(5_000)) + b"}"
    found = either_loops.flag_json_objects(pa.array([huge], pa.large_binary()))
    assert found is None or found.tolist() == [2], "left to who looks closely"


@settings(max_examples=examples(1000), deadline=None)
@given(st.lists(broken(), min_size=1, max_size=4))
def test_the_c_knows_json(values: list[bytes]) -> None:
    compiled = loops()
    if isinstance(compiled, InPython):
        pytest.skip("was installed without a C compiler")
    # What the columnar parser gets wrong is looked for more roughly.
    values = [value for value in values if not columns.is_unsafe_for_parser(value)]
    array = pa.array([b"{}", *values], pa.large_binary())[1:]
    assert compiled.flag_json_objects(array).tolist() == [judgement(value) for value in values]


def test_brackets_deeper_than_anybody_means_them(either_loops: Loops) -> None:
    texts = [b'{"a":' * depth + b"1" + b"}" * depth for depth in (1, 64, 65)]
    found = either_loops.flag_json_objects(pa.array(texts, pa.large_binary()))
    assert found is None or found.tolist() == [0, 0, 1]
    if found is not None:
        empty = pa.array([], pa.large_binary())
        assert either_loops.flag_json_objects(empty).tolist() == []
        blanks = pa.array([b"", b""], pa.large_binary())
        assert either_loops.flag_json_objects(blanks).tolist() == [1, 1]


@pytest.mark.wide
def test_nothing_is_read_that_is_not_there_in_a_million_records(tmp_path: Path) -> None:
    _run_under_sanitizers(tmp_path, 11, 340_000)  # of three records each


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_nothing_is_read_in_rounds_over_a_hundred_million_records(tmp_path: Path) -> None:
    _run_under_sanitizers(tmp_path, 12, 34_000_000)


def _run_under_sanitizers(tmp_path: Path, seed: int, rounds: int) -> None:
    """They end the program at the first byte too far."""
    source, program = Path(__file__).with_name("loops_fuzz.c"), tmp_path / "fuzz"
    # Lines are enough to find it: following variables takes the compiler four times as long.
    watched = ["-g1", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    probe = ["cc", *watched, "-x", "c", "-", "-o", program]
    if subprocess.run(probe, input=b"int main(void) { return 0; }", capture_output=True).returncode:
        pytest.skip("this compiler has no sanitizers")
    subprocess.run(["cc", *watched, source, "-o", program], check=True)
    run = [program, str(seed), str(rounds)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for sound in map(int, done.stdout.split()):
        assert 0.1 * rounds < sound < 0.9 * rounds


@pytest.mark.parametrize("seed", range(12))
def test_words_are_placed_before_their_equals(either_loops: Loops, seed: int) -> None:
    dice = np.random.default_rng(seed)
    most = (3, 1000, 2**64 - 1)[seed % 3]
    ascending, wanted = (
        np.sort(dice.integers(0, most, int(dice.integers(0, 300)), np.uint64, endpoint=True))
        for _ in range(2)
    )
    expected = [sum(word < asked for word in ascending.tolist()) for asked in wanted.tolist()]
    assert either_loops.find_lower_bounds(ascending, wanted).tolist() == expected


@pytest.mark.parametrize("as_text", [True, False], ids=["text", "bytes"])
@pytest.mark.parametrize(
    "key", [b"k" * 32, b"exactly sixty-four characters of a key, which is one block of it"]
)
def test_keyed_digests_are_those_of_hmac(either_loops: Loops, key: bytes, as_text: bool) -> None:
    values = [None, b"", b"a", *(bytes(range(size % 256)) for size in range(40, 200)), b"a", None]
    column = pa.array(values, pa.large_binary()).slice(1)
    found = either_loops.keyed_digests(column, key, as_text=as_text)
    found.validate(full=True)
    wanted = [v if v is None else hmac.digest(key, v, "sha256") for v in values[1:]]
    if as_text:
        assert found.to_pylist() == [digest and digest.hex() for digest in wanted]
    else:
        assert (found.type, found.to_pylist()) == (pa.binary(32), wanted)
    assert len(either_loops.keyed_digests(column.slice(0, 0), key, as_text=as_text)) == 0


@pytest.mark.parametrize("as_text", [True, False], ids=["text", "bytes"])
@pytest.mark.parametrize("bits_max", [128, 256, 512])
def test_digests_are_the_same_whatever_vectors_a_processor_has(
    bits_max: int, as_text: bool
) -> None:
    if isinstance(loops(), InPython):
        pytest.skip("was installed without a C compiler")
    with as_file(files("headgate.native") / module._COMPILED) as path:
        compiled = InC(path)
    dice = np.random.default_rng(bits_max)
    texts = [dice.bytes(int(size)) for size in dice.integers(0, 300, 50)]
    values = [bytes(size) for size in range(200)]
    values += [texts[at] for at in dice.integers(0, 50, 300)]  # again and again
    values += [dice.bytes(int(size)) for size in dice.integers(0, 80, 2000)]
    column = pa.array([None if dice.random() < 0.05 else value for value in values])
    column = column.cast(pa.large_binary())
    found = compiled.keyed_digests(column, b"k" * 100, as_text=as_text, bits_max=bits_max)
    assert found.equals(InPython().keyed_digests(column, b"k" * 100, as_text=as_text))


@pytest.mark.skipif(not isinstance(loops(), InC), reason="no C code")
def test_threads_that_share_keys_share_their_hash_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that replaced it would free what the C code of the other is reading."""
    ours, keys = loops(), module.WalkPlan([(0, b"a", 1, 0), (0, b"b", 2, 0)])
    assert isinstance(ours, InC)
    number_fields, both = ours._c.number_fields, threading.Barrier(2)

    class Slow:
        def number_fields(self, *arguments: int) -> None:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.2)
            number_fields(*arguments)

    monkeypatch.setattr(ours, "_c", Slow())
    with ThreadPoolExecutor(2) as threads:
        tables = [threads.submit(ours._key_slots_of, keys, keys.places) for _ in range(2)]
    assert tables[0].result() is tables[1].result()
