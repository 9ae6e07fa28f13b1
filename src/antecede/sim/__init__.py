"""The simulator: millions of messages through the real machines, over networks and loads of one's choice.

>>> from antecede.sim import RunSpec
>>> quick = RunSpec(protocol="history", processes=6, messages=300, seed=1, network="zones", workload="groups:size=3")
>>> summary = quick.run()
>>> summary.delivered, summary.stamp_entries.p50 < 36
(600, True)

Read `run` first, then `engine`; the words of a spec are explained in `network`, `workloads` and `places`.
"""

from __future__ import annotations

from antecede.sim.run import RunSpec, Simulation
from antecede.sim.summary import Distribution, Summary

__all__ = ["Distribution", "RunSpec", "Simulation", "Summary"]
