"""Random schemas, and random records for them: most of them good, many odd, some of them bytes."""

from __future__ import annotations

import base64
import json
import random
import uuid

import pyarrow as pa
import pyarrow.types as kinds

from headgate.data_plane.formats import column_options
from headgate.data_plane.formats.column_options import ColumnRule

_LEAVES = (
    *(pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.large_string()),
    *(pa.string(), pa.date32(), pa.time64("us"), pa.time64("ns"), pa.uuid(), pa.large_binary()),
    *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")),
    *(pa.decimal128(10, 2), pa.decimal128(38, 10), pa.decimal128(38, 0), pa.decimal128(5, 5)),
    *(pa.binary(4), pa.binary(1), pa.binary(16)),
)
_NAMES = ("a", "b", "id", "é", "a longer name of a column", "A", "x.y", "8 bytes.", "😀", "ab", "")
_TEXTS = (
    "",
    "x",
    "é",
    "😀 face",
    "a\nb",
    'q"q',
    "\\",
    "/",
    "\u2028",
    "null",
    "true",
    "0",
    "[]",
    "{}",
)
_EDGES = (2**31, 2**53, 2**63, 10**8, 10**15, 10**18, 10**19, 10**28, 10**38, 253402300800000)
_WHITE = ("", "", "", " ", "\n\t ", "\r\n")
_ODD = (
    *('"\\u0000"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\ud840\\udc00"', '"\\udc00x"', '"a\\/b"'),
    *('"\\q"', '"\\u12"', '"\x01"', "nul", "True", "NaN", "-Infinity", "01", "1.", ".5", "+1"),
    *("-", "-0.0", "1e400", "1e-400", "1E+2", "0e9999", "1e99999", "1" * 4000, "0." + "1" * 99),
    *("{}", "[]", "[[]]", '{"a":{}}', '{"a":1,"a":2}', '{"b":1,"\\u0062":2}', "[1,]", '{"a" 1}'),
    *("[" * 70 + "]" * 70, "[" * 300 + "]" * 300, '"\ud800"', "1.7976931348623158e308"),
    *("2.2250738585072011e-308", "9007199254740993", "9007199254740992.5", "8.5e-324", "1e23"),
    *("3.4028235677973366e38", "0.1e1", "100e-2", "12345678901234567890", "1e15", "5e-1", "null"),
)
_MOMENTS = (
    *(
        "2026-02-29",
        "1900-02-29",
        "2000-02-29",
        "0000-01-01",
        "0001-01-01",
        "9999-12-31",
        "20260801",
    ),
    *("1677-09-21T00:12:43", "1677-09-21T00:12:44", "2262-04-11T23:47:16.9", "2262-04-11T23:47:17"),
    *("0001-01-01T00:30:00+01:00", "9999-12-31T23:30:00-01:00", "2026-01-01T24:00", "2026-01-01T"),
    *("2026-01-01T00:00:60Z", "2026-01-01t00:00z", "2026-01-01 12", "2026-01-01T12:30+24:00"),
    *(
        "2026-01-01T12:30+05:",
        "2026-01-01Z",
        "2026-01-01+01",
        "12",
        "12:",
        "12:30",
        "24:00:00",
        "23:59:60",
    ),
    *(
        "12:30:15.",
        "12:30:15.1234567",
        "12:30:15.1234560",
        "12:30:15.1234567890",
        "12:30Z",
        " 12:30",
    ),
    *(
        "2026-08-01T12:30:15.123456789+02:00",
        "2026-08-01T12:30:15,5",
        "\uff12026-01-01",
        "2026-1-01",
    ),
)


def random_schema(dice: random.Random) -> pa.Schema:
    return pa.schema(_fields(dice, 3))


def _fields(dice: random.Random, depth: int) -> list[pa.Field]:
    names = dice.sample(_NAMES, dice.randint(1, 6))
    return [pa.field(name, _type(dice, depth), dice.random() < 0.8) for name in names]


def _type(dice: random.Random, depth: int) -> pa.DataType:
    if not depth or dice.random() < 0.7:
        return dice.choice(_LEAVES)
    inside = pa.field("item", _type(dice, depth - 1), dice.random() < 0.8)
    match dice.randrange(4):
        case 0:
            return pa.large_list(inside)
        case 1:
            return pa.list_(inside)
        case 2:
            return pa.map_(pa.large_string(), inside)
        case _:
            return pa.struct(_fields(dice, depth - 1))


def with_rules(dice: random.Random, schema: pa.Schema) -> pa.Schema:
    """Some times count a unit, and some texts take anything."""
    return pa.schema([_with_rule(dice, field) for field in schema])


