"""A monitor on Spark, fed by nodes while they run: `python -m examples.monitor` (`pip install 'antecede[spark]'`).

The people of `examples.chat` talk again, and their nodes record what they do, as files that appear meanwhile. A stream
of Spark reads them and judges every run while it goes on: an answer that is read before its question is told at once.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from antecede.net import Memory, Node, Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES = ["ann", "bob", "eve"]


async def talk(protocol: str, trace: Path, cut_s: float) -> None:
    """Ann asks, bob answers, eve reads both; ann cannot reach her for so long. The run is named for the protocol."""
    network, settings = Memory(), Settings(trace_s=0.2)
    network.cut("ann", "eve")

    def node(name: str) -> Node:
        transport = network.at(name)
        return Node(
            name, NAMES, protocol=protocol, transport=transport, settings=settings, trace=trace, run=protocol
        )

    async with node("ann") as ann, node("bob") as bob, node("eve") as eve:
        await ann.send(["bob", "eve"], b"shall we meet at six?")
        await bob.receive()
        await bob.send(["ann", "eve"], b"yes, let us")
        reading = asyncio.ensure_future(eve.receive())
        await asyncio.wait({reading}, timeout=cut_s)
        network.heal("ann", "eve")
        await reading
        await eve.receive()
        await ann.receive()


def watch(
    spark: SparkSession,
    directory: Path,
    protocols: Sequence[str],
    say: Callable[[str], None],
    cut_s: float = 0.5,
) -> None:
    """Let nodes run under each protocol, and say what goes wrong."""
    from antecede.spark.sources import traces
    from antecede.spark.stream.api import verify_stream

    def tell(batch: DataFrame, number: int) -> None:
        for row in batch.where("kind = 'violation'").collect():
            message, cause = f"{row.sender}.{row.number}", f"{row.by_sender}.{row.by_number}"
            say(f"{row.run}: {row.process} was handed {message} after {cause}, which it comes before")

    trace = directory / "trace"
    findings = verify_stream(traces(spark, trace)).writeStream.foreachBatch(tell)
    query = findings.option("checkpointLocation", str(directory / "checkpoint")).start()
    try:
        for protocol in protocols:
            asyncio.run(talk(protocol, trace, cut_s))
            query.processAllAvailable()
            say(f"{protocol}: the run is over")
    finally:
        query.stop()


def main(protocols: list[str]) -> None:
    from antecede.spark import connect

    with tempfile.TemporaryDirectory() as directory:
        spark = connect(settings={"spark.sql.shuffle.partitions": "2"})
        try:
            watch(spark, Path(directory), protocols, lambda words: print(words, flush=True))
        finally:
            spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:] or ["unordered", "permit"])
