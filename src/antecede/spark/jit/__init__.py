"""How functions of this package are compiled, and what compiled functions share."""
