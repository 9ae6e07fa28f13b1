"""The command: see the package. Exit code 0: nothing wrong. 1: something is, and its files are kept."""

from __future__ import annotations

import argparse
import asyncio
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.chaos.census import Census, take_census
from benchmarks.chaos.faults import FAULTS
from benchmarks.chaos.fleet import Fleet, Options, Passed, Stuck
from benchmarks.chaos.judge import Account, account, by_oracle, by_verify, same
from benchmarks.chaos.town import Asked, Town, Went

__all__ = ["Moved", "Outcome", "main", "move", "run"]


class Outcome(Struct, frozen=True):
    """One run, and everything that is wrong with it."""

    options: Options
    passed: Passed | None
    account: Account
    wrong: list[str]
    judge_s: float = 0.0


def run(
    options: Options, directory: Path, oracle: bool = False, progress: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Let nodes run in a directory, and judge them: by `antecede verify`, or by the oracle."""
    try:
        passed = asyncio.run(Fleet(options, directory, progress).run())
    except Stuck as stuck:
        return Outcome(options, None, Account(), [str(stuck)])
    progress("judging")
    plan, start = options.plan, time.monotonic()
    found = account(directory, plan)
    wrong = [*found.wrong, *same(directory, plan)]
    if oracle:
        wrong += by_oracle(directory, plan, options.protocol)
    else:
        wrong += by_verify(directory, found.delivered)
    return Outcome(options, passed, found, wrong, time.monotonic() - start)


class Moved(Struct, frozen=True):
    """One run in which members came and went, and everything that is wrong with it."""

    asked: Asked
    went: Went | None
    census: Census

    @property
    def wrong(self) -> list[str]:
        return self.census.wrong


def move(asked: Asked, directory: Path, progress: Callable[[str], None] = lambda _: None) -> Moved:
    """Let members come and go in a directory, and judge them."""
    try:
        went = asyncio.run(Town(asked, directory, progress).run())
    except Stuck as stuck:
        return Moved(asked, None, Census(wrong=[str(stuck)]))
    progress("judging")
    return Moved(asked, went, take_census(directory, went.names, set(went.removed), set(went.left)))


MOVED = (
    "protocol | founders | in all | messages | deliveries | kills | changes | joins | leaves | removals"
    " | other settings | lives | handed again | cuts | holes | parts | minutes | wrong"
)


def format_moved(moved: Moved) -> str:
    census, went = moved.census, moved.went
    counts, weather = ({}, {}) if went is None else (went.counts, went.weather)
    numbers = [
        moved.asked.nodes,
        0 if went is None else len(went.names),
        census.sent,
        census.delivered,
        *(counts.get(kind, 0) for kind in ("kills", "changes", "join", "leave", "remove", "other settings")),
        census.lives,
        census.again,
        *(weather.get(kind, 0) for kind in ("cut", "hole", "part")),
    ]
    minutes = 0.0 if went is None else went.seconds / 60
    shown = " | ".join(f"{number:,}" for number in numbers)
    return f"| `{moved.asked.protocol}` | {shown} | {minutes:.1f} | {len(moved.wrong) or 'nothing'} |"


COLUMNS = (
    "protocol | nodes | messages | deliveries | kills | lives | handed again | cuts | holes | parts | minutes"
    " | wrong"
)


def row(outcome: Outcome) -> str:
    options, found, passed = outcome.options, outcome.account, outcome.passed
    weather = {} if passed is None else passed.weather
    numbers = [
        options.nodes,
        options.plan.each * options.nodes,
        found.delivered,
        0 if passed is None else passed.kills,
        found.lives,
        found.again,
        *(weather.get(kind, 0) for kind in ("cut", "hole", "part")),
    ]
    minutes = 0.0 if passed is None else passed.seconds / 60
    shown = " | ".join(f"{number:,}" for number in numbers)
    return f"| `{options.protocol}` | {shown} | {minutes:.1f} | {len(outcome.wrong) or 'nothing'} |"


def report(outcomes: Sequence[Outcome | Moved], command: str) -> str:
    head = ["# Nodes under fire", "", f"`{command}`, Python {platform.python_version()}.", ""]
    columns = MOVED if any(isinstance(one, Moved) for one in outcomes) else COLUMNS
    rule = "|---|" + "--:|" * columns.count("|")
    rows = [format_moved(one) if isinstance(one, Moved) else row(one) for one in outcomes]
    return "\n".join([*head, f"| {columns} |", rule, *rows, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    outcomes: list[Outcome | Moved] = []
    for protocol in options.protocol or ["permit", "matrix", "optimal"]:
        for k in range(options.runs):
            seed = options.seed if options.runs == 1 else f"{options.seed}.{k + 1}"
            if options.changes:
                town = Asked(
                    protocol, options.messages, options.kills, options.changes, options.nodes, seed,
                    pause_s=options.pause, patience_s=max(120.0, options.patience),
                )  # fmt: skip
                outcomes.append(_one(town, options.directory, options.oracle))
                continue
            asked = Options(
                protocol,
                options.messages,
                options.kills,
                nodes=options.nodes,
                seed=seed,
                snapshot_inputs=options.snapshot_inputs,
                pause_s=options.pause,
                patience_s=options.patience,
                fault=options.fault,
                transport=options.transport,
            )
            outcomes.append(_one(asked, options.directory, options.oracle))
    command = "python -m benchmarks.chaos " + " ".join(sys.argv[1:] if arguments is None else arguments)
    text = report(outcomes, command)
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    return int(any(outcome.wrong for outcome in outcomes))


def _one(options: Options | Asked, parent: Path | None, oracle: bool) -> Outcome | Moved:
    start = time.monotonic()

    def progress(words: str) -> None:
        print(f"{time.monotonic() - start:6.0f} s  {options.protocol}: {words}", file=sys.stderr, flush=True)

    directory = Path(tempfile.mkdtemp(prefix="chaos-", dir=parent))
    progress(f"seed {options.seed!r}, in {directory}")
    outcome: Outcome | Moved
    if isinstance(options, Asked):
        outcome = move(options, directory, progress)
    else:
        outcome = run(options, directory, oracle, progress)
    for line in outcome.wrong[:20]:
        progress(line)
    if outcome.wrong:
        (directory / "options.json").write_bytes(msgspec.json.encode(options))
        progress(f"its files are in {directory}")
    else:
        shutil.rmtree(directory)
        progress("nothing wrong")
    return outcome


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description="Nodes under fire.")
    parser.add_argument("--protocol", action="append", help="may be given several times; default: three")
    parser.add_argument("--messages", type=int, default=20_000, help="of all nodes, in a run")
    parser.add_argument("--kills", type=int, default=20, help="in a run")
    parser.add_argument(
        "--changes", type=int, default=0, help="of the view, in a run: nodes join, leave and are removed"
    )
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--runs", type=int, default=1, help="of each protocol, with other seeds")
    parser.add_argument("--snapshot-inputs", type=int, default=2000)
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds after each message that a node sends"
    )
    parser.add_argument("--patience", type=float, default=60.0, help="seconds without a delivery")
    parser.add_argument(
        "--transport", choices=["tcp", "tls", "nats"], default="tcp", help="nats needs a nats-server"
    )
    parser.add_argument("--fault", choices=sorted(FAULTS), help="make all nodes wrong on purpose")
    parser.add_argument(
        "--oracle", action="store_true", help="judge by the oracle: no Spark, small runs only"
    )
    parser.add_argument("--directory", type=Path, help="where files are kept while it runs")
    parser.add_argument("--out", type=Path, help="write the table there too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
