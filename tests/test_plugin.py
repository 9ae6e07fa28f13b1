"""A machine from a file of the user's own: checked, simulated, verified, compared, and refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antecede import verification
from antecede.cli import run
from antecede.errors import BadMachine
from antecede.plugin import find_protocol
from antecede.report.promises import find_promise
from antecede.sim.sweep import read
from antecede.trace import read_runs

ROOT = Path(__file__).parent.parent
MINE = str(ROOT / "examples" / "my_protocol.py")

HEAD = "from antecede.model import Stamp\nfrom antecede.protocols.receiver import Receiver\n"
COUNTED = """
class Number(Stamp, frozen=True):
    number: int
    def entries(self, n): return 1

class Counted(Receiver):
    name = "counted"
    order = "fifo"
    stamps = (Number,)
    state = {**Receiver.state, "_to": list[int]}
    def __init__(self, view, me, step=1):
        super().__init__(view, me)
        self._to, self.step = [0] * self.n, step
    @property
    def parameters(self): return {"step": self.step}
    def _send(self, message):
        def stamp(dest):
            self._to[dest] += 1
            return Number(self._to[dest])
        return self._copies(message, stamp)
    def _position(self, packet): return packet.source, packet.stamp.number
    def _needs(self, packet): return [(packet.source, packet.stamp.number - 1)]
