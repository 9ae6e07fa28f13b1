"""`antecede.testing`: a recorder for any program, and an assertion that shows what broke causal order."""

import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
from itertools import pairwise
from random import Random

import pytest

from antecede.errors import BadParameter, BadTrace
from antecede.testing import Recorder, assert_causal, find_late, identify
from antecede.trace import DELIVER, SEND, RunInfo, TraceWriter


def triangle(recorder):
    """A question goes to everyone, but its answer reaches cid first."""
    recorder.sent("ann", "question", to=["bob", "cid"])
    recorder.delivered("bob", "question")
    recorder.sent("bob", "answer", to=["ann", "cid"])
    recorder.delivered("ann", "answer")
    recorder.delivered("cid", "answer")
    recorder.delivered("cid", "question")


def test_a_failed_assertion_shows_the_violation_and_its_diagram():
    recorder = Recorder()
    triangle(recorder)
    with pytest.raises(AssertionError) as caught:
        assert_causal(recorder)
    words, _, diagram = str(caught.value).partition("\n\n")
    assert words.splitlines() == [
        "causal order was not kept: 1 finding",
        "  violation: cid delivered question after answer, which it causally precedes: question -> answer",
    ]
    assert "✗question" in diagram
    assert [line.split()[0] for line in diagram.splitlines() if "━" in line] == ["ann", "bob", "cid"]
    assert "✗ overtaken" in diagram


def test_what_was_kept_is_not_reported():
    recorder = Recorder()
    recorder.sent("ann", 1, to=["bob", "cid"])
    recorder.delivered("cid", 1)
    recorder.delivered("bob", 1)
    recorder.sent("bob", 2, to="cid")
    recorder.delivered("cid", 2)
    assert_causal(recorder)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (
            lambda r: r.sent("ann", "m", to="bob"),
            "undelivered: bob never delivered m, which was addressed to it",
        ),
        (lambda r: r.delivered("bob", "m"), "unsent: bob delivered m, which nobody sent"),
        (
            lambda r: (r.sent("ann", "m", to="bob"), r.delivered("bob", "m"), r.delivered("bob", "m")),
            "duplicate: bob delivered m again",
        ),
        (
            lambda r: (r.sent("ann", "m", to=[]), r.delivered("bob", "m")),
            "unaddressed: bob delivered m, which was not addressed to it",
        ),
    ],
)
def test_other_faults_are_reported_unless_they_are_allowed(record, told):
    recorder = Recorder()
    record(recorder)
    with pytest.raises(AssertionError, match="1 finding\n") as caught:
        assert_causal(recorder)
    kind = told.partition(":")[0]
    assert str(caught.value).splitlines() == [
        "messages and deliveries do not match: 1 finding",
        f"  {told}",
        f"  allow=['{kind}'] accepts this",
    ]
    assert_causal(recorder, allow=[kind])


def test_every_late_delivery_of_the_diagram_is_marked():
    recorder = Recorder()
    recorder.sent("ann", "m1", to="cid")
    recorder.sent("ann", "m2", to=["bob", "cid"])
    recorder.delivered("bob", "m2")
    recorder.sent("bob", "m3", to="cid")
    for name in ("m3", "m1", "m2"):
        recorder.delivered("cid", name)
    with pytest.raises(AssertionError, match="2 findings") as caught:
        assert_causal(recorder)
    for mark in ("m1 -> m2 -> m3", "✗m1", "✗m2", "○m3"):
        assert mark in str(caught.value)


def test_a_fifo_break_is_told_once():
    recorder = Recorder()
    for name in ("m1", "m2"):
        recorder.sent("ann", name, to="bob")
    for name in ("m2", "m1"):
        recorder.delivered("bob", name)
    with pytest.raises(AssertionError, match="1 finding\n  violation"):
        assert_causal(recorder)
    with pytest.raises(AssertionError, match="1 finding\n  fifo break"):
        assert_causal(recorder, allow=["violation"])


