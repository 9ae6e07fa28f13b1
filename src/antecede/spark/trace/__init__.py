"""A trace as the steps read it: DataFrames, footers, which task reads what, and rows as columns of integers."""
