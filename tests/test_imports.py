"""Imports point downwards only, and the core reads no clock, rolls no dice and opens nothing.

The rules are the two tables below. They are checked on the installed package, by reading its files: an import
counts wherever it stands, in a function or under `if TYPE_CHECKING` as much as at the top.

A *unit* is one child of the package, a module or a subpackage: `antecede.protocols.matrix` belongs to `protocols`.
The package's own `__init__` is the unit `antecede`, and `__main__` is `__main__`.

Inside `spark` the children are units too, without a table: whatever they import from each other, no circle leads from
one back to it.
"""

import ast
import graphlib
import importlib.util
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = "antecede"

CORE = {
    "model",
    "errors",
    "topology",
    "protocols",
    "oracle",
    "diagram",
    "replay",
    "wire",
    "link",
    "program",
    "steps",
    "explore",
    "process",
}
BASE = CORE | {"blob", "disk", "jit", "plugin", "storage", "trace"}
SHELLS = {"report", "spark", "sim", "net", "watch"}

# unit -> the units that it may import, besides itself. A unit that is not here has no place yet: give it one.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "model": {"errors"},
    "topology": {"model", "errors"},
    "diagram": {"model", "errors"},
    # The oracle judges the protocols, so it shares nothing with them.
    "oracle": {"model", "errors"},
    "protocols": {"model", "errors", "topology"},
    "wire": {"model", "errors", "topology", "protocols", "link"},
    "link": {"errors"},
    "program": {"model", "errors"},
    "steps": {"model", "errors", "topology", "protocols", "program"},
    "explore": {"model", "errors", "topology", "protocols", "oracle", "diagram", "program", "steps"},
    "replay": {"model", "errors", "protocols", "oracle", "diagram", "program", "steps", "explore"},
    "plugin": {"model", "errors", "protocols"},
    "disk": set(),
    "jit": set(),
    "storage": {"errors"},
    "trace": {"model", "errors", "topology", "blob", "disk", "jit", "storage"},
    "blob": set(),
    # The algorithm of `verify`, which runs in this process or in Spark's tasks. The oracle judges it.
    "verification": {"errors", "blob", "jit", "storage", "trace"},
    # For tests of other people's systems.
    "testing": {"errors", "model", "diagram", "jit", "trace", "verification"},
    "process": {"model", "errors", "topology", "protocols", "wire", "link"},
    "sim": BASE,
    "net": BASE,
    "html": set(),
    "report": BASE | {"html"},
    "watch": {"errors", "html"},
    "spark": BASE | {"sim", "verification", "watch"},
    # What everyone's `import antecede` runs: no shell, so no pyspark and no event loop.
    "antecede": BASE | {"verification"},
    "cli": BASE | SHELLS | {"antecede", "verification"},
    "__main__": {"cli"},
}

# A page is made without Spark. These modules ask steps on Spark for what it shows; nothing of `spark` knows the report.
ON_SPARK = {f"antecede.report.{name}" for name in ("gather", "queries", "results")}
MORE_ON_SPARK = {"antecede", "spark", "verification"}

# What a unit may name for type checkers alone, under `if TYPE_CHECKING`, and loads when it is asked for.
MAY_NAME: dict[str, set[str]] = {"antecede": {"net"}}

# What a pure state machine cannot need: clocks, chance, identity, the system, other threads, files.
IMPURE = {
    "asyncio",
    "concurrent",
    "datetime",
    "io",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "selectors",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}

# Packages that are not ours, for the units that name what they need. The others may use any dependency.
THIRD_PARTY: dict[str, set[str]] = {unit: {"msgspec", "numpy"} for unit in CORE} | {
    "topology": {"msgspec", "numpy", "networkx"},
    "disk": set(),
    "jit": {"numba", "numpy"},
    "blob": {"numpy", "pyarrow"},
    "storage": {"pyarrow"},
    "trace": {"msgspec", "numpy", "pyarrow"},
    "verification": {"msgspec", "numpy", "pyarrow"},
}


class Import(NamedTuple):
    line: int
    name: str  # dotted, as far as it can name a module: `from antecede import wire` imports `antecede.wire`


