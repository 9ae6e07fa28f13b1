"""Where streams come from and go to, besides what Spark itself reads and writes.

    jetstream        the messages of a NATS JetStream stream
    jetstream_sink   rows back to such a stream, in order, each once
    node_feed        what running nodes record, over TCP
    traces           what running nodes record, in files that appear

docs/sources.md is the tour.
"""

from antecede.spark.sources.feed import node_feed
from antecede.spark.sources.files import traces
from antecede.spark.sources.jetstream import jetstream
from antecede.spark.sources.sink import jetstream_sink

__all__ = ["jetstream", "jetstream_sink", "node_feed", "traces"]
