"""What work costs, whatever else the machine is doing."""

from __future__ import annotations

import os
from pathlib import Path


def processors() -> float:
    """Seconds that processors have worked for this process and all that it started."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(words[1]), []).append(int(entry.parent.name))
        spent[int(entry.parent.name)] = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    found = [os.getpid()]
    for process in found:
        found += parents.get(process, [])
    return sum(spent.get(process, 0) for process in found)