def imports(source: str, module: str, is_package: bool) -> Iterator[Import]:
    """Every import in the text of `module`, relative ones made absolute."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (Import(node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                if level:
                    above = package.split(".")[: len(package.split(".")) - (level - 1)]
                    base = ".".join([*above, base] if base else above)
                assert base is not None
                yield from (Import(node.lineno, f"{base}.{alias.name}") for alias in names)


def find_checker_lines(source: str) -> set[int]:
    """The lines that only a type checker reads: the bodies of `if TYPE_CHECKING`."""
    return {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for part in node.body
        for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)
    }


def unit_of(dotted: str) -> str:
    """The unit that a dotted name belongs to: a name that is no unit is the package's own (`__version__`)."""
    _, _, rest = dotted.partition(".")
    child = rest.partition(".")[0]
    if child in MAY_IMPORT and child != PACKAGE:
        return child
    return PACKAGE


def broken_rules(source: str, module: str, is_package: bool = False) -> list[str]:
    """One sentence for each import of `module` that a rule forbids."""
    unit = module.split(".")[1] if "." in module else PACKAGE
    if unit not in MAY_IMPORT:
        return [f"{module}: no rule for {unit}: give it a place in MAY_IMPORT"]
    found = []
    on_spark = unit == "spark" or module in ON_SPARK
    known = MAY_IMPORT[unit] | (MORE_ON_SPARK if module in ON_SPARK else set())
    named = find_checker_lines(source)
    for line, name in imports(source, module, is_package):
        where = f"{module}, line {line}: {unit}"
        top = name.partition(".")[0]
        if top == PACKAGE:
            target = unit_of(name)
            if target in MAY_NAME.get(unit, ()) and line in named:
                continue
            if target != unit and target not in known:
                found.append(f"{where} may not import {target}")
        elif unit in CORE and (top in IMPURE or name.startswith("numpy.random")):
            found.append(f"{where} is pure and may not import {name.removesuffix('.*')}")
        elif top == "pyspark" and not on_spark:
            found.append(f"{where} may not import pyspark: only spark does")
        elif top not in sys.stdlib_module_names and top not in THIRD_PARTY.get(unit, {top}):
            found.append(f"{where} may not depend on {top}")
    return found