"""


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    code = run([*words, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    # What `check` says before it begins is no part of the refusal.
    [line] = [line for line in err.splitlines() if not line.startswith("checking ")]
    return line


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_machine_of_a_file_is_checked_like_any_other(capsys: pytest.CaptureFixture[str], jobs: str) -> None:
    code, result, _ = answer(capsys, "check", "--protocol", f"{MINE}:Matrix", "--jobs", jobs)
    assert (code, result["verdict"], result["programs"]) == (0, "yes", 598)
    code, result, err = answer(capsys, "check", "--protocol", f"{MINE}:PerChannel", "--jobs", jobs)
    assert (code, result["verdict"]) == (1, "no")
    assert result["counterexample"]["program"] == "p1: send a to p3; send b to p2\np2: send c to p3\np3:\n"
    assert "✗a" in err


def test_its_trace_is_verified_and_says_what_it_promises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trace"
    for name in ("Matrix", "PerChannel"):
        words = ["simulate", "--protocol", f"{MINE}:{name}", "--messages", "300", "--out", str(out)]
        code, result, _ = answer(capsys, *words, "--check")
        assert (code, result["verdict"]) == ((0, "yes") if name == "Matrix" else (1, "no"))
    runs = {info.run: info for info in read_runs(out)}
    assert {info.protocol for info in runs.values()} == {"my matrix", "per channel"}
    assert runs["my matrix-0"].parameters["machine"] == f"{MINE}:Matrix"
    table = verification.verify(out).runs.to_pylist()
    found = {row["run"]: row["verdict"] for row in table}
    assert found == {"my matrix-0": "yes", "per channel-0": "no"}


def test_a_promise_of_less_than_causal_order_goes_with_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = write(tmp_path / "counted.py", HEAD + COUNTED), tmp_path / "trace"
    words = ["simulate", "--protocol", file, "--set", "step=2", "--messages", "50", "--out", str(out)]
    code, result, _ = answer(capsys, *words)
    assert code == 0
    # A field of one small number is a list of one and the number, in MessagePack.
    assert result["stamp_bytes"] == {"mean": 2.0, "p50": 2, "p99": 2, "max": 2}
    [info] = read_runs(out)
    assert find_promise(info.protocol, json.dumps(dict(info.parameters))).order == "fifo"


def test_the_command_of_a_run_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--protocol", f"{MINE}:Matrix", "--messages", "100"]
    narrow = ["--network", "constant:5ms,bandwidth=1Mbit/s"]
    code, first, _ = answer(capsys, *words, *narrow)
    again = answer(capsys, *first["command"].split()[1:])[1]
    assert code == 0
    assert {**first, "seconds": 0} == {**again, "seconds": 0}
    # Packets wait for each other on a narrow band, whole packets, stamps included.
    assert first["delay_ns"]["max"] > 5_000_000


def test_it_stands_beside_others_in_a_choice_and_an_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--processes", "4", "--messages", "100", "--seeds", "2"]
    found = answer(capsys, "choose", *words, "--protocol", "matrix", "--protocol", f"{MINE}:Matrix")[1]
    assert {one["protocol"] for one in found["candidates"]} == {"matrix", f"{MINE}:Matrix"}
    plan = tmp_path / "plan.toml"
    plan.write_text(f"[grid]\nprotocol = ['fifo', '{MINE}:Matrix']\nmessages = 50\nprocesses = 4\n")
    assert run(["sweep", str(plan), "--out", str(tmp_path / "out"), "--local", "--jobs", "1"]) == 0
    rows = read(tmp_path / "out")
    assert [row.spec.protocol for row in rows] == ["fifo", f"{MINE}:Matrix"]
    assert rows[1].run.startswith("my_protocol.py.Matrix-")


def test_an_error_of_its_code_is_a_counterexample_or_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = HEAD + COUNTED + "    def _learn(self, packet):\n        raise KeyError('lost')\n"
    file = write(tmp_path / "raising.py", text)
    line = text.count("\n")
    code, result, _ = answer(capsys, "check", "--protocol", file, "--messages", "2", "--jobs", "2")
    assert code == 1
    assert result["counterexample"]["kind"] == "broken"
    assert f"_learn raised KeyError: 'lost' ({file}, line {line})" in result["counterexample"]["why"]
    said = refusal(capsys, "simulate", "--protocol", file)
    assert said == f"antecede: {file}, line {line}: raised KeyError: 'lost'"


def test_a_file_that_was_changed_is_read_again(tmp_path: Path) -> None:
    file = write(tmp_path / "counted.py", HEAD + COUNTED)
    before = find_protocol(file)
    assert find_protocol(f"{file}:Counted") is before
    write(tmp_path / "counted.py", (HEAD + COUNTED).replace('"counted"', '"counted again"'))
    assert find_protocol(file).name == "counted again"


def test_what_stands_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    write(tmp_path / "stamp_of_mine.py", HEAD + COUNTED)
    text = "from stamp_of_mine import Counted\nclass Other(Counted):\n    name = 'other'\n"
    assert find_protocol(write(tmp_path / "other.py", text)).name == "other"


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (HEAD + "class A(Receiver:\n", "", ", line 3: is no Python: "),
        (HEAD + "nonsense\n", "", ", line 3: cannot be imported: NameError: name 'nonsense' is not defined"),
        (HEAD, "", ": it defines no class derived from Machine or Receiver"),
        (HEAD + COUNTED, ":Mine", ": has no class Mine: it has Counted"),
        (HEAD + COUNTED, ":Number", ": Number is no machine that it defines: it has Counted"),
        (HEAD + COUNTED + "class B(Counted):\n    pass\n", "", ": it has Counted, B: write "),
        (HEAD + "class A(Receiver):\n    pass\n", "", ': A: needs a name: write name = "..." in the class'),
        (
            HEAD + "class A(Receiver):\n    name = 'a'\n",
            "",
            ": A: needs its stamps: write stamps = (MyStamp,)",
        ),
        (
            HEAD + "class A(Receiver):\n    name, stamps = 'a', (Stamp,)\n",
            "",
            ": A: lacks _needs, _position, _send: a machine must define them",
        ),
        (HEAD + COUNTED.replace('"counted"', '"fifo"'), "", ": Counted: is called 'fifo', as a protocol of"),
        (None, ":A", ": cannot be read: No such file or directory"),
    ],
)
@pytest.mark.parametrize("command", ["check", "simulate"])
def test_a_file_without_a_machine_is_refused_in_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    text: str | None,
    name: str,
    said: str,
) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    assert refusal(capsys, command, "--protocol", f"{path}{name}").startswith(f"antecede: {path}{said}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--faults", "loss:1%"], "cannot run with faults, or where the network loses packets"),
        (["--network", "constant:5ms,loss=1%"], "cannot run with faults, or where the network loses packets"),
        (["--set", "colour=2"], "my matrix: it has no parameter colour; it has none"),
    ],
)
def test_what_it_cannot_do_is_said(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert said in refusal(capsys, "simulate", "--protocol", f"{MINE}:Matrix", *words)


def test_pauses_are_faults_that_need_no_encoding(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--protocol", f"{MINE}:Matrix", "--messages", "100", "--check"]
    assert answer(capsys, *words, "--faults", "pause:p1@1s-2s")[1]["verdict"] == "yes"


def test_other_stamps_than_messagepack_writes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (HEAD + COUNTED).replace("    number: int\n", "    number: int\n    more: object = print\n")
    said = refusal(capsys, "simulate", "--protocol", write(tmp_path / "odd.py", text))
    assert "the stamp Number has a field that MessagePack cannot write" in said


def test_an_error_crosses_processes(tmp_path: Path) -> None:
    """Workers find the file by its name; where it is gone, they say so."""
    with pytest.raises(BadMachine, match="cannot be read"):
        find_protocol(str(tmp_path / "gone.py"))
