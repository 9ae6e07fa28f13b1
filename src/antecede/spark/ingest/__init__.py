"""Foreign logs and tables become traces."""
