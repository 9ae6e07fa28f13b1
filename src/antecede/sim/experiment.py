"""An experiment: a file that says which runs to make, and nothing about where they are made.

    title = "Extra messages as k grows"
    measure = ["stamps"]                      # see `antecede.sim.measure`; none unless asked for

    [grid]                                    # what the cases share
    messages = 2000
    workload = ["uniform", "groups:size=3"]   # a list is an axis: the runs are the product of all axes
    seeds = 5                                 # seed = [0, 1, 2, 3, 4]

    [[case]]                                  # each case is a grid of its own: what belongs together stands together
    name = "small"
    protocol = ["matrix", "bounded:k=9", "bounded:k=64"]
    processes = 8

    [[case]]
    name = "large"
    protocol = "bounded"
    parameters.k = [17, 256]                  # the same as protocol = ["bounded:k=17", "bounded:k=256"]
    processes = 16

The keys are those of `RunSpec`, and `seeds`. What a case gives replaces what the grid gives, and the same with
`measure`; a file without cases is one case. A parameter that is to differ from process to process is written
`9*4/64*4`: see `RunSpec`.

>>> table = {"grid": {"protocol": ["fifo", "bounded:k=6"], "processes": 5, "seeds": 2}}
>>> [(run.spec.protocol, run.spec.parameters, run.spec.seed) for run in expand(table, "example").runs]
[('fifo', {}, 0), ('fifo', {}, 1), ('bounded', {'k': 6}, 0), ('bounded', {'k': 6}, 1)]
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antecede.errors import AntecedeError, BadExperiment, BadParameter, InputError
from antecede.plugin import split_name
from antecede.sim.measure import Measures
from antecede.sim.run import RunSpec
from antecede.sim.specs import Spec

__all__ = ["Experiment", "Run", "expand", "load", "parse_protocol"]

RUNS_MOST = 1_000_000

WORDS = ("protocol", "network", "workload", "topology", "faults")
NUMBERS = ("processes", "messages", "seed")
AXES = (
    "protocol",
    "parameters",
    "processes",
    "messages",
    "network",
    "workload",
    "topology",
    "faults",
    "seed",
)
"""In the order in which they vary: the last one varies first."""


BUILT_MOST: Final = 512
"""Processes of a run up to which it is built before the first run of its experiment begins."""


class Run(Struct, frozen=True):
    """One run of an experiment."""

    case: str
    spec: RunSpec
    measure: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The same for the same run of the same case, on every machine: its name in results and traces."""
        words = msgspec.json.encode((self.case, self.spec, self.measure), order="deterministic")
        # A file's path has what the name of a file cannot have.
        name = self.spec.protocol.rpartition("/")[2].replace(":", ".")
        return f"{name}-{hashlib.sha256(words).hexdigest()[:12]}"


class Experiment(Struct, frozen=True):
    name: str
    title: str
    runs: tuple[Run, ...]

    def check(self) -> None:
        """Build every kind of run once, without running it: what is wrong with a text shows here.

        A run of more than BUILT_MOST processes is built in its turn, and is a failure if it cannot be: to build some
        thousands takes seconds, and memory.
        """
        for run in {_kind(run.spec): run for run in self.runs if run.spec.processes <= BUILT_MOST}.values():
            try:
                Measures(run.measure, run.spec.build())
            except BadParameter as error:
                raise BadExperiment(f"{self.name}: case {run.case}, {error.place}:", error.reason) from error
            except AntecedeError as error:
                raise InputError(f"{self.name}: case {run.case}: {error}") from error


def _kind(spec: RunSpec) -> bytes:
    """The spec without its seed, which has no part in what can be wrong."""
    return msgspec.json.encode(replace(spec, seed=0))