@cache
def list_modules() -> dict[str, Path]:
    """Module name -> file, found without importing anything."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        modules[".".join([PACKAGE, *(part for part in parts if part != "__init__")])] = path
    return modules


@pytest.mark.parametrize("module", [pytest.param(name, id=name) for name in list_modules()])
def test_imports_point_downwards(module):
    path = list_modules()[module]
    assert broken_rules(path.read_text(encoding="utf-8"), module, path.name == "__init__.py") == []


SHARED_PROTOCOL_MODULES = {"machine", "receiver"}


def test_drivers_know_protocols_by_their_attributes_alone():
    """Only `routes`, which is for the one protocol with a topology, knows it by its name."""
    found = {
        f"{module} imports {name}"
        for module, path in list_modules().items()
        if module.startswith(("antecede.net", "antecede.process")) and not module.endswith(".views.routes")
        for _, name in imports(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
        if name.startswith("antecede.protocols.")
        and ".".join(name.split(".")[:3]) in list_modules()
        and name.split(".")[2] not in SHARED_PROTOCOL_MODULES
    }
    assert found == set()


def test_the_rules_themselves_have_no_cycle():
    tuple(graphlib.TopologicalSorter(MAY_IMPORT).static_order())


def child_of(dotted: str, parent: str) -> str | None:
    """The child of the parent that a dotted name belongs to; None if it belongs to none."""
    inside = dotted.removeprefix(f"{parent}.")
    return None if inside == dotted else inside.partition(".")[0]


def children_imports(parent: str, sources: dict[str, str]) -> dict[str, set[str]]:
    """Child of the parent -> the other children that its modules import. `sources` are modules and their texts."""
    children = {child_of(module, parent) for module in sources} - {None}
    graph: dict[str, set[str]] = {child: set() for child in children if child is not None}
    for module, source in sources.items():
        own = child_of(module, parent)
        if own is not None:
            named = {child_of(found.name, parent) for found in imports(source, module, is_package=False)}
            graph[own] |= {other for other in named if other in graph and other != own}
    return graph


KNOWN_CIRCLES: set[tuple[str, str]] = set()
"""A folder of spark/ that still imports one that imports it. This list only shrinks."""


def test_no_circle_leads_from_a_folder_of_spark_back_to_it():
    sources = {name: path.read_text(encoding="utf-8") for name, path in list_modules().items()}
    graph = children_imports("antecede.spark", sources)
    assert {"verify", "order", "measure", "stream", "trace"} <= graph.keys()
    for folder, imported in KNOWN_CIRCLES:
        graph[folder].remove(imported)
    tuple(graphlib.TopologicalSorter(graph).static_order())


def test_a_circle_between_folders_is_found():
    sources = {
        "antecede.spark.order.api": "from antecede.spark.verify.api import verify",
        "antecede.spark.verify.api": "from antecede.spark.trace import Trace",
        "antecede.spark.trace": "def f():\n    from antecede.spark.order.by_trace import with_clock",
        "antecede.spark.verify.tasks": "import antecede.spark.verify.api",
    }
    graph = children_imports("antecede.spark", sources)
    assert graph == {"order": {"verify"}, "verify": {"trace"}, "trace": {"order"}}
    with pytest.raises(graphlib.CycleError):
        tuple(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize(
    ("module", "source", "told"),
    [
        ("antecede.oracle", "from antecede.protocols import Matrix", "oracle may not import protocols"),
        ("antecede.oracle", "from .protocols.matrix import Matrix", "oracle may not import protocols"),
        ("antecede.oracle", "from . import wire", "oracle may not import wire"),
        ("antecede.oracle", "from antecede import Matrix", "oracle may not import antecede"),
        ("antecede.protocols.made_up", "from ..wire import encode", "protocols may not import wire"),
        (
            "antecede.protocols.made_up",
            "def f():\n    import antecede.sim.loop",
            "protocols may not import sim",
        ),
        ("antecede.protocols.made_up", "import time", "protocols is pure and may not import time"),
        ("antecede.explore", "from random import Random", "explore is pure and may not import random.Random"),
        ("antecede.wire", "from os import path", "wire is pure and may not import os.path"),
        ("antecede.model", "import numpy.random as r", "model is pure and may not import numpy.random"),
        ("antecede.model", "import networkx", "model may not depend on networkx"),
        (
            "antecede.verification.chunk",
            "import pyspark.sql",
            "verification may not import pyspark: only spark does",
        ),
        (
            "antecede.verification.chunk",
            "from antecede.oracle import check",
            "verification may not import oracle",
        ),
        ("antecede.trace.columns", "import numba", "trace may not depend on numba"),
        ("antecede.net.node", "from antecede.sim import loop", "net may not import sim"),
        ("antecede.sim.sweep", "import antecede.spark", "sim may not import spark"),
        ("antecede.sim.sweep", "import antecede", "sim may not import antecede"),
        ("antecede.cli.verify", "import pyspark.sql", "cli may not import pyspark: only spark does"),
        ("antecede.report.page", "import pyspark.sql", "report may not import pyspark: only spark does"),
        ("antecede.report.page", "from antecede.spark import Trace", "report may not import spark"),
        ("antecede.spark.trace", "from antecede.report import queries", "spark may not import report"),
        ("antecede", "from antecede.net import Node", "antecede may not import net"),
        (
            "antecede",
            "if TYPE_CHECKING:\n    from antecede.model import View\nelse:\n    from antecede.net import Node",
            "antecede may not import net",
        ),
        ("antecede.utils", "", "no rule for utils: give it a place in MAY_IMPORT"),
    ],
)
def test_a_forbidden_import_is_reported(module, source, told):
    [sentence] = broken_rules(source, module, is_package=module == PACKAGE)
    assert sentence.startswith(module)
    assert sentence.endswith(told)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "antecede.protocols.made_up",
            "from antecede.protocols.machine import Machine\nimport msgspec, heapq",
        ),
        ("antecede.protocols.made_up", "from .machine import Machine\nfrom ..model import Message"),
        ("antecede.topology.made_up", "import networkx as nx"),
        ("antecede.spark.sweep", "from antecede.sim import experiments\nimport pyspark"),
        ("antecede.report.queries", "from antecede.spark.trace import Trace\nimport pyspark"),
        ("antecede.sim.made_up", "import random\nfrom antecede import oracle"),
        ("antecede.cli.made_up", "from antecede import __version__\nfrom antecede.spark import verify"),
        ("antecede", "from antecede.model import Message\nfrom .protocols import Matrix"),
        ("antecede", "if TYPE_CHECKING:\n    from antecede.net import Node"),
    ],
)
def test_an_allowed_import_is_not_reported(module, source):
    assert broken_rules(source, module, is_package=module == PACKAGE) == []
