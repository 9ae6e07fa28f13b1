"""Causal order for a live stream: packets come in as they arrive, and go out as they may be delivered.

docs/stream.md is the tour; `packets` says what the columns are, `bucket` how it works without Spark.
"""
