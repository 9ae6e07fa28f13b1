"""Logs that others wrote: what is read, and what becomes of each line that cannot be."""

import io
import random

import pytest

from antecede.errors import BadParameter
from antecede.trace.foreign import lines, shiviz
from antecede.trace.foreign.log import LOG, READ

HOST_FIRST = r"(?<host>\S*) (?<clock>{.*})\n(?<event>.*)"


def rows_of(batches):
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def by_expression(text, pattern=None, delimiter=None, **sizes):
    file = io.BytesIO(text if isinstance(text, bytes) else text.encode())
    return rows_of(shiviz.read(file, "f.log", "r", shiviz.expressions(pattern, delimiter), **sizes))


def by_line(text, line, most=1 << 14):
    file = io.BytesIO(text if isinstance(text, bytes) else text.encode())
    return rows_of(lines.read(file, "f", "r", line, most))


def short(rows):
    """What most tests ask of an event: where, its position, its text and its line."""
    return [(row["process"], row["index"], row["text"], row["line"]) for row in rows if not row["reason"]]


def list_rejected(rows):
    return [(row["line"], row["text"], row["reason"]) for row in rows if row["reason"]]


# ShiViz


def test_the_expression_that_shiviz_takes_where_nothing_is_said():
    rows = by_expression('hello\nann {"ann":1}\nhello, ann\nbob {"bob": 1, "ann": 1, "eve": 0}\n')
    assert short(rows) == [("ann", 0, "hello", 1), ("bob", 0, "hello, ann", 3)]
    assert rows[1]["vector"] == {"bob": 1, "ann": 1}  # no entry and 0 are the same
    assert {row["run"] for row in rows} == {"r"}
    assert {row["file"] for row in rows} == {"f.log"}


def test_columns_are_those_that_are_promised():
    file = io.BytesIO(b'x\nann {"ann":1}\nnonsense\n')
    [batch] = shiviz.read(file, "f", "r", shiviz.Expressions())
    assert batch.schema.equals(READ)
    assert READ.names[:-1] == LOG.names


def test_groups_of_javascript_and_of_python_are_the_same():
    text = 'ann {"ann":1}\nhello\n'
    assert by_expression(text, HOST_FIRST) == by_expression(text, HOST_FIRST.replace("(?<", "(?P<"))


@pytest.mark.parametrize(
    ("javascript", "python"),
    [
        (r"(?<a>x)", r"(?P<a>x)"),
        (r"(?<a>x)\k<a>", r"(?P<a>x)(?P=a)"),
        (r"\(?<a>", r"\(?<a>"),
        (r"[(?<a>]", r"[(?<a>]"),
        (r"(?<=x)(?<!y)z", r"(?<=x)(?<!y)z"),
        (r"\\(?<a>x)", r"\\(?P<a>x)"),
    ],
)
def test_only_names_of_groups_are_translated(javascript, python):
    assert shiviz.compile_expression(javascript, "pattern").pattern == python


def test_other_groups_are_fields():
    [row] = by_expression(
        '[12:30] ann {"ann":1} hello\n', r"\[(?<date>.*)\] (?<host>\S+) (?<clock>{.*}) (?<event>.*)"
    )
    assert row["fields"] == '{"date":"12:30"}'


def test_quotes_may_be_escaped():
    [row] = by_expression(
        'Host = n1\nClock = "{\\"n1\\":2,\\"n2\\":0}"\n',
        r'(?<event>)Host = (?<host>.*)\nClock = "(?<clock>.*)"',
    )
    assert (row["index"], row["vector"]) == (1, {"n1": 2})


EXECUTIONS = """=== one ===
ann {"ann":1}
a
=== two ===
ann {"ann":1}
b
=== one ===
bob {"bob":1}
c
"""


def test_executions_are_runs_of_their_own():
    rows = by_expression(EXECUTIONS, HOST_FIRST, "^=== (?<trace>.*) ===$")
    assert [(row["run"], row["text"], row["line"]) for row in rows] == [
        ("r#one", "a", 2),
        ("r#two", "b", 5),
        ("r#one (2)", "c", 8),
    ]