def test_what_cannot_have_happened_is_refused():
    with pytest.raises(BadParameter, match="does the system call the recorder"):
        assert_causal(Recorder())
    with pytest.raises(BadParameter, match=r"allow must be one of violation, .*, not 'lateness'"):
        assert_causal(Recorder(), allow=["lateness"])
    twice = Recorder()
    twice.sent("ann", "m", to="bob")
    twice.sent("bob", "m", to="ann")
    with pytest.raises(BadTrace, match="message m is sent a second time"):
        assert_causal(twice)
    circle = Recorder()
    for one, other in (("ann", "bob"), ("bob", "ann")):
        circle.delivered(one, f"from {other}")
        circle.sent(one, f"from {one}", to=other)
    with pytest.raises(BadTrace, match="a cycle"):
        assert_causal(circle)


def test_a_trace_is_asserted_as_well(tmp_path):
    run = RunInfo(run="late", protocol="none", processes=("ann", "bob"))
    with TraceWriter(tmp_path / "trace", run) as writer:
        writer.append(0, SEND, 0, 1, to=(1,), clock=0)
        writer.append(0, SEND, 0, 2, to=(1,), clock=1)
        writer.append(1, DELIVER, 0, 2, clock=2)
        writer.append(1, DELIVER, 0, 1, clock=3)
    for place in (tmp_path / "trace", str(tmp_path)):
        with pytest.raises(AssertionError, match=r"bob delivered ann\.1 after ann\.2") as caught:
            assert_causal(place)
        assert "✗ann.1" in str(caught.value)


# A system with threads


def run_replicas(recorder, updates):
    """Three replicas with a thread each: every update goes to the others, by queues that keep their order."""
    names = ["r1", "r2", "r3"]
    inbox: dict[str, queue.SimpleQueue[str]] = {name: queue.SimpleQueue() for name in names}

    def work(name):
        for number in range(updates):
            message = f"{name} {number}"
            others = [other for other in names if other != name]
            recorder.sent(name, message, to=others)
            for other in others:
                inbox[other].put(message)
        for _ in range(updates * (len(names) - 1)):
            recorder.delivered(name, inbox[name].get(timeout=60))

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_share_a_recorder():
    recorder = Recorder()
    run_replicas(recorder, updates=100)
    assert len(recorder.rows()) == 3 * 100 + 3 * 200
    assert_causal(recorder)


# A system of processes

WORKER = """
import sys
from antecede.testing import Recorder
recorder = Recorder(sys.argv[1])
for line in sys.stdin:
    word, process, message, *to = line.split()
    recorder.sent(process, message, to) if word == "sent" else recorder.delivered(process, message)
    print("done", flush=True)
"""


class Worker:
    def __init__(self, directory):
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words):
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


def test_processes_record_into_files_that_merge_and_a_killed_one_loses_nothing(tmp_path):
    ann, bob = Worker(tmp_path / "recorded"), Worker(tmp_path / "recorded")
    ann("sent", "ann", "m1", "bob", "cid")
    ann("sent", "ann", "m2", "bob", "cid")
    os.kill(ann.process.pid, signal.SIGKILL)
    for words in (("bob", "m1"), ("bob", "m2"), ("cid", "m2"), ("cid", "m1")):
        bob("delivered", *words)
    for worker in (ann, bob):
        worker.process.communicate(timeout=60)
    # Half a line of someone who was killed while writing.
    with (tmp_path / "recorded" / "99-half.jsonl").open("w") as half:
        half.write('{"process": "ann", "kind"')
    with pytest.raises(AssertionError, match="1 finding\n  violation: cid delivered m1 after m2"):
        assert_causal(Recorder(tmp_path / "recorded"))


