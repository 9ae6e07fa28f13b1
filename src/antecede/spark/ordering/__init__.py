"""What an order is made of: clocks for traces that have none, counts, positions. See `antecede.spark.order`."""
