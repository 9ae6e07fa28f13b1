"""The data pipeline on Spark: DataFrame in, DataFrame out.

    sweep      an experiment            -> a trace, and what each run came to
    ingest     foreign logs             -> a trace, the lines that cannot be read, whether clocks agree
    read_spans spans                    -> a row for each, with the causes that it states; what cannot be read
    order      anyone's events          -> the same rows in causal order, each with what it waits for
    missing    ordered rows             -> what they wait for and is not there
    refused    ordered rows             -> partitions that have no order, and why
    verify     a trace                  -> every violation with its proof, and a verdict for each run
    measure    a trace                  -> what each run cost

    verify_stream    events of a live stream  -> what is wrong with them, as it happens
    sources          where live streams come from and go to

    Trace      a trace as DataFrames, and the files behind them
    connect    a Spark to work on, for whoever has none
    ship       the package itself, to workers that do not have it

Importing this imports PySpark; importing `antecede` does not. A name is loaded when it is asked for: a worker that runs
one step does not pay for the others. docs/pipeline.md is the tour.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from antecede.spark.ingest.api import Ingested, ingest, ingest_table
    from antecede.spark.measure.api import Measures, measure
    from antecede.spark.order.api import missing, order, refused
    from antecede.spark.session import connect, ship
    from antecede.spark.spans.api import Spans, read_spans
    from antecede.spark.stream.api import verify_stream
    from antecede.spark.sweep import Swept, sweep
    from antecede.spark.trace import SPARK_EVENTS, SPARK_RUNS, Trace
    from antecede.spark.verify.api import CausesVerification, Verification, verify

__all__ = [
    "sweep",
    "ingest",
    "ingest_table",
    "read_spans",
    "order",
    "missing",
    "refused",
    "verify",
    "measure",
    "verify_stream",
    "Trace",
    "connect",
    "ship",
    "Swept",
    "Ingested",
    "Spans",
    "Verification",
    "CausesVerification",
    "Measures",
    "SPARK_EVENTS",
    "SPARK_RUNS",
]

HOMES: Final = {
    "ingest.api": ("Ingested", "ingest", "ingest_table"),
    "measure.api": ("Measures", "measure"),
    "order.api": ("missing", "order", "refused"),
    "session": ("connect", "ship"),
    "spans.api": ("Spans", "read_spans"),
    "stream.api": ("verify_stream",),
    "sweep": ("Swept", "sweep"),
    "trace": ("SPARK_EVENTS", "SPARK_RUNS", "Trace"),
    "verify.api": ("CausesVerification", "Verification", "verify"),
}
"""The modules that the names above are loaded from."""


def __getattr__(name: str) -> Any:
    for home, names in HOMES.items():
        if name in names:
            value = getattr(import_module(f"{__name__}.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Package(ModuleType):
    """Python binds the folder `order` to that name here when it is imported. The name is the function's."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = Package
