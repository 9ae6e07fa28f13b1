"""Does each shortcut that was written by hand pay? python -m benchmarks.net.shortcuts

Takes each away in a copy of the package, and counts the bytecodes of a delivery there (`counts`), beside those of the
package as it is. What does the same without it stands beside each in the code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.net.counts import count_alone, count_flood
from benchmarks.net.measure import Case, Load
from benchmarks.net.systems import Nodes

__all__ = ["SHORTCUTS", "main"]

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "antecede"
LOAD = Load(3, 100, 300)
HEADS = ("as fast as they may", "the same with a journal, normal", "one at a time")


class Shortcut(NamedTuple):
    """In this file, these words become those, and the longer way is taken."""

    what: str
    file: str
    words: str
    instead: str


SHORTCUTS = [
    Shortcut(
        "send: one copy that leaves at once is gathered without `follow`", "process/core.py",
        "len(effects) == len(seats) == 1\n                and", "False and",
    ),
    Shortcut(
        "take: one message that follows is offered without `follow`", "process/core.py",
        "if len(effects) == 1 and type(effect := effects[0]) is Message:", "if False:",
    ),
    Shortcut(
        "receive: the first message is taken without asking for a sender, repeats, or a limit", "net/node.py",
        "elif host.quick and not self._closing and not self._untold:", "elif False:",
    ),
    Shortcut(
        "send: there is room for a peer that was sent to before", "net/node.py",
        "easy = self._easy.get(to) if type(to) is str and core.steady else None", "easy = None",
    ),
    Shortcut(
        "host: nothing is written or recorded", "net/driver.py",
        "self.quick = journal is None and not core.record.on and not core.machine.explicit", "self.quick = False",
    ),
    Shortcut(
        "host: take without an input", "net/driver.py",
        "        if not core.steady:\n            self.happen(Take(*identity))",
        "        if True:\n            self.happen(Take(*identity))",
    ),
    Shortcut(
        "host: acknowledge without an input", "net/driver.py",
        "        if not self.core.steady:\n            return self.happen(Acknowledge(*identity))",
        "        if True:\n            return self.happen(Acknowledge(*identity))",
    ),
    Shortcut("frames: short numbers are read by hand", "wire/frames.py", "if len(data) < 7 or data[0]:", "if True:"),
    Shortcut(
        "frames: short numbers are written by hand", "wire/frames.py",
        "if not (0 <= number < 1 << 21 and 0 <= ack < 1 << 21):", "if True:",
    ),
]  # fmt: skip


def _count(directory: str) -> list[float]:
    """Bytecodes of a delivery with the package that is in this directory, as the head of the table has them."""
    command = [sys.executable, "-m", "benchmarks.net.shortcuts", "--count"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([directory, str(ROOT)])}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return [float(count) for count in done.stdout.split()]


def main() -> None:
    if "--count" in sys.argv:
        case = Case("permit", partial(Nodes, protocol="permit"))
        kept = Case("permit, journal", partial(Nodes, protocol="permit", sync="normal"))
        counted = count_flood(case, LOAD), count_flood(kept, LOAD), count_alone(case, LOAD.nodes, LOAD.size)
        print(*(counts["bytecodes"] for counts in counted))
        return
    print("| bytecodes of a delivery of `permit`, 3 nodes, 100 bytes | " + " | × | ".join(HEADS) + " | × |")
    print("|---|" + "--:|--:|" * len(HEADS))
    now = _count(str(SOURCE.parent))
    print("| as it is | " + " | ".join(f"{count:,.0f} | 1.00" for count in now) + " |", flush=True)
    for shortcut in SHORTCUTS:
        with tempfile.TemporaryDirectory() as directory:
            copy = Path(directory) / "antecede"
            shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
            file = copy / shortcut.file
            text = file.read_text(encoding="utf-8")
            assert text.count(shortcut.words) == 1, f"{shortcut.what}: it is written otherwise now"
            file.write_text(text.replace(shortcut.words, shortcut.instead), encoding="utf-8")
            found = _count(directory)
        figures = " | ".join(
            f"{here:,.0f} | {here / there:.2f}" for here, there in zip(found, now, strict=True)
        )
        print(f"| without: {shortcut.what} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
