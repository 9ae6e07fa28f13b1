"""Ingest beside Spark reading the same lines of text, in one run on the same session.

    python -m benchmarks.spark.ingest [--megabytes 40] [--times 3] [--formats F,F] [--all] [--dir DIR] [--out FILE]

Logs are made for each format: eight processes that talk to each other, with vector clocks, each format in eight files.
*Text* is `spark.read.text(directory)` into a sink that drops the rows: Spark finds the lines, and no more.
*Log* parses and checks each line, and hands the rows to such a sink. *All* is the whole command: clocks checked,
messages resolved, a trace written. Best of the times.

Beside the seconds on the clock are those of all processors together: of Java, and of the Pythons that it started. On a
machine with other work to do, the first depend on it, the second hardly.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from antecede.spark import connect
from antecede.spark.ingest.api import ingest
from benchmarks.spark.processors import processors

NAMES = [f"node-{name}" for name in range(8)]
PATTERN = r"(?<host>\S*) (?<clock>{.*})\n(?<event>.*)"


def talk(seed: int) -> Iterator[tuple[str, str, str, dict[str, int]]]:
    """Events without end: process, kind, token, clock."""
    chance = random.Random(seed)
    clocks: dict[str, dict[str, int]] = {name: {} for name in NAMES}
    flying: list[tuple[str, dict[str, int]]] = []
    for step in range(1 << 62):
        name = chance.choice(NAMES)
        clock, kind, token = clocks[name], "step", ""
        if flying and (len(flying) > 50 or chance.random() < 0.3):
            token, past = flying.pop(chance.randrange(len(flying)))
            kind = "deliver"
            for other, entry in past.items():
                if clock.get(other, 0) < entry:
                    clock[other] = entry
        clock[name] = clock.get(name, 0) + 1
        if kind == "step" and chance.random() < 0.5:
            kind, token = "send", f"{step:032x}"
            flying.append((token, dict(clock)))
        yield name, kind, token, clock


def format_tracing(name: str, kind: str, token: str, clock: dict[str, int]) -> str:
    tag = {"send": "GenerateTokenTrace", "deliver": "ReceiveTokenTrace"}.get(kind, "WorkDone")
    body = {"Token": token} if token else {"ClientId": name}
    event = {
        "TracerIdentity": name,
        "TraceID": 8348256658742909928,
        "Tag": tag,
        "Body": body,
        "VectorClock": clock,
    }
    return json.dumps(event, separators=(",", ":")) + "\n"


def tlaplus(name: str, kind: str, token: str, clock: dict[str, int]) -> str:
    packet: dict[str, object] = {"vc": clock}
    if kind != "step":
        packet = {"snd": name, "rcv": name, "msg": {"type": "pl"}, **packet}
    event = {"event": {"send": ">", "deliver": "<"}.get(kind, "d"), "node": name, "pkt": packet}
    return json.dumps(event, separators=(",", ":")) + "\n"


def shiviz(name: str, kind: str, token: str, clock: dict[str, int]) -> str:
    return f"{name} {json.dumps(clock)}\n{kind} of message {token[-8:]} by {name}\n"


WRITERS: dict[str, Callable[..., str]] = {"tracing": format_tracing, "tlaplus": tlaplus, "shiviz": shiviz}


def make_logs(home: Path, format: str, megabytes: int) -> tuple[Path, int]:
    """A directory of eight log files, and how many lines they have: a file is read by one task."""
    place = home / f"{format}-{megabytes}"
    if not place.is_dir():
        part = home / f"{format}.part"
        part.mkdir(parents=True)
        files = 8
        for number in range(files):
            left = (megabytes << 20) // files
            with (part / f"{number}.log").open("w") as file:
                for event in talk(number):
                    left -= file.write(WRITERS[format](*event))
                    if left <= 0:
                        break
        part.rename(place)
    return place, sum(data.count(b"\n") for data in map(Path.read_bytes, place.iterdir()))


def best(times: int, work: Callable[[], object]) -> tuple[float, float]:
    """The least time on the clock and of the processors."""
    spent = []
    for _ in range(times):
        started, worked = time.perf_counter(), processors()
        work()
        spent.append((time.perf_counter() - started, processors() - worked))
    return min(clock for clock, _ in spent), min(worked for _, worked in spent)


def case(spark: SparkSession, home: Path, format: str, asked: argparse.Namespace) -> list[str]:
    place, lines = make_logs(home, format, asked.megabytes)
    out = home / "out"
    pattern = PATTERN if format == "shiviz" else None

    def text() -> None:
        spark.read.text(str(place)).write.format("noop").mode("overwrite").save()

    def log() -> None:
        read = ingest(spark, place, format, pattern=pattern)
        read.log.write.format("noop").mode("overwrite").save()

    def everything() -> None:
        shutil.rmtree(out, ignore_errors=True)
        counts = ingest(spark, place, format, pattern=pattern).write(out).counts()
        assert counts.rejected == counts.clocks == 0

    # Java is warm before anything is timed.
    text()
    log()
    plain, made_log = best(asked.times, text), best(asked.times, log)
    whole = best(1, everything) if asked.all else None
    size = sum(file.stat().st_size for file in place.iterdir()) / 1e6
    return [
        format,
        f"{size:.0f} MB, {lines / 1e6:.2f} million lines",
        *(f"{clock:.2f} s, {worked:.2f} s" for clock, worked in (plain, made_log)),
        "" if whole is None else f"{whole[0]:.2f} s, {whole[1]:.2f} s",
        *(f"{lines / clock / 1e6:.2f}" for clock, _ in (plain, made_log)),
        f"{plain[0] / made_log[0]:.2f}",
        f"{plain[1] / made_log[1]:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Ingest beside Spark reading the same lines.")
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--formats", default=",".join(WRITERS))
    parser.add_argument("--all", action="store_true", help="time the whole command, too")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    home = asked.dir or Path(tempfile.mkdtemp())
    home.mkdir(parents=True, exist_ok=True)
    spark = connect(log=home / "spark.log")
    heads = [
        "format",
        "input",
        "text (clock, processors)",
        "log",
        "all",
        "text, M lines/s",
        "log, M lines/s",
        "log : text",
        "the same, processors",
    ]
    table = [heads, ["---"] * len(heads)]
    try:
        for format in asked.formats.split(","):
            table.append(case(spark, home, format, asked))
            print(" | ".join(table[-1]), file=sys.stderr)
    finally:
        spark.stop()
        if asked.dir is None:
            shutil.rmtree(home)
    lines = [f"| {' | '.join(row)} |" for row in table]
    report = "\n".join([*lines, "", f"{os.cpu_count()} cores, best of {asked.times}.", ""])
    print(report)
    if asked.out:
        asked.out.write_text(report)


if __name__ == "__main__":
    main()
