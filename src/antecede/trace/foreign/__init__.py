"""Logs that others wrote: text in, rows of events or of lines that could not be read out.

log       the columns of what is read, and vector clocks in JSON
formats   which there are, and what a request may ask of them
lines     formats of one event a line
shiviz    ShiViz and GoVector: text and a regular expression
tracing   the `tracing` library: JSON Lines, whose tokens are messages
tlaplus   TLA+ models: NDJSON

Nothing here is needed to read Antecede's own traces.
"""
