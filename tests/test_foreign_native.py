"""The native scanner of lines: it gives the rows of the formats' own readers, whatever is in a line."""

import io
import json
import random

import pytest

from antecede.trace.foreign import lines, tlaplus, tracing
from antecede.trace.foreign.lines import Part

pytest.importorskip("numba")

READERS = {"tracing": tracing.read, "tlaplus": tlaplus.read}


def slow(data, format):
    batches = lines.read(io.BytesIO(data), Part("f", "r", 0, len(data)), READERS[format])
    return [row for batch in batches for row in batch.to_pylist()]


def fast(data, format, block=1 << 20):
    from antecede.spark.ingest import fastlines

    batches = fastlines.read(io.BytesIO(data), Part("f", "r", 0, len(data)), format, block)
    rows = [row for batch in batches for row in fastlines.plain(batch).to_pylist()]
    return sorted(rows, key=lambda row: row["line"])


def some_value(chance, depth=0):
    kinds = [
        lambda: chance.choice([0, 1, -5, 17, 2.5, 1e40, True, False, None]),
        lambda: chance.choice(["", "x", 'a"b', "é", "tab\t", "{}", "a,b:c"]),
        lambda: [some_value(chance, depth + 1) for _ in range(chance.randrange(3))],
        lambda: {f"k{n}": some_value(chance, depth + 1) for n in range(chance.randrange(3))},
    ]
    return chance.choice(kinds[: 2 if depth > 2 else 4])()


def tracing_event(chance):
    name = chance.choice(["ann", "bob", "eve 2", "zoë"])
    tag = chance.choice(["GenerateTokenTrace", "ReceiveTokenTrace", "Think", "Tag \\ 2"])
    body = {"Token": chance.choice(["t1", "t/2+", "", 'q"'])} if chance.random() < 0.7 else some_value(chance)
    clock = {
        chance.choice(["ann", "bob", "eve 2", "zoë"]): chance.choice([0, 1, 7, 10**18, 10**19])
        for _ in range(3)
    }
    event = {
        "TracerIdentity": name,
        "TraceID": 17,
        "Tag": tag,
        "Body": body,
        "VectorClock": {**clock, name: 3},
    }
    return varied(chance, event)


def tlaplus_event(chance):
    node = chance.choice([0, 1, 12, "n1"])
    packet = {
        "snd": node,
        "rcv": node,
        "msg": some_value(chance),
        "vc": {"5": 1, str(node): chance.choice([0, 2])},
    }
    event = {"event": chance.choice(["<", ">", "d", "x"]), "node": node, "pkt": packet}
    if chance.random() < 0.2:
        del packet[chance.choice(list(packet))]
    return varied(chance, event)


def varied(chance, event):
    """With or without a part, in any order, with any spaces."""
    items = list(event.items())
    if chance.random() < 0.1:
        del items[chance.randrange(len(items))]
    if chance.random() < 0.2:
        chance.shuffle(items)
    if chance.random() < 0.1:
        items.append(("extra", some_value(chance)))
    separators = chance.choice([(",", ":"), (", ", ": "), (" ,\t", " : ")])
    return json.dumps(dict(items), separators=separators, ensure_ascii=chance.random() < 0.5)


def broken(chance, line):
    """A line with one byte changed, left out or put in, or cut off."""
    data = bytearray(line.encode())
    at = chance.randrange(len(data))
    match chance.randrange(4):
        case 0:
            data[at] = chance.choice(b'{}[]",:\\0129.eE-+ xtfn\t\x00\x7f\xff')
        case 1:
            del data[at]
        case 2:
            data.insert(at, chance.choice(b'{}[]",:\\019.eE- x'))
        case 3:
            del data[at:]
    return bytes(data).replace(b"\n", b" ")


@pytest.mark.parametrize("format", ["tracing", "tlaplus"])
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_the_reader(format, seed):
    print(f"seed {seed}")
    chance = random.Random(f"{format}/{seed}")
    make = tracing_event if format == "tracing" else tlaplus_event
    data = b""
    for _ in range(800):
        line = make(chance)
        data += broken(chance, line) if chance.random() < 0.5 else line.encode()
        data += chance.choice([b"\n", b"\n", b"\n", b"\r\n", b"\n\n", b"\n  \n"])
    data = data.removesuffix(b"\n")
    expected = slow(data, format)
    assert fast(data, format) == expected
    assert fast(data, format, block=1000) == expected


def test_most_lines_need_no_python():
    """What is measured as fast is what is read fast: a plain log has no line for the slow reader."""
    from antecede.spark.ingest import fastlines

    good = (
        b'{"TracerIdentity":"a","TraceID":1,"Tag":"T","Body":{"x":[1,2.5,true]},"VectorClock":{"a":1,"b":2}}\n'
        * 9
    )
    [batch] = fastlines.read(io.BytesIO(good), Part("f", "r", 0, len(good)), "tracing")
    assert batch.schema.equals(fastlines.ENCODED)
    assert batch.num_rows == 9


def test_more_names_than_there_is_room_for():
    names = [f"process-{number}" for number in range(5000)]
    data = "".join(
        f'{{"TracerIdentity":"{name}","TraceID":1,"Tag":"T","Body":{{}},"VectorClock":{{"{name}":1}}}}\n'
        for name in names
    ).encode()
    assert fast(data, "tracing") == slow(data, "tracing")


def test_columns_may_have_names_or_integers():
    from antecede.spark.ingest import fastlines

    data = b'{"event":"d","node":1,"pkt":{"vc":{"1":2}}}\n?\n'
    first, second = fastlines.read(io.BytesIO(data), Part("f", "r", 0, len(data)), "tlaplus")
    assert fastlines.encoded(second).schema.equals(fastlines.ENCODED)
    assert fastlines.plain(fastlines.encoded(second)).to_pylist() == second.to_pylist()
    assert fastlines.plain(first).to_pylist() + second.to_pylist() == slow(data, "tlaplus")
