"""Antecede delivers messages between processes in causal order, and shows that it did."""

__version__ = "0.1.0"
