"""Measure: what each run of a trace cost."""
