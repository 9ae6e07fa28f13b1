"""Events and messages in causal order: clocks for traces that have none, gaps, positions."""
