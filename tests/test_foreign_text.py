"""The native scanner of ShiViz logs: it gives the rows of `re`, whatever is in a line and wherever a file is cut."""

import io
import random
from itertools import pairwise

import pytest

from antecede.trace.foreign import shiviz, twolines
from antecede.trace.foreign.lines import Part, begun
from antecede.trace.foreign.shiviz import Expressions

pytest.importorskip("numba")

AFTER = r"(?<host>\S*) (?<clock>{.*})\n(?<event>.*)"
BEFORE = r"(?<event>.*)\n(?<host>\S*) (?<clock>{.*})"


def slow(data, asked):
    batches = shiviz.read(io.BytesIO(data), "f", "r", asked)
    return in_order(row for batch in batches for row in batch.to_pylist())


def in_order(rows):
    return sorted(rows, key=lambda row: (row["line"], row["reason"] or "", row["text"]))


def fast(data, asked, edges=(), block=1 << 20):
    """The rows of a file that is cut at these places."""
    from antecede.spark.ingest import fastlines, fasttext

    file, rows = io.BytesIO(data), []
    bounds = [0, *edges, len(data)]
    for start, end in pairwise(bounds):
        part = Part("f", "r", start, end, 1 + begun(file, 0, start))
        reader = twolines.known(file, part, asked)
        assert reader is not None
        for batch in fasttext.read(file, part, reader, block):
            rows += fastlines.plain(batch).to_pylist()
    return in_order(rows)


NAMES = ["ann", "bob", "eve:80", "zoë", "{x}", "a}"]
CLOCKS = [
    '{"ann": 3}', '{"ann":1, "bob":2}', '{"ann":1,"ann":2}', '{"zoë":1,"ann":4}', '{"ann": 0}', "{}", '{"ann":1',
    r'{\"ann\":5}', '{"ann":1} {"bob":2}', '{"ann":1} rest', '{"ann":-1}', '{ "eve:80" : 18 }', '{"{x}":1}',
    '{"ann":1}}', '{"bob":7, "a}":123456789012345678}', '{"ann":1.5}', '{"ann":99999999999999999999}', '{"ann": 1 }',
]  # fmt: skip
EVENTS = [
    "hello", "", " ", "send {x}", "got }", 'ann {"ann": 9}', ' {"ann": 2}', "tab\there", "zoë!", "a\rb", "\x0bodd",
    'x ann {"ann":2}', "\udcff", "nul\0", "ann {", "\x1c", 'said ann {"bob": 1} and left', "x" * 50, "\x85", "\u2028",
]  # fmt: skip


def some_text(chance, before, hostile):
    """Records, most of them well, and anything between."""
    lines = []
    for number in range(1, chance.randrange(2, 60)):
        name = chance.choice(NAMES)
        line = f'{name} {{"{name}": {number}, "ann": {chance.randrange(99)}}}'
        if name == "ann" or chance.random() < hostile:
            line = (
                chance.choice([name, "", f"x {name}", "\t"])
                + chance.choice([" ", "", "  "])
                + chance.choice(CLOCKS)
            )
        pair = [line, chance.choice(EVENTS) if chance.random() < 2 * hostile else f"event {number}"]
        lines += pair[::-1] if before else pair
        if chance.random() < hostile / 2:
            lines.append(chance.choice(EVENTS))
        if chance.random() < hostile / 4:
            lines.pop()
    newline = chance.choice(["\n", "\n", "\r\n"])
    text = newline.join(lines) + chance.choice(["", newline, newline * 2])
    if chance.random() < 0.2:
        text = f"{BEFORE if before else AFTER}\n\n{text}"
    return text.encode(errors="surrogateescape")


@pytest.mark.parametrize("pattern", [AFTER, BEFORE])
@pytest.mark.parametrize("hostile", [0.02, 0.3])
def test_rows_are_those_of_the_expression(pattern, hostile):
    for seed in range(150):
        chance = random.Random(f"{pattern}/{hostile}/{seed}")
        data = some_text(chance, pattern == BEFORE, hostile)
        if data.startswith(b"(?<") and chance.random() < 0.5:
            asked = Expressions()
        else:
            asked = Expressions(pattern)
        expected = slow(data, asked)
        assert fast(data, asked) == expected, seed
        assert fast(data, asked, block=64) == expected, seed
        edges = twolines.cuts(
            io.BytesIO(data), Part("f", "r", 0, len(data)), asked, chance.choice([30, 100, 300])
        )
        assert fast(data, asked, edges, block=chance.choice([50, 1000])) == expected, seed


def test_plain_records_need_no_expression():
    """What is measured as fast is what is read fast."""
    from antecede.spark.ingest import fastlines, fasttext

    data = b'ann {"ann": 1, "bob": 2}\nhello, bob\n' * 9
    part = Part("f", "r", 0, len(data))
    reader = twolines.known(io.BytesIO(data), part, Expressions(AFTER))
    assert reader is not None
    [batch] = fasttext.read(io.BytesIO(data), part, reader)
    assert batch.schema.equals(fastlines.TOLD)
    assert batch.num_rows == 9


def test_most_files_can_be_cut():
    data = b'ann {"ann": 1, "bob": 2}\nhello, bob\n' * 100
    for pattern in (AFTER, BEFORE):
        edges = twolines.cuts(io.BytesIO(data), Part("f", "r", 0, len(data)), Expressions(pattern), 500)
        assert len(edges) == 7


@pytest.mark.parametrize(
    ("data", "asked"),
    [
        (b"x\n", Expressions(AFTER, "^===$")),
        (b"(?<clock>x)(?<host>y)(?<event>z)\n\n", Expressions()),
        (AFTER.encode() + b"\n^=== (?<trace>.*)$\n", Expressions(AFTER)),
        (b"x\n", Expressions(r"(?<host>\w*) (?<clock>{.*})\n(?<event>.*)")),
        (b"x" * 70000, Expressions(AFTER)),
    ],
)
def test_other_files_are_left_to_the_expression(data, asked):
    assert twolines.known(io.BytesIO(data), Part("f", "r", 0, len(data)), asked) is None
