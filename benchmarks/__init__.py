"""Side-by-side figures: each benchmark runs its peer or its limit in the same command and prints the ratio."""