def test_a_forked_child_writes_a_file_of_its_own(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.sent("ann", "m", to="bob")
    child = os.fork()
    if child == 0:
        recorder.delivered("bob", "m")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    assert_causal(recorder)


def test_pytest_shows_it(tmp_path):
    """As a user sees it: a real test session that fails."""
    test = tmp_path / "test_it.py"
    test.write_text(
        textwrap.dedent(
            """
            from antecede.testing import Recorder, assert_causal

            def test_replies_come_after_what_they_answer():
                recorder = Recorder()
                recorder.sent("ann", "question", to=["bob", "cid"])
                recorder.delivered("bob", "question")
                recorder.sent("bob", "answer", to=["cid"])
                recorder.delivered("cid", "answer")
                recorder.delivered("cid", "question")
                assert_causal(recorder)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 1
    assert "violation: cid delivered question after answer" in done.stdout
    assert "✗question" in done.stdout
    assert ">       assert_causal(recorder)" in done.stdout
    assert "raise AssertionError" not in done.stdout, "the lines of the library are not the reader's"


# Stated causality


def test_what_nobody_states_does_not_count():
    potential, stated = Recorder(), Recorder()
    for recorder, states in ((potential, False), (stated, True)):
        for order in ("order 1", "order 2"):
            recorder.sent("shop", order, to=["billing", "audit"], **({"after": ()} if states else {}))
            recorder.delivered("billing", order)
        recorder.sent("billing", "bill 2", to="audit", **({"after": "order 2"} if states else {}))
        for message in ("order 2", "bill 2", "order 1"):
            recorder.delivered("audit", message)
    with pytest.raises(AssertionError, match="audit delivered order 1 after order 2, which it causally"):
        assert_causal(potential)
    assert_causal(stated)


def test_stated_causes_are_judged_through_messages_that_a_process_never_gets():
    recorder = Recorder()
    recorder.sent("shop", "ordered", to=["billing", "audit"], after=[])
    recorder.delivered("billing", "ordered")
    recorder.sent("billing", "charged", to="mail", after=["ordered"])
    recorder.delivered("mail", "charged")
    recorder.sent("mail", "thanked", to="audit", after=["charged"])
    recorder.delivered("audit", "thanked")
    recorder.delivered("audit", "ordered")
    with pytest.raises(AssertionError) as caught:
        assert_causal(recorder)
    assert str(caught.value).splitlines()[1] == (
        "  violation: audit delivered ordered after thanked, which it causally precedes: ordered -> charged -> thanked"
    )
    assert "✗ordered" in str(caught.value)
    assert_causal(recorder, allow=["violation"])


def test_a_stated_cause_that_nobody_sent_is_told():
    recorder = Recorder()
    recorder.sent("bob", 2, to="ann", after=1)
    recorder.delivered("ann", 2)
    with pytest.raises(AssertionError, match="2 is said to follow 1, which nobody sent"):
        assert_causal(recorder)
    assert_causal(recorder, allow=["unsent"])


@pytest.mark.parametrize("seed", range(20))
def test_stated_violations_are_those_of_the_definition(seed):
    random = Random(seed)
    recorder = Recorder()
    causes: dict[int, list[int]] = {}
    orders: dict[str, list[int]] = {name: [] for name in "abc"}
    for message in range(12):
        causes[message] = random.sample(range(message), min(message, random.randrange(3)))
        recorder.sent("s", message, to=list("abc"), after=causes[message])
    for name, order in orders.items():
        order += random.sample(range(12), 12)
        for message in order:
            recorder.delivered(name, message)

    def precede(message):
        return {cause for direct in causes[message] for cause in (direct, *precede(direct))}

    late = {
        (name, early)
        for name, order in orders.items()
        for place, effect in enumerate(order)
        for early in order[place + 1 :]
        if early in precede(effect)
    }
    rows = recorder.rows()
    found = list(find_late(rows, identify(rows)[0]))
    assert {(row["process"], row["number"] - 1) for row in found} == late
    assert len(found) == len(late) > 0
    for row in found:
        chain = [link["number"] - 1 for link in row["chain"]]
        assert all(one in causes[other] for one, other in pairwise(chain))
        order = orders[row["process"]]
        assert order.index(chain[-1]) < order.index(chain[0])
