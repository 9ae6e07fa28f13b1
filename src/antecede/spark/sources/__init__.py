"""Where streams come from and go to, besides what Spark itself reads and writes.

    kafka            the records of Kafka topics, with the columns of Spark's own source
    take_events      identifiers and causes of such records, from headers or from JSON
    jetstream        the messages of a NATS JetStream stream
    jetstream_sink   rows back to such a stream, in order, each once
    node_feed        what running nodes record, over TCP
    traces           what running nodes record, in files that appear

docs/sources.md is the tour.
"""

from antecede.spark.sources.jetstream import jetstream
from antecede.spark.sources.jetstream_sink import jetstream_sink
from antecede.spark.sources.kafka import kafka, take_events
from antecede.spark.sources.nodes import node_feed, traces

__all__ = ["jetstream", "jetstream_sink", "kafka", "node_feed", "take_events", "traces"]
