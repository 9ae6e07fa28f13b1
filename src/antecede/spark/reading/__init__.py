"""How tasks read a trace: which task reads what, from what footers say, and rows as columns of integers."""