def _with_rule(dice: random.Random, field: pa.Field) -> pa.Field:
    kind = field.type
    if kinds.is_struct(kind):
        return field.with_type(pa.struct([_with_rule(dice, child) for child in kind]))
    if column_options.is_time_or_timestamp(kind) and dice.random() < 0.7:
        rule = ColumnRule(unit=dice.choice(("s", "ms", "us", "ns")))
    elif column_options.is_text_type(kind) and dice.random() < 0.7:
        rule = ColumnRule(as_text=True)
    else:
        return field
    return column_options.with_read_options_of_rule(field, rule)


def _ruled_value(dice: random.Random, field: pa.Field, oddity: float) -> str:
    if column_options.has_as_text_option(field):
        return _any(dice, oddity, 2)
    day = dice.randrange(86_400) if kinds.is_time(field.type) else dice.randrange(-(10**9), 10**9)
    unit = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column_options.unit_of(field)]
    count = day * unit + (dice.randrange(unit) // dice.choice((1, 1000)) if unit > 1 else 0)
    if dice.random() < 0.5:
        count = count // 10**6 * 10**6
    if dice.random() < oddity:
        count = dice.choice((count + 86_400 * unit, -count, 10**18, 10**25, 2**63, -1, 0))
    ways = (f"{count}.0", f"{count}.5", f"{count}e0", f'"{count}"', f"{count}e-3", "-0", "1e5")
    return dice.choice(ways) if dice.random() < oddity else str(count)


def random_record(dice: random.Random, schema: pa.Schema) -> bytes:
    """A record; ``oddity`` is how likely each of its parts is odd: half of them have none."""
    oddity = dice.choice((0.0, 0.0, 0.02, 0.2))
    text = _object(dice, list(schema), oddity)
    data = _space(dice, oddity).join(("", text, "")).encode("utf-8", "surrogatepass")
    if dice.random() < 0.08:
        data = mutate(dice, data)
    return data


def mutate(dice: random.Random, data: bytes) -> bytes:
    """Some bytes changed, doubled or dropped."""
    changed = bytearray(data)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(changed) + 1)
        match dice.randrange(4):
            case 0:
                del changed[at : at + dice.randint(1, 4)]
            case 1:
                changed[at:at] = changed[at // 2 : at // 2 + dice.randint(1, 12)]
            case 2:
                changed[at:at] = dice.choice(
                    (b'"', b"\\", b"{", b"}", b",", b"\xff", b"\xc0\x80", b"0")
                )
            case _:
                changed[at : at + 1] = bytes([dice.randrange(256)])
    return bytes(changed)


def _space(dice: random.Random, oddity: float) -> str:
    return dice.choice(_WHITE) if dice.random() < oddity else ""


def _text(dice: random.Random, text: str, oddity: float) -> str:
    return (
        json.dumps(text, ensure_ascii=dice.random() < 0.5)
        if oddity or dice.random() < 0.5
        else (json.dumps(text, ensure_ascii=False))
    )


def _object(dice: random.Random, fields: list[pa.Field], oddity: float) -> str:
    shown = [each for each in fields if not each.nullable or dice.random() < 0.9]
    if dice.random() < oddity:
        shown = fields[1:]
    pairs = [
        (
            each.name,
            _ruled_value(dice, each, oddity)
            if column_options.has_read_option(each) and dice.random() >= max(oddity, 0.05)
            else _value(dice, each.type, oddity, each.nullable),
        )
        for each in shown
    ]
    if dice.random() < 0.3:
        pairs += [(dice.choice(("new", "old", "x", "other name")), _any(dice, oddity, 2))]
    if dice.random() < oddity:
        pairs += [(dice.choice(_NAMES), _any(dice, oddity, 2))]
    if dice.random() < 0.3:
        dice.shuffle(pairs)
    colon, comma = ":" + _space(dice, oddity), "," + _space(dice, oddity)
    return "{" + comma.join(_text(dice, name, oddity) + colon + text for name, text in pairs) + "}"


def _any(dice: random.Random, oddity: float, depth: int) -> str:
    match dice.randrange(8):
        case 0 if depth:
            items = (_any(dice, oddity, depth - 1) for _ in range(dice.randrange(3)))
            return "[" + ",".join(items) + "]"
        case 1 if depth:
            names = dice.sample(("a", "b", "c", "d"), dice.randrange(3))
            return "{" + ",".join(f'"{n}":{_any(dice, oddity, depth - 1)}' for n in names) + "}"
        case 2:
            return dice.choice(_ODD) if dice.random() < oddity else "null"
        case _:
            return _leaf(dice, dice.choice(_LEAVES), oddity)


def _value(dice: random.Random, kind: pa.DataType, oddity: float, nullable: bool) -> str:
    if dice.random() < (0.1 if nullable else oddity / 4):
        return "null"
    if dice.random() < oddity / 2:
        return dice.choice(_ODD) if dice.random() < 0.5 else _any(dice, oddity, 2)
    if kinds.is_struct(kind):
        return _object(dice, list(kind), oddity)
    if kinds.is_map(kind):
        names = [dice.choice((*_TEXTS, "k", "l", "m")) for _ in range(dice.randrange(4))]
        names = names if dice.random() < oddity else list(dict.fromkeys(names))
        item = kind.item_field
        pairs = (
            f"{_text(dice, name, oddity)}:{_value(dice, item.type, oddity, item.nullable)}"
            for name in names
        )
        return "{" + ",".join(pairs) + "}"
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        item = kind.value_field
        count = dice.randrange(60) if dice.random() < 0.05 else dice.randrange(4)
        items = (_value(dice, item.type, oddity, item.nullable) for _ in range(count))
        return "[" + ("," + _space(dice, oddity)).join(items) + "]"
    return _leaf(dice, kind, oddity)


def _leaf(dice: random.Random, kind: pa.DataType, oddity: float) -> str:
    if kinds.is_boolean(kind):
        return dice.choice(("true", "false"))
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind):
        number = _number(dice, kind, oddity)
        return f'"{number}"' if dice.random() < max(oddity, 0.05) else number
    if kinds.is_temporal(kind):
        return _moment(dice, kind, oddity)
    if kind == pa.uuid():
        text = str(uuid.UUID(int=dice.getrandbits(128)))
        text = text.upper() if dice.random() < 0.2 else text
        return f'"{text if dice.random() >= oddity / 4 else text[:-1]}"'
    if kinds.is_fixed_size_binary(kind) or kinds.is_large_binary(kind):
        width = kind.byte_width if kinds.is_fixed_size_binary(kind) else dice.randrange(9)
        width += dice.random() < oddity / 4
        text = base64.b64encode(dice.randbytes(width)).decode()
        if dice.random() < oddity:
            text = dice.choice((text[:-1], text + "=", text.replace("A", "B"), text + "\n", "-_=="))
        return json.dumps(text)
    text = "".join(dice.choice(_TEXTS) for _ in range(dice.randrange(4)))
    return _text(dice, text + "." * dice.randrange(20), oddity)