def test_executions_without_names_are_counted():
    rows = by_expression(EXECUTIONS, HOST_FIRST, "^===.*$")
    assert [row["run"] for row in rows] == ["r#1", "r#2", "r#3"]


def test_what_stands_before_the_first_delimiter_is_a_run_too():
    rows = by_expression('ann {"ann":1}\na\n' + EXECUTIONS, HOST_FIRST, "^=== (?<trace>.*) ===$")
    assert [row["run"] for row in rows] == ["r", "r#one", "r#two", "r#one (2)"]


def test_a_record_does_not_reach_into_the_next_execution():
    rows = by_expression('ann {"ann":1}\n===\nbob {"bob":1}\nb\n', HOST_FIRST[:-2] + "+)", "^===$")
    assert short(rows) == [("bob", 0, "b", 3)]
    assert list_rejected(rows) == [(1, 'ann {"ann":1}', "it is no part of a record")]


@pytest.mark.parametrize(
    ("opening", "runs"),
    [
        (HOST_FIRST + "\n\n", ["r"]),
        (HOST_FIRST + "\n^=== (?<trace>.*) ===$\n", ["r#x"]),
    ],
)
def test_a_file_may_open_with_its_expressions(opening, runs):
    text = '=== x ===\nann {"ann":1}\na\n' if "#" in runs[0] else 'ann {"ann":1}\na\n'
    rows = by_expression(opening + text)
    assert [row["run"] for row in rows] == runs
    assert short(rows) == [("ann", 0, "a", 4 if "#" in runs[0] else 3)]


def test_a_file_may_open_with_a_delimiter_only():
    rows = by_expression('\n^=== (?<trace>.*) ===$\n=== x ===\na\nann {"ann":1}\n')
    assert [(row["run"], row["line"]) for row in rows] == [("r#x", 4)]


def test_an_expression_of_a_file_that_is_none_is_rejected_like_a_line():
    rows = by_expression('(?<clock>\n(\na\nann {"ann":1}\n')
    assert short(rows) == [("ann", 0, "a", 3)]
    assert [(line, text) for line, text, _ in list_rejected(rows)] == [(1, "(?<clock>"), (2, "(")]
    assert "must be a regular expression" in list_rejected(rows)[0][2]


def test_what_the_caller_says_wins():
    text = HOST_FIRST + '\n\n{"ann":1} ann a\n'
    assert short(by_expression(text, r"(?<clock>{.*}) (?<host>\w+) (?<event>.*)")) == [("ann", 0, "a", 3)]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('ann {"bob":1}\na', "its clock has no entry of its own process ann"),
        ('ann {"ann":0}\na', "its clock has no entry of its own process ann"),
        ('ann {"ann":1,}\na', "its clock is no JSON object of integers"),
        ('ann {"ann":"1"}\na', "its clock is no JSON object of integers"),
        ('ann {"ann":1.5}\na', "its clock is no JSON object of integers"),
        ('ann {"ann":1,"bob":-1}\na', "its clock's entry of bob is -1"),
        ('ann {"ann":9223372036854775808}\na', "its clock's entry of ann is 9223372036854775808"),
        (' {"":1}\na', "it names no host"),
        (b'ann {"ann":1}\n\xff', "it is not UTF-8"),
    ],
)
def test_a_record_that_cannot_be_read_is_kept_line_by_line(record, reason):
    record = record if isinstance(record, bytes) else record.encode()
    rows = by_expression(b'ann {"ann":1}\na\n' + record + b'\nbob {"bob":1}\nb\n', HOST_FIRST)
    assert short(rows) == [("ann", 0, "a", 1), ("bob", 0, "b", 5)]
    first, second = record.decode(errors="replace").split("\n")
    assert [(line, text) for line, text, _ in list_rejected(rows)] == [(3, first), (4, second)]
    assert all(reason in why for _, _, why in list_rejected(rows))


