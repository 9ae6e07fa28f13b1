"""Logs that others wrote: text in, rows of events or of lines that could not be read out.

log       the columns of what is read, and vector clocks in JSON
formats   which there are, and what a request may ask of them
lines     one event a line: the `tracing` library and TLA+ models
shiviz    ShiViz and GoVector: text and a regular expression

Nothing here is needed to read Antecede's own traces.
"""