def _number(dice: random.Random, kind: pa.DataType, oddity: float) -> str:
    if kinds.is_integer(kind):
        bits = dice.randrange(kind.bit_width)
        number = dice.randrange(-(2**bits), 2**bits)
        if dice.random() < oddity:
            number = dice.choice((-1, 1)) * dice.choice(_EDGES) + dice.randint(-2, 2)
        return f"{number}.0" if dice.random() < oddity / 4 else str(number)
    if kinds.is_decimal(kind) and dice.random() >= oddity:
        digits = dice.randrange(10 ** dice.randint(1, kind.precision))
        text = f"{digits:0{kind.scale + 1}d}"
        fraction = f".{text[-kind.scale :]}" if kind.scale else ""
        return dice.choice(("", "-")) + text[: len(text) - kind.scale] + fraction
    match dice.randrange(5):
        case 0:
            return repr(dice.uniform(-1000, 1000))
        case 1:
            return str(dice.randrange(-1000, 1000) / 100)
        case 2:
            return str(dice.randrange(-(10**6), 10**6))
        case 3:
            most = 330 if dice.random() < oddity else 15
            return f"{dice.randrange(10 ** dice.randint(1, 19))}e{dice.randint(-most, most)}"
        case _:
            digits = 25 if dice.random() < oddity else 12
            return f"{dice.randrange(10**6)}.{dice.randrange(10 ** dice.randint(1, digits))}"


def _moment(dice: random.Random, kind: pa.DataType, oddity: float) -> str:
    if dice.random() < oddity / 2:
        return f'"{dice.choice(_MOMENTS)}"'
    day = f"{dice.randint(1678, 2261):04}-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}"
    if kinds.is_date(kind):
        return str(dice.randint(-(10**5), 10**5)) if dice.random() < 0.2 else f'"{day}"'
    digits = dice.randint(0, 9 if kind.unit == "ns" or dice.random() < oddity else 6)
    fraction = "." + "".join(dice.choice("0123456789") for _ in range(digits)) if digits else ""
    clock = f"{dice.randint(0, 23):02}:{dice.randint(0, 59):02}:{dice.randint(0, 59):02}{fraction}"
    if kinds.is_time(kind):
        number = dice.randint(0, 86_399_999)
        return str(number) if dice.random() < 0.2 else f'"{clock}"'
    if dice.random() < 0.2:
        return str(dice.randint(-(10**12), 10**12))
    odd = kind.tz is not None or dice.random() < oddity
    zones = ("", "Z", "+00", "-00:00", "+0000", *(("+05:30", "-1100", "+23:59") if odd else ()))
    return f'"{day}{dice.choice("TT ")}{clock}{dice.choice(zones)}"'