def load(path: str | Path) -> Experiment:
    """The experiment that a TOML file describes."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadExperiment(str(path), f"is no TOML: {error}") from error
    return expand(table, str(path))


def expand(table: Mapping[str, Any], name: str) -> Experiment:
    """The experiment that a table describes; `name` is for what is said about it."""
    _check_keys(name, table, ("title", "measure", "grid", "case"))
    title = _check_type(f"{name}: title", table.get("title", ""), str, "a text")
    measure = _measure(name, table.get("measure", []))
    grid = _check_type(f"{name}: grid", table.get("grid", {}), dict, "a table")
    cases = _check_type(f"{name}: case", table.get("case", [{}]), list, "tables: [[case]]")
    runs: dict[str, Run] = {}
    for number, case in enumerate(cases, 1):
        _check_type(f"{name}: case {number}", case, dict, "a table")
        label = _check_type(f"{name}: case {number}, name", case.get("name", str(number)), str, "a text")
        asked = _measure(f"{name}: case {label}", case["measure"]) if "measure" in case else measure
        own = {key: value for key, value in case.items() if key not in ("name", "measure")}
        for spec in _grid(f"{name}: case {label}", {**_without_seeds(grid, own), **own}):
            run = Run(label, spec, asked)
            runs[run.key] = run
            if len(runs) > RUNS_MOST:
                raise BadExperiment(
                    name, f"describes more than {RUNS_MOST:,} runs: ask for fewer seeds or values"
                )
    return Experiment(name, title, tuple(runs.values()))


def _measure(place: str, value: Any) -> tuple[str, ...]:
    expected = "a text, or a list of texts"
    return tuple(_check_type(f"{place}, measure", one, str, expected) for one in _list(value))


def _without_seeds(grid: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """`seed` and `seeds` say the same thing: a case that gives either replaces both."""
    both = {"seed", "seeds"}
    return {key: value for key, value in grid.items() if key not in both} if both & own.keys() else grid


def _grid(place: str, table: dict[str, Any]) -> Iterator[RunSpec]:
    _check_keys(place, table, (*AXES, "seeds"))
    axes = {key: _axis(f"{place}, {key}", key, table[key]) for key in AXES if key in table}
    if "seeds" in table:
        count = _check_type(f"{place}, seeds", table["seeds"], int, "a whole number")
        if "seed" in axes or count < 1:
            raise BadExperiment(
                f"{place}, seeds", f"is {count}: it must be 1 or more, without a seed beside it"
            )
        axes["seed"] = list(range(count))
    if "protocol" not in axes:
        raise BadExperiment(f"{place}, protocol", "is missing: name a protocol, or a list of them")
    for values in product(*axes.values()):
        yield _spec(place, dict(zip(axes, values, strict=True)))


def _axis(place: str, key: str, value: Any) -> list[Any]:
    if key == "parameters":
        table = _check_type(place, value, dict, "a table")
        lists = [_list(one) for one in table.values()]
        return [dict(zip(table, values, strict=True)) for values in product(*lists)]
    values = _list(value)
    if not values:
        raise BadExperiment(place, "is an empty list: give at least one value")
    kind, expected = (
        (str, "a text, or a list of texts") if key in WORDS else (int, "a number, or a list of them")
    )
    return [_check_type(place, one, kind, expected) for one in values]


def _spec(place: str, values: dict[str, Any]) -> RunSpec:
    name, given = parse_protocol(place, values["protocol"])
    try:
        parameters = {**values.get("parameters", {}), **given}
        return RunSpec.load({**values, "protocol": name, "parameters": parameters}, place)
    except BadParameter as error:
        raise BadExperiment(f"{place}:", error.reason) from error


def parse_protocol(place: str, text: str) -> tuple[str, dict[str, Any]]:
    """A protocol and its parameters, from NAME or NAME:key=value,key=value; NAME may be FILE.py:CLASS."""
    name, kind, settings = split_name(text)
    protocol = Spec.parse("protocol", f"{name}:{settings}")
    if protocol.values:
        raise BadExperiment(f"{place}, protocol", f"is {text!r}: write NAME, or NAME:key=value")
    parameters = {key: _value(value) for key, value in protocol.options.items()}
    return f"{name}:{kind}" if kind else name, parameters


def _value(text: str) -> Any:
    """A parameter in a text, as `antecede simulate --set` reads it."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.removeprefix("-").isdigit() else text


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_type(place: str, value: Any, type_: type, kind: str) -> Any:
    if not isinstance(value, type_) or (type_ is int and isinstance(value, bool)):
        raise BadExperiment(place, f"must be {kind}, not {value!r}")
    return value


def _check_keys(place: str, table: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in table:
        if key not in keys:
            raise BadExperiment(place, f"has the unknown key {key!r}; the keys are {', '.join(keys)}")
