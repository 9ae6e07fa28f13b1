"""What a node tells of itself: its part of a trace, and the trace context that messages carry."""
