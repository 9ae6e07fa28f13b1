"""The data pipeline on Spark: DataFrame in, DataFrame out.

    sweep      an experiment            -> a trace, and what each run came to
    ingest     foreign logs             -> a trace, the lines that cannot be read, whether clocks agree
    order      a trace, or stamped rows -> the rows in causal order, and what is missing
    verify     a trace                  -> every violation with its witness, and a verdict for each run
    measure    a trace                  -> what each run cost

    deliver_stream   packets of a live stream -> its messages in causal order (`antecede.spark.stream`)
    verify_stream    events of a live stream  -> what is wrong with them, as it happens
    sources          where live streams come from and go to

    Trace      a trace as DataFrames, and the files behind them
    connect    a Spark to work on, for whoever has none
    ship       the package itself, to workers that do not have it

Importing this imports PySpark; importing `antecede` does not. docs/pipeline.md is the tour.
"""

from antecede.spark.ingest.api import Ingested, ingest, ingest_table
from antecede.spark.measure.api import Measures, measure
from antecede.spark.order.api import Ordered, order
from antecede.spark.order.by_vector import order_stamped
from antecede.spark.session import connect
from antecede.spark.shipping import ship
from antecede.spark.stream import deliver_stream
from antecede.spark.stream.verify import verify_stream
from antecede.spark.sweep.api import Swept, sweep
from antecede.spark.trace.api import SPARK_EVENTS, SPARK_RUNS, Trace
from antecede.spark.verify.api import Verification, verify

__all__ = [
    "sweep",
    "ingest",
    "ingest_table",
    "order",
    "order_stamped",
    "verify",
    "measure",
    "deliver_stream",
    "verify_stream",
    "Trace",
    "connect",
    "ship",
    "Swept",
    "Ingested",
    "Ordered",
    "Verification",
    "Measures",
    "SPARK_EVENTS",
    "SPARK_RUNS",
]