def test_lines_that_are_in_no_record_are_kept_and_blank_ones_are_not():
    rows = by_expression('noise\n\n  \nann {"ann":1}\na\nmore noise\nand more', HOST_FIRST)
    assert short(rows) == [("ann", 0, "a", 4)]
    why = "it is no part of a record"
    assert list_rejected(rows) == [(1, "noise", why), (6, "more noise", why), (7, "and more", why)]


def test_a_line_is_read_if_a_part_of_it_is():
    rows = by_expression('12:30 ann {"ann":1} hello\n', r"(?<host>[a-z]+) (?<clock>{.*}) (?<event>h)")
    assert (short(rows), list_rejected(rows)) == ([("ann", 0, "h", 1)], [])


def test_lines_may_end_as_on_windows():
    rows = by_expression('ann {"ann":1}\r\na\r\nbob {"bob":1}\r\nb\r\n', HOST_FIRST)
    assert short(rows) == [("ann", 0, "a", 1), ("bob", 0, "b", 3)]


def test_an_empty_file_says_nothing():
    assert by_expression("") == by_expression("\n\n") == []


@pytest.mark.parametrize("seed", range(20))
def test_windows_change_nothing(seed):
    """A file read in small windows gives the same rows: records of 1 to 3 lines, noise, and executions."""
    chance = random.Random(seed)
    print(f"seed {seed}")
    parts = []
    for count in range(1, 60):
        parts.append(
            chance.choice(
                [
                    f'ann {{"ann":{count}}}\nevent {count} é\n',
                    f'bob {{"bob":{count}, "ann":1}}\r\nevent {count}\r\n',
                    f"noise {count}\n",
                    f"=== {chance.choice('xyz')} ===\n",
                    'eve {"bob":1}\nnobody\n',
                    "\n",
                ]
            )
        )
    text = "".join(parts).encode()
    asked = (r"^(?<host>\S+) (?<clock>{.*})\n(?<event>.*)$", "^=== (?<trace>.*) ===$")
    whole = by_expression(text, *asked)
    for window in (101, 150, 333, 1000):
        assert by_expression(text, *asked, window=window, look=80) == whole


@pytest.mark.parametrize(
    ("pattern", "delimiter", "wrong"),
    [
        ("(?<host>", None, "a regular expression"),
        ("(?<host>.)(?<clock>.)", None, "the named groups host, clock and event"),
        (None, "(", "a regular expression"),
    ],
)
def test_an_expression_that_is_none_is_refused_before_anything_is_read(pattern, delimiter, wrong):
    with pytest.raises(BadParameter, match=wrong):
        shiviz.expressions(pattern, delimiter)


# One event a line

TRACING = '{"TracerIdentity":"%s","TraceID":7,"Tag":"%s","Body":%s,"VectorClock":%s}\n'


