"""Real logs, published by others: what is known of them comes out. Skipped where they are not at hand."""

from pathlib import Path

import pytest

from antecede.trace.foreign import lines, shiviz

LOGS = Path(__file__).parents[2] / "shared" / "data" / "logs"

pytestmark = pytest.mark.skipif(
    not LOGS.is_dir(), reason=f"no logs at {LOGS}: they are no part of the project"
)

CHORD = r"(?<host>\S*) (?<clock>{.*})\n(?<event>.*)"
BROADCAST = r"\[\w+\] \[(?<date>[^ ]+ [^ ]+)\] [^ ]+ \[akka://Broadcast/user/(?<host>\w+)\] (?<clock>.*\}) (?<event>.*)"
TLC = (
    r'^State (?<state>\d+): <(?<event>\w+) .*>\n/\\ Host = (?<host>.*)\n/\\ Clock = "(?<clock>.*)"(\n/\\ .*)*'
)


def rows_of(batches):
    rows = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
    return [row for row in rows if not row["reason"]], [row for row in rows if row["reason"]]


def by_expression(name, pattern=None, delimiter=None):
    with (LOGS / name).open("rb") as file:
        return rows_of(shiviz.read(file, name, name, shiviz.expressions(pattern, delimiter)))


def by_line(name, line):
    with (LOGS / name).open("rb") as file:
        return rows_of(lines.read(file, name, name, line))


def before_a_cause(events):
    """How many events stand before one of their causes: an event that their clock names, or the process's last."""
    at = {(row["process"], row["index"] + 1): place for place, row in enumerate(events)}
    count = 0
    for place, row in enumerate(events):
        own = row["process"]
        causes = [(name, entry - (name == own)) for name, entry in row["vector"].items()]
        count += any(at[cause] > place for cause in causes if cause[1])
    return count


@pytest.mark.parametrize(
    ("name", "pattern", "events", "hosts", "early", "rejected"),
    [
        ("chord.log", CHORD, 1235, 8, 932, 0),
        ("simpledb.log", None, 509, 5, 336, 0),
        ("reliable-broadcast.log", BROADCAST, 116, 4, 0, 1),
        ("simple-reliable-broadcast.log", BROADCAST, 39, 3, 0, 0),
    ],
)
def test_logs_of_shiviz(name, pattern, events, hosts, early, rejected):
    read, left = by_expression(name, pattern)
    assert (len(read), len({row["process"] for row in read})) == (events, hosts)
    assert before_a_cause(read) == early
    assert len(left) == rejected


def test_executions_of_a_model_checker():
    read, left = by_expression("ewd998.log", TLC, "^=== (?<trace>.*) ===$")
    assert len({row["run"] for row in read}) == 3
    assert len({row["process"] for row in read}) == 7
    # The log has 991 records. One is the initial state, at a host -- that has no entry in any clock.
    initial = [row for row in left if "its own process" in row["reason"]]
    assert len(read) + len({row["line"] for row in initial if row["text"].startswith("State")}) == 991


def test_a_log_of_tracing():
    read, left = by_line("tracing-example1.jsonl", lines.read_tracing)
    assert (len(read), len({row["process"] for row in read}), len(left)) == (809, 11, 0)
    tokens = [[row["message"] for row in read if row["kind"] == kind] for kind in ("send", "deliver")]
    assert len(tokens[0]) == len(tokens[1]) == 179
    assert set(tokens[0]) == set(tokens[1])


def test_a_log_of_tlaplus():
    read, left = by_line("EWD998ChanTrace.ndjson", lines.read_tlaplus)
    assert (len(read), len({row["process"] for row in read}), len(left)) == (654, 5, 0)
    assert before_a_cause(read) == 539
