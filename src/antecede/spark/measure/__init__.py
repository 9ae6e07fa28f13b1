"""Measure: what each run of a trace cost.

api        a trace -> tables
facts      what tasks count, each in a chunk of the trace
chains     which task follows the order of which run
"""