def test_tokens_are_messages():
    rows = by_line(
        TRACING % ("ann", "GenerateTokenTrace", '{"Token":"t1"}', '{"ann":1}')
        + TRACING % ("bob", "ReceiveTokenTrace", '{"Token":"t1"}', '{"bob":1,"ann":1}')
        + TRACING % ("bob", "Thought", '{"of": "cake"}', '{"bob":2,"ann":1}'),
        lines.read_tracing,
    )
    assert short(rows) == [
        ("ann", 0, "GenerateTokenTrace", 1),
        ("bob", 0, "ReceiveTokenTrace", 2),
        ("bob", 1, "Thought", 3),
    ]
    assert [(row["kind"], row["message"]) for row in rows] == [
        ("send", "t1"),
        ("deliver", "t1"),
        (None, None),
    ]
    assert rows[2]["fields"] == '{"TraceID":7,"Body":{"of": "cake"}}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no event in JSON"),
        ("[]", "no event in JSON"),
        ("nonsense", "no event in JSON"),
        ('{"TracerIdentity":"ann","Tag":"x"}', "missing required field `VectorClock`"),
        (TRACING % ("ann", "x", "{}", '{"ann":"1"}'), "Expected `int`, got `str`"),
        (TRACING % ("ann", "x", "{}", '{"bob":1}'), "no entry of its own process ann"),
        (TRACING % ("ann", "x", "{}", '{"ann":1,"bob":-4}'), "entry of bob is -4"),
        (TRACING % ("ann", "GenerateTokenTrace", "{}", '{"ann":1}'), "GenerateTokenTrace without a Token"),
        (TRACING % ("ann", "ReceiveTokenTrace", '{"Token":4}', '{"ann":1}'), "without a Token"),
        (TRACING % ("ann", "ReceiveTokenTrace", "[]", '{"ann":1}'), "without a Token"),
        (b'{"TracerIdentity":"ann","Tag":"x","Body":"\xff","VectorClock":{"ann":1}}', "it is not UTF-8"),
        (b'{"TracerIdentity":"\xff","Tag":"x","VectorClock":{"ann":1}}', "it is not UTF-8"),
    ],
)
def test_a_broken_line_of_tracing_is_kept(line, reason):
    line = (line if isinstance(line, bytes) else line.encode()).removesuffix(b"\n")
    good = (TRACING % ("ann", "x", "{}", '{"ann":1}')).encode()
    rows = by_line(good + line + b"\n" + good, lines.read_tracing)
    assert [at for *_, at in short(rows)] == [1, 3]
    [(at, text, why)] = list_rejected(rows)
    assert (at, text) == (2, line.decode(errors="replace"))
    assert reason in why


def test_events_of_tlaplus():
    rows = by_line(
        '{"N":2}\n'
        '{"event":">","node":0,"pkt":{"snd":0,"rcv":1,"msg":{"type":"pl"},"vc":{"0":1}}}\n'
        '{"event":"<","node":1,"pkt":{"snd":0,"rcv":1,"msg":{"type":"pl"},"vc":{"0":1,"1":1}}}\n'
        '{"event":"d","node":1,"pkt":{"vc":{"0":1,"1":2}}}\n',
        lines.read_tlaplus,
    )
    assert short(rows) == [("0", 0, ">", 2), ("1", 0, "<", 3), ("1", 1, "d", 4)]
    assert [row["kind"] for row in rows] == ["send", "deliver", None]
    assert {row["message"] for row in rows} == {None}
    assert rows[0]["fields"] == '{"snd":0,"rcv":1,"msg":{"type":"pl"}}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"N":2}', "no event in JSON"),  # constants stand on the first line only
        ('{"event":"?","node":0,"pkt":{"vc":{"0":1}}}', "event is ?, and must be >, < or d"),
        ('{"event":">","node":0,"pkt":{"vc":{"0":1}}}', "but snd of its packet is null"),
        ('{"event":"<","node":0,"pkt":{"snd":0,"rcv":1,"vc":{"0":1}}}', "but rcv of its packet is 1"),
        ('{"event":"d","node":0,"pkt":{"vc":{"1":1}}}', "no entry of its own process 0"),
        ('{"event":"d","node":0}', "missing required field `pkt`"),
    ],
)
def test_a_broken_line_of_tlaplus_is_kept(line, reason):
    rows = by_line('{"N":2}\n' + line, lines.read_tlaplus)
    [(at, text, why)] = list_rejected(rows)
    assert (at, text) == (2, line)
    assert reason in why


def reject_line(rows, run, number, line):
    rows.reject(run, number, line.decode(), "as it is")


@pytest.mark.parametrize("seed", range(30))
def test_each_line_comes_once_with_its_number(seed):
    chance = random.Random(seed)
    print(f"seed {seed}")
    contents = ["x" * chance.choice([0, 1, 5, 40]) for _ in range(chance.randint(1, 30))]
    newline, ends = chance.choice(["\n", "\r\n"]), chance.choice([True, False])
    text = newline.join(contents) + newline * ends
    expected = [(at, line, "as it is") for at, line in enumerate(contents, 1) if line]
    for most in (1, 3, 1 << 14):
        assert list_rejected(by_line(text, reject_line, most)) == expected
